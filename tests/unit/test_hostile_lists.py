"""Lists that somebody else has written (fingerprints, @failed, variables): each is read or refused soon."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnt.errors import UsageError
from mnt.inventory import hostlist
from mnt.inventory.model import Host, Inventory
from mnt.launch.secret import read_env_file
from mnt.run import failed
from mnt.run.command import from_script
from mnt.trust import fingerprints

MEGABYTE = 1 << 20
PRINT = "SHA256:" + "A" * 43


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Within 5 s of processor time, and 250 MiB."""
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 * 1024


@pytest.mark.parametrize(
    "text",
    ["ab " * (5 * MEGABYTE), "\n" * (15 * MEGABYTE), " \n" * (7 * MEGABYTE), "#" * (15 * MEGABYTE),
     "a" * (15 * MEGABYTE), f"a {PRINT}\n" * 250_000, f"a {PRINT} " * 200_000, "a SHA256:" + "A" * MEGABYTE],
    ids=range(8),
)  # fmt: skip
def test_fingerprints_that_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prints"
    file.write_text(text)
    with bounded(), pytest.raises(UsageError) as raised:
        fingerprints.read(str(file))
    assert raised.value.message.startswith(str(file))


def test_many_fingerprints_are_read(tmp_path: Path) -> None:
    file = tmp_path / "prints"
    file.write_text("".join(f"node{i} {PRINT}  # rack\n" for i in range(100_000)))
    with bounded():
        assert len(fingerprints.read(str(file))) == 100_000


def lay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, items: str) -> None:
    """The file of the failed hosts of x.yaml."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(failed, "_is_ours", lambda directory: True)  # /tmp is open to others
    file = failed.state_file("x.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(f'{{"format":1,"hosts":[{items}]}}')


@pytest.mark.parametrize(
    "items",
    ["[]," * (8 * MEGABYTE) + "[]", '{"a":1},' * (3 * MEGABYTE) + "1", '"ab",' * (6 * MEGABYTE) + '"a"',
     "[" * (4 * MEGABYTE), "1," * (8 * MEGABYTE) + "1", "[" * 50_000, "1", "9" * MEGABYTE],
    ids=range(8),
)  # fmt: skip
def test_failed_hosts_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, items: str) -> None:
    lay(monkeypatch, tmp_path, items)
    with bounded(), pytest.raises(UsageError, match="not a list of failed hosts"):
        failed.recall("x.yaml")


def test_many_failed_hosts_of_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"node{i}" for i in range(50_000)]
    lay(monkeypatch, tmp_path, ",".join(f'"node{i}"' for i in reversed(range(100_000))))
    inventory = Inventory(cluster="c", file="x.yaml", hosts=tuple(Host(name=n, address=n) for n in names))
    with bounded():
        found = hostlist.select(
            inventory, nodes="@failed", exclude=None, last_failed=lambda: failed.recall("x.yaml")
        )
    assert [host.name for host in found] == names[::-1]


def test_a_script_without_an_end() -> None:
    with bounded(), pytest.raises(UsageError, match="larger than 16,777,216 bytes"):
        from_script("/dev/zero", [])


@pytest.mark.parametrize(
    "text", ["A=\n" * 300_000, "\n" * 1_000_000, "A" * 1_000_000, "A=" + "x" * 1_000_000, " " * 1_000_000,
             "".join(f"A{i}=\n" for i in range(100_000)), "A=\r" * 300_000, "#\n" * 500_000, "x" * 2_000_000],
    ids=range(9),
)  # fmt: skip
def test_environment_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "env"
    file.write_text(text)
    with bounded(), contextlib.suppress(UsageError):
        read_env_file(file, {})
