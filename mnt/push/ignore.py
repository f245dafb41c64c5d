"""The patterns of .gitignore files, with the same meaning as in git.

The rules are those of gitignore(5) and wildmatch.c of git 2.39. This module exists because pathspec 1.1 also
applies patterns to the parents of a path, and so differs from git for `data/**` + `!data/**/`, for `build/` +
`!build/x` and for `!keep/` in a nested file. `tests/unit/test_push_ignore.py` compares the results with git.

As in git, everything works on bytes: `?` is one byte, and a name need not be UTF-8.

A match takes at most quadratic time in the length of a path, whatever the pattern: a star that is not the
last one takes the first place where the text after it fits, and never tries another. No other place could
help, as the next star can take what lies between.
"""

from __future__ import annotations

import functools
import itertools
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

# Of an ignore file. It takes some 5 us to compile a byte of a pattern, and 50 us a star.
MOST_BYTES = 256 * 1024
MOST_LINES = 10_000
_MOST_STARS = 20_000
_MOST_STARS_OF_LINE = 1000  # the time to compile a line is quadratic in its stars
_IN_FORCE = 4  # times as much may be in the files that apply to one directory

# What all ignore files of a walk may cost, in steps of some 10 ns. 600 patterns of the usual kinds take a
# third of it for 100,000 files.
_MOST_STEPS = 8_000_000_000
_STEPS_OF_BYTE, _STEPS_OF_STAR = 500, 5000  # to compile
_STEPS = 20  # to try a pattern; with stars, as many more as the path has bytes, for each star
_STARS_THAT_COUNT = 10


class _NeverMatches(Exception):
    """The pattern is malformed: as in git, it matches nothing."""


class TooMuch(ValueError):
    """An ignore file with more than any tree needs: to read it, or to match with it, would take minutes."""


@dataclass(frozen=True)
class Pattern:
    """One line of an ignore file."""

    regex: re.Pattern[bytes]  # must match the rest of a path
    offset: int | None  # where that begins; None: at its last component
    negated: bool
    stars: int = 0


@dataclass(frozen=True)
class IgnoreFile:
    """An ignore file that applies to the directory in which it is, and to those below it."""

    name: str  # its path, for people
    patterns: tuple[Pattern, ...]
    offset: int
    size: int  # bytes
    stars: int

    @cached_property
    def _by_name(self) -> int:
        return sum(min(each.stars, _STARS_THAT_COUNT) for each in self.patterns if each.offset is None)

    @cached_property
    def _by_path(self) -> int:
        return sum(min(each.stars, _STARS_THAT_COUNT) for each in self.patterns if each.offset is not None)

    def steps(self, path: bytes) -> int:
        """What it costs, at most, to try all patterns with a path."""
        name = len(path) - path.rfind(b"/", 0, -1)
        return _STEPS * len(self.patterns) + self._by_name * name + self._by_path * (len(path) - self.offset)


class IgnoreFiles:
    """Reads the ignore files of one walk, and tries their patterns. Raises TooMuch for what takes minutes.

    Each of them may be small enough, and all of them together not: one is in each directory.
    """

    def __init__(self) -> None:
        self._left = _MOST_STEPS
        self._spent: Counter[str] = Counter()  # by the name of a file

    def read(self, name: str, text: bytes, offset: int, above: Sequence[IgnoreFile]) -> IgnoreFile:
        """A file with this text; see `parse`.

        Args:
            above: those that apply to the same directory.
        """
        try:
            file = IgnoreFile(name, parse(text, offset), offset, len(text), _stars_in(text))
        except TooMuch as error:
            raise TooMuch(f"{name}: {error}") from None
        self._spend(name, file.size * _STEPS_OF_BYTE + file.stars * _STEPS_OF_STAR)
        files = (*above, file)
        if (
            sum(len(each.patterns) for each in files) > _IN_FORCE * MOST_LINES
            or sum(each.size for each in files) > _IN_FORCE * MOST_BYTES
            or sum(each.stars for each in files) > _IN_FORCE * _MOST_STARS
        ):
            raise TooMuch(f"{name}: with the ignore files above it, more patterns than any tree needs")
        return file

    def verdict(self, files: Sequence[IgnoreFile], path: bytes) -> bool | None:
        """That of the innermost file with a pattern that matches; see `verdict`.

        Args:
            files: the outermost first.
        """
        for file in reversed(files):
            self._spend(file.name, file.steps(path))
            found = verdict(file.patterns, path)
            if found is not None:
                return found
        return None

    def _spend(self, name: str, steps: int) -> None:
        self._left -= steps
        self._spent[name] += steps
        if self._left < 0:
            most = self._spent.most_common(1)[0][0]
            raise TooMuch(
                f"{most}: to match all ignore files with all paths would take minutes, most for this"
            )


def parse(text: bytes, offset: int) -> tuple[Pattern, ...]:
    """The patterns of an ignore file, in its order.

    Args:
        offset: number of the leading bytes of a path that lead to the file's directory.

    Raises TooMuch.
    """
    lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(lines) > MOST_LINES or text.count(b"[") > MOST_LINES:
        raise TooMuch(f"more than {MOST_LINES:,} lines, or brackets")
    if sum(map(_stars_in, lines)) > _MOST_STARS:
        raise TooMuch(f"more than {_MOST_STARS:,} stars")
    return tuple(pattern for line in lines if (pattern := _parse_line(line, offset)) is not None)


def verdict(patterns: Sequence[Pattern], path: bytes) -> bool | None:
    """True: ignored; False: included by a `!` pattern; None: no pattern matches. The last match decides.

    Patterns match the path itself, not a parent of it.

    Args:
        path: no leading slash; a directory ends with a slash.
    """
    last = path.rfind(b"/", 0, -1) + 1
    for pattern in reversed(patterns):
        if pattern.regex.fullmatch(path, last if pattern.offset is None else pattern.offset):
            return not pattern.negated
    return None


def _parse_line(line: bytes, offset: int) -> Pattern | None:
    line = _strip_trailing_spaces(line.removesuffix(b"\r"))
    if not line or line.startswith(b"#"):
        return None
    negated = line.startswith(b"!")
    line = line[negated:]
    # A pattern with a slash at its end is for directories only. No component is empty: `a/*` is not for `a/`.
    end = b"(?<!/)/" if line.endswith(b"/") else b"(?<!/)/?"
    line = line.removesuffix(b"/")
    by_name = b"/" not in line  # without another slash, it is for the last component, at any depth
    line = line.removeprefix(b"/")
    if not line:
        return None
    try:
        parts = _translate(line)
        regex = re.compile(_join(parts) + end, re.DOTALL)
    except _NeverMatches:
        return None
    stars = sum(part in (_STAR, _DIRECTORIES, _ALL) for part in parts)
    return Pattern(regex, None if by_name else offset, negated, stars)


def _stars_in(text: bytes) -> int:
    """How many stars there are; several in a row count as one."""
    return len(re.findall(rb"\*+", text))


def _strip_trailing_spaces(line: bytes) -> bytes:
    """The line without the spaces at its end; a space after a backslash stays."""
    stripped = line.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return line[: len(stripped) + 1] if backslashes % 2 and len(stripped) < len(line) else stripped


# In the list of the parts of a pattern, beside regular expressions for one byte each:
_STAR = b"*"  # any bytes but `/`
_DIRECTORIES = b"**/"  # nothing, or any bytes up to some `/`
_ALL = b"**"  # any bytes; only at the end


def _join(parts: Sequence[bytes]) -> bytes:
    """The regular expression for the parts of a pattern."""
    number = itertools.count()

    def first_fit(expression: bytes) -> bytes:
        """The expression, with only the first of its possible matches: an atomic group, `(?>..)`.

        Before Python 3.11 there are none. But a lookahead is never entered twice, so it serves as one.
        """
        return b"(?=(?P<g%d>%s))(?P=g%d)" % ((at := next(number)), expression, at)

    def within(parts: Sequence[bytes], *, last: bool) -> bytes:
        """Parts without `**/`; after the `last` ones there is only the end of the path."""
        if parts and parts[-1] == _ALL:
            return within(parts[:-1], last=False) + b".*"
        fixed, *others = _split(parts, _STAR)
        if not others:
            return b"".join(fixed)
        final = b"[^/]*" if last else b"[^/]*?"
        pieces = [first_fit(b"[^/]*?" + b"".join(piece)) for piece in others[:-1]]
        end = final + b"".join(others[-1])
        return b"".join([*fixed, *pieces, end if last else first_fit(end)])

    start, *others = _split(parts, _DIRECTORIES)
    out = [within(start, last=not others)]
    for index, each in enumerate(others, start=1):
        if index == len(others):
            out.append(b"(?:.*/)?" + within(each, last=True))
        else:
            out.append(first_fit(b"(?:.*?/)??" + within(each, last=False)))
    return b"".join(out)


def _split(parts: Sequence[bytes], separator: bytes) -> list[list[bytes]]:
    """The runs of parts between the separators."""
    runs: list[list[bytes]] = [[]]
    for part in parts:
        if part == separator:
            runs.append([])
        else:
            runs[-1].append(part)
    return runs


def _translate(glob: bytes) -> list[bytes]:
    """The parts of the glob. Raises _NeverMatches and TooMuch."""
    if _stars_in(glob) > _MOST_STARS_OF_LINE:
        raise TooMuch(f"more than {_MOST_STARS_OF_LINE:,} stars in one line")
    out: list[bytes] = []
    i = 0
    while i < len(glob):
        char = glob[i : i + 1]
        if char == b"*":
            piece, i = _stars(glob, i)
        elif char == b"?":
            piece, i = b"[^/]", i + 1
        elif char == b"[":
            piece, i = _bracket(glob, i + 1)
        elif char == b"\\":
            if i + 1 == len(glob):
                raise _NeverMatches
            piece, i = re.escape(glob[i + 1 : i + 2]), i + 2
        else:
            piece, i = re.escape(char), i + 1
        if out[-1:] != [_DIRECTORIES] or piece != _DIRECTORIES:
            out.append(piece)
    return out


def _stars(glob: bytes, start: int) -> tuple[bytes, int]:
    """The part for the stars at `start`, and the index after them.

    Two or more stars match across directories, but only as a whole path component; elsewhere they are one
    star. Git compares the text before the first special character separately, so stars directly after it also
    count as the beginning of a component.
    """
    stars = re.compile(rb"\*+").match(glob, start)
    special = re.search(rb"[*?\[\\]", glob)
    assert stars is not None  # noqa: S101 - narrows the type
    assert special is not None  # noqa: S101 - narrows the type
    end = stars.end()
    begins = start == special.start() or glob[start - 1 : start] == b"/"
    whole = begins and end - start > 1
    if whole and end == len(glob):
        return _ALL, end
    if whole and glob[end : end + 1] == b"/":
        return _DIRECTORIES, end + 1
    return _STAR, end


_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, [*range(32), 127])),
    b"digit": string.digits,
    b"graph": string.ascii_letters + string.digits + string.punctuation,
    b"lower": string.ascii_lowercase,
    b"print": string.ascii_letters + string.digits + string.punctuation + " ",
    b"punct": string.punctuation,
    b"space": string.whitespace,
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}


# A member of a bracket expression: a class, a byte or a range; a backslash escapes a byte.
_MEMBER = re.compile(
    rb"\[:(?P<name>[^]]*):\] | (?P<low>\\.|[^\\]) (?:-(?P<high>\\.|[^]\\]))?", re.DOTALL | re.VERBOSE
)


def _bracket(glob: bytes, i: int) -> tuple[bytes, int]:
    """The bracket expression whose `[` lies just before `i`, and the index after its `]`."""
    negated = glob[i : i + 1] in (b"!", b"^")
    i += negated
    members: set[int] = set()
    first = True
    while first or glob[i : i + 1] != b"]":
        first = False
        found = _MEMBER.match(glob, i)
        if found is None or (found["low"] is None and found["name"] not in _CLASSES):
            raise _NeverMatches
        if found["low"] is None:
            members.update(_CLASSES[found["name"]].encode())
        else:
            low, high = found["low"], found["high"] or found["low"]
            members.update(low[-1:], range(low[-1], high[-1] + 1))  # `[z-a]` is the same as `[z]`
        i = found.end()
    if negated:
        members = set(range(256)) - members
    members.discard(ord("/"))
    if not members:
        raise _NeverMatches
    return _set_text(frozenset(members)), i + 1


@functools.lru_cache(maxsize=256)
def _set_text(members: frozenset[int]) -> bytes:
    ranges: list[list[int]] = []
    for byte in sorted(members):
        if ranges and ranges[-1][1] == byte - 1:
            ranges[-1][1] = byte
        else:
            ranges.append([byte, byte])
    return b"[%s]" % b"".join(b"\\x%02x-\\x%02x" % (low, high) for low, high in ranges)
