"""What other users of a host can make in any number does not make its answers too large."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnt.remote.common.sockets import listeners
from mnt.remote.job import files as job_files
from mnt.remote.probe.leftovers import locks

OTHER = 64999  # no such user here

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


@contextlib.contextmanager
def listening(number: int) -> Iterator[list[socket.socket]]:
    """So many sockets on one port."""
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        for _ in range(number):
            each = opened.enter_context(socket.socket())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", port_of(sockets[0]) if sockets else 0))
            each.listen()
            sockets.append(each)
        yield sockets


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def test_many_sockets_on_one_port() -> None:
    with listening(300) as sockets:
        found = listeners(port_of(sockets[0]))
    assert len(found) == 32
    assert {entry["pid"] for entry in found} == {os.getpid()}


@needs_root
def test_one_of_each_other_user_is_enough() -> None:
    with listening(2) as sockets:
        port = port_of(sockets[0])
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            for mine in sockets:  # else both processes hold them, and the lower pid is named
                mine.close()
            os.setuid(OTHER)
            with contextlib.ExitStack() as opened:
                for address in ("127.0.0.2", "127.0.0.3"):
                    for _ in range(20):
                        each = opened.enter_context(socket.socket())
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                        each.bind((address, port))
                        each.listen()
                os.read(reading, 1)
            os._exit(0)
        deadline = time.monotonic() + 10
        while len(found := listeners(port)) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)
    others = sorted(str(entry["address"]) for entry in found if entry["uid"] == OTHER)
    assert others == ["127.0.0.2", "127.0.0.3"]
    assert [entry["pid"] for entry in found[:2]] == [os.getpid()] * 2


def test_many_locks(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"op{number}").mkdir()
        (tmp_path / f"op{number}" / "lock").touch()
    os.utime(tmp_path / "op400" / "lock", (1, 1))
    found = locks(str(tmp_path))
    assert len(found) == 100
    assert found[0]["path"] == str(tmp_path / "op400" / "lock")
    assert len(json.dumps(found)) < 20_000


@needs_root
def test_a_directory_of_jobs_that_another_user_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three thousand links to a directory of three thousand names were nine million jobs to look at."""
    top, names = tmp_path / "mnt-0", tmp_path / "names"
    names.mkdir()
    top.mkdir(mode=0o700)
    for number in range(300):
        (names / f"host{number}").touch()
        (top / f"job{number}").symlink_to(names)
    os.chown(top, OTHER, OTHER)
    monkeypatch.setattr(job_files, "user_directory", lambda: str(top))
    looked: list[str] = []
    monkeypatch.setattr(job_files.JobPaths, "read", lambda paths, path: looked.append(path))
    assert list(job_files.specs_here()) == []
    assert looked == []
