"""The environment that the `activate` lines of the inventory make: conda, modules. Python 3.8, on a host.

bash runs them as a login shell does, because `module` and `conda` are functions that start-up files of bash
define. They are run once for a job, before anything starts, and never in the job itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from mnt.remote.common.files import encode
from mnt.remote.common.refusal import Refused

PATIENCE = 20.0  # seconds for all lines
SAYS = "activate: "  # what is wrong with them begins with this
_FIX = "correct `activate` of this host in the inventory; to try it: mnt shell"
_LARGEST = 1 << 20  # bytes of an environment
_NAME = re.compile(r"\A[A-Za-z_][A-Za-z0-9_]*\Z")
_OF_BASH = ("_", "SHLVL", "PWD", "OLDPWD")
_SHOWN = 200  # characters of a line or an error
_EXIT = 97


def activated(lines: Sequence[str], session: Mapping[str, str], patience: float = PATIENCE) -> dict[str, str]:
    """The environment after the lines, each of which must end with 0.

    Functions that are exported, and variables of bash itself, are left out.

    Args:
        session: the environment before the start-up files.

    Raises Refused, naming the line and the last line of stderr, if one fails or does not end.
    """
    answer, steps, said = (os.memfd_create(name) for name in ("environment", "steps", "said"))
    try:
        code = _run(script(lines, answer, steps), session, (answer, steps), said, patience)
        begun = len(_content(steps).split())
        if code != 0:
            raise _failed(lines, begun, code, _content(said).decode("utf-8", "replace"), patience)
        return parse(_content(answer))
    except OSError as error:
        raise Refused(f"{SAYS}bash cannot be run: {error}", "install bash") from error
    finally:
        for descriptor in (answer, steps, said):
            os.close(descriptor)


def script(lines: Sequence[str], answer: int, steps: int) -> str:
    """What bash runs: pure. The descriptors get the environment, and a word for each line that begins."""
    parts = []
    for line in lines:
        parts += [f"echo . >&{steps}", f"eval {shlex.quote(line)} || exit $?"]
    return "\n".join([*parts, f"command -p env -0 >&{answer} || exit {_EXIT}"])


def parse(content: bytes) -> dict[str, str]:
    """An environment from `env -0`: pure."""
    found = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.decode("utf-8", "surrogateescape").partition("=")
        if equals and _NAME.match(name) and name not in _OF_BASH:
            found[name] = value
    return found


def _run(
    text: str, session: Mapping[str, str], passed: Sequence[int], said: int, patience: float
) -> int | None:
    """The exit code of bash; None: it has not ended in time. Nothing that it started in its group is left."""
    process = subprocess.Popen(
        ["bash", "--login", "-c", text],
        env={encode(name): encode(value) for name, value in session.items()},
        cwd=session.get("HOME") if os.path.isdir(session.get("HOME", "")) else "/",
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        pass_fds=passed,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return process.returncode
    finally:  # the head may be gone, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failed(lines: Sequence[str], begun: int, code: int | None, said: str, patience: float) -> Refused:
    line = repr(lines[begun - 1][:_SHOWN]) if 0 < begun <= len(lines) else "the start-up files of bash"
    how = f"has not ended after {patience:g} s" if code is None else f"failed with code {code}"
    words = [text.strip() for text in said.splitlines() if text.strip()]
    # bash begins what it says of a line of ours with this.
    last = re.sub(r"\Abash: line \d+: ", "", words[-1])[:_SHOWN] if words else ""
    return Refused(f"{SAYS}{line} {how}{': ' if last else ''}{last}", _FIX)


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read(_LARGEST)
