"""The likely spelling of a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'hosts'?`, to end a message with; empty where nothing is close."""
    import difflib  # where something is misspelt

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
