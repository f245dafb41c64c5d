"""The files that `Include` in an ssh_config names: as glob(7), with a limit on what is looked at."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence

from mnt.errors import UsageError
from mnt.remote.common.owners import status
from mnt.remote.common.refusal import Refused

_LONGEST = 1024  # characters of a pattern
# Patterns, characters of those with wildcards, and names in directories, for all Include lines together.
_MOST_STEPS = 20_000
_LEVEL = 3  # steps to enter and judge a level of a path


def _status(path: str, where: str, *, follow: bool = True) -> os.stat_result | None:
    """None: nothing is there. Raises UsageError for what another user has mounted: it might never answer."""
    try:
        return status(path, follow=follow)
    except OSError:
        return None
    except Refused as refusal:
        raise UsageError(f"{where}: Include looks where {refusal.message}", fix=refusal.fix) from None


class Includes:
    """Finds files by pattern. Raises UsageError when there has been too much to look at."""

    def __init__(self) -> None:
        self._steps = 0

    def files(self, pattern: str, where: str) -> list[str]:
        """The files that a pattern matches, sorted.

        Args:
            pattern: an absolute path with wildcards.
            where: the line that has it, for messages.
        """
        if len(pattern) > _LONGEST:
            raise UsageError(f"{where}: Include with more than {_LONGEST:,} characters", fix="write less")
        self._count(1, where)
        return sorted(self._walk("/", pattern.split("/"), where))

    def _walk(self, directory: str, parts: Sequence[str], where: str) -> Iterator[str]:
        for index, part in enumerate(parts):
            if re.search(r"[*?[]", part):
                rest = parts[index + 1 :]
                for name in self._matching(directory, part, where):
                    path = os.path.join(directory, name)
                    yield from self._walk(path, rest, where) if rest else (path,)
                return
            directory = os.path.join(directory, part)
        self._count(_LEVEL * directory.count("/"), where)
        if _status(directory, where, follow=False) is not None:
            yield directory

    def _matching(self, directory: str, part: str, where: str) -> Iterator[str]:
        """The names in a directory that a pattern matches; a hidden one only if the pattern has its dot."""
        self._count(len(part), where)
        fits = re.compile(fnmatch.translate(part)).match
        try:
            self._count(_LEVEL * directory.count("/"), where)
            if _status(directory, where) is None:
                return
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._count(1, where)
                    if fits(entry.name) and entry.name.startswith(".") <= part.startswith("."):
                        yield entry.name
        except OSError:
            return

    def _count(self, steps: int, where: str) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise UsageError(
                f"{where}: Include looks at more than {_MOST_STEPS:,} files", fix="name the files, or fewer"
            )
