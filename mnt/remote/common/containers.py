"""`python` as a command that starts a container: what is added to it, and how the container is ended.

Pure, but for `remove`; used on the head, and on hosts: Python 3.8. Docker, Podman and nerdctl start a
container with an environment and files of its own; Apptainer and Charliecloud (ch-run) keep the user's
environment. The options are those of podman 4.3 and ch-run 0.31 (tried), and of docker 20.10 and apptainer
1.1 (from their manuals: not seen).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SERVED = ("docker", "podman", "nerdctl")  # their containers have a name, and may outlive the program
_VERBS = {**dict.fromkeys(SERVED, "run"), "apptainer": "exec", "singularity": "exec", "ch-run": ""}
# What a job's environment has on a host, besides the variables of its plan.
OF_A_JOB = (
    *("MNT_JOB", "MNT_HOST", "MNT_NODE_RANK", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"),
    *("USER", "LOGNAME"),
)
_REMOVAL = 30.0  # seconds
_MOUNTS = ("-v", "--volume", "-B", "--bind", "-b")


def kind_of(python: Sequence[str]) -> str | None:
    """The program that starts a container; None: it is another program."""
    kind = os.path.basename(python[0])
    return kind if kind in _VERBS else None


def problem_of(python: Sequence[str]) -> str | None:
    """What is wrong with a command for a container; None: nothing, or it is none."""
    kind = kind_of(python)
    if kind is None:
        return None
    verb = _VERBS[kind]
    if verb and verb not in python[1:]:
        return f"{kind} needs {verb!r}, as in [{kind}, {verb}, .., IMAGE, python]"
    if len(python) < (4 if verb else 3):
        return f"no interpreter is named in the container: [{kind}, {verb or 'IMAGE, --'}, .., python]"
    if kind in SERVED:
        for option in ("--name", "--cidfile", "-d", "--detach"):
            if any(word == option or word.startswith(f"{option}=") for word in python):
                return f"{kind} {verb} cannot have {option}: a job names its container, and waits for it"
    return None


def with_options(python: Sequence[str], options: Iterable[str]) -> list[str]:
    """The words, with options for the container before those that are there."""
    kind = kind_of(python)
    verb = _VERBS[kind] if kind else ""
    place = python.index(verb, 1) + 1 if verb else 1
    return [*python[:place], *options, *python[place:]]


def for_a_look(python: Sequence[str], name: str) -> list[str]:
    """The words that run a short program once, in a container of that name."""
    if kind_of(python) not in SERVED:
        return list(python)
    return with_options(python, [*_always(python), f"--name={name}"])


def for_a_job(
    python: Sequence[str],
    *,
    name: str,
    names: Iterable[str],
    places: Iterable[str],
    cwd: str,
    user: int | None,
    limits: Mapping[str, int],
    temporary: str | None,
) -> list[str]:
    """The words that run a job: with its environment, its files, and the networks of the host.

    Args:
        name: for the container.
        names: the variables of the job; the container's own PATH and HOME stay.
        places: directories of the host that the job needs, at the same paths.
        cwd: its working directory.
        user: the uid for docker, whose containers belong to root; None: unknown.
        limits: soft limits by name, -1 for unlimited.
        temporary: TMPDIR of the job, which the program itself must not get (`unset_for`).
    """
    kind = kind_of(python)
    missing = [place for place in places if not _has(python, place)]
    if kind in SERVED:
        options = _always(python)
        options += [f"--name={name}", f"--workdir={cwd}"]
        if kind == "docker" and user is not None and not _given(python, "--user", "-u"):
            options.append(f"--user={user}")
        options += [f"--volume={place}:{place}" for place in missing]
        options += [f"--ulimit={limit}={value}:{value}" for limit, value in limits.items()]
        # Without values, which are in no argument then: the program takes them from its own environment.
        options += [f"--env={variable}" for variable in names if variable != "TMPDIR"]
        if temporary is not None:
            options.append(f"--env=TMPDIR={temporary}")
        return with_options(python, options)
    if kind == "ch-run":
        if not _given(python, "-t", "--private-tmp"):  # it has the host's /tmp
            missing = [place for place in missing if not place.startswith("/tmp/")]  # noqa: S108
        options = [*(f"--bind={place}:{place}" for place in missing), f"--cd={cwd}"]
        if temporary is not None:
            options.append(f"--set-env=TMPDIR={temporary}")
        return with_options(python, options)
    return with_options(python, [*(f"--bind={place}:{place}" for place in missing), f"--pwd={cwd}"])


def unset_for(python: Sequence[str]) -> list[str]:
    """Variables that the program must not get: ch-run mounts what TMPDIR names as /tmp, and podman keeps
    there what it runs.
    """
    return ["TMPDIR"] if kind_of(python) in (*SERVED, "ch-run") else []


def how_to_bind(python: Sequence[str], place: str) -> str:
    """The option with which the container has a place of the host."""
    return f"--volume={place}:{place}" if kind_of(python) in SERVED else f"--bind={place}:{place}"


def remove(program: str, name: str, environment: Mapping[str, str]) -> str | None:
    """End and remove a container, if it is still there. Returns what prevented it."""
    try:
        done = subprocess.run(
            [program, "rm", "--force", name],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_REMOVAL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return said if done.returncode and "no such container" not in said.lower() else None


def document(python: Sequence[str], name: str) -> dict[str, Any] | None:
    """What `remove` needs of a container, for a spec; None: it ends with its program."""
    return {"program": python[0], "name": name} if kind_of(python) in SERVED else None


def _always(python: Sequence[str]) -> list[str]:
    """What a container gets that is started for us: it is removed at its end, no image is fetched, and
    network and shared memory are those of the host.
    """
    usual = {
        "--rm": ("--rm",),
        "--pull=never": ("--pull",),
        "--network=host": ("--network", "--net"),
        "--ipc=host": ("--ipc", "--shm-size"),
    }
    return [option for option, instead in usual.items() if not _given(python, *instead)]


def _given(python: Sequence[str], *options: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in python for option in options)


def _has(python: Sequence[str], place: str) -> bool:
    """Whether the words mount a place, or one above it at its own path."""
    for source, target in _mounts(python):
        inside = place == target or place.startswith(target.rstrip("/") + "/")
        if place == target or (inside and source == target):
            return True
    return False


def _mounts(python: Sequence[str]) -> Iterable[tuple[str, str]]:
    """(source, target) of what the words mount."""
    for number, word in enumerate(python):
        option, equals, value = word.partition("=")
        if option == "--mount":
            text = value if equals else python[number + 1 : number + 2][0] if number + 1 < len(python) else ""
            fields = dict(part.partition("=")[::2] for part in text.split(","))
            source = fields.get("source") or fields.get("src") or ""
            yield source, fields.get("target") or fields.get("destination") or fields.get("dst") or source
        elif option in _MOUNTS:
            text = value if equals else python[number + 1] if number + 1 < len(python) else ""
            for part in text.split(","):
                source, _, rest = part.partition(":")
                yield source, rest.partition(":")[0] or source
