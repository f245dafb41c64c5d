"""What it would take to open a private key, found without opening it. Pure.

Whoever has written the file can have chosen billions of rounds for its passphrase (OpenSSH, PROTOCOL.key;
PKCS#8, RFC 8018 and 7914), or primes whose test takes hours.
"""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Iterator

_MAGIC = b"openssh-key-v1\0"
_MOST_ROUNDS = 1000  # of bcrypt: 10 ms each; ssh-keygen's default is 16 or 24
_MOST_ITERATIONS = 4_000_000  # of PBKDF2: some 0.5 us each; OpenSSL's default is 2,048
_MOST_SCRYPT = 2**19  # N x r x p: 64 MiB; OpenSSL's default is 2**17
_SCRYPT = bytes.fromhex("2b06010401da47040b")  # its object identifier
_LARGEST, _PRIME = 1025, 525  # bytes of a number of an RSA key with 8,192 bits, and of each of its primes
_DEEPEST = 8  # levels of DER

_TOO_LARGE = "an RSA key with more than 8,192 bits, or with primes of different lengths"
_ROUNDS = "its passphrase takes too many rounds; ssh-keygen -p -a 100 changes them"


def problem(data: bytes) -> str | None:
    """Why the key in a file is not opened; None: it can be tried."""
    try:
        for block in data.split(b"-----BEGIN ")[1:]:
            label, _, rest = block.partition(b"-----")
            body = rest.partition(b"-----END ")[0]
            if b"Proc-Type:" in body:  # a passphrase of few rounds; nothing else can be seen
                continue
            binary = base64.b64decode(body)
            found = _of_openssh(binary) if label == b"OPENSSH PRIVATE KEY" else _of_der(label, binary)
            if found:
                return found
    except ValueError:
        return "not a private key that can be read"
    return None


def public_part(data: bytes) -> bytes | None:
    """The public key that a file in OpenSSH's format has beside the private key, in its wire form.

    It needs no passphrase. None: the file is in another format.
    """
    _, begin, rest = data.partition(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    try:
        blob = base64.b64decode(rest.partition(b"-----END ")[0])
        return _strings(_strings(blob.removeprefix(_MAGIC), 3)[3][4:], 1)[0] if begin else None
    except ValueError:
        return None


def _of_openssh(blob: bytes) -> str | None:
    cipher, kdf, options, rest = _strings(blob.removeprefix(_MAGIC), 3)
    public, private, _ = _strings(rest[4:], 2)  # after the number of keys, always 1
    if kdf != b"none":
        _, rounds = _strings(options, 1)
        if int.from_bytes(rounds, "big") > _MOST_ROUNDS:
            return _ROUNDS
    if not public.startswith(b"\0\0\0\x07ssh-rsa"):
        return None
    numbers = _strings(public, 3)[1:3]
    if cipher == b"none":
        numbers += _strings(private[8:], 7)[1:7]
    # The last of the public ones is there twice.
    return _of_numbers([len(number) for number in {*numbers}])


def _of_der(label: bytes, blob: bytes) -> str | None:
    numbers = list(_integers(blob))
    if label == b"ENCRYPTED PRIVATE KEY":
        values = [int.from_bytes(number, "big") for number in numbers]
        is_scrypt = _SCRYPT in blob
        much = math.prod(values) > _MOST_SCRYPT if is_scrypt else max(values, default=0) > _MOST_ITERATIONS
        return _ROUNDS if much else None
    return _of_numbers([len(number) for number in numbers])


def _of_numbers(sizes: list[int]) -> str | None:
    """Only the modulus and the private exponent are larger than a prime."""
    large = sorted(sizes, reverse=True)
    return _TOO_LARGE if large[:1] > [_LARGEST] or large[2:3] > [_PRIME] else None


def _strings(data: bytes, count: int) -> list[bytes]:
    """The first strings (RFC 4251, section 5), and the rest. Raises ValueError."""
    found = []
    for _ in range(count):
        end = 4 + int.from_bytes(data[:4], "big")
        if len(data) < max(4, end):
            raise ValueError("a string is cut")
        found.append(data[4:end])
        data = data[end:]
    return [*found, data]


def _integers(der: bytes, depth: int = 0) -> Iterator[bytes]:
    """The integers at any depth, also in octet strings (X.690). Raises ValueError."""
    at = 0
    while at < len(der):
        tag, size, start = der[at], *_size(der, at + 1)
        end = start + size
        if end > len(der) or depth > _DEEPEST:
            raise ValueError("a value is cut")
        if tag == 0x02:
            yield der[start:end]
        elif tag & 0x20:
            yield from _integers(der[start:end], depth + 1)
        elif tag == 0x04:
            inner: list[bytes] = []
            with contextlib.suppress(ValueError):  # most are just bytes
                inner = list(_integers(der[start:end], depth + 1))
            yield from inner
        at = end


def _size(der: bytes, at: int) -> tuple[int, int]:
    """The size of a value, and where it begins. Raises ValueError."""
    first = der[at : at + 1]
    if not first or first[0] < 0x80:
        return (first[0], at + 1) if first else (1, at + 1)
    length = first[0] & 0x7F
    return int.from_bytes(der[at + 1 : at + 1 + length], "big"), at + 1 + length
