"""Which keys are tried, in which order, and what is said of those that cannot be."""

from __future__ import annotations

import os
import socket as socketlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, at_most

from mnt.fleet.login.destination import Destination, resolve
from mnt.fleet.login.identities import Identities, Identity, Unusable, _unreadable
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.model import Host, Ssh


def make_key(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> str:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", f"comment of {path.name}", "-f", path]
    subprocess.run(command, check=True)
    return str(path)


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without keys, and no agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent of the test's own."""
    socket = str(home / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", socket)
    yield
    process.terminate()
    process.wait()
    process.stdout.close()


def load(path: str, passphrase: str = "") -> None:
    environment = {**os.environ, "SSH_ASKPASS": "/bin/echo", "SSH_ASKPASS_REQUIRE": "force"}
    if passphrase:
        askpass = Path(path).with_suffix(".askpass")
        askpass.write_text(f"#!/bin/sh\necho {passphrase}\n")
        askpass.chmod(0o755)
        environment["SSH_ASKPASS"] = str(askpass)
    subprocess.run(["ssh-add", "-q", path], env=environment, stdin=subprocess.DEVNULL, check=True)


def destination(config: str = "", home: Path | None = None, **ssh: str) -> Destination:
    path = None
    if home is not None:
        path = str(home / "config")
        Path(path).write_text(config)
    return resolve(Host("node1", "node1", Ssh(**ssh)), SshConfig(path))  # type: ignore[arg-type]


def candidates(where: Destination) -> list[str]:
    """Labels in order; for what cannot be tried with the reason."""
    identities = Identities()
    try:
        found = list(identities.candidates(where))
    finally:
        identities.close()
    assert all(isinstance(one, (Identity, Unusable)) for one in found)
    return [one.label if isinstance(one, Identity) else f"{one.label}: {one.reason}" for one in found]


def test_the_fix_names_the_file_that_it_changes(tmp_path: Path) -> None:
    """Whoever wrote the inventory may have made the link: sudo would give away any file of root's."""
    (tmp_path / "shadow").touch()
    (tmp_path / "etc").symlink_to(".")
    (tmp_path / "key").symlink_to("etc/shadow")
    fix = _unreadable(str(tmp_path / "key"), "unreadable").fix
    assert fix == f"chmod 600 {os.path.realpath(tmp_path)}/shadow"


def test_default_files_that_exist(home: Path) -> None:
    make_key(home / ".ssh" / "id_rsa", kind="rsa")
    make_key(home / ".ssh" / "id_ed25519")
    assert candidates(destination()) == ["~/.ssh/id_ed25519", "~/.ssh/id_rsa"]


def test_an_explicit_key_is_the_only_one(home: Path, agent: None) -> None:
    load(make_key(home / "other"))
    make_key(home / ".ssh" / "id_ed25519")
    mine = make_key(home / "mine", kind="ecdsa")
    assert candidates(destination(identity=mine)) == [mine]


def test_agent_before_default_files_each_key_once(home: Path, agent: None) -> None:
    load(make_key(home / "other"))
    load(make_key(home / ".ssh" / "id_ecdsa", kind="ecdsa"))
    make_key(home / ".ssh" / "id_ed25519")
    expected = ["agent: comment of other", "agent: comment of id_ecdsa", "~/.ssh/id_ed25519"]
    assert candidates(destination()) == expected


def test_files_of_ssh_config_before_the_agent_and_instead_of_the_default_ones(
    home: Path, agent: None
) -> None:
    load(make_key(home / "other"))
    make_key(home / ".ssh" / "id_ed25519")
    mine = make_key(home / "mine")
    config = f"IdentityFile {mine}\nIdentityFile /nowhere/key\n"
    assert candidates(destination(config, home)) == [mine, "/nowhere/key: missing", "agent: comment of other"]
    assert candidates(destination(config + "IdentitiesOnly yes\n", home)) == [mine, "/nowhere/key: missing"]


def test_a_key_with_a_passphrase_needs_the_agent(home: Path, agent: None) -> None:
    mine = make_key(home / "mine", passphrase="secret")
    assert candidates(destination(identity=mine)) == [f"{mine}: needs a passphrase, and no agent holds it"]
    load(mine, "secret")
    assert candidates(destination(identity=mine)) == [mine]


@pytest.mark.parametrize("kept", [True, False])
def test_a_public_key_names_the_agents_key(home: Path, agent: None, kept: bool) -> None:
    load(make_key(home / "other"))
    mine = make_key(home / "mine", kind="ecdsa")
    public = f"{mine}.pub"
    assert candidates(destination(identity=public)) == [
        f"{public}: a public key, and no agent holds its private key"
    ]
    load(mine)
    if not kept:
        Path(mine).unlink()  # it is in the agent alone
    assert candidates(destination(identity=public)) == [public]
    config = f"IdentityFile {public}\nIdentitiesOnly yes\n"
    assert candidates(destination(config, home)) == [public]


@pytest.mark.parametrize("text", ["ssh-ed25519", "ssh-ed25519 AAAA", "ssh-ed25519 !!!", "a b c", "\xff \xff"])
def test_what_is_no_public_key_either(home: Path, agent: None, text: str) -> None:
    file = home / "key.pub"
    file.write_text(text)
    assert candidates(destination(identity=str(file))) == [f"{file}: not a private key that can be read"]


def test_identity_agent_none(home: Path, agent: None) -> None:
    load(make_key(home / "other"))
    assert candidates(destination("IdentityAgent none\n", home)) == []


def test_an_agent_that_is_gone_is_no_agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "gone"))
    assert candidates(destination()) == []
    identities = Identities()
    assert identities.silent_agent(destination()) is None, "nobody has asked it"
    assert list(identities.candidates(destination())) == []
    assert identities.silent_agent(destination()) == str(home / "gone")


def test_a_silent_agent_in_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known by its path as it is written, also where that begins with `~`."""
    monkeypatch.setenv("HOME", str(home))
    there = destination("IdentityAgent ~/gone\n", home)
    identities = Identities()
    assert list(identities.candidates(there)) == []
    assert identities.silent_agent(there) == "~/gone"


def test_an_agent_that_hangs(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = make_key(home / "mine")
    with socketlib.socket(socketlib.AF_UNIX) as silent:
        silent.bind(str(home / "silent"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "silent"))
        assert candidates(destination(identity=mine)) == [mine]
        assert capsys.readouterr().err == "", "nobody needs it"
        began = time.monotonic()
        assert candidates(destination()) == []
        assert time.monotonic() - began < 9
    said = f"warning: the SSH agent at {home / 'silent'} gives no answer within 2 s: its keys are not tried\n"
    assert capsys.readouterr().err == said


def test_what_is_no_key(home: Path) -> None:
    text = home / "text"
    text.write_text("hello\n")
    assert candidates(destination(identity=str(text))) == [f"{text}: not a private key that can be read"]
    assert candidates(destination(identity=str(home))) == [f"{home}: Is a directory"]


@pytest.mark.parametrize("lay", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), huge])
def test_a_key_file_of_another_kind_is_no_key(home: Path, lay: Callable[[Path], object]) -> None:
    path = home / "key"
    lay(path)
    with at_most(PATIENCE):
        (found,) = Identities().candidates(destination(identity=str(path)))
    assert isinstance(found, Unusable)
    assert found.reason in ("not a regular file", "Is a directory", "larger than 65,536 bytes")
    assert not found.locked


@pytest.mark.parametrize("lay", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), huge])
def test_a_public_key_of_another_kind_is_none(home: Path, lay: Callable[[Path], object]) -> None:
    path = make_key(home / "key", passphrase="long enough")
    Path(f"{path}.pub").unlink()
    lay(Path(f"{path}.pub"))
    with at_most(PATIENCE):
        (found,) = Identities().candidates(destination(identity=path))
    assert isinstance(found, Unusable)
    assert found.locked
