"""`mnt preflight` on real hosts: no findings on healthy ones; else exactly the check and host at fault."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

import faults
import pytest
import yaml
from waiting import PATIENCE, at_most

from mnt.lab.lab import Lab

RunMnt = Callable[..., subprocess.CompletedProcess[str]]
MakeLab = Callable[..., Lab]
Preflight = Callable[..., dict[str, Any]]

PYTHON = "/usr/bin/python3"
NVIDIA_SMI = Path(__file__).parents[1] / "data" / "nvidia-smi"


@pytest.fixture
def make_hosts(make_lab: MakeLab) -> Callable[..., Lab]:
    """A lab of the test's own, whose hosts all have the same torch, by its metadata: nothing else is read."""

    def make(count: int = 3) -> Lab:
        lab = make_lab(count=count, python=PYTHON)
        for host in lab.hosts:
            faults.install(host, "torch", "2.13.0+cpu")
        return lab

    return make


@pytest.fixture
def preflight(run_mnt: RunMnt) -> Preflight:
    """The JSON document; the exit code must go with it."""

    def run(lab: Lab, *args: str) -> dict[str, Any]:
        done = run_mnt("preflight", "--json", *args, lab=lab)
        assert done.returncode in (0, 1), done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if document["ok"] else 1)
        return document

    return run


def blamed(document: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    return [(entry["check"], entry["severity"], entry["hosts"]) for entry in document["findings"]]


def the_finding(document: dict[str, Any], check: str, *hosts: str, severity: str = "fail") -> dict[str, Any]:
    """The only finding, of that check on those hosts."""
    assert blamed(document) == [(check, severity, list(hosts))], document["findings"]
    finding: dict[str, Any] = document["findings"][0]
    assert finding["found"]
    assert finding["expected"]
    assert finding["fix"]
    return finding


def changed_inventory(lab: Lab, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A copy of the lab's inventory with a change in it."""
    document = yaml.safe_load(lab.inventory_path.read_text())
    change(document)
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return str(path)


# --- healthy ---------------------------------------------------------------------------------------------


def test_four_healthy_hosts_are_all_green(make_hosts: MakeLab, preflight: Preflight, run_mnt: RunMnt) -> None:
    lab = make_hosts(4)
    document = preflight(lab)
    assert document["findings"] == []
    assert document["hosts"] == {f"node{n}": {"status": "ok"} for n in range(1, 5)}

    done = run_mnt("preflight", lab=lab)
    assert done.returncode == 0
    header, row, *_, verdict = done.stdout.splitlines()
    assert header.split()[:4] == ["HOSTS", "SSH", "SESSION", "VERSIONS"]
    assert row.split() == ["node[1-4]"] + ["ok"] * (len(header.split()) - 1)
    assert verdict.startswith("fit to train: 0 failed, 0 warnings")


@pytest.mark.timing
def test_four_hosts_take_under_two_seconds(make_hosts: MakeLab, run_mnt: RunMnt) -> None:
    lab = make_hosts(4)

    def seconds() -> float:
        start = time.monotonic()
        assert run_mnt("preflight", lab=lab).returncode == 0
        return time.monotonic() - start

    assert min(seconds() for _ in range(5)) < 2.0


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/sh"])
def test_another_login_shell_is_well(make_hosts: MakeLab, preflight: Preflight, shell: str) -> None:
    lab = make_hosts()
    faults.set_shell(lab.host("node2"), shell)
    assert blamed(preflight(lab)) == []


def test_a_bashrc_that_talks_and_dawdles_is_a_warning(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    noise = "echo 'welcome {\"ok\": true}'; echo grumble >&2; sleep 1\n"
    faults.set_shell(lab.host("node2"), "/bin/bash")
    faults.write_file(lab.host("node2"), ".bashrc", noise, user=True)
    finding = the_finding(preflight(lab), "shell-noise", "node2", severity="warn")
    assert finding["found"] == 'welcome {"ok": true}'


def test_one_host_alone_is_well(make_hosts: MakeLab, preflight: Preflight) -> None:
    assert blamed(preflight(make_hosts(), "-n", "node2")) == []


# --- ssh -------------------------------------------------------------------------------------------------


def test_a_host_that_is_off(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.power_off(lab.host("node2"))
    document = preflight(lab)
    assert the_finding(document, "ssh", "node2")["message"].startswith("connect: ")
    assert document["hosts"]["node2"]["status"] == "unreachable"


def test_a_master_that_is_off(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.power_off(lab.host("node1"))
    the_finding(preflight(lab), "ssh", "node1")


def test_a_host_without_sshd(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.stop_sshd(lab.host("node3"))
    assert "refused" in the_finding(preflight(lab), "ssh", "node3")["message"]


def test_a_host_that_accepts_and_never_speaks(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.silence_sshd(lab.host("node2"))
    with at_most(60):  # it takes 10
        document = preflight(lab)
    assert the_finding(document, "ssh", "node2")["message"].startswith("banner: ")


def test_a_key_that_one_host_does_not_take(make_hosts: MakeLab, preflight: Preflight, tmp_path: Path) -> None:
    lab = make_hosts()
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    inventory = changed_inventory(
        lab, tmp_path, lambda document: document["hosts"]["node3"].update(ssh={"identity": str(key)})
    )
    message = the_finding(preflight(lab, "-i", inventory), "ssh", "node3")["message"]
    assert message.startswith("authentication: ")


def test_a_host_key_that_changed(make_hosts: MakeLab, preflight: Preflight, tmp_path: Path) -> None:
    lab = make_hosts()
    known = [line.split(maxsplit=1) for line in (lab.directory / "known_hosts").read_text().splitlines()]
    (key_of_node3,) = (key for names, key in known if names.startswith("node3,"))
    changed = [(names, key_of_node3 if names.startswith("node2,") else key) for names, key in known]
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text("".join(f"{names} {key}\n" for names, key in changed))
    inventory = changed_inventory(
        lab, tmp_path, lambda document: document["ssh"].update(known_hosts=str(known_hosts))
    )
    assert "SHA256:" in the_finding(preflight(lab, "-i", inventory), "host-key", "node2")["message"]


def test_a_worker_that_lets_the_head_in_but_not_the_master(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    master = lab.host("node1").spec.management
    faults.configure_sshd(lab.host("node3"), f"DenyUsers mnt@{master}\n")
    document = preflight(lab)
    assert (
        "node1 cannot log in to node3"
        in the_finding(document, "ssh-mesh", "node1", "node3", severity="warn")["message"]
    )


# --- software --------------------------------------------------------------------------------------------


def test_another_torch_on_one_host(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.install(lab.host("node2"), "torch", "2.12.0+cpu")
    finding = the_finding(preflight(lab), "torch-version", "node2")
    assert finding["found"] == "2.12.0+cpu"
    assert finding["expected"] == "2.13.0+cpu, as on node[1,3]"


def test_a_pin_in_the_inventory_wins(make_hosts: MakeLab, preflight: Preflight, tmp_path: Path) -> None:
    lab = make_hosts()
    faults.install(lab.host("node2"), "torch", "2.12.0+cpu")
    inventory = changed_inventory(
        lab, tmp_path, lambda document: document.update(require={"torch": "==2.12.*"})
    )
    the_finding(preflight(lab, "-i", inventory), "torch-version", "node1", "node3")


def test_two_hosts_that_differ_are_a_tie(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.install(lab.host("node2"), "torch", "2.12.0+cpu")
    finding = the_finding(preflight(lab, "-n", "node[1-2]"), "torch-version", "node1", "node2")
    assert finding["found"] == "2.13.0+cpu on node1; 2.12.0+cpu on node2"


def test_another_release_of_the_os(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.write_file(lab.host("node3"), "/etc/os-release", "ID=ubuntu\nVERSION_ID=24.04\n")
    assert the_finding(preflight(lab), "os-release", "node3")["found"] == "ubuntu 24.04"


def test_an_interpreter_that_is_missing_on_one_host(
    make_hosts: MakeLab, preflight: Preflight, tmp_path: Path
) -> None:
    lab = make_hosts()
    inventory = changed_inventory(
        lab, tmp_path, lambda document: document["hosts"]["node2"].update(python="/opt/none/bin/python")
    )
    finding = the_finding(preflight(lab, "-i", inventory), "python-version", "node2")
    assert "/opt/none/bin/python" in finding["found"]
    assert PYTHON in finding["fix"]


def test_no_python_at_all_on_one_host(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    removed = lab.host("node2").exec(["sh", "-c", "rm -f /usr/bin/python3* /usr/local/bin/python3*"])
    assert removed.returncode == 0, removed.stderr
    document = preflight(lab)
    assert PYTHON in the_finding(document, "python-version", "node2")["found"]
    assert document["hosts"]["node2"]["status"] == "fail"


# --- storage, NIC, GPUs, ports ---------------------------------------------------------------------------


def test_storage_that_is_not_mounted(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.unmount_shared(lab.host("node2"))
    finding = the_finding(preflight(lab), "storage-mount", "node2")
    assert finding["found"].startswith("not mounted; the directory is on /")


def test_storage_from_another_source_on_top(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    done = lab.host("node3").exec(["mount", "-t", "tmpfs", "impostor", "/shared"])
    assert done.returncode == 0, done.stderr
    message = the_finding(preflight(lab), "storage-mount", "node3")["message"]
    assert message == "/shared is hidden: tmpfs from impostor is mounted over it"


def test_a_required_path_that_one_host_lacks(
    make_hosts: MakeLab, preflight: Preflight, tmp_path: Path
) -> None:
    lab = make_hosts()
    for name in ("node1", "node3"):
        assert lab.host(name).exec(["mkdir", "-p", "/srv/model"]).returncode == 0
    inventory = changed_inventory(
        lab, tmp_path, lambda document: document.update(paths=[{"path": "/srv/model", "kind": "dir"}])
    )
    the_finding(preflight(lab, "-i", inventory), "path", "node2")


def test_a_nic_that_is_named_but_absent(make_hosts: MakeLab, preflight: Preflight, tmp_path: Path) -> None:
    lab = make_hosts()
    inventory = changed_inventory(
        lab, tmp_path, lambda document: document["hosts"]["node2"].update(nic="enp26s0np1")
    )
    finding = the_finding(preflight(lab, "-i", inventory), "nic", "node2")
    assert finding["message"] == "there is no NIC enp26s0np1"
    assert lab.host("node2").spec.nic in finding["found"]


def test_a_training_nic_that_is_down(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    host = lab.host("node3")
    assert host.exec(["ip", "link", "set", host.spec.nic, "down"]).returncode == 0
    assert (
        the_finding(preflight(lab), "nic", "node3")["message"] == f"the training NIC {host.spec.nic} is down"
    )


def test_gpus_of_which_one_host_has_lost_some(
    make_hosts: MakeLab, preflight: Preflight, tmp_path: Path
) -> None:
    lab = make_hosts()
    lines = (NVIDIA_SMI / "query-gpu.txt").read_text().splitlines()[1:-1]
    for host in lab.hosts:
        shown = lines[:-1] if host.name == "node2" else lines
        script = "#!/bin/sh\ncat <<'END'\n" + "\n".join(shown) + "\nEND\n"
        faults.write_file(host, "/usr/local/bin/nvidia-smi", script)
        assert host.exec(["chmod", "+x", "/usr/local/bin/nvidia-smi"]).returncode == 0
    inventory = changed_inventory(lab, tmp_path, lambda document: document["defaults"].update(gpus=2))
    assert the_finding(preflight(lab, "-i", inventory), "gpu-count", "node2")["found"] == "1"


_LISTEN = """
import os, socket
listener = socket.create_server(("0.0.0.0", 29500))
if os.fork() == 0:
    os.setsid()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    while True:
        listener.accept()
"""


@pytest.mark.parametrize(
    ("name", "as_user", "severity", "holder"),
    [
        ("node1", True, "fail", " of mnt: /usr/bin/python3 -c"),
        ("node1", False, "fail", "a process of root"),
        ("node2", True, "warn", " of mnt: /usr/bin/python3 -c"),
    ],
)
def test_a_master_port_that_is_taken(
    make_hosts: MakeLab, preflight: Preflight, name: str, as_user: bool, severity: str, holder: str
) -> None:
    lab = make_hosts()
    done = lab.host(name).exec([PYTHON, "-c", _LISTEN], user=as_user)
    assert done.returncode == 0, done.stderr
    finding = the_finding(preflight(lab), "port-free", name, severity=severity)
    assert "port 29500 is in use by" in finding["message"]
    assert holder in finding["found"]


# --- the command -----------------------------------------------------------------------------------------


def test_a_person_sees_the_host_the_check_and_the_way_out(make_hosts: MakeLab, run_mnt: RunMnt) -> None:
    lab = make_hosts()
    faults.install(lab.host("node2"), "torch", "2.12.0+cpu")
    done = run_mnt("preflight", lab=lab)
    assert done.returncode == 1
    assert "node[1,3]  ok" in done.stdout
    assert "FAIL torch-version: node2: torch is 2.12.0+cpu; on 2 of 3 hosts it is 2.13.0+cpu" in done.stdout
    assert "fix       /usr/bin/python3 -m pip install torch==2.13.0+cpu" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("not fit to train: 1 failed, 0 warnings")


def test_only_what_is_asked_for(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    faults.install(lab.host("node2"), "torch", "2.12.0+cpu")
    faults.unmount_shared(lab.host("node3"))
    assert blamed(preflight(lab, "--only", "nic,gpu-count")) == []
    the_finding(preflight(lab, "--only", "torch-version"), "torch-version", "node2")
    the_finding(preflight(lab, "--skip", "torch-version"), "storage-mount", "node3")


def test_an_unknown_check_is_bad_usage(make_hosts: MakeLab, run_mnt: RunMnt) -> None:
    done = run_mnt("preflight", "--only", "nics", lab=make_hosts(1))
    assert done.returncode == 2
    assert "did you mean 'nic'?" in done.stderr
    assert done.stdout == ""


def test_files_for_ci_and_for_people(make_hosts: MakeLab, run_mnt: RunMnt, tmp_path: Path) -> None:
    lab = make_hosts()
    junit, page = tmp_path / "junit.xml", tmp_path / "page.html"
    done = run_mnt("preflight", "--junit", str(junit), "--html", str(page), lab=lab)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress is for terminals
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    assert "✓ Fit to train" in page.read_text()
    done = run_mnt("preflight", "--html", str(tmp_path / "none" / "page.html"), lab=lab)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_watching_shows_what_changes_over_the_same_connections(make_hosts: MakeLab) -> None:
    lab = make_hosts()
    host = lab.host("node3")
    faults.configure_sshd(host, "LogLevel VERBOSE\n")
    command = [sys.executable, "-m", "mnt", "preflight", "-i", str(lab.inventory_path), "--watch", "0.2"]
    command += ["--skip", "ssh-mesh,memory,swap"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            for line in watching.stdout:
                if line.startswith("fit to train"):
                    break
            with faults.nic_down(host):
                assert_line(watching.stdout, f"FAIL nic: node3: the training NIC {host.spec.nic} is down")
            assert_line(watching.stdout, f"GONE nic: node3: the training NIC {host.spec.nic} is down")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE) == 130
        finally:
            watching.kill()
    logins = host.exec(["grep", "-c", "Accepted publickey", "/run/sshd.log"]).stdout
    assert logins == "1\n"


def assert_line(stream: IO[str], wanted: str) -> None:
    """Read until that line comes; the test's own time is up if it never does."""
    assert any(line.rstrip("\n") == wanted for line in stream), wanted


# --- a trial run -----------------------------------------------------------------------------------------


@pytest.mark.train
def test_a_trial_run_sums_ones_and_leaves_nothing(make_lab: MakeLab, preflight: Preflight) -> None:
    lab = make_lab(count=2)
    if lab.spec.python == PYTHON:
        pytest.skip("there is no training environment: scripts/train-venv.sh makes one")
    document = preflight(lab, "--deep")
    assert document["findings"] == []
    assert document["deep"]["ok"]
    assert (document["deep"]["backend"], document["deep"]["world_size"]) == ("gloo", 2)
    assert list(document["deep"]["import_seconds"]) == ["node1", "node2"]
    assert [each["bytes"] for each in document["deep"]["all_reduce"]] == [1 << 12, 1 << 20, 1 << 24]
    assert all(each["gigabytes_per_second"] > 0 for each in document["deep"]["all_reduce"])
    for host in lab.hosts:
        left = host.exec(["sh", "-c", "ls -d /tmp/mnt-stage-* ~mnt/.mnt 2>/dev/null; ps -u mnt -o args="])
        assert "mnt-stage" not in left.stdout
        assert "torch" not in left.stdout
        assert ".mnt" not in left.stdout


def test_a_trial_run_without_a_torch_that_can_be_imported(make_hosts: MakeLab, preflight: Preflight) -> None:
    """There is metadata of torch, and nothing else of it."""
    finding = the_finding(preflight(make_hosts(2), "--deep"), "import-torch", "node1")
    assert "torch" in finding["message"]


def test_no_trial_run_where_something_fails_already(make_hosts: MakeLab, preflight: Preflight) -> None:
    lab = make_hosts()
    with faults.nic_down(lab.host("node2")):
        document = preflight(lab, "--deep", "--only", "nic")
    assert blamed(document) == [
        ("nic", "fail", ["node2"]),
        ("all-reduce", "info", ["node1", "node2", "node3"]),
    ]
    assert document["findings"][1]["message"].startswith("not tried: node2: the training NIC ")
    assert document["findings"][1]["message"].endswith(" is down (nic)")
