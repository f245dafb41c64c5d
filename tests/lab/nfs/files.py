"""The text files of guests and of the lab. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from mnt.lab import files as lab_files
from mnt.lab.spec import USER

MOUNT_POINT = "/mnt/shared"
EXPORT = "/export/shared"
OTHER_EXPORT = "/export/other"
FILER = "filer"
SECOND_NAME = "filer2"  # the filer by its second address: another server, for all that a client knows

_OPTIONS = "sync,no_subtree_check"
_FSID = 1  # of EXPORT


# What the RPC programs look up: services(5), protocols(5), rpc(5), netconfig(5).
_RPC_TABLES = {
    "services": "sunrpc 111/tcp portmapper\nsunrpc 111/udp portmapper\nnfs 2049/tcp\nnfs 2049/udp\n",
    "protocols": "tcp 6 TCP\nudp 17 UDP\n",
    "rpc": "portmapper 100000 sunrpc\nnfs 100003\nmountd 100005\nnlockmgr 100021\nnfs_acl 100227\n",
    "netconfig": (
        "udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\nlocal tpi_cots_ord - loopback - - -\n"
    ),
}

# Whom Debian's rpcbind becomes. Where the machine has an rpcbind of its own, its line comes first and counts.
_RPCBIND_USER = "_rpc:x:65533:65534::/:/usr/sbin/nologin\n"

# Each guest has its own host key: `sshd -h`.
_SSHD_CONFIG = """\
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
"""

# Of a bare node: logins by password too, by the user's own keys, and sudo with the password.
_BARE = {
    "sshd_config": "PasswordAuthentication yes\n"
    + _SSHD_CONFIG.replace("AuthorizedKeysFile ", "AuthorizedKeysFile .ssh/authorized_keys "),
    "sudoers": f"root ALL=(ALL) ALL\n{USER} ALL=(ALL) ALL\n",
    "sudo": "".join(f"{kind} required pam_unix.so\n" for kind in ("auth", "account", "session")),
}


def export(*, write: bool = True, fsid: int = _FSID) -> str:
    """Options of EXPORT for one node, in the words of exports(5)."""
    return f"{'rw' if write else 'ro'},{_OPTIONS},fsid={fsid}"


def exports(nodes: Iterable[str]) -> str:
    """/etc/exports. EXPORT has an entry for each node (by address), so that one can be treated on its own."""
    clients = " ".join(f"{address}({export()})" for address in nodes)
    return f"{EXPORT} {clients}\n{OTHER_EXPORT} *({export(fsid=2)})\n"


def etc_hosts(addresses: Mapping[str, str]) -> str:
    """Names (by name, the address), as every guest knows them."""
    return "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())


def etc(
    machine: Mapping[str, str],
    *,
    uid: int,
    nodes: Mapping[str, str],
    servers: Mapping[str, str],
    login: str,
    host_keys: Mapping[str, str],
) -> dict[str, str]:
    """What lies in /etc of all guests: by path below it, the text.

    Args:
        machine: the text of the machine's `passwd` and `group`.
        uid: of the ordinary user, and its group's id.
        nodes: by name, the address.
        servers: the same, of the filer.
        login: public key of the ordinary user.
        host_keys: private key of each node's sshd.
    """
    return {
        "passwd": lab_files.passwd(machine["passwd"], uid) + _RPCBIND_USER,
        "group": lab_files.group(machine["group"], uid),
        "shadow": lab_files.shadow(),
        "nsswitch.conf": lab_files.NSSWITCH,
        "hosts": etc_hosts({**servers, **nodes}),
        **_RPC_TABLES,
        "exports": exports(nodes.values()),
        **{f"bare/{name}": text for name, text in _BARE.items()},
        "nfs.conf": "[exports]\nrootdir=/srv\n",
        "ssh/sshd_config": _SSHD_CONFIG,
        "ssh/authorized_keys": f"{login}\n",
        **{f"ssh/keys/{name}": key for name, key in host_keys.items()},
    }


def inventory(nodes: Mapping[str, str], *, network: str, directory: str) -> str:
    """The lab's inventory.

    Args:
        nodes: by name, the address.
        network: that they are in (CIDR).
        directory: holds the key that logs in, and known_hosts.
    """
    document: dict[str, Any] = {
        "cluster": "nfs-lab",
        "ssh": {
            "user": USER,
            "identity": f"{directory}/identity",
            "known_hosts": f"{directory}/known_hosts",
            "config": None,
            "host_keys": "strict",
        },
        "defaults": {"python": "/usr/bin/python3", "gpus": 0},
        "hosts": {name: {"address": address} for name, address in nodes.items()},
        "network": {"mode": "tcp", "subnet": network},
        "storage": [
            {"path": MOUNT_POINT, "type": "nfs4", "source": f"{FILER}:{EXPORT}", "options": ["rw", "hard"]}
        ],
    }
    return yaml.safe_dump(document, sort_keys=False)
