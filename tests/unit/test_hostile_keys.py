"""Key files that somebody else has written: each is opened or left out soon."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from mnt.fleet.login import keyfiles
from mnt.fleet.login.identities import Unusable, _load

PEM, DER_PRIVATE = serialization.Encoding.PEM, serialization.PrivateFormat
SCRYPT = bytes.fromhex("06092b06010401da47040b")
PBKDF2 = bytes.fromhex("06092a864886f70d01050c")


def length(count: int) -> bytes:
    data = count.to_bytes((count.bit_length() + 7) // 8, "big")
    return bytes([count]) if count < 128 else bytes([0x80 | len(data)]) + data


def der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([tag]) + length(len(body)) + body


def number(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big")


def pem(label: str, body: bytes) -> str:
    text = base64.encodebytes(body).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"


def string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def openssh(public: bytes, private: bytes, rounds: int | None = None) -> str:
    names = string(b"none") * 2 + string(b"")
    if rounds is not None:
        names = string(b"aes256-ctr") + string(b"bcrypt")
        names += string(string(b"0" * 16) + rounds.to_bytes(4, "big"))
    body = b"openssh-key-v1\0" + names + (1).to_bytes(4, "big") + string(public) + string(private)
    return pem("OPENSSH PRIVATE KEY", body)


def rsa_numbers(p: int, q: int) -> tuple[int, ...]:
    """n, e, d, p, q, d mod p-1, d mod q-1, 1/q mod p"""
    d = pow(65537, -1, (p - 1) * (q - 1))
    return p * q, 65537, d, p, q, d % (p - 1), d % (q - 1), pow(q, -1, p)


def rsa_pem(p: int, q: int) -> str:
    numbers = (der(2, number(each)) for each in (0, *rsa_numbers(p, q)))
    return pem("RSA PRIVATE KEY", der(0x30, *numbers))


def rsa_pkcs8(p: int, q: int) -> str:
    inner = der(0x30, *(der(2, number(each)) for each in (0, *rsa_numbers(p, q))))
    algorithm = der(0x30, bytes.fromhex("06092a864886f70d010101"), b"\x05\0")
    return pem("PRIVATE KEY", der(0x30, der(2, b"\0"), algorithm, der(4, inner)))


def rsa_openssh(p: int, q: int) -> str:
    n, e, d, p, q, _, _, inverse = rsa_numbers(p, q)
    words = (b"ssh-rsa", *map(number, (n, e, d, inverse, p, q)), b"")
    private = (1).to_bytes(4, "big") * 2 + b"".join(map(string, words))
    private += bytes(range(1, -len(private) % 8 + 1))
    return openssh(b"".join(map(string, (b"ssh-rsa", number(e), number(n)))), private)


def encrypted(algorithm: bytes, *numbers: int) -> str:
    kdf = der(0x30, algorithm, der(0x30, der(4, b"salt" * 4), *(der(2, number(each)) for each in numbers)))
    cipher = der(0x30, bytes.fromhex("060960864801650304012a"), der(4, b"0" * 16))
    scheme = der(0x30, bytes.fromhex("06092a864886f70d01050d"), der(0x30, kdf, cipher))
    return pem("ENCRYPTED PRIVATE KEY", der(0x30, scheme, der(4, os.urandom(160))))


def mersenne(bits: int) -> int:
    return 2**bits - 1  # a prime, so that every round of the test is done


LARGE = {
    "RSA in PEM": rsa_pem(mersenne(9689), mersenne(9941)),
    "RSA in PKCS#8": rsa_pkcs8(mersenne(9689), mersenne(9941)),
    "RSA in OpenSSH's form": rsa_openssh(mersenne(9689), mersenne(9941)),
    "RSA with a long prime": rsa_openssh(mersenne(4423), mersenne(2281)),
    "RSA with a long prime, in PEM": rsa_pem(mersenne(4423), mersenne(2281)),
    "RSA, behind another block": pem("EC PARAMETERS", b"\5\0") + rsa_pem(mersenne(9689), mersenne(9941)),
    "RSA, encrypted": openssh(
        b"".join(map(string, (b"ssh-rsa", b"\1\0\1", b"\x7f" * 4000))), b"0" * 160, rounds=16
    ),
}
ROUNDS = {
    "bcrypt": openssh(string(b"ssh-ed25519") + string(b"0" * 32), b"0" * 160, rounds=2**31),
    "PBKDF2": encrypted(PBKDF2, 2**31 - 1),
    "PBKDF2 with a length": encrypted(PBKDF2, 2**31 - 1, 32),
    "scrypt": encrypted(SCRYPT, 2**20, 8, 1),
    "scrypt with many blocks": encrypted(SCRYPT, 2**14, 8, 2**20),
}


@pytest.mark.parametrize(
    ("text", "reason"),
    [(text, "8,192 bits") for text in LARGE.values()] + [(text, "rounds") for text in ROUNDS.values()],
    ids=[*LARGE, *ROUNDS],
)
def test_a_key_that_would_take_long_is_not_opened(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    started = time.process_time()
    found = _load(str(file))
    assert time.process_time() - started < 2
    assert isinstance(found, Unusable)
    assert reason in found.reason
    assert not found.locked  # no passphrase is asked for


@pytest.mark.parametrize("lay", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
@pytest.mark.parametrize("name", ["key", "key-cert.pub"])
def test_a_certificate_that_is_no_file(tmp_path: Path, lay: Callable[[Path], None], name: str) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    none = serialization.NoEncryption()
    (tmp_path / "key").write_bytes(key.private_bytes(PEM, DER_PRIVATE.OpenSSH, none))
    lay(tmp_path / "key-cert.pub")
    assert _load(str(tmp_path / name)) == Unusable(str(tmp_path / name), "not a regular file")


KEYS = {
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "ecdsa": ec.generate_private_key(ec.SECP521R1()),
    "rsa": rsa.generate_private_key(65537, 3072),
}
FORMS = [DER_PRIVATE.OpenSSH, DER_PRIVATE.TraditionalOpenSSL]


def written(
    key: rsa.RSAPrivateKey, form: DER_PRIVATE, how: serialization.KeySerializationEncryption
) -> bytes:
    if isinstance(key, ed25519.Ed25519PrivateKey) and form is DER_PRIVATE.TraditionalOpenSSL:
        pytest.skip("there is no such form")
    return key.private_bytes(PEM, form, how)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_what_users_have_is_opened(tmp_path: Path, key: rsa.RSAPrivateKey, form: DER_PRIVATE) -> None:
    (tmp_path / "key").write_bytes(written(key, form, serialization.NoEncryption()))
    assert not isinstance(_load(str(tmp_path / "key")), Unusable)


@pytest.mark.parametrize("form", [*FORMS, DER_PRIVATE.PKCS8])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_passphrase_of_users_is_asked_for(
    tmp_path: Path, key: rsa.RSAPrivateKey, form: DER_PRIVATE
) -> None:
    how: serialization.KeySerializationEncryption = serialization.BestAvailableEncryption(b"secret")
    if form is DER_PRIVATE.OpenSSH:
        how = form.encryption_builder().kdf_rounds(100).build(b"secret")
    (tmp_path / "key").write_bytes(written(key, form, how))
    found = _load(str(tmp_path / "key"))
    assert isinstance(found, Unusable)
    assert found.locked


@pytest.mark.parametrize(
    "text",
    [
        encrypted(PBKDF2, 1_000_000, 32),
        encrypted(SCRYPT, 2**14, 8, 1),
        rsa_pem(mersenne(4253), mersenne(3217)).replace("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
    ],
)
def test_what_is_not_too_much(text: str) -> None:
    assert keyfiles.problem(text.encode()) is None


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for label in ("OPENSSH PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"):
        keyfiles.problem(pem(label, data).encode())
        keyfiles.public_part(pem(label, data).encode())
    keyfiles.problem(data)
    keyfiles.public_part(data)


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN A-----" * 3800,
        "-----BEGIN RSA PRIVATE KEY-----" + "MIAw" * 16_000 + "-----END ",
        pem("RSA PRIVATE KEY", b"\x30\x80" * 20_000),
        pem("RSA PRIVATE KEY", b"\x04\x84\x7f\xff\xff\xff" * 8000),
        pem("RSA PRIVATE KEY", b"\x02\x00" * 20_000),
        pem("OPENSSH PRIVATE KEY", b"\xff" * 45_000),
    ],
)
def test_what_is_no_key_takes_no_time(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    started = time.process_time()
    with contextlib.suppress(OSError):
        assert isinstance(_load(str(tmp_path / "key")), Unusable)
    assert time.process_time() - started < 2
