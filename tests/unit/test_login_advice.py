"""The way out for a login that no key opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fix_style import complaint

from mnt.fleet.login.advice import way_in, with_agent
from mnt.fleet.login.destination import Destination, resolve
from mnt.fleet.login.identities import Unusable
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory import loader
from mnt.inventory.model import Host, Ssh

PASSWORD = ("publickey", "password")
SETUP = "mnt ssh-setup, which asks for the password once, and installs a key"
INVENTORY = Ssh(user="mnt", identity="/k", named_at=("/k", "lab.yaml:4"))


def to(ssh: Ssh = INVENTORY, **settings: object) -> Destination:
    return replace(resolve(Host("node1", "10.0.0.1", ssh), SshConfig(None)), **settings)  # type: ignore[arg-type]


MISSING = Unusable("/k", "missing")
COPY = "ssh-copy-id -i /k -p 22 mnt@10.0.0.1"


@pytest.mark.parametrize(
    ("destination", "tried", "unusable", "offered", "fix"),
    [
        (to(), ["/k"], [], ("publickey",), COPY),
        (to(), ["/k"], [], (), COPY),
        (to(), ["/k"], [], PASSWORD, SETUP),
        (to(), ["/k"], [], ("publickey", "keyboard-interactive"), SETUP),
        (to(), ["/k"], [], ("password",), "set PubkeyAuthentication yes in its sshd_config"),
        (to(), [], [], PASSWORD, SETUP),
        (to(), [], [], (), SETUP),
        (
            to(),
            [],
            [],
            ("publickey",),
            "ssh-keygen -t ed25519 -f ~/.ssh/id_ed25519; then: ask an administrator",
        ),
        (to(is_gateway=True), [], [], PASSWORD, "then: ssh-copy-id -i ~/.ssh/id_ed25519 -p 22 mnt@10.0.0.1"),
        (to(is_gateway=True), ["/a b"], [], PASSWORD, "ssh-copy-id -i '/a b' -p 22 mnt@10.0.0.1"),
        (to(), ["agent: me@home"], [], ("publickey",), "ssh-copy-id -p 22 mnt@10.0.0.1"),
        (to(), [], [MISSING], PASSWORD, "correct `identity` in lab.yaml:4; or let mnt make this key"),
        (
            to(is_gateway=True),
            [],
            [MISSING],
            PASSWORD,
            "correct `identity` in lab.yaml:4: name the file of a",
        ),
        (
            to(replace(INVENTORY, identity="/k", named_at=None)),
            [],
            [MISSING],
            (),
            "correct `identity` in the inv",
        ),
        (
            to(replace(INVENTORY, identity="/other")),
            [],
            [Unusable("/other", "missing")],
            (),
            "in the inventory;",
        ),
        (to(), [], [Unusable("/k", "Permission denied", fix="chmod 600 /k")], (), "chmod 600 /k"),
        (to(), [], [Unusable("/k", "locked", locked=True)], (), "ssh-add /k"),
        (
            to(Ssh(user="mnt"), identities=("/k",)),
            ["agent: x"],
            [MISSING],
            (),
            "correct IdentityFile in ~/.ssh/c",
        ),
        (
            to(Ssh(user="mnt")),
            ["~/.ssh/id_rsa"],
            [MISSING],
            (),
            "ssh-copy-id -i ~/.ssh/id_rsa -p 22 mnt@10.0.0.1",
        ),
        (
            to(jumps=(to(Ssh(user="door", port=2222)), to(hostname="fe80::2"))),
            ["/k"],
            [],
            (),
            "ssh-copy-id -i /k -p 22 -o 'ProxyJump=door@10.0.0.1:2222,mnt@[fe80::2]:22' mnt@10.0.0.1",
        ),
    ],
)
def test_the_way_in(
    destination: Destination, tried: list[str], unusable: list[Unusable], offered: tuple[str, ...], fix: str
) -> None:
    found = way_in(destination, tried, unusable, offered)
    assert fix in found
    assert found.startswith(("ssh-add", "ssh-copy-id")) or complaint(found) is None


def test_where_the_inventory_names_a_key(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(
        "ssh:\n  identity: ~/a\nhosts:\n  node[1-3]: {}\n  node2:\n    ssh:\n      identity: b\n"
        "  node3: {ssh: {user: me}}\ngroups:\n  odd: {hosts: node3, ssh: {identity: /c}}\n"
    )
    assert [host.ssh.named_at for host in loader.load(file).hosts] == [
        ("~/a", f"{file}:2"),
        (str(tmp_path / "b"), f"{file}:7"),
        ("/c", f"{file}:10"),
    ]


@pytest.mark.parametrize(
    ("agent", "place"),
    [(None, "SSH_AUTH_SOCK"), ("SSH_AUTH_SOCK", "SSH_AUTH_SOCK"), ("/a", "IdentityAgent in ssh_config")],
)
def test_an_agent_that_does_not_answer(agent: str | None, place: str) -> None:
    fix = with_agent(to(agent=agent), COPY)
    assert fix == f"correct {place}, or start an SSH agent; without one: {COPY}"
    assert complaint(fix) is None
