"""The store's socket, and how torchrun finds its rendezvous; the store itself: tests/lab/test_store.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

from mnt.launch.engines import ENGINES
from mnt.remote.torchrun.rendezvous import joined, listen


def test_it_listens_on_one_address_only() -> None:
    port = free_port()
    with listen("127.0.0.2", port):
        socket.create_connection(("127.0.0.2", port)).close()
        for other in ("127.0.0.1", "127.0.0.3"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, port))


@pytest.mark.parametrize(
    ("address", "says"), [("127.0.0.2", "Address already in use"), ("192.0.2.1", "assign")]
)
def test_an_address_that_it_cannot_have(address: str, says: str) -> None:
    with listen("127.0.0.2", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"the store cannot listen on {address}:{port}: .*{says}"):
            listen(address, port)


@pytest.mark.parametrize(
    ("keys", "group"),
    [
        ((), False),
        (("none/torchelastic/role_info/0", "none/torchelastic/agent/terminal_state/0"), False),
        (("of the user/default_pg/", "ranks"), False),
        (("none/torchelastic/role_info/0", "default_pg/0//cpu//0/1"), True),
        (("default_pg/0//cuda//0",), True),
    ],
)
def test_the_keys_that_show_a_process_group(keys: tuple[str, ...], group: bool) -> None:
    assert joined(keys) is group


@pytest.mark.parametrize(
    ("before", "after"), [("{0}", None), ("{0}:/a:/b", "/a:/b"), ("/a:{0}", "/a"), ("/a", "/a")]
)
def test_torchrun_finds_it_and_the_ranks_do_not_see_its_directory(
    tmp_path: Path, before: str, after: str | None
) -> None:
    """By the entry point, as torch's registry looks for it."""
    for name, text in ENGINES["fsdp"].python_files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    look = (
        f"import os, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='torchrun.handlers')\n"
        "print(found.name, found.load()().__name__, os.environ.get('PYTHONPATH'))\n"
        f"assert {str(tmp_path)!r} not in sys.path"
    )
    env = {**os.environ, "PYTHONPATH": before.format(tmp_path)}
    done = subprocess.run([sys.executable, "-c", look], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"mnt create {after}\n", "")
