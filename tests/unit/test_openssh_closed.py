"""What ssh_config allows hosts, and `mnt run --worker ssh` does not; and host keys that are strict there."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from ports import free_port
from rogue_sshd import Deed, inventory, mnt, obey, rogue
from waiting import wait_for

from mnt.fleet.wire.sshwords import master_argv, ssh_argv
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Ssh
from mnt.remote.ssh import mesh

OPEN = """
    ForwardAgent yes
    ForwardX11 yes
    ForwardX11Trusted yes
    RemoteForward 4711 127.0.0.1:22
    LocalForward {port} 127.0.0.1:22
    DynamicForward 127.0.0.1:{port}
    Tunnel point-to-point
    PermitLocalCommand yes
    LocalCommand touch '{canary}'
    ControlPath {canary}.%r@%h:%p
"""


def told(got: list[str]) -> Deed:
    """Note that a command has come, and end it."""

    def deed(channel: paramiko.Channel) -> None:
        got.append("a command")
        obey(channel)

    return deed


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[dict[str, str]]:
    socket = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    wait_for(socket.exists)
    yield {"SSH_AUTH_SOCK": str(socket), "DISPLAY": ":0"}
    process.terminate()
    process.wait()


@pytest.mark.parametrize("where", ["Host *", "Match all", "Match host 127.0.0.1", ""])
@pytest.mark.parametrize("worker", ["paramiko", "ssh"])
def test_a_host_gets_nothing_of_this_machine(
    tmp_path: Path, agent: dict[str, str], worker: str, where: str
) -> None:
    asked: list[str] = []
    canary = tmp_path / "canary"
    config = tmp_path / "config"
    config.write_text(where + OPEN.format(canary=canary, port=free_port()))
    with rogue(obey, asked=asked) as port:
        file = inventory(tmp_path, {"a": port}, host_keys="accept-new", config=str(config))
        done = mnt("run", "-i", file, "--worker", worker, "x", **agent)
    assert done.returncode == 0, done.stderr
    assert (asked, canary.exists()) == ([], False)


def test_each_ssh_is_closed_as_ssh_itself_sees_it(tmp_path: Path) -> None:
    """Also those to gateways, and between hosts."""
    config = tmp_path / "config"
    config.write_text("Host *" + OPEN.format(canary="/x", port=4712))
    host = Host("a", "a", Ssh(config=str(config)))
    between = mesh.command({"name": "a", "address": "a"}, 1.0)
    for words in (
        ssh_argv(host, Timeouts(), "x"),
        ssh_argv(host, Timeouts(), "x", proxy="false"),
        master_argv(host, Timeouts(), "/s"),
        master_argv(host, Timeouts(), "/s", proxy="false"),
        [between[0], "-F", str(config), *between[1:]],
    ):
        words.insert(1, "-G")
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        closed = {"forwardagent no", "forwardx11 no", "clearallforwardings yes", "tunnel false"}
        assert closed | {"permitlocalcommand no"} <= set(said)
        assert [line for line in said if line.startswith("controlpath ")] == (
            ["controlpath /s"] if "/s" in words else []
        )


def test_a_socket_of_another_user_does_not_answer_for_a_host(tmp_path: Path) -> None:
    """In a directory like /tmp she can listen first at the path that the user's ssh_config has."""
    config = tmp_path / "config"
    got: list[str] = []
    with rogue(told(got)) as port, socket.socket(socket.AF_UNIX) as hers:
        hers.bind(str(tmp_path / f"cm:{port}"))
        hers.listen()
        hers.setblocking(False)
        config.write_text(f"ControlPath {tmp_path}/cm:%p\nControlMaster auto\n")
        file = inventory(tmp_path, {"a": port}, host_keys="accept-new", config=str(config))
        assert mnt("run", "-i", file, "--worker", "ssh", "x").returncode == 0
        with pytest.raises(BlockingIOError):
            hers.accept()
    assert got == ["a command"]


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("Host *", "yes"),
        ("Match all", "YES"),
        ("Host other\nMatch host 127.0.0.1", "true"),
        ("", "yes # a comment"),
    ],
)
@pytest.mark.parametrize("worker", ["paramiko", "ssh"])
@pytest.mark.parametrize("host_keys", [None, "accept-new"])
def test_the_stricter_of_inventory_and_ssh_config_counts(
    tmp_path: Path, worker: str, where: str, word: str, host_keys: str | None
) -> None:
    got: list[str] = []
    (tmp_path / "config").write_text(f"{where}\n    StrictHostKeyChecking {word}\n")
    with rogue(told(got)) as port:
        more = {} if host_keys is None else {"host_keys": host_keys}
        file = inventory(tmp_path, {"a": port}, config=str(tmp_path / "config"), **more)
        done = mnt("run", "-i", file, "--worker", worker, "echo secret")
    assert (done.returncode, got, (tmp_path / "known_hosts").exists()) == (255, [], False)
    assert "host key" in done.stderr


@pytest.mark.parametrize("word", ["no", "off", "accept-new"])
def test_the_inventory_is_stricter(tmp_path: Path, word: str) -> None:
    (tmp_path / "config").write_text(f"StrictHostKeyChecking {word}\n")
    got: list[str] = []
    with rogue(told(got)) as port:
        file = inventory(tmp_path, {"a": port}, config=str(tmp_path / "config"), host_keys="strict")
        assert mnt("run", "-i", file, "--worker", "ssh", "x").returncode == 255
    assert got == []


def test_a_gateway_is_strict_too(tmp_path: Path) -> None:
    got: list[str] = []
    with rogue(told(got)) as port:
        (tmp_path / "config").write_text(
            f"Host gate\n HostName 127.0.0.1\n Port {port}\n StrictHostKeyChecking yes\n"
        )
        more = {"config": str(tmp_path / "config"), "gateway": "gate", "host_keys": "accept-new"}
        file = inventory(tmp_path, {"a": 1}, **more)
        for worker in ("paramiko", "ssh"):
            done = mnt("run", "-i", file, "--worker", worker, "x")
            assert done.returncode == 255
            assert "host key" in done.stderr
    assert not (tmp_path / "known_hosts").exists()
