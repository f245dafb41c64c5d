"""The processes that listen on a TCP port. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterable

from mnt.remote.common.files import command_line, entries, read, unix_lines

_MOST = 32
LISTEN = "0A"  # TCP_LISTEN of the kernel's net/tcp_states.h, as /proc/net/tcp prints it


def listeners(port: int) -> list[dict[str, object]]:
    """Sockets that LISTEN on the port: [{"address", "uid", "user", "pid", "command"}, ..].

    pid and command are None if the socket belongs to another user, whose /proc/PID/fd we may not read. A
    connection in TIME_WAIT does not hold its port. At most 32 are told: this user's first, then one of each
    other user on each address, who can open any number (SO_REUSEPORT).
    """
    every = [entry for table in ("tcp", "tcp6") for entry in parse_sockets(read("/proc/net/" + table), port)]
    own = [entry for entry in every if entry[1] == os.getuid()]
    others = {entry[:2]: entry for entry in every if entry[1] != os.getuid()}
    found = [*own, *others.values()][:_MOST]
    owners = _owners({inode for _, _, inode in found}) if found else {}
    answer: list[dict[str, object]] = []
    for address, uid, inode in found:
        pid, command = owners.get(inode, (None, None))
        answer.append({"address": address, "uid": uid, "user": _user(uid), "pid": pid, "command": command})
    return answer


def all_listening() -> set[int]:
    """The ports on which anybody listens."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in unix_lines(read("/proc/net/" + table))[1:]]
    return {int(fields[1].partition(":")[2], 16) for fields in rows if fields[3] == LISTEN}


def parse_sockets(text: str, port: int) -> list[tuple[str, int, str]]:
    """(address, uid, inode) of the sockets of a /proc/net/tcp or tcp6 that LISTEN on `port`."""
    found = []
    for line in unix_lines(text[: text.rfind("\n") + 1])[1:]:  # what was read may end in a line
        fields = line.split()
        address, _, local_port = fields[1].partition(":")
        if fields[3] == LISTEN and int(local_port, 16) == port:
            found.append((numeric(address), int(fields[7]), fields[9]))
    return found


def numeric(text: str) -> str:
    """`0100007F` as 127.0.0.1: 32-bit words in the host's byte order."""
    packed = b"".join(struct.pack("=I", int(text[i : i + 8], 16)) for i in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _owners(inodes: Iterable[str]) -> dict[str, tuple[int, str | None]]:
    """(pid, command line) by socket inode, as far as this user may read them."""
    inode_of = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[str, tuple[int, str | None]] = {}
    for pid in filter(str.isdigit, entries("/proc")):
        directory = f"/proc/{pid}/fd/"
        for descriptor in entries(directory):
            try:
                inode = inode_of.get(os.readlink(directory + descriptor))
            except OSError:  # it has been closed
                continue
            if inode and inode not in owners:
                owners[inode] = (int(pid), command_line(int(pid)) or None)
    return owners


def _user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
