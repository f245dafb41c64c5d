"""Sessions, memory, names, leftovers and GPUs on real hosts: what is wrong is found on its host alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import faults
import pytest
import yaml
from torch_hosts import PYTHON, Findings, RunMnt, findings_on, torch_hosts

from mnt.lab.lab import Lab, LabHost

GPUS = Path(__file__).parents[1] / "data" / "nvidia-smi"


@pytest.fixture(scope="module")
def hosts(lab_support: None) -> Iterator[Lab]:
    with torch_hosts(3) as lab:
        yield lab


@pytest.fixture
def preflight(hosts: Lab, run_mnt: RunMnt) -> Callable[..., Findings]:
    return partial(findings_on, run_mnt, hosts)


def must(host: LabHost, *argv: str, user: bool = False) -> str:
    done = host.exec(list(argv), user=user)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout


@contextmanager
def file(host: LabHost, path: str, text: str, *, user: bool = False) -> Iterator[None]:
    """A file that was not there before."""
    must(host, "mkdir", "-p", str(Path(path).parent), user=user)
    faults.write_file(host, path, text, user=user)
    try:
        yield
    finally:
        must(host, "rm", "-f", path, user=user)


@contextmanager
def loopback_name(host: LabHost) -> Iterator[None]:
    before = must(host, "cat", "/etc/hosts")
    others = "".join(line for line in before.splitlines(keepends=True) if host.name not in line.split())
    with faults.file_holds(host, "/etc/hosts", f"{others}127.0.1.1 {host.name}\n"):
        yield


@contextmanager
def small_shm(host: LabHost) -> Iterator[None]:
    must(host, "mount", "-t", "tmpfs", "-o", "size=16m,mode=1777", "tmpfs", "/dev/shm")
    try:
        yield
    finally:
        must(host, "umount", "/dev/shm")


@contextmanager
def other_release(host: LabHost) -> Iterator[None]:
    """This host holds a release, and no other one does."""
    make = "mkdir -p ~/project/releases/20260101-120000-0badcafe && cd ~/project && ln -s releases/2* current"
    must(host, "sh", "-c", f"{make} && touch releases/20260101-120000-0badcafe.manifest.json", user=True)
    try:
        yield
    finally:
        must(host, "sh", "-c", "rm -r ~/project", user=True)


_ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.execve("/bin/sleep", ["sleep", "600"], {"MNT_JOB": "lost-job", "MNT_HOST": "node2"})
"""


@contextmanager
def orphan(host: LabHost) -> Iterator[None]:
    must(host, PYTHON, "-c", _ORPHAN, user=True)
    try:
        yield
    finally:
        must(host, "pkill", "-x", "sleep")


@contextmanager
def old_lock(host: LabHost) -> Iterator[None]:
    with file(host, ".cache/torch_extensions/py311_cpu/fused_adam/lock", "", user=True):
        must(
            host, "touch", "-d", "1 hour ago", ".cache/torch_extensions/py311_cpu/fused_adam/lock", user=True
        )
        yield


def bashrc(text: str) -> Callable[[LabHost], AbstractContextManager[None]]:
    return lambda host: faults.start_up_file(host, text)


def logind_conf(text: str) -> Callable[[LabHost], AbstractContextManager[None]]:
    return lambda host: file(host, "/etc/systemd/logind.conf.d/50-site.conf", text)


@pytest.mark.parametrize(
    ("inject", "check", "severity", "found"),
    [
        (bashrc("sleep 4\n"), "shell-slow", "warn", "s until /bin/bash has started Python"),
        (bashrc("echo; echo Welcome to the cluster\n"), "shell-noise", "warn", "Welcome to the cluster"),
        (bashrc("umask 077\n"), "umask", "warn", "0077"),
        (bashrc("ulimit -n 256\n"), "nofile", "warn", "256 files"),
        (bashrc("PATH=.:$PATH\n"), "session-path", "warn", ".:/usr"),
        (
            logind_conf("[Login]\nKillUserProcesses=yes\n"),
            "session-linger",
            "warn",
            "KillUserProcesses=yes for mnt",
        ),
        (loopback_name, "hostname-loopback", "warn", "127.0.1.1"),
        (small_shm, "shm", "fail", "16 MiB free"),
        (other_release, "code-parity", "fail", "20260101-120000-0badcafe"),
        (orphan, "leftovers", "warn", "sleep 600"),
    ],
)
def test_what_is_wrong_with_one_host(
    hosts: Lab,
    preflight: Callable[..., Findings],
    inject: Callable[[LabHost], AbstractContextManager[None]],
    check: str,
    severity: str,
    found: str,
) -> None:
    with inject(hosts.host("node2")):
        findings = preflight()
    assert [(each["check"], each["severity"], each["hosts"]) for each in findings] == [
        (check, severity, ["node2"])
    ], findings
    assert found in findings[0]["found"]
    assert findings[0]["fix"]


def test_all_is_well_again(preflight: Callable[..., Findings]) -> None:
    assert preflight() == []


def test_removed_shared_memory_and_the_way_to_keep_it(hosts: Lab, preflight: Callable[..., Findings]) -> None:
    host = hosts.host("node3")
    with file(host, "/etc/systemd/logind.conf.d/50-site.conf", "[Login]\nRemoveIPC=yes\n"):
        (finding,) = preflight()
        assert (finding["check"], finding["hosts"]) == ("session-linger", ["node3"])
        assert finding["fix"] == "sudo loginctl enable-linger mnt"
        with file(host, "/var/lib/systemd/linger/mnt", ""):  # what that command does
            assert preflight() == []


def test_a_lock_that_a_killed_build_has_left(
    hosts: Lab, preflight: Callable[..., Findings], tmp_path: Path
) -> None:
    document = yaml.safe_load(hosts.inventory_path.read_text())
    del document["env"]["TORCH_EXTENSIONS_DIR"]  # so that it is where torch itself looks
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    with old_lock(hosts.host("node1")):
        (finding,) = preflight("-i", str(inventory))
    assert (finding["check"], finding["hosts"]) == ("build-lock", ["node1"])
    assert finding["fix"].endswith(".cache/torch_extensions/py311_cpu/fused_adam/lock")


_TOOL = "/usr/local/bin/nvidia-smi"
_NVIDIA_SMI = """#!/bin/sh
case $1 in
    --query-gpu=*) cat <<'END'
{gpus}END
    ;;
    --query-remapped-rows=*) cat <<'END'
{rows}END
    ;;
    *) exit 3;;
esac
"""


def recorded(name: str) -> str:
    """Without the command before it and the exit status behind it."""
    return "".join((GPUS / name).read_text().splitlines(keepends=True)[1:-1])


@contextmanager
def gpus_of(hosts: Lab, script: Callable[[LabHost], str], directory: Path) -> Iterator[Path]:
    """An nvidia-smi on each host, which shows two GPUs; gives an inventory that promises them."""
    inventory = directory / "inventory.yaml"
    document = yaml.safe_load(hosts.inventory_path.read_text())
    document["defaults"]["gpus"] = 2
    inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        for host in hosts.hosts:
            faults.write_file(host, _TOOL, script(host))
            must(host, "chmod", "+x", _TOOL)
        yield inventory
    finally:
        for host in hosts.hosts:
            must(host, "rm", "-f", _TOOL)


def test_a_gpu_that_is_ill(hosts: Lab, preflight: Callable[..., Findings], tmp_path: Path) -> None:
    """As the ordinary user, with what a real nvidia-smi printed but for one word."""
    gpus, rows = recorded("query-gpu.txt"), recorded("query-remapped-rows.txt")

    def script(host: LabHost) -> str:
        ill = rows.replace("No, No, 0", "Yes, Yes, 512", 1) if host.name == "node3" else rows
        return _NVIDIA_SMI.format(gpus=gpus, rows=ill)

    with gpus_of(hosts, script, tmp_path) as inventory:
        findings = preflight("-i", str(inventory))
    (finding,) = findings
    assert (finding["check"], finding["hosts"], finding["severity"]) == ("gpu-remap", ["node3"], "fail")


def test_a_gpu_that_nvidia_smi_warns_of(
    hosts: Lab, preflight: Callable[..., Findings], tmp_path: Path
) -> None:
    """It answers in full, warns, and exits with 14: no GPU is missing."""
    words = "WARNING: infoROM is corrupted at gpu 0000:00:06.0"
    well = _NVIDIA_SMI.format(gpus=recorded("query-gpu.txt"), rows=recorded("query-remapped-rows.txt"))
    ill = well.replace(";;", f"echo '{words}' >&2; exit 14;;", 1)
    with gpus_of(hosts, lambda host: ill if host.name == "node2" else well, tmp_path) as inventory:
        findings = preflight("-i", str(inventory))
    (finding,) = findings
    assert (finding["check"], finding["hosts"], finding["severity"]) == ("gpu-warning", ["node2"], "warn")
    assert words in finding["message"]
