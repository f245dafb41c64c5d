"""The likely spelling of an unknown word."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'hosts'?`, as the end of a message; empty if no known word is similar."""
    import difflib  # loaded only after an error

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
