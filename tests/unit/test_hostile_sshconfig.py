"""ssh_configs that somebody else has written: how to log in to a host is decided, or refused, soon."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.fleet.login.destination import resolve
from mnt.fleet.login.includes import Includes
from mnt.fleet.login.sshconfig import SshConfig
from mnt.inventory.model import Host, Ssh

NAME = "10.0.0.1"


@contextlib.contextmanager
def bounded(most: float = 5) -> Iterator[None]:
    """Within that many seconds of processor time, and 300 MiB."""
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - started < most
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def use(file: Path, *, hosts: int = 1, **ssh: str) -> None:
    config = SshConfig(str(file))
    for index in range(hosts):
        resolve(Host(name=f"node{index}", address=NAME, ssh=Ssh(**ssh)), config)


def chain(length: int) -> str:
    return "Host 10.*\n ProxyJump g0\n" + "".join(f"Host g{i}\n ProxyJump g{i + 1}\n" for i in range(length))


DEEP = "/*/.." * 6
HALF = 2_000_000  # characters

HOSTILE = {
    "an include of everything": f"Include {DEEP}/*\n",
    "an include of nothing in everything": f"Include {DEEP}/*/no-such-name\n",
    "an include of nothing, again and again": "Include /usr/bin/*!\n" * 200_000,
    "many includes in a line": "Include" + " /usr/bin/*!" * 200_000,
    "includes of one file": "Include /no-such-file\n" * 190_000,
    "a long include": "Include /" + "[a-z]*" * 300_000 + "\n",
    "long includes": ("Include /tmp/" + "[a-z]*" * 150 + "\n") * 4000,
    "deep includes": ("Include " + "/*/.." * 200 + "\n") * 4000,
    "stars in an include": "Include /usr/bin/" + "*a" * 480 + "\n",
    "a long gateway": "Host 10.*\n ProxyJump " + "a" * 1_000_000 + "\nHost *" + "a" * 1000 + "b\n User x\n",
    "a gateway that fits": "Host 10.*\n ProxyJump "
    + "a" * 4000
    + "\n"
    + ("Host *" + "a" * 999 + "b\n") * 3000,
    "a long user of a gateway": "ProxyJump " + "a" * 1_000_000 + "@g\n",
    "many gateways": "ProxyJump " + ",".join(f"g{i}" for i in range(200_000)) + "\n",
    "many gateways in a short line": "ProxyJump " + ",".join(f"g{i}" for i in range(500)) + "\n",
    "a chain": chain(1500),
    "a chain with a Host *": chain(1500) + "Host *\n ProxyJump x\n",
    "blocks": "Host a\n" * 290_000,
    "blocks with a value": "Host *b\nUser x\n" * 200_000,
    "patterns": "Host " + "*9*a " * 400_000 + "\nUser x\n",
    "names": "Host " + "a " * 580_000 + "\nUser x\n",
    "long patterns": ("Host *" + "0*" * 500 + "b\n") * 4000,
    "question marks": ("Host *" + "0?" * 500 + "b\n") * 4000,
    "included under many names": "Host " + "a* " * 4000 + "\n" + "Include {directory}/part\n" * 900,
    "identities": "IdentityFile /a\n" * 200_000,
    "identities in lines that may be": "IdentityFile /a\n" * 49_000,
    "identities in a line": "IdentityFile" + " /a" * 600_000 + "\n",
    "a name of tokens": "HostName " + "%h" * HALF + "\n",
    "a short name of tokens": "HostName " + "%h" * 2000 + "\n",
    "an alias": "HostKeyAlias " + "a" * HALF + "\n",
    "a path of tokens": "IdentityFile " + "%d" * HALF + "\n",
    "known_hosts files": "UserKnownHostsFile" + " /a" * 600_000 + "\n",
    "values": "Port 22\n" * 400_000,
    "match all": "Match all\nUser x\n" * 170_000,
    "words": "User" + " ab" * 1_300_000 + "\n",
    "words of a keyword that is not used": ("SendEnv" + " ab" * 10_000 + "\n") * 130,
    "quotes": "User " + '""' * HALF + "\n",
    "commas": "ProxyJump " + "," * HALF + "\n",
    "no newline": "Host" + " " * (2 * HALF),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_host_is_resolved_or_refused_soon(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text.replace("{directory}", str(tmp_path)))
    (tmp_path / "part").write_text("Host a\n User x\nHost 9*b\n User y\n")
    with bounded(), contextlib.suppress(UsageError):
        use(file)


@pytest.mark.parametrize("text", [HOSTILE["an include of everything"], HOSTILE["blocks"], HOSTILE["quotes"]])
def test_ssh_is_not_asked_about_a_file_that_is_refused(tmp_path: Path, text: str) -> None:
    """ssh itself would take minutes and gigabytes."""
    file = tmp_path / "config"
    file.write_text("Match host x\n User x\n" + text)
    with bounded(), pytest.raises(UsageError, match=r"config:[0-9]+: "):
        use(file)


MANY_HOSTS = {
    "patterns": "".join(f"Host *{i}*a\n User x\n" for i in range(4900)),
    "long patterns": ("Host *" + "0*" * 500 + "b\n User x\n") * 60,
    "question marks": ("Host *" + "0?" * 500 + "b\n User x\n") * 60,
    "names": ("Host " + "name " * 9000 + "\n User x\n") * 2,
    "values": "Host b\n" + "User x\n" * 49_000,
    "included under many names": "Host " + "ab* " * 4000 + "\n" + "Include {directory}/part\n" * 900,
}


@pytest.mark.parametrize("text", MANY_HOSTS.values(), ids=MANY_HOSTS)
def test_what_is_within_the_limits_takes_little_for_each_host(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text.replace("{directory}", str(tmp_path)))
    (tmp_path / "part").write_text("Host a\n User x\nHost 9*b\n User y\n")
    with bounded(8):
        use(file, hosts=20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"\nInclude {DEEP}/*\n", "config:2: Include looks at more than 20,000 files"),
        ("Include /" + "a" * 2000, "config:1: Include with more than 1,024 characters"),
        ("\nUser " + "a" * 5000, "config:2: more than 32 words, or 4,096 characters in one"),
        ("User " + "a" * 70_000, "config:1: more than 50,000 lines, or 65,536 characters in one"),
        ("User x\n" * 50_001, "config:50001: more than 50,000 lines"),
        ("Host a\n" * 20_001, "config:20001: more than 20,000 names after Host"),
        ("Host a*\n" * 5001, "config:5001: more than 5,000 patterns with wildcards"),
        (("Host " + "a*" * 500 + "\n") * 70, "config:66: more than 5,000 patterns with wildcards"),
        ("IdentityFile /a\n" * 101, "node0: more than 100 IdentityFile"),
        (chain(17), "10.0.0.1: behind more than 16 gateways"),
        ("ProxyJump " + ",".join(f"g{i}" for i in range(17)), "10.0.0.1: behind more than 16 gateways"),
        ("ProxyJump " + "a" * 301, "not a gateway"),
        ("HostName " + "%h" * 40, "node0: more than 300 characters in HostName"),
        ("HostKeyAlias " + "a" * 301, "node0: more than 300 characters in HostName or HostKeyAlias"),
    ],
)
def test_a_refusal_says_where_and_a_way_out(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        use(file)
    assert message in raised.value.message
    assert raised.value.fix


def test_a_proxy_command_may_have_many_words(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("ProxyCommand sh -c" + " word" * 100 + "\n")
    assert resolve(Host(name="a", address="a"), SshConfig(str(tmp_path / "config"))).proxied


def test_sixteen_gateways_are_not_too_many(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(chain(15))
    use(tmp_path / "config")


def test_what_a_large_site_has_is_read_soon(tmp_path: Path) -> None:
    """2,000 hosts in 200 included files, and 1,000 patterns."""
    parts = tmp_path / "parts"
    parts.mkdir()
    for part in range(200):
        (parts / f"{part}.conf").write_text(
            "".join(
                f"Host node{10 * part + i} n{i}.rack{part}\n HostName 10.1.{part}.{i}\n User u{part}\n"
                " Port 2222\n IdentityFile ~/.ssh/a\n IdentityFile ~/.ssh/b\n ProxyJump gate\n"
                for i in range(10)
            )
        )
    (tmp_path / "config").write_text(
        "".join(f"Host gpu-{i}-*.example.com\n User x\n" for i in range(1000))
        + f"Host *\nInclude {parts}/*.conf\n"
    )
    with bounded(8):
        config = SshConfig(str(tmp_path / "config"))
        for index in range(0, 2000, 20):
            found = config.lookup(f"node{index}", f"node{index}")
            assert found["hostname"] == (f"10.1.{index // 10}.{index % 10}",)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*", ["a", "b", "d"]),
        ("*/x", ["d/x"]),
        (".*", [".hidden"]),
        ("[ab]", ["a", "b"]),
        ("[!a]", ["b", "d"]),
        ("?", ["a", "b", "d"]),
        ("a", ["a"]),
        ("no", []),
        ("a/x", []),
        ("d/../*", ["d/../a", "d/../b", "d/../d"]),
        ("no/*", []),
        ("[", []),
    ],
)
def test_includes_are_those_of_glob(tmp_path: Path, pattern: str, names: list[str]) -> None:
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).write_text("")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("")
    found = Includes().files(f"{tmp_path}/{pattern}", "f:1")
    assert [name.removeprefix(f"{tmp_path}/") for name in found] == names
