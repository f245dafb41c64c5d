"""Ways to break a lab host. For hosts of a lab of the test's own (`make_lab`).

Those that are context managers heal what they broke. Faults of real NFS are in `nfs/faults.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mnt.lab.lab import Lab, LabHost
from mnt.lab.spec import MANAGEMENT_NIC

_SILENT = """
import os, socket
listener = socket.create_server(("0.0.0.0", 22), backlog=64)
if os.fork() == 0:
    os.setsid()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    held = []
    while True:
        held.append(listener.accept())
"""

_TAKE_PORT = """
import os, socket, sys, time
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
pid = os.fork()
if pid:
    print(pid)
else:
    os.setsid()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    time.sleep(600)
"""


def power_off(host: LabHost) -> None:
    """Switch the power off: all processes and NICs disappear.

    The NICs go first, because a host without power sends no more packets to its peers.
    """
    for nic in (MANAGEMENT_NIC, host.spec.nic):
        host.exec(["ip", "link", "set", nic, "down"])
    os.kill(host.init.pid, signal.SIGKILL)
    while host.alive:
        time.sleep(0.01)


def stop_sshd(host: LabHost) -> None:
    """Connections to port 22 are refused; sessions that are open end too."""
    _run(host, "sh", "-c", "pkill -KILL -x sshd; while ss -Hltn sport = :22 | grep -q .; do sleep 0.01; done")


def silence_sshd(host: LabHost) -> None:
    """Port 22 accepts connections and never says a word."""
    stop_sshd(host)
    _run(host, "/usr/bin/python3", "-c", _SILENT)


def start_sshd(host: LabHost, *options: str) -> None:
    """Start a further sshd: again, or with `options` (`-p`, `2222`)."""
    _run(host, "/usr/sbin/sshd", *options)


@contextmanager
def port_taken(host: LabHost, port: int, *, user: bool = True) -> Iterator[int]:
    """A process of the ordinary user (or root) LISTENs on a port meanwhile. Gives its pid in the host."""
    started = host.exec(["/usr/bin/python3", "-c", _TAKE_PORT, str(port)], user=user)
    assert started.returncode == 0, started.stderr
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        _run(host, "kill", "-KILL", str(pid))


def configure_sshd(host: LabHost, text: str) -> None:
    """Put words of sshd_config(5) before the lab's own, and have sshd take them up."""
    write_file(host, "/etc/ssh/sshd_config.d/test.conf", text)
    restart = 'pid=$(cat "$1"); rm "$1"; kill -HUP "$pid"; until [ -s "$1" ]; do sleep 0.01; done'
    _run(host, "sh", "-c", restart, "sh", "/run/sshd.pid")


def unmount_shared(host: LabHost) -> None:
    """/shared is an empty directory of the host's own."""
    _run(host, "umount", "/shared")


def set_shell(host: LabHost, shell: str) -> None:
    """Give the ordinary user another login shell."""
    _run(host, "usermod", "--shell", shell, "mnt")


def write_file(host: LabHost, path: str, text: str, *, user: bool = False) -> None:
    """Write a file of the host, as root or as the ordinary user; a relative path is below that one's home."""
    _run(host, "sh", "-c", 'cat > "$1"', "sh", path, input=text, user=user)


def firewall(host: LabHost, *rules: str) -> None:
    """Add nftables rules to what comes in: `tcp dport 22 drop`."""
    chain = "add table inet test; add chain inet test input { type filter hook input priority 0; };"
    _run(host, "nft", chain + "".join(f"add rule inet test input {rule};" for rule in rules))


# --- faults that heal ------------------------------------------------------------------------------------

_KEPT = "/run/kept-shared"
_FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"  # of Debian's libfaketime
_OPENING = "tcp flags & (syn | ack) == syn"  # the first packet of a connection, and no other


@contextmanager
def no_shared(host: LabHost) -> Iterator[None]:
    """/shared is an empty directory of the host's own."""
    _run(host, "sh", "-c", 'mkdir -p "$1" && mount --move /shared "$1"', "sh", _KEPT)
    try:
        yield
    finally:
        _run(host, "mount", "--move", _KEPT, "/shared")


@contextmanager
def another_shared(host: LabHost) -> Iterator[None]:
    """Something else of the same type is mounted on top of /shared."""
    _run(host, "mount", "-t", "tmpfs", "impostor", "/shared")
    try:
        yield
    finally:
        _run(host, "umount", "/shared")


@contextmanager
def firewalled(host: LabHost, *rules: str) -> Iterator[None]:
    """nftables rules for what comes in, `tcp dport 22 drop`, as in `firewall`."""
    firewall(host, *rules)
    try:
        yield
    finally:
        _run(host, "nft", "delete table inet test")


def drop_all(host: LabHost) -> list[str]:
    """Rules that let nothing in by the training NIC, answers neither."""
    return [f"iifname {host.spec.nic} drop"]


def drop_incoming(host: LabHost) -> list[str]:
    """Rules that let nobody connect to the host over the training NIC, while it can connect to others."""
    return [f"iifname {host.spec.nic} {_OPENING} drop"]


def drop_ports(host: LabHost, ports: str) -> list[str]:
    """Rules that close ports of the training NIC: `1024-29000, 30000-65535`."""
    return [f"iifname {host.spec.nic} {_OPENING} tcp dport {{ {ports} }} drop"]


@contextmanager
def partitioned(lab: Lab, *hosts: LabHost) -> Iterator[None]:
    """These hosts' training NICs are on a switch of their own."""
    ports = [f"t{host.spec.number}" for host in hosts]
    _run_in_switch(lab, "ip", "link", "add", "part", "type", "bridge", "forward_delay", "0")
    _run_in_switch(lab, "ip", "link", "set", "part", "up")
    try:
        for port in ports:
            _run_in_switch(lab, "ip", "link", "set", port, "master", "part")
        yield
    finally:
        for port in ports:
            _run_in_switch(lab, "ip", "link", "set", port, "master", "train")
        _run_in_switch(lab, "ip", "link", "del", "part")


@contextmanager
def switch_mtu(lab: Lab, host: LabHost, mtu: int) -> Iterator[None]:
    """The switch's port of the host's training NIC has another MTU: larger packets vanish there."""
    port = f"t{host.spec.number}"
    _run_in_switch(lab, "ip", "link", "set", port, "mtu", str(mtu))
    try:
        yield
    finally:
        _run_in_switch(lab, "ip", "link", "set", port, "mtu", "1500")


@contextmanager
def nic_mtu(host: LabHost, mtu: int) -> Iterator[None]:
    """The training NIC has another MTU."""
    _run(host, "ip", "link", "set", host.spec.nic, "mtu", str(mtu))
    try:
        yield
    finally:
        _run(host, "ip", "link", "set", host.spec.nic, "mtu", "1500")


@contextmanager
def nic_down(host: LabHost) -> Iterator[None]:
    """The training NIC is down."""
    _run(host, "ip", "link", "set", host.spec.nic, "down")
    try:
        yield
    finally:
        _run(host, "ip", "link", "set", host.spec.nic, "up")


@contextmanager
def nic_unplugged(lab: Lab, host: LabHost) -> Iterator[None]:
    """The training NIC is up, and its cable is out."""
    port = f"t{host.spec.number}"
    _run_in_switch(lab, "ip", "link", "set", port, "down")
    try:
        yield
    finally:
        _run_in_switch(lab, "ip", "link", "set", port, "up")


@contextmanager
def nic_renamed(host: LabHost, name: str = "renamed0") -> Iterator[None]:
    """The training NIC has another name, as after a change of firmware or kernel."""
    _rename(host, host.spec.nic, name)
    try:
        yield
    finally:
        _rename(host, name, host.spec.nic)


def _rename(host: LabHost, old: str, new: str) -> None:
    _run(host, "ip", "link", "set", old, "down")
    _run(host, "ip", "link", "set", old, "name", new)
    _run(host, "ip", "link", "set", new, "up")


@contextmanager
def second_address(host: LabHost, address: str) -> Iterator[None]:
    """The management NIC has an address in the training network too: `10.213.2.200/23`."""
    _run(host, "ip", "addr", "add", address, "dev", MANAGEMENT_NIC)
    try:
        yield
    finally:
        _run(host, "ip", "addr", "del", address, "dev", MANAGEMENT_NIC)


@contextmanager
def stray_route(host: LabHost, peer: LabHost) -> Iterator[None]:
    """Packets for a peer's training address leave by the management NIC."""
    route = ("route", "{}", f"{peer.spec.training}/32", "dev", MANAGEMENT_NIC)
    _run(host, "ip", *(word.format("add") for word in route))
    try:
        yield
    finally:
        _run(host, "ip", *(word.format("del") for word in route))


@contextmanager
def host_off(host: LabHost) -> Iterator[None]:
    """Nothing of the host answers, as if it had no power; `power_off` is for good."""
    nics = (MANAGEMENT_NIC, host.spec.nic)
    for nic in nics:
        _run(host, "ip", "link", "set", nic, "down")
    try:
        yield
    finally:
        for nic in nics:
            _run(host, "ip", "link", "set", nic, "up")


@contextmanager
def sshd_down(host: LabHost) -> Iterator[None]:
    """Connections to port 22 are refused."""
    stop_sshd(host)
    try:
        yield
    finally:
        start_sshd(host)


@contextmanager
def ssh_silent(host: LabHost) -> Iterator[None]:
    """Port 22 accepts connections and never says a word."""
    silence_sshd(host)
    try:
        yield
    finally:
        _run(host, "sh", "-c", "kill $(ss -Hltnp sport = :22 | grep -o 'pid=[0-9]*' | cut -d= -f2)")
        start_sshd(host)


@contextmanager
def sshd_configured(host: LabHost, text: str) -> Iterator[None]:
    """Words of sshd_config(5) before the lab's own, as in `configure_sshd`."""
    configure_sshd(host, text)
    try:
        yield
    finally:
        configure_sshd(host, "")


def clock_off(host: LabHost, by: str) -> str:
    """Words of sshd_config that give each session another time: `+90s` (faketime(1)).

    Time namespaces do not cover the wall clock.
    """
    assert host.exec(["test", "-e", _FAKETIME]).returncode == 0, "apt-get install libfaketime"
    return f"SetEnv LD_PRELOAD={_FAKETIME} FAKETIME={by}\n"


@contextmanager
def start_up_file(host: LabHost, text: str) -> Iterator[None]:
    """The ordinary user's .bashrc, which bash also reads when sshd starts it."""
    write_file(host, ".bashrc", text, user=True)
    try:
        yield
    finally:
        _run(host, "rm", "-f", ".bashrc", user=True)


@contextmanager
def file_holds(host: LabHost, path: str, text: str) -> Iterator[None]:
    """A file of the system says something else."""
    before = host.exec(["cat", path])
    write_file(host, path, text)
    try:
        yield
    finally:
        write_file(host, path, before.stdout)


def install(host: LabHost, name: str, version: str) -> None:
    """Metadata of a package, as pip leaves it, where the host's own interpreter finds it first."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    script = """
        site=$(/usr/bin/python3 -c 'import site; print(site.getsitepackages()[0])')
        rm -rf "$site/$1"-*.dist-info && mkdir -p "$site/$1-$2.dist-info"
        cat > "$site/$1-$2.dist-info/METADATA"
    """
    _run(host, "sh", "-ec", script, "sh", name, version, input=metadata)


@contextmanager
def other_package(host: LabHost, name: str, version: str, usual: str) -> Iterator[None]:
    """The package has another version on this host; `usual` is the one that it has otherwise."""
    install(host, name, version)
    try:
        yield
    finally:
        install(host, name, usual)


@contextmanager
def link_leads_to(host: LabHost, link: str, target: str) -> Iterator[None]:
    """A symbolic link leads elsewhere."""
    before = host.exec(["readlink", link]).stdout.strip()
    _run(host, "ln", "-sfn", target, link)
    try:
        yield
    finally:
        _run(host, "ln", "-sfn", before, link)


@contextmanager
def small_disk(host: LabHost, point: str, size: str) -> Iterator[None]:
    """A tmpfs of the host has no more room than this: `4m`."""
    _run(host, "mount", "-o", f"remount,size={size}", point)
    try:
        yield
    finally:
        _run(host, "mount", "-o", "remount,size=50%", point)


def _run_in_switch(lab: Lab, *argv: str) -> None:
    """Run something in the network namespace of the lab's switch."""
    anchor = lab.record.anchor
    assert anchor is not None
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{anchor.pid}/ns/net", "--", *argv], capture_output=True, text=True
    )
    assert done.returncode == 0, f"switch: {' '.join(argv)}: {done.stderr}"


def _run(host: LabHost, *argv: str, input: str | None = None, user: bool = False) -> None:
    done = host.exec(argv, input=input, user=user)
    assert done.returncode == 0, f"{host.name}: {' '.join(argv)}: {done.stderr}"
