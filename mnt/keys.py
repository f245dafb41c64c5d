"""Ed25519 key pairs in OpenSSH's formats, generated without starting ssh-keygen."""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class KeyPair(NamedTuple):
    private: str  # the content of an id_ed25519 file
    public: str  # "ssh-ed25519 AAAA...", without comment or newline


def generate() -> KeyPair:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode())
