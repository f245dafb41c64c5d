"""Logging in to servers that are not what they should be: plain sockets on this machine, no SSH."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ports import free_port
from waiting import HANG, PATIENCE, at_most

from mnt.errors import HostError
from mnt.fleet import Fleet, Outcome, Timeouts
from mnt.fleet.login.login import prefer
from mnt.fleet.wire.transport import HostTransport
from mnt.inventory.model import Host, Ssh

QUICK = Timeouts(banner=1)


def host(name: str = "node1", address: str = "127.0.0.1", port: int = 22) -> Host:
    return Host(
        name,
        address,
        Ssh(user="me", port=port, identity="/nowhere/key", known_hosts="/dev/null", config=None),
    )


def failure(where: Host, timeouts: Timeouts = Timeouts()) -> HostError:  # noqa: B008 - frozen
    with Fleet([where], timeouts=timeouts) as fleet:
        error = fleet.run(lambda connection: None)[where.name].error
    assert error is not None
    return error


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """`serve(talk)`: a port whose connections `talk` deals with."""
    listeners = []

    def start(talk: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port: int = listener.getsockname()[1]
        return port

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_refused() -> None:
    port = free_port()
    error = failure(host(port=port))
    assert error.message == f"node1: connect: refused by 127.0.0.1 port {port}"
    assert error.fix


def test_a_proxy_command_that_only_ssh_follows(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("ProxyCommand nc gate %p\n")
    target = host(port=free_port())
    error = failure(replace(target, ssh=replace(target.ssh, config=str(config))))
    assert error.phase == "connect"
    assert "ProxyCommand" in str(error.fix)


def test_no_such_name() -> None:
    error = failure(host(address="no-such-host.invalid"))
    assert (error.phase, error.host) == ("resolve", "node1")
    assert "'no-such-host.invalid'" in error.message


def test_a_name_that_is_none() -> None:
    assert failure(host(address="a" * 70 + ".invalid")).phase == "resolve"


def test_a_listener_that_never_speaks(serve: Callable[..., int]) -> None:
    held = []
    with at_most(PATIENCE):
        error = failure(host(port=serve(held.append)), QUICK)
    assert error.message == "node1: banner: no SSH banner within 1 s"


def test_a_listener_that_speaks_something_else(serve: Callable[..., int]) -> None:
    error = failure(host(port=serve(lambda peer: peer.sendall(b"220 mail.example ESMTP\r\n" * 200))))
    assert error.phase == "banner"


def test_a_server_that_stops_after_its_banner(serve: Callable[..., int]) -> None:
    port = serve(lambda peer: peer.sendall(b"SSH-2.0-Silent\r\n"))
    error = failure(host(port=port), Timeouts(key_exchange=1))
    assert error.message == "node1: key exchange: not done within 1 s"


def test_a_connection_cut_before_the_banner_is_tried_again(serve: Callable[..., int]) -> None:
    count = []

    def cut(peer: socket.socket) -> None:
        count.append(1)
        peer.close()

    error = failure(host(port=serve(cut)))
    assert error.message == "node1: banner: the connection was closed before any SSH banner"
    assert len(count) == 5


def test_the_slow_do_not_delay_the_others(serve: Callable[..., int]) -> None:
    order: list[str] = []
    failed = threading.Event()

    def hang_up_later(peer: socket.socket) -> None:
        failed.wait(PATIENCE)
        peer.close()

    def note(outcome: Outcome[None]) -> None:
        order.append(outcome.host)
        failed.set()

    hosts = [host("slow", port=serve(hang_up_later)), host("quick", port=free_port())]
    with Fleet(hosts, timeouts=Timeouts(banner=2 * PATIENCE)) as fleet:
        results = fleet.run(lambda connection: None, on_result=note)
    assert order == ["quick", "slow"]
    assert list(results) == ["slow", "quick"]


def test_closing_ends_a_login_under_way(serve: Callable[..., int]) -> None:
    held = []

    def close(peer: socket.socket) -> None:
        held.append(peer)
        fleet.close()

    fleet = Fleet([host(port=serve(close))], timeouts=Timeouts(banner=HANG))
    with at_most(PATIENCE):
        error = fleet.run(lambda connection: None)["node1"].error
    assert error is not None
    assert "given up" in error.message


def test_a_connection_that_is_lost_before_our_banner_is_sent() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    transport = HostTransport(ours, Timeouts())
    transport.start_client(event=threading.Event())
    assert transport.banner_read.wait(PATIENCE)
    assert not transport.remote_version
    transport.close()


def test_the_types_of_known_keys_are_asked_for_first() -> None:
    offered = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")
    assert prefer(offered, {"ssh-rsa"})[:2] == ("rsa-sha2-512", "rsa-sha2-256")
    assert prefer(offered, {"ecdsa-sha2-nistp256"})[0] == "ecdsa-sha2-nistp256"
    assert prefer(offered, set()) == offered
    assert sorted(prefer(offered, {"ssh-rsa"})) == sorted(offered)


def test_no_login_with_known_hosts_that_are_too_large(
    serve: Callable[[Callable[[socket.socket], None]], int], tmp_path: Path
) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_bytes(b"\n" * (17 << 20))
    where = host(port=serve(lambda connection: None))
    error = failure(replace(where, ssh=replace(where.ssh, known_hosts=str(known_hosts))))
    assert error.phase == "host key"
    assert error.reason.startswith(f"{known_hosts}: more than ")
    assert error.fix
    assert error.__cause__ is None
