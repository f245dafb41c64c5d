"""What it would take to open a private key, found without opening it. Pure.

Whoever has written the file can have chosen billions of rounds for its passphrase (OpenSSH, PROTOCOL.key;
PKCS#8, RFC 8018 and 7914), or numbers with which a library computes for hours. So the file is read here, by
the places of its values and in one form only, and the libraries get what was read, not the file.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass

_MAGIC = b"openssh-key-v1\0"
_MOST_ROUNDS = 1000  # of bcrypt: 10 ms each; ssh-keygen's default is 16 or 24
_MOST_ITERATIONS = 4_000_000  # of PBKDF2: some 0.5 us each; OpenSSL's default is 2,048
_MOST_SCRYPT = 2**19  # N x r x p: 64 MiB; OpenSSL's default is 2**17
_MOST_DER = 5500  # bytes of a key that is not in OpenSSH's form; RSA with 8,192 bits has 4,800
_LARGEST, _PRIME = 8192, 4200  # bits of a number of an RSA key, and of each of its primes

# Object identifiers.
_PBES2, _PBKDF2 = bytes.fromhex("2a864886f70d01050d"), bytes.fromhex("2a864886f70d01050c")
_SCRYPT = bytes.fromhex("2b06010401da47040b")
_USABLE = {  # RSA, elliptic curves, Ed25519
    bytes.fromhex("2a864886f70d010101"),
    bytes.fromhex("2a8648ce3d0201"),
    bytes.fromhex("2b6570"),
}
_INTEGER, _SEQUENCE = 0x02, 0x30

_TOO_LARGE = "an RSA key with more than 8,192 bits, or with primes of different lengths"
_ROUNDS = "its passphrase takes too many rounds; ssh-keygen -p -a 100 changes them"
_OTHER = "a kind of key that cannot be used: name one of type ed25519, ecdsa or rsa"
# OpenSSL's older form of a key with a passphrase, which takes one round.
_ENCRYPTED = re.compile(
    rb"Proc-Type: 4,ENCRYPTED\r?\n(DEK-Info: [A-Z0-9-]{1,40},[0-9A-Fa-f]{1,64})\r?\n\r?\n"
)


class NotOpened(Exception):
    """A private key that is not opened. Its text says why."""


@dataclass(frozen=True)
class KeyFile:
    """A private key that can be opened soon."""

    text: bytes  # one block of PEM: the key, and nothing that could be read in another way
    openssh: bool  # in OpenSSH's form
    encrypted: bool  # it needs a passphrase


def read(data: bytes) -> KeyFile:
    """The first private key in a file. Raises NotOpened, and ValueError if there is none that can be read."""
    for block in data.split(b"-----BEGIN ")[1:]:
        label, _, rest = block.partition(b"-----")
        if label == b"PRIVATE KEY" or label.endswith(b" PRIVATE KEY"):
            return _read(label, rest.partition(b"-----END ")[0].lstrip())
    raise ValueError("no private key")


def check_rsa(modulus: int, exponent: int, primes: tuple[int, int]) -> None:
    """Raises NotOpened for numbers that take long to be checked, and to be used."""
    longest = max(number.bit_length() for number in primes)
    if max(modulus.bit_length(), exponent.bit_length()) > _LARGEST or longest > _PRIME:
        raise NotOpened(_TOO_LARGE)


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


def _read(label: bytes, body: bytes) -> KeyFile:
    headers = _ENCRYPTED.match(body) if label in (b"RSA PRIVATE KEY", b"EC PRIVATE KEY") else None
    blob = base64.b64decode(b"".join(body[headers.end() if headers else 0 :].split()), validate=True)
    first = b"Proc-Type: 4,ENCRYPTED\n%s\n\n" % headers[1] if headers else b""
    text = b"-----BEGIN %s-----\n%s%s-----END %s-----\n" % (label, first, base64.encodebytes(blob), label)
    if label == b"OPENSSH PRIVATE KEY":
        return KeyFile(text, openssh=True, encrypted=_check_openssh(blob))
    if len(blob) > _MOST_DER:
        raise NotOpened(_TOO_LARGE)
    if label == b"ENCRYPTED PRIVATE KEY":
        _check_rounds(blob)
    elif label == b"PRIVATE KEY":
        _version, algorithm = _first(2, _inside(*_values(blob)))
        ((_, scheme),) = _first(1, _inside(algorithm))
        if scheme not in _USABLE:
            raise NotOpened(_OTHER)
    elif label not in (b"RSA PRIVATE KEY", b"EC PRIVATE KEY"):
        raise NotOpened(_OTHER)
    return KeyFile(text, openssh=False, encrypted=bool(headers) or label == b"ENCRYPTED PRIVATE KEY")


def _check_openssh(blob: bytes) -> bool:
    """Whether the key is encrypted. Raises NotOpened, ValueError."""
    if not blob.startswith(_MAGIC):
        raise ValueError("not OpenSSH's form")
    cipher, kdf, options, rest = _strings(blob.removeprefix(_MAGIC), 3)
    public, _private, _tag = _strings(rest[4:], 2)  # after the number of keys, always 1
    if kdf != b"none":
        _salt, rounds = _strings(options, 1)
        if int.from_bytes(rounds, "big") > _MOST_ROUNDS:
            raise NotOpened(_ROUNDS)
    kind, fields = _strings(public, 1)
    if kind == b"ssh-dss":
        raise NotOpened(_OTHER)
    if kind == b"ssh-rsa":
        exponent, modulus, _ = _strings(fields, 2)
        check_rsa(int.from_bytes(modulus, "big"), int.from_bytes(exponent, "big"), (0, 0))
    return (cipher, kdf) != (b"none", b"none")


def _check_rounds(blob: bytes) -> None:
    """Of a key in PKCS#8 with a passphrase. Raises NotOpened, ValueError."""
    algorithm, _data = _inside(*_values(blob))
    (_, scheme), parameters = _inside(algorithm)
    if scheme == _PBES2:
        function, _cipher = _inside(parameters)
        (_, scheme), parameters = _inside(function)
    if scheme == _SCRYPT:
        _salt, *numbers = _first(4, _inside(parameters))
        much = math.prod(map(_number, numbers)) > _MOST_SCRYPT
    else:  # PBKDF2, and the schemes before PBES2, which have the same two values
        _salt, rounds = _first(2, _inside(parameters))
        much = _number(rounds) > _MOST_ITERATIONS
    if much:
        raise NotOpened(_ROUNDS)


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


def _values(der: bytes) -> list[tuple[int, bytes]]:
    """The values in DER (X.690), each with its tag. Raises ValueError, also for what only BER allows."""
    found = []
    while der:
        tag, size, start = der[0], der[1] if len(der) > 1 else 0xFF, 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(der[2:start], "big")
            if start > 4 or size < (0x80, 0x80, 0x80, 0x80, 0x100)[start]:
                raise ValueError("not the shortest form of a size")
        if tag & 0x1F == 0x1F or start + size > len(der):
            raise ValueError("a value is cut")
        found.append((tag, der[start : start + size]))
        der = der[start + size :]
    return found


def _inside(*values: tuple[int, bytes]) -> list[tuple[int, bytes]]:
    """The values in a sequence, which must be the only value. Raises ValueError."""
    ((tag, content),) = values
    if tag != _SEQUENCE:
        raise ValueError("not a sequence")
    return _values(content)


def _first(count: int, values: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The first values. Raises ValueError if there are fewer."""
    if len(values) < count:
        raise ValueError("a value is missing")
    return values[:count]


def _number(value: tuple[int, bytes]) -> int:
    tag, content = value
    if tag != _INTEGER:
        raise ValueError("not a number")
    return int.from_bytes(content, "big")
