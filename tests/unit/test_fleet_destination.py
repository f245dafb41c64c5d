"""Where and how to log in: the inventory's word, then ssh_config's, then OpenSSH's defaults."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mnt.errors import UsageError
from mnt.fleet.login.destination import Destination, resolve
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.model import Host, Ssh

Resolve = Callable[..., Destination]


@pytest.fixture
def destination(tmp_path: Path) -> Resolve:
    def make(text: str = "", *, name: str = "node1", address: str | None = None, **ssh: Any) -> Destination:
        path = tmp_path / "config"
        path.write_text(text)
        return resolve(Host(name, address or name, Ssh(**ssh)), SshConfig(str(path)))

    return make


def test_nothing_said(destination: Resolve) -> None:
    assert destination() == Destination(
        name="node1",
        hostname="node1",
        port=22,
        user=getpass.getuser(),
        identities=(),
        only_identities=False,
        known_hosts=("~/.ssh/known_hosts",),
        known_hosts_global=("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
        key_name="node1",
        strict=False,
        hash_names=False,
    )


CONFIG = """
Host node1
  HostName 10.0.0.1
  User config-user
  Port 2201
  IdentityFile %d/keys/%r@%h
  IdentityFile none
  IdentitiesOnly yes
  UserKnownHostsFile /config/known
  HostKeyAlias cluster
  StrictHostKeyChecking yes
  HashKnownHosts yes
"""


def test_ssh_config_fills_in(destination: Resolve) -> None:
    found = destination(CONFIG)
    assert (found.hostname, found.port, found.user) == ("10.0.0.1", 2201, "config-user")
    assert found.identities == (os.path.expanduser("~/keys/config-user@10.0.0.1"),)
    assert found.only_identities
    assert found.known_hosts == ("/config/known",)
    assert found.key_name == "cluster"
    assert found.strict
    assert found.hash_names


def test_the_inventory_wins(destination: Resolve) -> None:
    found = destination(
        CONFIG, address="10.9.9.9", user="me", port=22, identity="~/k", known_hosts="/my own/known"
    )
    assert (found.hostname, found.port, found.user) == ("10.9.9.9", 22, "me")
    assert found.identities == ("~/k",)
    assert found.only_identities
    assert found.known_hosts == ("/my own/known",)


def test_an_explicit_key_is_the_only_one(destination: Resolve) -> None:
    assert destination("IdentityFile /other\nIdentitiesOnly no\n", identity="/mine").identities == ("/mine",)
    assert destination("IdentitiesOnly no\n", identity="/mine").only_identities
    assert not destination("IdentityFile /other\n").only_identities


@pytest.mark.parametrize(
    ("address", "port", "name"),
    [
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", 2222, "[10.0.0.1]:2222"),
        ("[fe80::1]", 23, "[fe80::1]:23"),
    ],
)
def test_the_name_of_the_host_key(destination: Resolve, address: str, port: int | None, name: str) -> None:
    assert destination(address=address, port=port).key_name == name


@pytest.mark.parametrize(
    ("config", "inventory", "strict"),
    [
        ("", "accept-new", False),
        ("", "strict", True),
        ("StrictHostKeyChecking yes", "accept-new", True),
        ("StrictHostKeyChecking no", "strict", True),
        ("StrictHostKeyChecking no", "accept-new", False),
    ],
)
def test_the_stricter_of_both(destination: Resolve, config: str, inventory: str, strict: bool) -> None:
    assert destination(config, host_keys=inventory).strict is strict


def hops(found: Destination) -> list[tuple[str, str, int]]:
    return [(hop.user, hop.hostname, hop.port) for hop in found.jumps]


JUMPS = """
Host gate
  HostName gate.example
  User keeper
  Port 2222
  IdentityFile /keys/gate
Host inner
  ProxyJump outer
Host node1
  ProxyJump gate
"""


def test_several_hops_each_with_its_own_settings(destination: Resolve) -> None:
    found = destination(JUMPS, gateway="gate,me@[fe80::2]:2200,third:23", user="us", identity="/k")
    assert hops(found) == [("keeper", "gate.example", 2222), ("me", "fe80::2", 2200), ("us", "third", 23)]
    assert [hop.identities for hop in found.jumps] == [("/keys/gate",), ("/k",), ("/k",)]


def test_the_inventorys_gateway_wins_over_proxy_jump(destination: Resolve) -> None:
    assert hops(destination(JUMPS))[0][1] == "gate.example"
    assert [host for _, host, _ in hops(destination(JUMPS, gateway="other"))] == ["other"]
    assert hops(destination(JUMPS, gateway="none")) == []


def test_the_first_hop_may_have_a_way_of_its_own(destination: Resolve) -> None:
    assert [host for _, host, _ in hops(destination(JUMPS, gateway="inner,last"))] == [
        "outer",
        "inner",
        "last",
    ]


def test_a_gateway_is_not_reached_through_itself(destination: Resolve) -> None:
    assert [host for _, host, _ in hops(destination("Host *\n ProxyJump gate\n"))] == ["gate"]


@pytest.mark.parametrize(
    ("config", "gateway", "proxied", "jumps"),
    [
        ("ProxyCommand nc gate %p\nProxyJump gate\n", None, True, []),
        ("ProxyJump gate\nProxyCommand nc gate %p\n", None, False, ["gate"]),
        ("ProxyCommand none\nProxyJump gate\n", None, False, []),
        ("ProxyCommand nc gate %p\n", "other", False, ["other"]),
        ("ProxyCommand nc gate %p\n", "none", False, []),
    ],
)
def test_the_first_kind_of_proxy_counts(
    destination: Resolve, config: str, gateway: str | None, proxied: bool, jumps: list[str]
) -> None:
    found = destination(config, gateway=gateway)
    assert found.proxied is proxied
    assert [host for _, host, _ in hops(found)] == jumps


@pytest.mark.parametrize("gateway", ["-oProxyCommand=x", "me@", "gate:port", "a,,b"])
def test_what_is_no_gateway(destination: Resolve, gateway: str) -> None:
    with pytest.raises(UsageError, match="not a gateway"):
        destination(gateway=gateway)


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="the OpenSSH client is not installed")


@needs_ssh
@pytest.mark.parametrize(
    ("config", "gateway", "user"),
    [
        ("", "gate", "us"),
        ("Host other\n User {me}\n", "gate", "us"),
        ("Host gate\n User {me}\n", "gate", "{me}"),
        ("Match host gate\n User {me}\n", "gate", "{me}"),
        ("Host gate\n User keeper\n", "gate", "keeper"),
        ("Host gate\n User {me}\n", "door@gate", "door"),
        ("Match user door\n User keeper\n", "gate", "us"),
    ],
)
def test_a_match_block_gives_no_gateway_a_user(
    destination: Resolve, config: str, gateway: str, user: str
) -> None:
    """`ssh -G` prints the user who asks, where the file has none."""
    me = pwd.getpwuid(os.getuid()).pw_name
    found = destination(f"Match host nowhere\n Port 4\n{config.format(me=me)}", gateway=gateway, user="us")
    assert [name for name, *_ in hops(found)] == [user.format(me=me)]


@needs_ssh
def test_match_knows_user_and_port_of_the_inventory(destination: Resolve) -> None:
    config = 'Match user us host 10.0.0.7\n Port 2207\nMatch exec "test %p = 2222"\n IdentityFile /matched\n'
    assert destination(config, address="10.0.0.7", user="us").port == 2207
    assert destination(config, address="10.0.0.7", user="other").port == 22
    assert destination(config, port=2222).identities == ("/matched",)


@needs_ssh
@pytest.mark.parametrize("config", ["", "Match host nowhere\n Port 4\n"])
@pytest.mark.parametrize("zone", ["eth0", "hsn0", "%", "br-lan.4"])
def test_a_link_local_address_with_a_zone(destination: Resolve, config: str, zone: str) -> None:
    address = f"fe80::1%{zone}"
    assert destination(config, address=address).hostname == address
    assert destination(config, address=f"[{address}]", port=23).key_name == f"[{address}]:23"
    named = f"{config}Host node1\n HostName fe80::1%%{zone.replace('%', '%%')}\n"
    assert destination(named).hostname == address
    if zone != "%":
        gateways = destination(config, gateway=f"me@{address},[{address}]:2200").jumps
        assert [(hop.hostname, hop.port) for hop in gateways] == [(address, 22), (address, 2200)]


def test_a_bad_port_in_ssh_config(destination: Resolve) -> None:
    with pytest.raises(UsageError, match="node1: not a port in ssh_config: 'many'"):
        destination("Port many\n")
