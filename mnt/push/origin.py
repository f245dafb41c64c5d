"""Where a release comes from: who pushed it, from which tree and commit; and how that is told."""

from __future__ import annotations

import getpass
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mnt import __version__
from mnt.push.tree import work_tree
from mnt.tasks.push import Pushed

_GIT_TIMEOUT = 5.0  # seconds
_LONGEST = 4096  # characters of what git prints
# With at most 256 MiB of memory: a tree may have a HEAD of some GiB, of which git reads all.
_LIMITED = 'ulimit -v 262144 && exec git "$@"'


@dataclass(frozen=True)
class Origin:
    """What is stored of a push beside its release."""

    user: str
    head: str  # the host name of the machine from which it was pushed
    source: str  # absolute path of the tree there
    time: float  # epoch seconds of the head, before the tree was read
    mnt: str  # version
    commit: str | None = None  # of git; None: the tree is in no work tree of this user, or git cannot tell
    branch: str | None = None  # None: a detached HEAD too

    def document(self) -> dict[str, Any]:
        return asdict(self)


def user() -> str:
    """The name of this user, or the uid."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def here(root: Path, moment: float | None = None) -> Origin:
    """The origin of what is pushed from `root`.

    Args:
        moment: before the tree was read, in epoch seconds; None: now, and git is not asked.
    """
    found = {} if moment is None else _git_state(root)
    started = time.time() if moment is None else moment
    return Origin(user(), platform.node(), str(root.resolve()), started, __version__, **found)


def _git_state(root: Path) -> dict[str, Any]:
    top = work_tree(root.resolve())
    if top is None:
        return {}
    # Others may be able to write to .git: a branch may be a link to a file of this user, whose 40 digits
    # git takes for an id. Only what the repository has is a commit.
    commit = _git(top, "rev-parse", "--verify", "HEAD^{commit}")
    if commit is None:
        return {}
    branch = _git(top, "symbolic-ref", "--short", "-q", "HEAD")
    return {"commit": commit, "branch": branch}


def _git(top: Path, *words: str) -> str | None:
    """What git prints; None: it fails, or there is none.

    Only for what reads no file of the work tree: `git status` runs the filters that the tree's own
    .git/config names. It fetches no object that is missing, which can start a program too, takes no directory
    for a repository that is not named .git, and does not look above the work tree.
    """
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    safe += ["-c", "safe.bareRepository=explicit"]
    lent = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "LC_ALL": "C"}
    try:
        ran = subprocess.run(
            ["sh", "-c", _LIMITED, "git", "-C", str(top), *safe, *words],
            env={**os.environ, **lent, "GIT_CEILING_DIRECTORIES": str(top.parent)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 and len(ran.stdout) <= _LONGEST else None


def is_mine(pushed: Pushed, own: Origin) -> bool:
    """Whether this user pushed it from this machine."""
    return (pushed["user"], pushed["head"]) == (own.user, own.head)


def is_this_tree(pushed: Pushed, own: Origin) -> bool:
    """Whether it comes from the same directory of this machine."""
    return (pushed["head"], pushed["source"]) == (own.head, own.source)


def pushed_by(pushed: Pushed) -> str:
    """`ann@head from /tree (main, 1a2b3c4), 2026-01-02 03:04`: pure, in local time."""
    git = [pushed["branch"] or "", (pushed["commit"] or "")[:7]]
    about = ", ".join(filter(None, git))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(pushed["time"]))
    return f"{pushed['user']}@{pushed['head']} from {pushed['source']}{about and f' ({about})'}, {when}"
