"""Where and how to log in to a host: by the inventory, then ssh_config, then OpenSSH's defaults."""

from __future__ import annotations

import getpass
import os
import re
import socket
from dataclasses import dataclass, field, replace

from mnt.errors import UsageError
from mnt.fleet.login.sshconfig import Settings, SshConfig
from mnt.inventory.model import Host, Ssh
from mnt.remote.common.files import whole_number

DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_MOST_JUMPS = 16  # each is a login of its own
_LONGEST_NAME = 300  # characters of a host's name or address, with brackets and a zone
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True)
class Destination:
    """One SSH server, with all that a login needs. Paths may begin with `~`."""

    name: str  # in messages
    hostname: str  # a name or an IP address, without brackets
    port: int
    user: str
    identities: tuple[str, ...]  # files of private keys, in the order of trying
    only_identities: bool  # use neither other keys of the agent nor the default files
    known_hosts: tuple[str, ...]  # files; an unknown key is recorded in the first
    known_hosts_global: tuple[str, ...]  # files that are only read
    key_name: str  # its name in known_hosts: a name, or [name]:port
    strict: bool  # refuse a host whose key is not known
    hash_names: bool  # record names hashed
    agent: str | None = None  # socket of the agent; None: SSH_AUTH_SOCK; "none": no agent
    proxied: bool = False  # ssh_config has a ProxyCommand for it, which only ssh itself uses
    jumps: tuple[Destination, ...] = ()  # gateways, from the head to the server
    is_gateway: bool = False
    # The values that do not come from ssh_config: for ssh itself, which reads ssh_config too.
    given: Ssh = field(default=Ssh(), compare=False)


def resolve(host: Host, config: SshConfig) -> Destination:
    """Where and how to log in to a host of the inventory. Raises UsageError for values that are not valid."""
    found = config.lookup(host.name, host.address, user=host.ssh.user, port=host.ssh.port)
    destination = _destination(host.name, host.address, host.ssh, found)
    jump = host.ssh.gateway if host.ssh.gateway is not None else " ".join(found.get("proxyjump", ()))
    return replace(
        destination,
        proxied=destination.proxied and host.ssh.gateway is None,
        jumps=_jumps(jump, host.ssh, config, seen=(host.address,)),
    )


def _destination(name: str, address: str, ssh: Ssh, found: Settings) -> Destination:
    """A destination without its jumps."""
    hostname = _name(_first(found, "hostname", address).strip("[]"), name)
    port = ssh.port if ssh.port is not None else _port(_first(found, "port", "22"), name)
    user = ssh.user or _first(found, "user", getpass.getuser())
    identities: tuple[str, ...]
    if ssh.identity is not None:
        identities, only = (ssh.identity,), True
    else:
        configured = [path for path in found.get("identityfile", ()) if path != "none"]
        identities = tuple(_expand(path, hostname, user) for path in configured)
        only = _is_yes(found, "identitiesonly")
    known_hosts: tuple[str, ...] = (ssh.known_hosts,)
    if ssh.known_hosts == Ssh.known_hosts:
        known_hosts = found.get("userknownhostsfile", known_hosts)
    alias = _name(_first(found, "hostkeyalias", ""), name)
    strict = ssh.host_keys == "strict" or _is_yes(found, "stricthostkeychecking")
    return Destination(
        name=name,
        hostname=hostname,
        port=port,
        user=user,
        identities=identities,
        only_identities=only,
        known_hosts=known_hosts,
        known_hosts_global=found.get("globalknownhostsfile", _GLOBAL_KNOWN_HOSTS),
        key_name=alias or (hostname if port == 22 else f"[{hostname}]:{port}"),
        strict=strict,
        hash_names=_is_yes(found, "hashknownhosts"),
        agent=_first(found, "identityagent", "") or None,
        proxied="proxycommand" in found,
        given=ssh,
    )


def _jumps(spec: str, ssh: Ssh, config: SshConfig, seen: tuple[str, ...]) -> tuple[Destination, ...]:
    """The gateways in a ProxyJump value, after the gateways of the first of them.

    Args:
        seen: the addresses behind them. No host is reached through itself, even if `Host *` has a ProxyJump.

    Raises UsageError, also if a host is behind more than _MOST_JUMPS gateways.
    """
    hops: list[Destination] = []
    if spec.strip().lower() in ("", "none"):
        return ()
    words = spec.replace(" ", "").split(",")
    if len(words) + len(seen) - 1 > _MOST_JUMPS:
        raise UsageError(f"{seen[0]}: behind more than {_MOST_JUMPS} gateways", fix="use fewer: ProxyJump")
    for index, word in enumerate(words):
        user, address, port = _parse_hop(word)
        if address in seen:
            continue
        found = config.lookup(address, address, user=user, port=port)
        if index == 0:
            before = " ".join(found.get("proxyjump", ()))
            hops += _jumps(before, ssh, config, (*seen, address))
        # The inventory's user and key are those of the cluster, used if ssh_config has none for the gateway.
        own = Ssh(
            user=user or (None if "user" in found else ssh.user),
            port=port,
            identity=None if "identityfile" in found else ssh.identity,
            named_at=ssh.named_at,
            known_hosts=ssh.known_hosts,
            config=ssh.config,
            host_keys=ssh.host_keys,
        )
        hops.append(replace(_destination(address, address, own, found), is_gateway=True))
    return tuple(hops)


def _parse_hop(word: str) -> tuple[str | None, str, int | None]:
    """[ssh://][user@]host[:port] as (user, host, port); an IPv6 address with a port is in brackets."""
    match = re.fullmatch(
        r"(?:ssh://)?(?:(.+)@)?(\[[^\]]+\]|[^:@]+|[0-9a-fA-F:.]+(?:%[\w.-]+)?)(?::([0-9]{1,5}))?/?", word
    )
    if match is None or match[2].startswith("-") or len(match[2]) > _LONGEST_NAME:
        raise UsageError(f"not a gateway: {word!r}", fix="write it as [user@]host[:port]")
    return match[1], match[2].strip("[]"), int(match[3]) if match[3] else None


def _name(text: str, name: str) -> str:
    """A name in ssh_config. Raises UsageError if no host has such a long one."""
    if len(text) > _LONGEST_NAME:
        message = f"{name}: more than {_LONGEST_NAME} characters in HostName or HostKeyAlias"
        raise UsageError(message, fix="correct the ssh_config")
    return text


def _expand(path: str, hostname: str, user: str) -> str:
    """Expand the tokens of IdentityFile that can be known here (ssh_config(5), TOKENS)."""
    values = {
        "%": "%",
        "d": os.path.expanduser("~"),
        "h": hostname,
        "l": socket.gethostname(),
        "r": user,
        "u": getpass.getuser(),
        "i": str(os.getuid()),
    }
    return re.sub(r"%(.)", lambda match: values.get(match[1], match[0]), path)


def _first(found: Settings, keyword: str, default: str) -> str:
    return found.get(keyword, (default,))[0]


def _is_yes(found: Settings, keyword: str) -> bool:
    return _first(found, keyword, "no").lower() in ("yes", "true")


def _port(text: str, name: str) -> int:
    port = whole_number(text)
    if port is None or not 0 < port < 65536:
        raise UsageError(f"{name}: not a port in ssh_config: {text!r}")
    return port
