"""The interpreter of the inventory, if it is not the one that runs the probe. Runs on a host: Python 3.8."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mnt.remote.common.activation import activated
from mnt.remote.common.containers import document, for_a_look, remove
from mnt.remote.common.files import encode
from mnt.remote.common.programs import ask, judged
from mnt.remote.common.refusal import Refused

PATIENCE = 20.0  # seconds for it to start; a container takes some
_SHOWN = 200


def look(request: Mapping[str, Any], session: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """Its description as `mnt.facts.host.Interpreter`, and "packages", "torch_cuda" and "nccl_library".

    Args:
        request: "python", the words that start it; "activate", lines for bash; "env", variables of the
            inventory; "program", the text of mnt.remote.probe.interpreter; "group", which shares it.
        session: the variables of the login.
    """
    words = [os.path.expanduser(request["python"][0]), *request["python"][1:]]
    try:
        base = activated(request["activate"], session) if request["activate"] else dict(session)
        environment = {**base, **request["env"]}
        words = judged(words, environment, request.get("group"))
        name = f"mnt-look-{os.getpid()}-{os.urandom(4).hex()}"
        found = _ask([*for_a_look(words, name), "-c", request["program"], *names], environment, name)
    except Refused as refusal:
        return _described(words, {}, refusal.message)
    return _described(words, found, None)


def _ask(argv: Sequence[str], environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """What the program printed. Raises Refused if it failed."""
    try:
        given = {encode(name): encode(value) for name, value in environment.items()}
        told = ask(argv, given, "/", PATIENCE)
    except subprocess.TimeoutExpired:
        if document(argv, name):
            remove(argv[0], name, environment)
        raise Refused(f"did not start within {PATIENCE:g} s") from None
    except OSError as error:
        raise Refused(f"cannot be run: {error}") from error
    if told.code:
        raise Refused(f"exit code {told.code}{': ' if told.said else ''}{told.said[:_SHOWN]}")
    if told.found is None:
        raise Refused("it is no Python: it did not print what it was told to")
    return told.found


def _described(words: Sequence[str], found: Mapping[str, Any], problem: str | None) -> dict[str, Any]:
    own = ".".join(str(part) for part in sys.version_info[:3])
    return {
        "python": {
            "argv": list(words),
            "configured": problem is None,
            "problem": problem,
            "version": found.get("version", own),
            "executable": found.get("executable", sys.executable),
            "exposed": None,
        },
        "packages": found.get("packages", {}),
        "torch_cuda": found.get("torch_cuda"),
        "nccl_library": found.get("nccl_library"),
        "numa_binding": found.get("numa_binding"),
    }
