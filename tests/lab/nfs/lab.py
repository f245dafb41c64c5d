"""A lab of real NFS: its filer, its nodes, their network.

Everything hangs from one process, the anchor (anchor.sh), which ends when its stdin does. So nothing outlives
the process that made the lab, however that one ends: guests, links, mounts and files are in the anchor's
namespaces, the machine's end of the one link to them goes with the other end, and the files for the head are
read through `/proc/<anchor>/root`.
"""

from __future__ import annotations

import pwd
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Any

from mnt import keys
from mnt.errors import MntError
from mnt.lab import spec, store, system
from nfs import faults, files, packages
from nfs.guest import MEMORY, Guest

_HERE = Path(__file__).parent
_HEAD, _FILER, _SECOND, _FIRST_NODE = 1, 2, 3, 11  # last part of the addresses
_LINK_SECONDS = 20.0
_DISK = 8 << 30


@dataclass(frozen=True)
class NfsNode:
    """A node of the lab: a guest with an sshd and the shared storage mounted."""

    name: str
    address: str
    guest: Guest
    filer: Guest


class NfsLab:
    """A filer and `nodes` nodes (node1, ..), each with the filer's export mounted. Up when made.

    Use it in a `with` block. Raises MntError: not root, something missing; GuestError: a guest did not start.

    Args:
        bare: the nodes mount nothing, and `mnt setup` can make servers and clients of them: bare.sh.
        memory: of a node, in the kernel's words; the default is enough for what needs no torch.
    """

    def __init__(self, nodes: int = 2, *, bare: bool = False, memory: str = MEMORY) -> None:
        system.require_root()
        packages.require()
        self.link = f"mntnfs{secrets.token_hex(4)}"  # the lab's one link in the machine's network namespace
        self.nodes: dict[str, NfsNode] = {}
        self._guests: list[Guest] = []
        self._process, self.anchor = _start_anchor()  # pid of the process that all of the lab hangs from
        try:
            self._up(nodes, bare, memory)
        except BaseException:
            self.down()
            raise

    def __enter__(self) -> NfsLab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def head_address(self) -> str:
        """Of this machine, in the nodes' network."""
        return str(self._network[_HEAD])

    @property
    def directory(self) -> Path:
        """Holds the lab's inventory, and the key and known_hosts that the inventory names."""
        return Path(f"/proc/{self.anchor}/root/run/head")

    @property
    def inventory_path(self) -> Path:
        return self.directory / "inventory.yaml"

    def down(self) -> None:
        """Remove all of the lab. May be called again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        for guest in self._guests:
            guest.close()
        deadline = time.monotonic() + _LINK_SECONDS
        while self.link in (name for _, name in socket.if_nameindex()):
            if time.monotonic() > deadline:
                raise MntError(f"link {self.link} is still there", fix=f"ip link del {self.link}")
            time.sleep(0.01)

    def _up(self, count: int, bare: bool, memory: str) -> None:
        self._network = network = self._connect()
        nodes = {f"node{i}": str(network[_FIRST_NODE - 1 + i]) for i in range(1, count + 1)}
        servers = {files.FILER: str(network[_FILER]), files.SECOND_NAME: str(network[_SECOND])}
        self._write_files(nodes, servers, network)
        filer = self._boot(files.FILER, list(servers.values()), network, role="filer")
        kind: dict[str, Any] = {"role": "bare", "disk": _DISK} if bare else {"role": "node"}
        self.nodes = {
            name: NfsNode(name, address, self._boot(name, [address], network, memory=memory, **kind), filer)
            for name, address in nodes.items()
        }
        for guest in self._guests:
            guest.wait_until_up()
        for node in () if bare else self.nodes.values():
            faults.mount(node)

    def _connect(self) -> IPv4Network:
        """Link the machine to the lab's switch, in a network that no lab and nothing else has."""
        with store.registry():
            taken = [*system.networks_in_use(), *(record.spec.subnet for record in store.records())]
            network = IPv4Network(spec.choose_subnet(taken))
            system.run(
                ["ip", "-batch", "-"],
                stdin=f"link add {self.link} type veth peer name head netns {self.anchor}\n"
                f"addr add {network[_HEAD]}/{network.prefixlen} dev {self.link}\n"
                f"link set {self.link} up\n",
            )
        self._in_switch("link set head master switch up\n")
        return network

    def _in_switch(self, batch: str) -> None:
        system.run(["nsenter", f"--target={self.anchor}", "--net", "ip", "-batch", "-"], stdin=batch)

    def _write_files(
        self, nodes: Mapping[str, str], servers: Mapping[str, str], network: IPv4Network
    ) -> None:
        login = keys.generate()
        host_keys = {name: keys.generate() for name in nodes}
        etc = files.etc(
            {name: Path("/etc", name).read_text() for name in ("passwd", "group")},
            uid=spec.choose_uid(entry.pw_uid for entry in pwd.getpwall()),
            nodes=nodes,
            servers=servers,
            login=login.public,
            host_keys={name: key.private for name, key in host_keys.items()},
        )
        inside = Path(f"/proc/{self.anchor}/root/run/root/etc")
        for path, text in etc.items():
            _write(inside / path, text, 0o600 if path.startswith("ssh/keys/") else 0o644)
        (inside.parent / "shared").mkdir()  # where a bare node may mount something: its root is read-only
        for script in ("init.sh", "node.sh", "bare.sh", "filer.sh"):
            _write(inside / "guest" / script, (_HERE / script).read_text(), 0o755)
        _write(self.directory / "identity", login.private, 0o600)
        known = "".join(f"{nodes[name]} {key.public}\n" for name, key in host_keys.items())
        _write(self.directory / "known_hosts", known, 0o644)
        inventory = files.inventory(nodes, network=str(network), directory=str(self.directory))
        _write(self.inventory_path, inventory, 0o644)

    def _boot(
        self, name: str, addresses: list[str], network: IPv4Network, *, role: str, **hardware: Any
    ) -> Guest:
        self._in_switch(f"tuntap add dev tap-{name} mode tap\nlink set tap-{name} master switch up\n")
        settings = {
            "ROLE": role,
            "ADDRESSES": ",".join(f"{address}/{network.prefixlen}" for address in addresses),
        }
        mac = f"02:6d:6e:74:00:{len(self._guests):02x}"
        guest = Guest(name, self.anchor, settings, mac, **hardware)
        self._guests.append(guest)
        return guest


def _start_anchor() -> tuple[subprocess.Popen[str], int]:
    """The process that the lab hangs from, and the pid of what is PID 1 within. Raises MntError."""
    process = subprocess.Popen(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"),
            *("/bin/sh", str(_HERE / "anchor.sh"), str(packages.TREE)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": system.PATH},
        cwd="/",
    )
    assert process.stdout is not None
    with process.stdout:
        pid = process.stdout.readline()
    if not pid:
        process.wait()
        raise MntError("the NFS lab's namespaces cannot be made", fix="see what it printed on stderr")
    return process, int(pid)


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode)
    path.write_text(text)
