"""Whether a file contains a private key. Pure."""

from __future__ import annotations

import re

SEARCHED = 1 << 20  # bytes of a file, from its beginning, in which keys are searched

# PEM (RFC 7468) and OpenSSH, PGP's (RFC 4880, 6.2), ssh.com's (RFC 4716) and PuTTY's. Anybody may have
# written the text: so each part of an expression has a limit, and begins with no byte with which the part
# before it could go on. Then there is one way to match, and nothing to try again.
_HEADER = rb"-{4,5} ?BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
_FIELDS = rb"(?:[A-Za-z][A-Za-z0-9-]{0,40}: [^\r\n\\]{0,200}%b){0,8}"
_ENDS, _ESCAPED_ENDS = rb"[\r\n]\s{0,15}", rb"(?:\\r|\\n){1,8}"  # of lines: as they are, or as in JSON
_KEY = re.compile(
    b"|".join(
        (
            rb"\A(?:\xef\xbb\xbf)?\s{0,16}" + _HEADER,
            _HEADER + rb"\s{1,16}" + _FIELDS % _ENDS + rb"[A-Za-z0-9+/=]{1,4096}(?:[\r\n\\\"]|\Z)",
            _HEADER + _ESCAPED_ENDS + _FIELDS % _ESCAPED_ENDS + rb"[A-Za-z0-9+/=]{16}",
            rb"(?:\A|\n)PuTTY-User-Key-File-\d{1,9}: ",
        )
    )
)


def is_private_key(data: bytes) -> bool:
    """Whether the beginning of a file contains a private key, encrypted or not.

    A text that only mentions the first line of a key, such as a program that looks for keys, is none.
    """
    return (b"PRIVATE KEY" in data or b"PuTTY-User-Key-File-" in data) and _KEY.search(data) is not None
