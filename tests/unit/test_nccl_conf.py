"""NCCL's configuration files: found on a host, and read as NCCL reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnt.facts.host import HostFacts
from mnt.facts.nccl import ConfFile, effective, settings
from mnt.remote.probe.settings import MAX_BYTES, conf_files


def test_the_users_file_comes_before_the_systems(tmp_path: Path) -> None:
    system = tmp_path / "nccl.conf"
    system.write_text("NCCL_DEBUG=WARN\n")
    assert conf_files(str(tmp_path), str(system)) == [{"path": str(system), "text": "NCCL_DEBUG=WARN\n"}]
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    assert [file["path"] for file in conf_files(str(tmp_path), str(system))] == [
        str(tmp_path / ".nccl.conf"),
        str(system),
    ]


def test_no_file_and_no_home(tmp_path: Path) -> None:
    assert conf_files(str(tmp_path), str(tmp_path / "none")) == []
    assert conf_files("", str(tmp_path / "none")) == []


def test_only_the_beginning_of_a_long_file_travels(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("#" * 100_000)
    (file,) = conf_files(str(tmp_path), str(tmp_path / "none"))
    assert file["text"] == "#" * MAX_BYTES


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_bytes(b"NCCL_DEBUG=\xff\n")
    (file,) = conf_files(str(tmp_path), str(tmp_path / "none"))
    assert file["text"] == "NCCL_DEBUG=�\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_DEBUG=WARN\n", {"NCCL_DEBUG": "WARN"}),
        ("NCCL_SOCKET_IFNAME==eth0", {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("# NCCL_DEBUG=WARN\n\nnonsense\n", {}),
        (" # indented\n", {}),
        ("NCCL_DEBUG=WARN\nNCCL_DEBUG=INFO\n", {"NCCL_DEBUG": "WARN"}),
        ("NCCL_DEBUG = INFO\n", {"NCCL_DEBUG ": " INFO"}),
        ("NCCL_IB_TC=106 # lossless\n", {"NCCL_IB_TC": "106 # lossless"}),
    ],
)
def test_a_file_as_nccl_reads_it(text: str, expected: dict[str, str]) -> None:
    read = settings([ConfFile("/etc/nccl.conf", text)])
    assert {name: setting.value for name, setting in read.items()} == expected


def test_where_a_setting_stands() -> None:
    files = [ConfFile("~", "#\nNCCL_DEBUG=INFO\n"), ConfFile("/etc", "NCCL_DEBUG=WARN\nNCCL_IB_TC=1\n")]
    read = settings(files)
    assert (read["NCCL_DEBUG"].path, read["NCCL_DEBUG"].line, read["NCCL_DEBUG"].value) == ("~", 2, "INFO")
    assert (read["NCCL_IB_TC"].path, read["NCCL_IB_TC"].line) == ("/etc", 2)


def test_the_environment_wins() -> None:
    assert effective({"A": "env"}, [ConfFile("~", "A=file\nB=file\n")]) == {"A": "env", "B": "file"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (HostFacts("h", nccl_library="2.28.9"), (2, 28, 9)),
        (HostFacts("h", nccl_library="2.28.9", packages={"nvidia-nccl-cu12": "2.20.5"}), (2, 28, 9)),
        (HostFacts("h", packages={"torch": "2.13.0", "nvidia-nccl-cu13": "2.29.2"}), (2, 29, 2)),
        (HostFacts("h", packages={"nvidia-nccl-cu13": "2.29.2 and 2.28.9"}), (2, 29, 2)),
        (HostFacts("h", packages={"torch": "2.13.0"}), None),
    ],
)
def test_the_version_of_nccl(facts: HostFacts, expected: tuple[int, ...] | None) -> None:
    assert facts.nccl_version == expected
