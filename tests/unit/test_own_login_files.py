"""Another user of the head, who plants or exchanges a file that decides about logins.

An ssh_config, known_hosts, the file of a public key, and the temporary files that have a name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from fix_style import complaint

from mnt import keys
from mnt.errors import UsageError
from mnt.fleet.login import sshconfig
from mnt.fleet.login.destination import resolve
from mnt.fleet.login.failures import LoginFailure
from mnt.fleet.login.masters import Master
from mnt.fleet.login.shared import Shared
from mnt.fleet.login.sshconfig import SshConfig, ask_ssh
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Ssh
from mnt.remote.common import owners
from mnt.remote.trial import stage
from mnt.trust import identity

EVE = 64999  # no such user here
REDIRECT = "Host node1\n  HostName 10.6.6.6\n"

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="the OpenSSH client is not installed")


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """~/.ssh of this user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path / ".ssh"


def of_eve(path: Path) -> None:
    os.chown(path, EVE, EVE, follow_symlinks=False)


def open_to_all(path: Path) -> None:
    path.chmod(0o777 if path.is_dir() else 0o666)


def open_to_a_group(path: Path) -> None:
    os.chown(path, -1, EVE)
    path.chmod(0o775 if path.is_dir() else 0o664)


def open_above(path: Path) -> None:
    open_to_all(path.parent)


TAKEN = [
    pytest.param(of_eve, marks=needs_root),
    open_to_all,
    pytest.param(open_to_a_group, marks=needs_root),
    open_above,
]


def refusal(call: Callable[[], object]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.fix
    assert complaint(caught.value.fix) is None
    return caught.value


# --- ssh_config


@pytest.mark.parametrize("take", TAKEN)
@pytest.mark.parametrize("name", ["~/.ssh/config", "{ssh}/of-the-inventory"])
@pytest.mark.parametrize("included", [False, True])
def test_an_ssh_config_that_another_user_could_have_written(
    ssh: Path, take: Callable[[Path], None], name: str, included: bool
) -> None:
    name = name.format(ssh=ssh)
    file = Path(name).expanduser()
    if included:
        file.write_text("Include parts/*\n")
        (ssh / "parts").mkdir()
        file = ssh / "parts" / "cluster"
    file.write_text(REDIRECT)
    host = Host("node1", "node1", Ssh(config=name))
    assert Shared(Timeouts()).destination(host).hostname == "10.6.6.6"
    take(file)
    error = refusal(lambda: Shared(Timeouts()).destination(host))
    assert f"{file} may be another user's: " in error.message.replace("~", os.environ["HOME"])


@needs_ssh
@needs_root
@pytest.mark.parametrize("take", [of_eve, open_to_all, open_to_a_group])
def test_ssh_refuses_the_same_files(ssh: Path, take: Callable[[Path], None]) -> None:
    """It checks what is included, wherever; its own user's home is the one in /etc/passwd."""
    (ssh / "part").write_text(REDIRECT)
    (ssh / "config").write_text(f"Include {ssh}/part\n")
    asked = ["ssh", "-G", "-F", str(ssh / "config"), "node1"]
    assert b"hostname 10.6.6.6" in subprocess.run(asked, capture_output=True, check=True).stdout
    take(ssh / "part")
    assert b"Bad owner or permissions on" in subprocess.run(asked, capture_output=True, check=False).stderr


def test_ones_own_group_is_nobody_else(ssh: Path) -> None:
    """Debian's ssh accepts this too, other ones do not."""
    (ssh / "config").write_text(REDIRECT)
    (ssh / "config").chmod(0o664)
    assert SshConfig("~/.ssh/config").lookup("node1", "node1")["hostname"] == ("10.6.6.6",)


@pytest.mark.parametrize("name", ["/dev/null", "{ssh}/null", "/dev/fd/{pipe}"])
def test_an_ssh_config_that_is_no_file(ssh: Path, name: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"Port 2222\n")
    os.close(writing)
    (ssh / "null").symlink_to("/dev/null")
    found = SshConfig(name.format(ssh=ssh, pipe=reading)).lookup("node1", "node1")
    os.close(reading)
    assert found == ({"port": ("2222",)} if "pipe" in name else {})


# --- known_hosts


@pytest.mark.parametrize("take", TAKEN)
@pytest.mark.parametrize("how", ["default", "of ssh", "inventory", "ssh_config", "gateway", "global"])
def test_known_hosts_that_another_user_could_have_written(
    ssh: Path, take: Callable[[Path], None], how: str
) -> None:
    file = ssh / {"default": "known_hosts", "of ssh": "known_hosts2"}.get(how, "of-the-cluster")
    file.write_text("node1 ssh-ed25519 AAAA\n")
    text = {
        "ssh_config": f"UserKnownHostsFile {file}\n",
        "gateway": f"Host node1\n ProxyJump gate\nHost gate\n UserKnownHostsFile {file}\n",
        "global": f"GlobalKnownHostsFile {file}\n",
    }
    (ssh.parent / "config").write_text(text.get(how, ""))
    settings = {"config": str(ssh.parent / "config")}
    if how == "inventory":
        settings["known_hosts"] = str(file)
    host = Host("node1", "node1", Ssh(**settings))
    Shared(Timeouts()).destination(host)
    take(file)
    error = refusal(lambda: Shared(Timeouts()).destination(host))
    assert " may be another user's: " in error.message
    assert str(file.parent) in error.message


def test_files_in_a_directory_like_tmp(ssh: Path) -> None:
    """One's own are fine there. One that does not exist could be made by anybody, at any moment."""
    common = ssh.parent / "common"
    common.mkdir()
    common.chmod(0o1777)
    host = Host("node1", "node1", Ssh(config=f"{common}/config", known_hosts=f"{common}/known_hosts"))
    (common / "config").write_text(REDIRECT)
    (common / "known_hosts").symlink_to("missing")
    with pytest.raises(UsageError, match=f"{common}/known_hosts may be .*: all users can write to {common} "):
        Shared(Timeouts()).destination(host)
    (common / "known_hosts").unlink()
    (common / "known_hosts").touch()
    assert Shared(Timeouts()).destination(host).hostname == "10.6.6.6"


def test_known_hosts_that_another_user_could_make(ssh: Path) -> None:
    host = Host("node1", "node1", Ssh(config=None))
    Shared(Timeouts()).destination(host)
    open_to_all(ssh)
    refusal(lambda: Shared(Timeouts()).destination(host))


@pytest.mark.parametrize("link", [False, True])
def test_no_known_hosts_at_all(ssh: Path, link: bool) -> None:
    (ssh / "known_hosts").symlink_to("/dev/null")
    named = {} if link else {"known_hosts": "/dev/null"}
    Shared(Timeouts()).destination(Host("node1", "node1", Ssh(config=None, **named)))


# --- the public key that ssh-setup installs


def written(path: Path, passphrase: bytes | None = None, form: str = "OpenSSH", private: Any = None) -> str:
    """Make a key pair; its public key."""
    key = private or ed25519.Ed25519PrivateKey.generate()
    form_of = serialization.PrivateFormat
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase and form == "OpenSSH":
        how = form_of.OpenSSH.encryption_builder().kdf_rounds(16).build(passphrase)
    elif passphrase:
        how = serialization.BestAvailableEncryption(passphrase)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, getattr(form_of, form), how))
    path.chmod(0o600)
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public: str = key.public_key().public_bytes(*openssh).decode()
    path.with_name(f"{path.name}.pub").write_text(f"{public} me@head\n")
    return public


PAIRS = {
    "ed25519": {},
    "with a passphrase": {"passphrase": b"secret"},
    "ecdsa in PEM": {"form": "TraditionalOpenSSL", "private": ec.generate_private_key(ec.SECP256R1())},
    "rsa in PEM": {"form": "TraditionalOpenSSL", "private": rsa.generate_private_key(65537, 2048)},
    "rsa with a passphrase": {"passphrase": b"secret", "private": rsa.generate_private_key(65537, 2048)},
}
HIDDEN = {"passphrase": b"secret", "form": "PKCS8", "private": ed25519.Ed25519PrivateKey.generate()}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_the_public_key_is_that_of_the_private_key(ssh: Path, pair: dict[str, Any]) -> None:
    """Another one beside it is an error, whoever has put it there."""
    public = written(ssh / "key", **pair)
    assert identity.load("~/.ssh/key") == identity.Identity("~/.ssh/key", public, "me@head")
    eves = keys.generate().public
    (ssh / "key.pub").write_text(f"{eves} me@head\n")
    error = refusal(lambda: identity.load(str(ssh / "key")))
    for text in (public, eves):
        assert fingerprint(text) in error.message
    (ssh / "key.pub").unlink()
    assert identity.load("~/.ssh/key") == identity.Identity("~/.ssh/key", public, "")


def test_the_fix_for_another_key_beside_it(ssh: Path) -> None:
    public = written(ssh / "a b; false $(c)", **next(iter(PAIRS.values())))
    (ssh / "a b; false $(c).pub").write_text(f"{keys.generate().public} me@head\n")
    error = refusal(lambda: identity.load("~/.ssh/a b; false $(c)"))
    assert error.fix is not None
    subprocess.run(["sh", "-c", error.fix.partition("; then: ")[2]], check=True)
    assert (ssh / "a b; false $(c).pub").read_text().split()[:2] == public.split()[:2]


def fingerprint(public: str) -> str:
    done = subprocess.run(
        ["ssh-keygen", "-lf", "-"], input=public, capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1]


def test_a_public_key_that_no_private_key_proves(ssh: Path) -> None:
    public = written(ssh / "key", **HIDDEN)
    for name in ("key", "key.pub"):
        assert identity.load(str(ssh / name)) == identity.Identity(str(ssh / name), public, "me@head")
    (ssh / "key").unlink()
    assert identity.load(str(ssh / "key")) is None


@pytest.mark.parametrize("take", TAKEN)
@pytest.mark.parametrize("name", ["key", "key.pub"])
def test_a_public_key_that_another_user_could_have_written(
    ssh: Path, take: Callable[[Path], None], name: str
) -> None:
    written(ssh / "key", **HIDDEN)
    take(ssh / "key.pub")
    assert "may be another user's" in refusal(lambda: identity.load(str(ssh / name))).message


@pytest.mark.parametrize("take", TAKEN)
def test_a_private_key_that_another_user_could_have_written(ssh: Path, take: Callable[[Path], None]) -> None:
    """Both files are hers: the public key is that of the private one."""
    written(ssh / "key")
    take(ssh / "key")
    assert "may be another user's" in refusal(lambda: identity.load(str(ssh / "key"))).message


def test_no_key_is_made_where_another_user_could_replace_it(ssh: Path) -> None:
    open_to_all(ssh)
    refusal(lambda: identity.make("~/.ssh/id_ed25519"))
    assert list(ssh.iterdir()) == []


def test_a_comment_that_would_replace_the_key_of_a_node(ssh: Path) -> None:
    public = written(ssh / "key")
    (ssh / "key.pub").write_text(f"{public} mnt:cluster:node1\n")
    assert identity.load("~/.ssh/key") == identity.Identity("~/.ssh/key", public, "")


# --- temporary files, in a directory where all users can exchange them


@pytest.fixture
def loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$TMPDIR, and what stands for /tmp: without the sticky bit."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    directory.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


@contextlib.contextmanager
def exchanged(directory: Path, text: str) -> Iterator[None]:
    """Meanwhile, another user puts a file of hers in the place of each that appears in a directory."""
    done = threading.Event()

    def attack() -> None:
        new = directory.parent / "new"
        while not done.is_set():
            for name in os.listdir(directory):
                with contextlib.suppress(OSError):
                    if (directory / name).stat().st_uid != EVE:
                        new.write_text(text)
                        of_eve(new)
                        new.rename(directory / name)

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@needs_ssh
@needs_root
def test_the_question_to_ssh_whether_a_user_is_named(tmp_path: Path, loose: Path) -> None:
    """ssh reads no file that has a name in $TMPDIR: its `Match exec` would run as this user."""
    config, ran = tmp_path / "config", tmp_path / "ran"
    config.write_text("Match host node1\n Compression no\n")
    with exchanged(loose, f'Match exec "touch {ran}"\nUser eve\n'):
        for _ in range(20):
            assert "user" not in ask_ssh("node1", "node1", str(config))
    assert not ran.exists()


@needs_ssh
def test_whether_a_user_is_named(tmp_path: Path) -> None:
    me = sshconfig._own_name()
    for text, found in (("", None), (f"User {me}\n", (me,))):
        (tmp_path / "co\u00f1fig").write_text("Match host node1\n Compression no\n" + text)
        assert ask_ssh("node1", "node1", str(tmp_path / "co\u00f1fig")).get("user") == found


def test_no_gateway_through_a_socket_that_another_user_can_exchange(
    loose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_TMP", str(loose))
    monkeypatch.setattr(shutil, "which", lambda name: name)
    gate = resolve(Host("gate", "gate"), SshConfig(None))
    with pytest.raises(LoginFailure, match=f"all users can write to {loose} ") as caught:
        Master(gate, Timeouts()).run(None)
    assert caught.value.fix == f"chmod o-w {loose}"
    assert list(loose.iterdir()) == []


def test_the_program_of_a_trial_is_not_in_the_directory_for_temporary_files(loose: Path) -> None:
    """There another user of the host could put another program in its place."""
    frames: list[dict[str, Any]] = []
    with open(os.devnull, "rb") as nothing:
        stage.main({"files": {"allreduce.py": "pass"}}, frames.append, nothing)
    assert Path(frames[0]["directory"]).parent == Path("/tmp")
    assert list(loose.iterdir()) == []


def test_no_trial_in_a_directory_that_another_user_can_exchange(
    loose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_TMP", str(loose))
    frames: list[dict[str, Any]] = []
    assert stage.main({"files": {"allreduce.py": "pass"}}, frames.append, sys.stdin.buffer) == {}
    (frame,) = frames
    assert frame["refused"]["message"].startswith(f"all users can write to {loose} ")
    assert list(loose.iterdir()) == []
