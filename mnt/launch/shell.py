"""The command that opens a shell on a host where, and with what, a job would run there. Pure."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence

from mnt.launch.plan import NodePlan


def shell_of(node: NodePlan) -> str:
    """For the login shell of a node: a shell in its code tree, with the variables of a job but no secret."""
    return _command(node.cwd, node.with_python_path(node.env), node.path_prepend, node.activate)


def shell_without_plan(
    place: str | None, env: Mapping[str, str], path_prepend: Sequence[str], activate: Sequence[str] = ()
) -> str:
    """The same for a host of which no job can be planned.

    Args:
        place: a directory that the host has judged (`mnt.tasks.push.find_place`): what is typed in one of
            another user would find that user's files. None: the home.
        path_prepend: directories, which may begin with `~`.
        activate: lines for bash. If one fails, the shell opens all the same, and says so.
    """
    return _command(place, env, path_prepend, activate)


def _command(
    place: str | None, env: Mapping[str, str], path_prepend: Sequence[str], activate: Sequence[str]
) -> str:
    """What any login shell passes on to sh: only letters, digits and `+/=` between its quotes vary."""
    lines = ["cd" if place is None else f"cd -- {shlex.quote(place)} 2>/dev/null || cd"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    lines += [f'PATH={path_word(directory)}:"$PATH"' for directory in path_prepend]
    lines.append('export PATH; exec "${SHELL:-/bin/sh}" -i')
    script = _encoded(lines)
    if activate:
        failed = [shlex.quote(f"mnt: activate: {line!r} has failed") for line in activate]
        tries = [
            f"eval {shlex.quote(line)} || echo {said} >&2"
            for line, said in zip(activate, failed, strict=True)
        ]
        script = _encoded([f"exec bash --login -c {shlex.quote(_lines([*tries, *lines]))}"])
    return f"exec sh -c 'eval \"$(echo {script} | base64 -d)\"'"


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(lines)


def _encoded(lines: Sequence[str]) -> str:
    return base64.b64encode(_lines(lines).encode("utf-8", "surrogateescape")).decode("ascii")


def path_word(path: str) -> str:
    """A path for sh; `~` is the home of the host."""
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{shlex.quote(path[1:]) if path[1:] else ""}'
    return shlex.quote(path)
