"""`mnt ssh-setup` with a host that lies about its key, or writes at the prompt for the password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import paramiko
import pytest
from lying_hosts import LyingConnection, speaking
from rogue_sshd import KEY, RogueServer
from test_transport_limits import served
from waiting import PATIENCE

from mnt import keys
from mnt.cli import ssh_setup
from mnt.errors import HostError
from mnt.fleet import Fleet
from mnt.inventory.model import Host
from mnt.trust import setup
from mnt.trust.identity import Identity
from mnt.trust.setup import Setup, set_up

Frames = Iterator[tuple[str, Any]]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Identity:
    """The user's default key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    pair = keys.generate()
    (tmp_path / ".ssh" / "id_ed25519").write_text(pair.private)
    return Identity(str(tmp_path / ".ssh" / "id_ed25519"), pair.public, "me@head")


class Hosts:
    """node1 to node3. What they say is their key, and what they were sent; the `deaf` accept no new login."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, publics: dict[str, str], deaf: str = "") -> None:
        self.publics, self.deaf = publics, deaf
        self.sent: list[tuple[str, str, str]] = []  # (host, key, comment)
        self.edited = False
        monkeypatch.setattr(setup, "Fleet", lambda hosts: Fleet(hosts, connect=self.connect))
        monkeypatch.setattr(setup, "KnownHosts", lambda: type("None", (), {"about": lambda *_: []})())

    def connect(self, host: Host, shared: Any) -> LyingConnection:
        hosts = self

        class Connection(LyingConnection):
            def open(self) -> None:
                if hosts.edited and self.target.name == hosts.deaf:
                    raise HostError(self.target.name, "authentication", "no key accepted")

        return Connection(host, shared, command=speaking(self.speak))

    def speak(self, host: str, program: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        if program == "ssh.mesh":
            names = [worker["name"] for worker in args["workers"]]
            yield "answer", {"results": {name: {"ok": True, "error": None} for name in names}}
            return
        self.sent += [(host, each["key"], each["comment"]) for each in args["authorized"]]
        self.edited = self.edited or bool(args["peers"])
        yield "answer", {"changes": [], "public": self.publics.get(host) if args["node_key"] else None}

    def set_up(self, key: Identity) -> Setup:
        names = [f"node{number}" for number in (1, 2, 3)]
        hosts = [Host(name, name) for name in names]
        return set_up("c", hosts, lambda: key, chosen=True, ask=lambda user, reasons: None)


def honest() -> dict[str, str]:
    return {f"node{number}": keys.generate().public for number in (1, 2, 3)}


def test_honest_hosts(own: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch, honest())
    done = hosts.set_up(own)
    assert (done.errors, len(done.mesh)) == ({}, 4)
    assert ("node1", hosts.publics["node2"], "mnt:c:node2") in hosts.sent


@pytest.mark.parametrize("installed", [True, False])
def test_a_node_that_names_a_key_of_the_user(
    own: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: bool
) -> None:
    """It is the one that is installed, or a default one that may be installed later."""
    key = own if installed else Identity(str(tmp_path / "k"), keys.generate().public, "")
    hosts = Hosts(monkeypatch, {**honest(), "node2": own.public})
    done = hosts.set_up(key)
    assert set(done.errors) == {"node2"}
    assert "your own key SHA256:" in done.errors["node2"].reason
    assert {comment for _, public, comment in hosts.sent if public == own.public} <= {"me@head"}
    assert not any(comment == "mnt:c:node2" for _, _, comment in hosts.sent)
    assert set(done.mesh) == {("node1", "node3"), ("node3", "node1")}


def test_this_machine_may_be_a_node_that_logs_in_with_its_node_key(
    own: Identity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pair = keys.generate()
    (tmp_path / ".ssh" / "mnt" / "c").mkdir(parents=True)
    (tmp_path / ".ssh" / "mnt" / "c" / "id_ed25519").write_text(pair.private)
    (tmp_path / ".ssh" / "config").write_text("Host *\n IdentityFile ~/.ssh/mnt/c/id_ed25519\n")
    hosts = Hosts(monkeypatch, {**honest(), "node2": pair.public})
    assert hosts.set_up(own).errors == {}


def test_a_host_accepts_a_key_only_if_it_does_so_after_the_edit(
    own: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Hosts(monkeypatch, honest(), deaf="node3").set_up(own)
    assert (set(done.errors), done.ok) == ({"node3"}, False)
    assert set(done.mesh) == {("node1", "node2"), ("node2", "node1")}


def test_each_host_has_its_own_reason_at_the_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ssh_setup, "ask_secret", lambda prompt: prompt)
    usual = "no key accepted; tried k"
    prompt = ssh_setup._ask_password("me", {"node1": "lie", "node2": usual, "node3": usual})
    assert prompt == "Password of me on node[1-3]: "
    assert capsys.readouterr().err == f"node1: lie\nnode[2-3]: {usual}\n"


class _Talking(RogueServer):
    def get_allowed_auths(self, username: str) -> str:
        return "password,use the password of node2,another text,keyboard-interactive"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_PARTIALLY_SUCCESSFUL


def test_only_methods_that_exist_are_named() -> None:
    known = ["password", "an unknown method", "keyboard-interactive"]
    with served(lambda server: _Talking(lambda channel: None)) as transport:
        transport.start_client(timeout=PATIENCE)
        with pytest.raises(paramiko.BadAuthenticationType) as refusal:
            transport.auth_none("me")
        assert refusal.value.allowed_types == known
        assert "node2" not in str(refusal.value)
        assert transport.auth_publickey("me", KEY) == known
