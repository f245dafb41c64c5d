"""Paths that no file can have, in what somebody else has written: the host concerned fails, and no other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from fix_style import complaint

from mnt.errors import UsageError
from mnt.fleet.login.hostkeys import HostKey, KnownHosts
from mnt.fleet.login.identities import Identities, Identity, Unusable
from mnt.fleet.login.own import check_own
from mnt.fleet.login.shared import Shared
from mnt.fleet.login.sshconfig import SshConfig
from mnt.fleet.results import Outcome, Results
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Ssh
from mnt.paths import expanded, part_below
from mnt.push.tree import walk
from mnt.run import failed
from mnt.trust import establish, fingerprints, identity, verdict

UNKNOWN = "~no-such-user-here"
ODD = [f"{UNKNOWN}/x", UNKNOWN, "/a\0b", "~\0", "~a\0b/x", "\0b", "/a\ud800"]


@pytest.mark.parametrize("path", ODD)
def test_no_file_can_have_such_a_path(path: str) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - of no errno
        expanded(path)
    assert not isinstance(raised.value, FileNotFoundError)  # it is not one that could be made
    for use in (check_own, walk, fingerprints.read, identity.load, identity.make):
        with pytest.raises(UsageError):
            use(path)


def test_other_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for path, found in [
        ("~/x", "/home/me/x"),
        ("~", "/home/me"),
        ("a/~b", "a/~b"),
        ("/\udcff", "/\udcff"),
        ("", ""),
    ]:
        assert expanded(path) == found


@pytest.mark.parametrize(
    ("path", "place", "part"),
    [
        ("/shared/a/b", "/shared", "a/b"),
        ("/shared", "/shared/", ""),
        ("//shared/a", "//shared", "a"),
        ("/shared//a/./b/", "/shared", "a/b"),
        ("/sharedx", "/shared", None),
        ("/shared/../etc", "/shared", None),
        ("/shared", "/shared/a", None),
        ("/a", "/", "a"),
        ("/", "/", ""),
        ("~/a", "~", "a"),
        ("a", "/", None),
        ("/s" + "/a" * 1000000, "/s/a", "a/" * 999998 + "a"),
    ],
)
def test_what_is_below_a_place(path: str, place: str, part: str | None) -> None:
    assert part_below(path, place) == part


def test_without_a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written to a directory that is called `~`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UsageError, match="no home directory of ~ is known"):
        failed.remember("a.yaml", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keyword", ["Include", "IdentityFile", "IdentityAgent", "User", "#", "SendEnv"])
def test_no_line_of_an_ssh_config_has_a_nul(tmp_path: Path, keyword: str) -> None:
    (tmp_path / "config").write_text(f"User x\n{keyword} /a\0b\n")
    with pytest.raises(UsageError, match=r"config:2: a NUL byte") as raised:
        SshConfig(str(tmp_path / "config"))
    assert raised.value.fix
    assert complaint(raised.value.fix) is None


def test_an_include_in_an_unknown_home(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"\nInclude {UNKNOWN}/*\n")
    with pytest.raises(UsageError, match=rf"config:2: Include: no home directory of {UNKNOWN} is known"):
        SshConfig(str(tmp_path / "config"))


@pytest.mark.parametrize("keyword", ["UserKnownHostsFile", "GlobalKnownHostsFile"])
def test_known_hosts_in_an_unknown_home(
    tmp_path: Path, keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host fails, whatever is known of that home later: then nobody has judged the file."""
    (tmp_path / "config").write_text(f"Host bad\n {keyword} {UNKNOWN}/x\n")
    shared = Shared(Timeouts())
    known = Ssh.known_hosts if keyword.startswith("User") else str(tmp_path / "known_hosts")
    bad, good = (
        shared.destination(Host(name, name, Ssh(config=str(tmp_path / "config"), known_hosts=known)))
        for name in ("bad", "good")
    )
    assert shared._known_hosts.about(good) == []
    monkeypatch.setattr(os.path, "expanduser", lambda path: path.replace(UNKNOWN, str(tmp_path)))
    with pytest.raises(UsageError, match="no home directory"):
        shared._known_hosts.about(bad)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="no home directory"):
        KnownHosts().about(bad)


@pytest.mark.parametrize("keyword", ["IdentityFile", "IdentityAgent"])
def test_a_key_in_an_unknown_home(tmp_path: Path, keyword: str) -> None:
    (tmp_path / "config").write_text(f"{keyword} {UNKNOWN}/x\n")
    ssh = Ssh(config=str(tmp_path / "config"), known_hosts=str(tmp_path / "known_hosts"))
    destination = Shared(Timeouts()).destination(Host("a", "a", ssh))
    keys = Identities()
    keys.unlock([destination])
    found = list(keys.candidates(destination))
    if keyword == "IdentityFile":
        assert [key.reason for key in found if isinstance(key, Unusable)] == [
            f"no home directory of {UNKNOWN} is known"
        ]
    assert not any(isinstance(key, Identity) for key in found) or os.environ.get("SSH_AUTH_SOCK")


@pytest.mark.parametrize("answer", [b"\0\0\0\1\x0c", b"\0\0\0\2\x0c\0"])
def test_an_agent_that_lies_has_no_keys(tmp_path: Path, answer: bytes) -> None:
    """`IdentityAgent` names it."""
    path = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def lie() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(5)
                connection.sendall(answer)

        threading.Thread(target=lie, daemon=True).start()
        assert Identities()._agent_keys(path) == []


def test_trust_records_the_keys_of_the_other_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = HostKey("ssh-ed25519", b"key")

    def scanned(wave: Mapping[str, object]) -> Results[list[HostKey]]:
        return Results({name: Outcome(name, [key], None, 0.0) for name in wave})

    monkeypatch.setattr(establish, "_scan", scanned)
    known = str(tmp_path / "known_hosts")
    hosts = [
        Host("bad", "bad", Ssh(config=None, known_hosts=f"{UNKNOWN}/x")),
        Host("good", "good", Ssh(config=None, known_hosts=known)),
    ]
    found = establish.establish(hosts, listed=None, consent=lambda judged: [*judged], show=lambda _: None)
    assert found["good"].status == verdict.RECORDED
    assert found["bad"].status == verdict.UNREACHABLE
    assert "bad: host key: " in str(found["bad"].error)
    assert [line.key for line in KnownHosts().lines_for("good", [known])] == [key]


INVENTORY = """\
ssh: {{config: {config}, user: u, port: 1, known_hosts: {known}}}
hosts: {{good: {{address: 127.0.0.1}}, bad: {{address: 127.0.0.2, ssh: {{{own}}}}}}}
"""


@pytest.mark.parametrize(
    ("own", "config", "argv", "says"),
    [
        ("", f"Host bad\n IdentityFile {UNKNOWN}/k\n", ["run", "--", "true"], "good: connect"),
        (f"identity: {UNKNOWN}/k", "", ["run", "--", "true"], "good: connect"),
        (f"known_hosts: {UNKNOWN}/k", "", ["run", "--", "true"], "good: connect"),
        ("", f"Host bad\n GlobalKnownHostsFile {UNKNOWN}/k\n", ["trust"], "good"),
        ("", "", ["trust", "--fingerprints", f"{UNKNOWN}/k"], "no home directory"),
        (f"config: {UNKNOWN}/k", "", ["run", "--", "true"], "no home directory"),
        (f"identity: {UNKNOWN}/k", "", ["ssh-setup", "-n", "bad"], "no home directory"),
        ("", "Host bad\n IdentityFile /a\0b\n", ["run", "--", "true"], "config:2: a NUL byte"),
        ("", "", ["push", UNKNOWN], "no home directory"),
    ],
)
def test_a_command_has_no_traceback(
    tmp_path: Path, own: str, config: str, argv: list[str], says: str
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "config").write_text(config)
    (tmp_path / "i.yaml").write_text(
        INVENTORY.format(config=tmp_path / "config", known=tmp_path / "known", own=own)
    )
    command = [sys.executable, "-m", "mnt", argv[0], "-i", str(tmp_path / "i.yaml"), *argv[1:]]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stdout
    assert says in done.stdout
    assert done.returncode
