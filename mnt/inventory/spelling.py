"""The likely spelling of an unknown word."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST_WORD = 100
_MOST_CANDIDATES = 2000


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'hosts'?`, as the end of a message; empty if no known word is similar."""
    close = closest(word, known)
    return f"; did you mean {close!r}?" if close is not None else ""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The most similar known word; None: no one is similar."""
    candidates = list(known)
    if len(word) > _LONGEST_WORD or len(candidates) > _MOST_CANDIDATES:  # it would take minutes
        return None
    import difflib  # loaded only after an error

    return next(iter(difflib.get_close_matches(word, candidates, n=1)), None)
