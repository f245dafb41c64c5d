"""Why a login shell runs no command: what it is, its start-up files, a command that is forced. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# What a shell that is started by sshd reads before a command; Debian's and Red Hat's names below /etc.
_STARTUP: Mapping[str, tuple[str, ...]] = {
    "bash": ("~/.bashrc", "/etc/bash.bashrc", "/etc/bashrc"),
    "zsh": ("~/.zshenv", "/etc/zsh/zshenv", "/etc/zshenv"),
    "tcsh": ("~/.tcshrc", "~/.cshrc", "/etc/csh.cshrc"),
    "csh": ("~/.cshrc", "/etc/csh.cshrc"),
    "fish": ("~/.config/fish/config.fish",),
    **dict.fromkeys(("sh", "dash", "ksh", "ksh93", "mksh", "ash", "busybox"), ()),
}
FILES = tuple(dict.fromkeys(name for names in _STARTUP.values() for name in names))

_GUARD = "case $- in *i*) ;; *) return;; esac"
_ASKS = re.compile(r"\*\)|PS1|\$-|interactive")
_RETURNS = re.compile(r"\breturn\b")  # in a line that asks before; what follows is for people
_READS = re.compile(r"(?<![\w.-])(read|cat|ssh|head|tee|mapfile|readarray|select)(?![\w.=-])")
_ENDS = re.compile(r"(?<![\w.-])(exit|exec|logout|kill|read|cat|sleep|while|source|\.)(?![\w.=/-])")
_NOLOGIN = "exit code 254"  # of sshd itself, while /etc/nologin is there
_SAID_LINES, _SAID = 3, 500  # lines, and characters, of the output
_SHOWN, _LINE_SHOWN = 3, 120  # lines of start-up files, and characters of each


@dataclass(frozen=True)
class Found:
    """What is known about a host that has not run a command. Its texts are the host's own."""

    shell: str | None = None  # the login shell; None: unknown
    reads: bool = False  # a start-up file has read the input: with an empty one the shell runs commands
    files: Mapping[str, str] = field(default_factory=dict)  # start-up files: one of FILES -> text


def explain(found: Found, ending: str, output: str, user: str) -> tuple[str, str]:
    """The message and the fix.

    Args:
        ending: how the shell has ended, `exit code 1`; or that it has not.
        output: of the shell.
        user: who logs in.
    """
    kind = posixpath.basename(found.shell or "")
    shell = f"the login shell, {found.shell}," if found.shell else "the login shell"
    if found.reads:
        suspects = _suspects(found, kind, _READS)
        message = f"a start-up file of {shell} reads the standard input that is meant for the command"
        return message + _listed(": ", suspects), _guarded(kind, suspects)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = " / ".join(lines[-_SAID_LINES:])[:_SAID]
    message = f"{shell} runs no command, {ending}" + (f": {said}" if said else "")
    if ending == _NOLOGIN and said:
        return message, "on the host, once it is ready for users, as root: rm /etc/nologin"
    if kind and kind not in _STARTUP:
        return message, f"as root on the host: usermod --shell /bin/bash {user}"
    suspects = _suspects(found, kind, _ENDS)
    if suspects:
        return message + _listed("; a start-up file may end it: ", suspects), _guarded(kind, suspects)
    forced = f"remove ForceCommand in its sshd_config, and command= in ~/.ssh/authorized_keys, for {user}"
    if found.files or _STARTUP.get(kind) == ():
        return message, f"on the host, {forced}"
    startup = f"{', '.join(_STARTUP.get(kind, ()))} or" if kind else "~/.bashrc or"
    ways = [f"remove exit, exec and read from {startup} another start-up file of the shell", forced]
    if said:
        ways.reverse()
    if not kind:
        ways.append(f"if the shell in /etc/passwd is none, as root: usermod --shell /bin/bash {user}")
    return message, f"on the host, {'; or '.join(ways)}"


def own_file(shell: str | None) -> str:
    """The start-up file of the user that a login shell reads before a command."""
    return next(iter(_STARTUP.get(posixpath.basename(shell or "bash"), ())), "~/.bashrc")


def for_people_only(shell: str | None) -> str:
    """The fix for start-up files that print or take long: nothing of them runs before a command."""
    names = _STARTUP.get(posixpath.basename(shell or "bash"), ())
    if not names:
        return (
            "on the host, look for it in ~/.ssh/rc, /etc/ssh/sshrc and the start-up files of its login shell"
        )
    first, *others = names
    also = f"; if it is from {' or '.join(others)}, there" if others else ""
    if first in (*_STARTUP["bash"], *_STARTUP["zsh"]):
        return f"on the host, put this line at the top of {first}: {_GUARD}{also}"
    return f"on the host, let only interactive shells run what does it in {first}{also}"


def _suspects(found: Found, kind: str, words: re.Pattern[str]) -> list[tuple[str, str]]:
    """The first lines of the shell's start-up files with one of these words: (file, `NUMBER: TEXT`)."""
    return list(_matches(found.files, _STARTUP.get(kind, FILES), words))[:_SHOWN]


def _matches(
    files: Mapping[str, str], names: tuple[str, ...], words: re.Pattern[str]
) -> Iterator[tuple[str, str]]:
    for name in names:
        for number, line in enumerate(files.get(name, "").splitlines(), start=1):
            if line.lstrip().startswith("#"):
                continue
            asks = _ASKS.search(line)
            if asks and _RETURNS.search(line, asks.end()):
                break
            if words.search(line):
                yield name, f"{number}: {line.strip()[:_LINE_SHOWN]}"


def _listed(lead: str, suspects: list[tuple[str, str]]) -> str:
    return lead + "; ".join(f"{name}:{line}" for name, line in suspects) if suspects else ""


def _guarded(kind: str, suspects: list[tuple[str, str]]) -> str:
    """The fix: only shells of people get as far as these lines."""
    file = suspects[0][0] if suspects else next(iter(_STARTUP.get(kind, ())), "~/.bashrc")
    if file in (*_STARTUP["bash"], *_STARTUP["zsh"]):
        return f"on the host, put this line at the top of {file}: {_GUARD}"
    return f"on the host, let only interactive shells run these lines of {file}"
