"""Ways to break a lab host. For hosts of a lab of the test's own (`make_lab`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mnt.lab import LabHost

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
    """The host is gone: no process, no NIC; nothing answers."""
    host.kill()


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


def _run(host: LabHost, *argv: str, input: str | None = None, user: bool = False) -> None:
    done = host.exec(argv, input=input, user=user)
    assert done.returncode == 0, f"{host.name}: {' '.join(argv)}: {done.stderr}"
