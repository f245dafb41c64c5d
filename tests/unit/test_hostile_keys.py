"""Key files that somebody else has written: each is opened or left out soon."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from waiting import cpu_at_most

from mnt.fleet.login import identities, keyfiles
from mnt.fleet.login.destination import resolve
from mnt.fleet.login.identities import Unusable, _load
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.model import Host, Ssh

pytestmark = pytest.mark.one_python

PEM, DER_PRIVATE = serialization.Encoding.PEM, serialization.PrivateFormat
SCRYPT = bytes.fromhex("06092b06010401da47040b")
PBKDF2 = bytes.fromhex("06092a864886f70d01050c")
PROC_TYPE = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\n"
SECONDS = 20  # of processor time


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


PBES2, PBES1 = bytes.fromhex("06092a864886f70d01050d"), bytes.fromhex("06092a864886f70d010503")
SALT = der(0x30, der(4, b"salt"))
VERSION = der(2, b"\0")


def with_scheme(*scheme: bytes) -> str:
    return pem("ENCRYPTED PRIVATE KEY", der(0x30, der(0x30, *scheme), der(4, b"x")))


def with_function(*function: bytes) -> str:
    return with_scheme(PBES2, der(0x30, der(0x30, *function), der(0x30, PBKDF2)))


SHORT = {
    "no algorithm": pem("PRIVATE KEY", der(0x30, VERSION, der(0x30))),
    "a number as algorithm": pem("PRIVATE KEY", der(0x30, VERSION, VERSION)),
    "only a version": pem("PRIVATE KEY", der(0x30, VERSION)),
    "nothing": pem("PRIVATE KEY", b""),
    "an empty sequence": pem("PRIVATE KEY", der(0x30)),
    "only a salt": with_scheme(PBES1, SALT),
    "no salt": with_scheme(PBES1, der(0x30)),
    "only a scheme": with_scheme(PBES1),
    "PBES2 of nothing": with_scheme(PBES2, der(0x30)),
    "PBKDF2 with a salt": with_function(PBKDF2, SALT),
    "scrypt with a salt": with_function(SCRYPT, SALT),
    "scrypt with two numbers": encrypted(SCRYPT, 2**14, 8),
    "nothing encrypted": pem("ENCRYPTED PRIVATE KEY", b""),
}


@pytest.mark.parametrize("text", SHORT.values(), ids=SHORT)
def test_a_key_without_values(tmp_path: Path, text: str) -> None:
    """Only this key cannot be used: nothing else is raised, whatever is missing."""
    with pytest.raises(ValueError):  # noqa: PT011 - of several texts
        keyfiles.read(text.encode())
    (tmp_path / "key").write_text(text)
    found = _load(str(tmp_path / "key"))
    assert found == Unusable(str(tmp_path / "key"), "not a private key that can be read")


def test_whatever_is_raised_a_key_is_only_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("")

    def broken(_data: bytes) -> None:
        raise IndexError

    monkeypatch.setattr(keyfiles, "read", broken)
    assert isinstance(_load(str(tmp_path / "key")), Unusable)


def opened(path: Path, passphrase: str | None = None) -> str:
    """What `_load` says of a file, in a process of its own: no signal ends a call of a C library."""
    program = (
        "import sys; from mnt.fleet.login.identities import _load, Unusable\n"
        "found = _load(sys.argv[1], sys.argv[2].encode() if sys.argv[2:] else None)\n"
        "says = lambda file: ('locked: ' if file.locked else '') + file.reason\n"
        "print(says(found) if isinstance(found, Unusable) else 'a key')"
    )
    argv = [sys.executable, "-c", program, str(path), *([] if passphrase is None else [passphrase])]
    limits = (SECONDS, SECONDS)
    ran = subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limits),
    )
    assert ran.returncode == 0, f"it failed, or took more than {SECONDS} s"
    return ran.stdout.strip()


def same_numbers() -> str:
    """An RSA key with d == p, of 8,000 bits: without those that are there twice, no third number is long."""
    p, q = 9 * 2**7967 + 1, 3
    words = (b"ssh-rsa", *map(number, (p * q, 65537, p, 1, p, q)), b"")
    private = (1).to_bytes(4, "big") * 2 + b"".join(map(string, words))
    private += bytes(range(1, -len(private) % 8 + 1))
    return openssh(b"".join(map(string, (b"ssh-rsa", number(65537), number(p * q)))), private)


SLOW = {**LARGE, **ROUNDS, "the same number twice": same_numbers()}
# Each hides the key from whoever looks for `Proc-Type`, and the libraries open it all the same.
TRICKS = {
    "after the data": lambda text: text.replace("-----END", "Proc-Type:\n-----END"),
    "in another header": lambda text: text.replace("KEY-----\n", "KEY-----\nX-Proc-Type: no\n\n", 1),
    "another value": lambda text: text.replace("KEY-----\n", "KEY-----\nProc-Type: 4,CLEAR\n\n", 1),
    "alone": lambda text: text.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
    "as it should be": lambda text: text.replace("KEY-----\n", f"KEY-----\n{PROC_TYPE}", 1),
    "behind a certificate": lambda text: f"{pem('CERTIFICATE', b'')}Proc-Type: 4,ENCRYPTED\n{text}",
    "as bytes that are no base64": lambda text: text.replace("KEY-----\n", "KEY-----\n\x7f%\n", 1),
    "none": lambda text: text,
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_no_trick_hides_such_a_key(tmp_path: Path, trick: Callable[[str], str]) -> None:
    for text in SLOW.values():
        (tmp_path / "key").write_text(trick(text))
        with cpu_at_most(SECONDS):
            found = _load(str(tmp_path / "key"))
            tried = _load(str(tmp_path / "key"), b"secret")
        assert isinstance(found, Unusable)
        assert isinstance(tried, Unusable)


@pytest.mark.parametrize(
    ("trick", "text"),
    [("after the data", ROUNDS["bcrypt"]), ("in another header", LARGE["RSA in PEM"])],
)
def test_the_tricks_of_the_report(tmp_path: Path, trick: str, text: str) -> None:
    (tmp_path / "key").write_text(TRICKS[trick](text))
    for passphrase in (None, "secret"):
        assert opened(tmp_path / "key", passphrase) == "not a private key that can be read"
    (tmp_path / "key").write_text(same_numbers())
    assert "8,192 bits" in opened(tmp_path / "key")


@pytest.mark.parametrize("form", [DER_PRIVATE.PKCS8, DER_PRIVATE.TraditionalOpenSSL, DER_PRIVATE.OpenSSH])
def test_a_key_that_would_take_long_when_its_passphrase_is_right(tmp_path: Path, form: DER_PRIVATE) -> None:
    large = LARGE["RSA with a long prime, in PEM"].encode()
    key = serialization.load_pem_private_key(large, None, unsafe_skip_rsa_key_validation=True)
    how = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "key").write_bytes(key.private_bytes(PEM, form, how))
    assert opened(tmp_path / "key").startswith("locked: ")
    assert "8,192 bits" in opened(tmp_path / "key", "secret")


def test_a_hundred_keys_that_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_MOST_SECONDS", 1.0)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "config").write_text("".join(f"IdentityFile {tmp_path}/{i}\n" for i in range(100)))
    for index in range(100):
        (tmp_path / f"{index}").write_text(rsa_pem(mersenne(2281), mersenne(2203)))
    host = Host("node1", "node1", Ssh(config=str(tmp_path / "config")))
    with cpu_at_most(10 * SECONDS):
        found = list(identities.Identities().candidates(resolve(host, SshConfig(host.ssh.config))))
    unusable = [each for each in found if isinstance(each, Unusable)]
    assert 50 <= len(unusable) <= 99  # the others have the same key, which counts once
    assert unusable[-1].reason.startswith("not opened: the keys before it have taken ")


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
    wrong = _load(str(tmp_path / "key"), b"wrong")
    assert isinstance(wrong, Unusable)
    assert wrong.locked
    assert not isinstance(_load(str(tmp_path / "key"), b"secret"), Unusable)


OTHERS = {
    "ed448": (ed448.Ed448PrivateKey.generate(), DER_PRIVATE.PKCS8, "cannot be used: Ed448PrivateKey"),
    "secp256k1": (ec.generate_private_key(ec.SECP256K1()), DER_PRIVATE.PKCS8, "the curve secp256k1"),
    "secp256k1, older": (
        ec.generate_private_key(ec.SECP256K1()),
        DER_PRIVATE.TraditionalOpenSSL,
        "the curve secp256k1",
    ),
    "dsa": (dsa.generate_private_key(2048), DER_PRIVATE.PKCS8, "DSAPrivateKey"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_key_that_ssh_does_not_have(tmp_path: Path, name: str, encrypted: bool) -> None:
    key, form, reason = OTHERS[name]
    how = serialization.BestAvailableEncryption(b"secret") if encrypted else serialization.NoEncryption()
    (tmp_path / "key").write_bytes(key.private_bytes(PEM, form, how))
    found = _load(str(tmp_path / "key"), b"secret" if encrypted else None)
    assert isinstance(found, Unusable)
    assert not found.locked
    assert reason in found.reason or "a kind of key that cannot be used" in found.reason


@pytest.mark.parametrize("typed", ["wrong", "secret"])
def test_a_passphrase_that_is_checked_by_a_tag(tmp_path: Path, typed: str) -> None:
    """cryptography raises InvalidTag for a wrong one, which is no ValueError."""
    path = tmp_path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-Z", "aes256-gcm@openssh.com", "-f", path],
        check=True,
    )
    found = _load(str(path), typed.encode())
    if typed == "secret":
        assert not isinstance(found, Unusable)
    else:
        assert isinstance(found, Unusable)
        assert found.locked


def test_it_is_asked_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(identities, "has_terminal", lambda: True)
    monkeypatch.setattr(identities, "ask_secret", lambda question: asked.append(question) or "wrong")
    how = serialization.BestAvailableEncryption(b"secret")
    for name, form in (("a", DER_PRIVATE.OpenSSH), ("b", DER_PRIVATE.PKCS8)):
        (tmp_path / name).write_bytes(KEYS["ecdsa"].private_bytes(PEM, form, how))
        found = identities._unlock(str(tmp_path / name))
        assert isinstance(found, Unusable)
        assert "the right one was not given" in found.reason
    assert len(asked) == 6


@pytest.mark.parametrize(
    "text",
    [
        encrypted(PBKDF2, 1_000_000, 32),
        encrypted(SCRYPT, 2**14, 8, 1),
        rsa_pem(mersenne(4253), mersenne(3217)).replace("KEY-----\n", f"KEY-----\n{PROC_TYPE}", 1),
    ],
)
def test_what_is_not_too_much(text: str) -> None:
    assert keyfiles.read(text.encode()).encrypted


def read(data: bytes) -> None:
    with contextlib.suppress(ValueError, keyfiles.NotOpened):
        keyfiles.read(data)


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for label in ("OPENSSH PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"):
        read(pem(label, data).encode())
        keyfiles.public_part(pem(label, data).encode())
    read(data)
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
