"""ssh_config: what it says of a host, compared with what ssh itself makes of the same file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.fleet.login.sshconfig import SshConfig, ask_ssh

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(text: str, name: str = "config") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return to


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="the OpenSSH client is not installed")

CONFIGS = {
    "first value wins": """
        Host node1
          User first
          Port 2201
        Host node*
          User second
          IdentityFile ~/.ssh/a
        Host *
          IdentityFile ~/.ssh/b
          ProxyJump me@bastion:2222,second
        """,
    "equals, quotes, case": """
        hOST="node1"
        USER = someone
        UserKnownHostsFile "/quoted/known" /other
        """,
    "negation": """
        Host node* !node2
          Port 2200
        """,
    "before any host": """
        User everyone
        Host node1
          User late
          HostKeyAlias cluster
        """,
    "comments": """
        # Host node1
        Host other # node1
          User no
        Host node1
          Port 22 # the usual one
        """,
    "match all": """
        Host node2
          User two
        Match all
          User everyone
          StrictHostKeyChecking yes
        """,
    "a proxy command first": """
        Host node1
          ProxyCommand nc gate %p
        Host *
          ProxyJump gate
        """,
    "a jump first": """
        Host node1
          ProxyJump gate
        Host *
          ProxyCommand nc gate %p
        """,
    "no proxy": """
        Host node1
          ProxyCommand none
        Host *
          ProxyJump gate
        """,
    "hostname": """
        Host node1
          HostName %h.cluster.example
        """,
}
ASKED = (
    "user",
    "port",
    "identityfile",
    "proxyjump",
    "proxycommand",
    "userknownhostsfile",
    "hostkeyalias",
    "stricthostkeychecking",
)


@needs_ssh
@pytest.mark.parametrize("name", ["node1", "node2", "other"])
@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_it_means_what_ssh_makes_of_it(write: Write, text: str, name: str) -> None:
    path = write(text)
    ours = dict(SshConfig(path).lookup(name, name))
    theirs = dict(ask_ssh(name, name, path))
    for keyword in ASKED:
        if keyword in ours:
            expected = theirs[keyword]
            if keyword == "stricthostkeychecking":
                expected = tuple("yes" if word == "true" else word for word in expected)
            assert ours[keyword] == expected, keyword
    defaults = {"user", "port", "stricthostkeychecking"}  # which ssh always prints
    assert {keyword for keyword in ASKED if keyword in theirs} - defaults <= set(ours)
    hostname = ours.get("hostname", (name,))[0].replace("%h", name)
    assert hostname == theirs["hostname"][0]


@needs_ssh
@pytest.mark.parametrize("name", ["node1", "node2"])
def test_included_files_stand_under_their_line(write: Write, name: str) -> None:
    inner = write("User inner\nHost node2\n  Port 2202\nHost *\n  Port 2203\n", "inner")
    path = write(f"Host node1\n  Include {inner} /nowhere/*\n  IdentityFile /k\nHost *\n  User outer\n")
    ours, theirs = SshConfig(path).lookup(name, name), ask_ssh(name, name, path)
    assert ours["user"] == theirs["user"]
    assert ours.get("port", ("22",)) == theirs["port"]
    assert ours.get("identityfile") == theirs.get("identityfile")


@needs_ssh
def test_match_is_left_to_ssh(write: Write) -> None:
    path = write('Match exec "test %n = node1"\n  User matched\nMatch host 10.0.0.7\n  Port 2207\n')
    config = SshConfig(path)
    assert config.lookup("node1", "node1")["user"] == ("matched",)
    assert config.lookup("node7", "10.0.0.7")["port"] == ("2207",)
    assert "identityfile" not in config.lookup("node2", "node2")  # no default counts as a choice


def test_name_and_address_both_count(write: Write) -> None:
    config = SshConfig(
        write(
            "Host node2\n User by-name\n HostName 9.9.9.9\nHost 10.11.*\n User by-address\n ProxyJump gate\n"
        )
    )
    found = config.lookup("node2", "10.11.7.51")
    assert found["user"] == ("by-name",)
    assert found["proxyjump"] == ("gate",)
    assert "hostname" not in found  # the inventory's address is where SSH goes
    assert config.lookup("node2", "node2")["hostname"] == ("9.9.9.9",)


def test_none_reads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("User someone\n")
    assert SshConfig(None).lookup("node1", "node1") == {}
    assert SshConfig("~/.ssh/config").lookup("node1", "node1")["user"] == ("someone",)


def test_the_users_own_file_need_not_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    SshConfig("~/.ssh/config").lookup("node1", "node1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Host node1\nUser\n", "config:2: no value: 'User'"),
        ('User "open\n', "config:1: a quote is not closed"),
        ("Include {}\n", "too many levels of Include"),
    ],
)
def test_what_cannot_be_read_names_the_line(write: Write, text: str, message: str) -> None:
    path = write("")
    write(text.format(path))
    with pytest.raises(UsageError, match=message):
        SshConfig(path)


def test_a_named_file_must_exist() -> None:
    with pytest.raises(UsageError, match="/nowhere/config: No such file or directory"):
        SshConfig("/nowhere/config")
