"""The words of command lines of OpenSSH's client, and what its errors mean."""

from __future__ import annotations

import math
import os
import pwd
import re
import subprocess
from functools import cache

from mnt.errors import Phase
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Ssh

NO_SSH_FIX = "install OpenSSH's client, or leave --worker ssh out"

# Messages of ssh 9, in lower case, in this order: pattern, phase.
_NOT_FORWARDED = "stdio forwarding request failed"
_PHASES: tuple[tuple[str, Phase], ...] = (
    ("could not resolve", "resolve"),
    (_NOT_FORWARDED, "connect"),
    ("host key verification failed|host identification has changed", "host key"),
    ("permission denied|too many authentication failures", "authentication"),
    ("banner exchange", "banner"),
    ("kex_exchange|key exchange", "key exchange"),
    ("connect to host|connection timed out|no route to host", "connect"),
)

# Whatever ssh_config has: a host gets no agent, display, port or network of this machine, and starts nothing
# here. The first value that ssh finds wins, and it reads these first (ssh_config(5)).
_CLOSED = {
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
}

# Nor may it turn our session into another one: a command of its own, a terminal, a forwarding that must work,
# a master that stays behind. Messages are those that `failure_of` reads, and no others.
_SESSION = {
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "ExitOnForwardFailure": "no",
    "LogLevel": "INFO",
}
_SESSION_8_7 = {"SessionType": "default", "StdinNull": "no", "ForkAfterAuthentication": "no"}

# Nor is a connection used whose socket ssh_config names: another user who listens there would get the
# command, and answer for the host.
_ALONE = {"ControlMaster": "no", "ControlPath": "none"}

# For a master, in addition.
_MASTER = {"ControlMaster": "yes", "ControlPersist": "no"}


@cache
def has_session_type() -> bool:
    """Whether the `ssh` of this machine has SessionType, StdinNull, ForkAfterAuthentication: OpenSSH 8.7."""
    try:
        done = subprocess.run(
            ["ssh", "-G", "-F", "none", "host"], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError:
        return False
    return b"\nsessiontype " in done.stdout


def ssh_argv(
    host: Host,
    timeouts: Timeouts,
    command: str,
    *,
    proxy: str | None = None,
    strict: bool = False,
    terminal: bool = False,
    newer: bool = False,
) -> list[str]:
    """The words that run `command` on a host. ssh_config decides what the inventory does not.

    Args:
        proxy: the ProxyCommand; None: there is no gateway.
        strict: accept no new host key, even if the inventory does: ssh_config does not.
        newer: the client is OpenSSH 8.7 or newer (`has_session_type`).
        terminal: give the command a terminal.
    """
    own = {**_SESSION, **(_SESSION_8_7 if newer else {}), **_ALONE}
    if terminal:
        own["RequestTTY"] = "force"
    words = [
        "ssh",
        "-tt" if terminal else "-T",
        *login_words(host.ssh, timeouts, strict=strict),
        *_options(own),
    ]
    if proxy is not None:
        words += ["-o", f"ProxyCommand={proxy}"]
    elif host.ssh.gateway is not None:
        words += ["-J", "none"]
    return [*words, "--", host.address.strip("[]"), command]


def master_argv(
    host: Host,
    timeouts: Timeouts,
    socket: str,
    *,
    proxy: str | None = None,
    strict: bool = False,
    newer: bool = False,
) -> list[str]:
    """The words that log in to a gateway, and open connections from there for users of `socket`.

    `strict` and `newer` are those of `ssh_argv`.
    """
    own = {**_SESSION, **({**_SESSION_8_7, "SessionType": "none"} if newer else {}), **_MASTER}
    options = own if proxy is None else {**own, "ProxyCommand": proxy}
    login = login_words(host.ssh, timeouts, strict=strict)
    words = ["ssh", "-N", "-T", *login, *_options(options), "-S", socket]
    return [*words, "--", host.address.strip("[]")]


def proxy_command(socket: str, hostname: str, port: int) -> str:
    """A ProxyCommand: a connection that the master at `socket` opens. If the master is gone, it fails.

    Raises ValueError if `hostname` is not the name of a host: a shell reads this.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.:][A-Za-z0-9_.:%-]*", hostname):
        raise ValueError(f"not the name of a host: {hostname!r}")
    where = f"'[{hostname.replace('%', '%%')}]:{port}'"
    return f"ssh -F none -S {socket} -o BatchMode=yes -o ProxyCommand=false -W {where} gateway"


def login_words(ssh: Ssh, timeouts: Timeouts, *, strict: bool = False) -> list[str]:
    """The options of ssh that say how to log in; `strict` as for `ssh_argv`."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(math.ceil(timeouts.connect)),
        "ServerAliveInterval": str(math.ceil(timeouts.keepalive)),
        "StrictHostKeyChecking": "yes" if strict or ssh.host_keys == "strict" else "accept-new",
        **_CLOSED,
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
    """The option for the configuration file; none for the one that ssh reads by default.

    That is in the home directory of the user database, whatever $HOME says.
    """
    if file is None:
        return ["-F", "none"]
    path = os.path.expanduser(file)
    if file == Ssh.config and (path == _default_config() or not os.path.exists(path)):
        return []
    return ["-F", path]


def _default_config() -> str | None:
    """The user's ssh_config for ssh; None: the user database does not know the user."""
    try:
        return os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config")
    except KeyError:
        return None


def _file(path: str) -> str:
    """A path as the value of an option, protected because ssh splits at spaces and expands `%`."""
    return '"' + os.path.expanduser(path).replace("%", "%%") + '"'


def failure_of(stderr: str) -> tuple[Phase, str]:
    """The phase in which ssh failed, and a message, from its standard error."""
    lower = stderr.lower()
    phase: Phase = next((phase for pattern, phase in _PHASES if re.search(pattern, lower)), "channel")
    if _NOT_FORWARDED in lower:
        return phase, "the gateway cannot reach it, or forwards nothing"
    lines = stderr.strip().splitlines()
    return phase, "ssh: " + (lines[-1].removeprefix("ssh: ") if lines else "it ended")
