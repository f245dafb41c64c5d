"""One public key in OpenSSH's form. Runs on a host and on the head: standard library only, Python 3.8."""

from __future__ import annotations

import base64
import binascii
import re

_ED25519 = 51  # bytes: two lengths, the type's name and 32 bytes of key (RFC 8709, 4)


def canonical(text: str, *, types: str = r"[a-z0-9-]+(@openssh\.com)?") -> str:
    """`TYPE BASE64`, composed from the decoded key: nothing else that `text` contains survives.

    Args:
        text: exactly a type and a key, with one space between.
        types: regular expression of the types that are accepted.

    Raises ValueError if `text` is anything else, or if the key's own type is another one.
    """
    kind, _, encoded = text.partition(" ")
    try:
        blob = base64.b64decode(encoded.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ValueError("not a public key") from None
    length = int.from_bytes(blob[:4], "big")
    if not re.fullmatch(types, kind) or blob[4 : 4 + length] != kind.encode("ascii"):
        raise ValueError("not a public key")
    if len(blob) <= 4 + length or (kind == "ssh-ed25519" and len(blob) != _ED25519):
        raise ValueError("not a public key")
    return f"{kind} {base64.b64encode(blob).decode()}"
