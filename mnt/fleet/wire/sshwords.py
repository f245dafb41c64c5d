"""The words of command lines of OpenSSH's client, and what its errors mean."""

from __future__ import annotations

import math
import os
import re

from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Ssh

NO_SSH_FIX = "install OpenSSH's client, or leave --worker ssh out"

# What ssh 9 says, in order: pattern, phase of HostError.
_PHASES = (
    (re.compile(r"could not resolve", re.I), "resolve"),
    (re.compile(r"stdio forwarding request failed", re.I), "connect"),
    (re.compile(r"host key verification failed|host identification has changed", re.I), "host key"),
    (re.compile(r"permission denied|too many authentication failures", re.I), "authentication"),
    (re.compile(r"banner exchange", re.I), "banner"),
    (re.compile(r"kex_exchange|key exchange", re.I), "key exchange"),
    (re.compile(r"connect to host|connection timed out|no route to host", re.I), "connect"),
)
_NOT_FORWARDED = re.compile(r"stdio forwarding request failed", re.I)

# A master's own ways, whatever ssh_config says of connections to that host.
_MASTER = {
    "ControlMaster": "yes",
    "ControlPersist": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
}


def ssh_argv(host: Host, timeouts: Timeouts, command: str, *, proxy: str | None = None) -> list[str]:
    """The words that run `command` on a host. What the inventory leaves open is ssh_config's to say.

    Args:
        proxy: gives the connection; None: there is no gateway.
    """
    words = ["ssh", "-T", *_login(host.ssh, timeouts)]
    if proxy is not None:
        words += ["-o", f"ProxyCommand={proxy}"]
    elif host.ssh.gateway is not None:
        words += ["-J", "none"]
    return [*words, "--", host.address.strip("[]"), command]


def master_argv(host: Host, timeouts: Timeouts, socket: str, *, proxy: str | None = None) -> list[str]:
    """The words that log in to a gateway, and open connections from there for whom `socket` is told."""
    options = _MASTER if proxy is None else {**_MASTER, "ProxyCommand": proxy}
    words = ["ssh", "-N", "-T", *_login(host.ssh, timeouts), *_options(options), "-S", socket]
    return [*words, "--", host.address.strip("[]")]


def proxy_command(socket: str, hostname: str, port: int) -> str:
    """A ProxyCommand: a connection that the master at `socket` opens. Nothing else is tried where it is gone.

    Raises ValueError for what is no name of a host: a shell reads this.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.:][A-Za-z0-9_.:%-]*", hostname):
        raise ValueError(f"not the name of a host: {hostname!r}")
    where = f"'[{hostname.replace('%', '%%')}]:{port}'"
    return f"ssh -F none -S {socket} -o BatchMode=yes -o ProxyCommand=false -W {where} gateway"


def _login(ssh: Ssh, timeouts: Timeouts) -> list[str]:
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(math.ceil(timeouts.connect)),
        "ServerAliveInterval": str(math.ceil(timeouts.keepalive)),
        "StrictHostKeyChecking": "yes" if ssh.host_keys == "strict" else "accept-new",
    }
    if ssh.identity is not None:
        options |= {"IdentityFile": _file(ssh.identity), "IdentitiesOnly": "yes"}
    if ssh.known_hosts != Ssh.known_hosts:
        options["UserKnownHostsFile"] = _file(ssh.known_hosts)
    words = [*_config(ssh.config), *_options(options)]
    if ssh.user is not None:
        words += ["-l", ssh.user]
    if ssh.port is not None:
        words += ["-p", str(ssh.port)]
    return words


def _options(options: dict[str, str]) -> list[str]:
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def _config(file: str | None) -> list[str]:
    """ssh reads the user's file, and the system's beside it, without being told."""
    if file == Ssh.config:
        return []
    return ["-F", "none" if file is None else os.path.expanduser(file)]


def _file(path: str) -> str:
    """A path as the value of an option: ssh would split it at spaces, and expand `%`."""
    return '"' + os.path.expanduser(path).replace("%", "%%") + '"'


def phase_of(said: str) -> str:
    """The phase in which ssh failed, by what it said on standard error."""
    return next((phase for pattern, phase in _PHASES if pattern.search(said)), "channel")


def failure_of(said: str) -> tuple[str, str]:
    """The phase in which ssh failed, and a message, by what it said on standard error."""
    if _NOT_FORWARDED.search(said):
        return phase_of(said), "the gateway cannot reach it, or forwards nothing"
    lines = said.strip().splitlines()
    return phase_of(said), "ssh: " + (lines[-1].removeprefix("ssh: ") if lines else "it ended")
