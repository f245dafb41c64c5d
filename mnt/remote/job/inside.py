"""What a job would find in the container that `python` starts, before anything starts. Python 3.8."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from mnt.remote.common.containers import how_to_bind, kind_of, remove
from mnt.remote.common.files import encode
from mnt.remote.common.programs import ask
from mnt.remote.common.refusal import Refused
from mnt.remote.job.files import JobPaths
from mnt.remote.job.spec import job_environment, job_variables

PATIENCE = 30.0  # seconds for a container to start
_SHOWN = 300  # characters of what it said

# Runs in the container: any Python 3.
_LOOK = """
import json, os, socket, sys
asked = json.loads(sys.argv[1])
def may_write(path):
    return os.access(path, os.W_OK)
print()
print(json.dumps({
    "cwd": os.getcwd(),
    "missing": [path for path in asked["needs"] if not os.path.exists(path)],
    "closed": [path for path in asked["writes"] if os.path.exists(path) and not may_write(path)],
    "unset": [name for name in asked["names"] if name not in os.environ],
    "nics": [name for _, name in socket.if_nameindex()],
}))
"""


def look_inside(spec: Mapping[str, Any], session: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Raises Refused, saying what a job would miss in its container; the job's files must be there."""
    python = spec["python"]
    if kind_of(python) is None:
        return
    paths = JobPaths.of(spec)
    cwd = spec["cwd"]
    needs = [cwd, paths.directory, *spec.get("paths", ())]
    if spec.get("script"):
        needs.append(os.path.join(cwd, spec["script"]))
    if spec.get("python_files"):
        needs.append(paths.python)
    environment = without_job(job_environment(spec, session, secrets), spec)
    asked = {"needs": needs, "writes": [paths.directory], "names": sorted(spec["env"])}
    found = _ask([*python, "-c", _LOOK, json.dumps(asked)], environment, cwd, spec)
    problem = problem_inside(python, cwd, spec["env"].get("GLOO_SOCKET_IFNAME"), found)
    if problem is not None:
        raise problem


def problem_inside(
    python: Sequence[str], cwd: str, nic: str | None, found: Mapping[str, Any]
) -> Refused | None:
    """What is missing in a container; None: nothing. Pure.

    Args:
        nic: the training NIC.
        found: what `_LOOK` printed.
    """
    words = "in `python` of this host in the inventory"
    if found["missing"]:
        first = found["missing"][0]
        more = f" and {len(found['missing']) - 1} more" if len(found["missing"]) > 1 else ""
        message = f"the container has no {first}{more}, which is there on the host: a bind mount is missing"
        return Refused(message, f"{how_to_bind(python, first)} {words}")
    if found["closed"]:
        return Refused(
            f"the container cannot write to {found['closed'][0]}",
            f"run it as the user of the host, and mount that without `ro`, {words}",
        )
    if found["cwd"] != cwd:
        return Refused(
            f"the container works in {found['cwd']}, not in {cwd}", f"remove the option for that {words}"
        )
    if nic is not None and nic not in found["nics"]:
        return Refused(
            f"the container has no {nic}, the training NIC: it has a network of its own",
            f"--network=host {words}",
        )
    if found["unset"]:
        return Refused(
            f"the environment does not arrive in the container: {', '.join(found['unset'][:3])}",
            f"remove what clears it (--cleanenv, --unset-env) {words}",
        )
    return None


def without_job(environment: Mapping[bytes, bytes], spec: Mapping[str, Any]) -> dict[bytes, bytes]:
    """An environment without the mark of the job: podman may leave a process for all its containers."""
    marks = {encode(name) for name in job_variables(spec["job"], spec["host"])}
    return {name: value for name, value in environment.items() if name not in marks}


def remove_container(spec: Mapping[str, Any], session: Mapping[str, str]) -> str | None:
    """End and remove the container of a spec, if it has one. Returns what prevented it."""
    container = spec.get("container")
    if not container:
        return None
    environment = without_job(job_environment(spec, session, {}), spec)
    text = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return remove(container["program"], container["name"], text)


def _ask(
    argv: Sequence[str], environment: Mapping[bytes, bytes], cwd: str, spec: Mapping[str, Any]
) -> dict[str, Any]:
    """What the program printed in the container. Raises Refused."""
    fix = "see that the image is there, and correct `python` of this host in the inventory"
    try:
        told = ask(argv, environment, cwd, PATIENCE)
    except subprocess.TimeoutExpired:
        remove_container(spec, {os.fsdecode(name): os.fsdecode(each) for name, each in environment.items()})
        raise Refused(f"{argv[0]}: the container does not start within {PATIENCE:g} s", fix) from None
    except OSError as error:
        raise Refused(f"cannot run {argv[0]}: {error}", fix) from error
    if told.code or told.found is None:
        said = told.said[:_SHOWN]
        if "destination not found" in said:  # Charliecloud
            fix = "make that directory in the image, or mount one above it that is there: --bind=/home:/home"
        message = f"{os.path.basename(argv[0])} does not start the interpreter: {said or 'it says nothing'}"
        raise Refused(f"{message} (code {told.code})", fix)
    return told.found
