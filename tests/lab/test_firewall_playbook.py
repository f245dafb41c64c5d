"""`mnt setup firewall`, on hosts where a store listens everywhere, and on some with ufw and firewalld."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import faults
import pytest
import yaml
from mirror import Mirror, serving
from setups import allow_sudo, unjudged
from test_store import JOB, PORT, strangers_visit, training_python
from waiting import PATIENCE, wait_for

from mnt.lab.lab import Lab, LabHost

Mnt = Callable[..., subprocess.CompletedProcess[str]]
Play = Callable[..., tuple[str, int]]

PLAYBOOK = Path(__file__).parents[2] / "playbooks" / "firewall.yml"
# A store as torch makes it by itself, on every address.
STORE = """
import sys
from torch.distributed import TCPStore

store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
print("listens", flush=True)
sys.stdin.read()
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()"

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")


@pytest.fixture
def hosts(make_lab: Callable[..., Lab]) -> Lab:
    """Two hosts on which the ordinary user may become root."""
    lab = make_lab(count=2)
    allow_sudo(lab)
    return lab


@pytest.fixture
def play(hosts: Lab, run_mnt: Mnt) -> Play:
    """`play("--check", training_sources=..)`: what mnt setup prints, and how many things it has changed."""

    def run(*words: str, ok: bool = True, **variables: str) -> tuple[str, int]:
        extra = [f"--extra-var={name}={value}" for name, value in variables.items()]
        done = run_mnt("setup", "firewall", "--json", *words, *extra, lab=hosts)
        text = done.stdout + done.stderr
        assert (done.returncode == 0) is ok, text
        results = json.loads(done.stdout)["playbooks"]["firewall"]["hosts"].values()
        return text, sum(result["changed"] for result in results)

    return run


@pytest.fixture
def play_by_hand(hosts: Lab, tmp_path: Path) -> Callable[..., None]:
    """`play_by_hand("--limit", "node1", training_sources=..)`: ansible-playbook, without mnt."""
    ssh = yaml.safe_load(hosts.inventory_path.read_text())["ssh"]
    lines = [f"{host.name} ansible_host={host.spec.management}" for host in hosts.hosts]
    lines += ["[all:vars]", "ansible_python_interpreter=/usr/bin/python3", f"ansible_user={ssh['user']}"]
    options = f"-o UserKnownHostsFile={ssh['known_hosts']} -o IdentityFile={ssh['identity']}"
    lines += [f"ansible_ssh_common_args={options}"]
    (tmp_path / "hosts.ini").write_text("\n".join(lines) + "\n")

    def run(*words: str, **variables: str) -> None:
        options = ["-i", str(tmp_path / "hosts.ini"), "--become", "--extra-vars", json.dumps(variables)]
        done = subprocess.run(
            [sys.executable, "-m", "ansible", "playbook", *options, *words, str(PLAYBOOK)],
            env={**os.environ, "ANSIBLE_PIPELINING": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@contextmanager
def store_on_every_address(lab: Lab, host: LabHost) -> Iterator[None]:
    argv = [training_python(lab), "-c", STORE, host.spec.training, str(PORT)]
    command, env = host.command(argv, user=True), host.environment(user=True)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as store:
        assert store.stdout is not None
        assert store.stdout.readline() == "listens\n"
        yield
        store.communicate("")  # it ends with its standard input


@contextmanager
def route_by_the_management_network(host: LabHost) -> Iterator[None]:
    """Linux answers for each of its addresses on every NIC: a stranger needs no more than a route."""
    route = [f"{host.spec.training}/32", "via", host.spec.management]
    subprocess.run(["ip", "route", "add", *route], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", *route], check=True)


def connects(host: LabHost, address: str, port: int) -> bool:
    return host.exec(["/usr/bin/python3", "-c", CONNECT, address, str(port)], user=True).returncode == 0


def rules(host: LabHost) -> str:
    return host.exec(["nft", "list", "ruleset"]).stdout


@pytest.mark.matrix  # tox -e playbooks; the next test is the sample
def test_it_shuts_strangers_out_and_nobody_else(hosts: Lab, play: Play) -> None:
    master, worker = hosts.hosts
    with store_on_every_address(hosts, master), route_by_the_management_network(master):
        addresses = (master.spec.management, master.spec.training)
        assert [strangers_visit(hosts, address).returncode for address in addresses] == [0, 0]

        shown, would = play("--check")
        assert would > 0, shown
        assert rules(master) == ""  # a check changes nothing
        play()
        assert [strangers_visit(hosts, address).returncode for address in addresses] == [1, 1]
        assert connects(worker, master.spec.training, PORT)
        assert connects(master, master.spec.training, PORT)  # over the loopback interface
        assert connects(worker, master.spec.management, 22)

        for words in ((), ("--check",)):
            shown, changed = play(*words)
            assert changed == 0, shown
        master.exec(["nft", "flush", "ruleset"])
        assert play()[1] == 1  # loaded again, on one host

        play(training_firewall="absent")
        assert [rules(host) for host in hosts.hosts] == ["", ""]
        assert play(training_firewall="absent")[1] == 0
        assert strangers_visit(hosts, master.spec.management).returncode == 0


@pytest.mark.matrix
def test_a_job_trains_behind_it(hosts: Lab, play: Play, run_mnt: Mnt, tmp_path: Path) -> None:
    play()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "sums.py").write_text(JOB)
    assert run_mnt("push", str(tree), lab=hosts).returncode == 0
    started = run_mnt("launch", "--detach", "--json", "sums.py", lab=hosts)
    assert started.returncode == 0, started.stderr
    job = json.loads(started.stdout)["job"]
    wait_for(lambda: "sum 2" in run_mnt("logs", job, lab=hosts).stdout)
    master = hosts.host("node1")
    with route_by_the_management_network(master):
        assert strangers_visit(hosts, master.spec.training).returncode == 1
    entry = json.loads(run_mnt("status", job, "--json", lab=hosts).stdout)["jobs"][0]
    assert entry["state"] == "running"
    assert run_mnt("stop", job, lab=hosts).returncode == 0


def test_ssh_on_a_port_of_the_range_stays_open(hosts: Lab, play_by_hand: Callable[..., None]) -> None:
    master = hosts.host("node1")
    for port in (40022, 40023, 40024):
        faults.start_sshd(master, "-p", str(port))
    # ansible_port is the port of the connection; the others are not known to Ansible.
    ports = {"ansible_port": "40022", "ssh_ports": "40023", "open_ports": "40024,29500"}
    play_by_hand("--limit", "node1", training_sources=str(hosts.record.spec.training), **ports)
    stranger = hosts.host("node2")
    connect = "import socket, sys; a = sys.argv; socket.create_connection((a[1], int(a[2])), 3, (a[3], 0))"
    for port in (22, 40022, 40023, 40024):
        ends = [master.spec.management, str(port), stranger.spec.management]
        done = stranger.exec(["/usr/bin/python3", "-c", connect, *ends])
        assert done.returncode == 0, (port, done.stderr)


def install(host: LabHost, mirror: Mirror, package: str) -> None:
    script = """
        rm -f /etc/apt/sources.list.d/* && echo "$1" >/etc/apt/sources.list && apt-get -q update &&
        echo path-exclude=/usr/share/man/* >/etc/dpkg/dpkg.cfg.d/no-man &&
        DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends install "$2"
    """
    done = host.exec(["sh", "-c", script, "sh", mirror.apt, package])
    assert done.returncode == 0, done.stderr


def start_ufw(host: LabHost, mirror: Mirror) -> None:
    """Only SSH is open."""
    install(host, mirror, "ufw")
    for words in (["default", "deny", "incoming"], ["allow", "22/tcp"], ["--force", "enable"]):
        assert host.exec(["ufw", *words]).returncode == 0


def start_firewalld(host: LabHost, mirror: Mirror) -> None:
    """As it comes from Debian: only SSH and DHCPv6 are open."""
    install(host, mirror, "firewalld")
    daemons = "mkdir -p /run/dbus && dbus-daemon --system --fork && firewalld"
    assert host.exec(["sh", "-c", daemons]).returncode == 0
    wait_for(lambda: host.exec(["firewall-cmd", "--state"]).returncode == 0)


@pytest.mark.matrix  # tox -e playbooks
def test_ufw_and_firewalld_let_the_training_network_through(hosts: Lab, play: Play, run_mnt: Mnt) -> None:
    first, second = hosts.hosts

    def reached() -> bool:
        return run_mnt("preflight", "--only", "nic-reach,mtu", lab=hosts).returncode == 0

    def allowed() -> tuple[str, str]:
        """What is in force: the rules of ufw, and those of the policy, without its name."""
        policy = second.exec(["firewall-cmd", "--policy=mnt-training", "--list-rich-rules"])
        return first.exec(["ufw", "show", "added"]).stdout, policy.stdout

    with serving(hosts, debs=["ufw", "firewalld"]) as mirror:
        start_ufw(first, mirror)
        start_firewalld(second, mirror)
    before = allowed()
    assert before[1] == ""
    assert not reached()

    shown, would = play("--check")
    assert would > 0, shown
    assert allowed() == before
    play()
    assert reached()
    # What the owner of a host opens to everyone stays shut, for these ports.
    first.exec(["ufw", "allow", f"{PORT}/tcp"])
    with store_on_every_address(hosts, first):
        assert connects(second, first.spec.training, PORT)
        assert strangers_visit(hosts, first.spec.management).returncode == 1
    shown, changed = play()
    assert changed == 0, shown

    play(master_port="29600")  # what was for the other port goes
    ufw, firewalld = allowed()
    assert ("port 29600 proto" in ufw, "port 29500 proto" in ufw) == (True, False)
    assert ('port="29600"' in firewalld, 'port="29500"' in firewalld) == (True, False)

    play(training_firewall="absent")
    first.exec(["ufw", "delete", "allow", f"{PORT}/tcp"])
    assert allowed() == before


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"training_sources": ""}, "training_sources must be the training network"),
        ({"training_sources": "10.0.0.1/24"}, "has host bits set"),
        ({"training_sources": "0.0.0.0/0"}, "0.0.0.0/0 is too large: at most a /8"),
        ({"training_sources": "10.0.0.0/24,0.0.0.0/1"}, "0.0.0.0/1 is too large: at most a /8"),
        ({"training_sources": "192.0.2.0/24"}, "is in training_sources, 192.0.2.0/24"),
        (
            {"training_sources": unjudged("192.0.2.0/24 }; flush ruleset")},
            "training_sources must be the training network",
        ),
        (
            {"training_sources": "192.0.2.0/24", "open_ports": unjudged("1 accept; flush")},
            "ports are numbers",
        ),
        ({"training_firewall": unjudged("off")}, "training_firewall is present or absent"),
    ],
)
def test_wrong_variables_change_nothing(hosts: Lab, play: Play, variables: dict[str, str], says: str) -> None:
    shown, changed = play("-n", "node1", ok=False, **variables)
    assert says in " ".join(shown.split())
    assert changed == 0
