"""What a scalar of an inventory may be: each function reads a `yaml.ScalarNode` and gives the value.

They raise ValueError with what was expected and what was found; the loader adds file, line and key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from mnt.inventory.document import has_tag, is_null
from mnt.inventory.hostlist import is_host_name
from mnt.inventory.spelling import did_you_mean

T = TypeVar("T")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Linux refuses `/`, `:` and white space in names (dev_valid_name) and keeps alternative names below 128
# bytes; NCCL_SOCKET_IFNAME and NCCL_IB_HCA give a meaning to `,`, `^` and `=`.
_INTERFACE = re.compile(r"[^\s/:,^=-][^\s/:,^=]{0,126}")
_RDMA_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[1-9][0-9]*)?")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def describe(value: object) -> str:
    """What stands there, for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if is_null(value):
        return "nothing"
    return repr(value.value if isinstance(value, yaml.ScalarNode) else value)


def optional(parse: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """`parse`, or None where nothing or `null` stands."""
    return lambda value: None if is_null(value) else parse(value)


def verbatim(value: Any) -> str:
    """The text as written, whatever YAML would make of it: `false`, `0123`, `12:30:00`, `1e3`."""
    if not isinstance(value, yaml.ScalarNode):
        raise ValueError(f"expected text, got {describe(value)}")
    text: str = value.value
    if "\0" in text or not _is_unicode(text):
        raise ValueError(f"{text!r} holds a character that cannot be passed on")
    return text


def text(value: Any) -> str:
    """One line of text, not empty."""
    if isinstance(value, yaml.ScalarNode) and not has_tag(value, "str") and not is_null(value):
        raise ValueError(f'expected text, got {value.value}; quote it if it is text: "{value.value}"')
    if is_null(value):
        raise ValueError("expected text, got nothing")
    line = verbatim(value)
    if not line.strip():
        raise ValueError(f"expected text, got {line!r}")
    if _CONTROL.search(line):
        raise ValueError(f"{line!r} holds a line break or another control character")
    return line


def word(value: Any) -> str:
    """Text without white space that no program can take for an option."""
    line = text(value)
    if line.startswith("-"):
        raise ValueError(f"{line!r} begins with '-'")
    if re.search(r"\s", line):
        raise ValueError(f"{line!r} holds white space")
    return line


def integer(low: int, high: int) -> Callable[[Any], int]:
    """A parser of whole numbers from `low` to `high`, written in decimal."""

    def parse(value: Any) -> int:
        if not has_tag(value, "int") or not re.fullmatch(r"0|-?[1-9][0-9]{0,18}", value.value):
            raise ValueError(f"expected a whole number, got {describe(value)}")
        number = int(value.value)
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}, got {number}")
        return number

    return parse


def one_of(*choices: str) -> Callable[[Any], str]:
    """A parser of one of some words."""

    def parse(value: Any) -> str:
        line = verbatim(value)
        if line not in choices:
            wanted = f"{', '.join(choices[:-1])} or {choices[-1]}"
            raise ValueError(f"expected {wanted}, got {describe(value)}{did_you_mean(line, choices)}")
        return line

    return parse


def host_path(value: Any) -> str:
    """A path on a host: absolute, or in the user's home, `~/..`."""
    path = text(value)
    if not path.startswith(("/", "~")):
        raise ValueError(f"{path!r} is neither absolute nor begins with '~/'")
    return path


def absolute_path(value: Any) -> str:
    """An absolute path on a host, for programs that do not know what `~` means."""
    path = text(value)
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not an absolute path")
    return path


def head_path(value: Any) -> str:
    """A path on this machine; a relative one is looked for beside the inventory."""
    path = text(value)
    if path.startswith("-"):
        raise ValueError(f"{path!r} begins with '-'")
    return path


def directory_name(value: Any) -> str:
    """A directory within a release, as a path without `..`."""
    path = text(value)
    pieces = path.split("/")
    if path.startswith("-") or any(piece in ("", ".", "..") for piece in pieces):
        raise ValueError(f"{path!r} is not a directory within the release, like 'outputs'")
    return path


def interpreter(value: Any) -> tuple[str, ...]:
    """The argv that starts Python: a string is the program alone, a list has its arguments too."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("expected a program, got an empty list")
    program, *arguments = (text(item) for item in items)
    if program.startswith("-"):
        raise ValueError(f"the program {program!r} begins with '-'")
    if "/" in program and not program.startswith(("/", "~")):
        raise ValueError(f"{program!r} is neither absolute nor begins with '~/'; nor is it a bare name")
    return (program, *arguments)


def address(value: Any) -> tuple[str, int | None]:
    """Where SSH goes, host and port apart: `host`, `host:port`, an IPv4, an IPv6, `[IPv6]:port`."""
    line = word(value)
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(\d{1,5}))?", line)
    plain = re.fullmatch(r"([^:\[\]]*)(?::(\d{1,5}))?", line)
    if _is_ipv6(line):
        return line, None
    if bracketed and _is_ipv6(bracketed[1]):
        host, port = bracketed.groups()
    elif plain and is_host_name(plain[1]):
        host, port = plain.groups()
    elif "@" in line:
        raise ValueError(f"{line!r} is not an address; the user belongs into ssh: {{user: ..}}")
    else:
        raise ValueError(f"{line!r} is not an address: a name, an IP, name:port or [IPv6]:port")
    if port is None:
        return host, None
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"expected a port from 1 to 65535, got {port}")
    return host, int(port)


def gateway(value: Any) -> str:
    """`[user@]host[:port]`, or several with commas, as in ssh_config's ProxyJump."""
    line = word(value)
    for hop in line.split(","):
        user, at, target = hop.rpartition("@")
        if hop.startswith("-") or target.startswith("-") or not target or (at and not user):
            raise ValueError(f"{line!r} is not [user@]host[:port], or several of them with commas")
    return line


def interface(value: Any) -> str:
    """A network interface's exact name."""
    name = text(value)
    if not _INTERFACE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of one network interface")
    return name


def device_pattern(value: Any) -> str:
    """The name of a network interface or RDMA device, with `*` and `?` if need be: `docker*`."""
    name = text(value)
    if not _INTERFACE.fullmatch(name):
        raise ValueError(f"{name!r} is not a name or pattern of one device, like usb0 or docker*")
    return name


def rdma_device(value: Any) -> str:
    """An RDMA device's exact name, with a port if need be: `mlx5_6`, `mlx5_6:1`."""
    name = text(value)
    if not _RDMA_DEVICE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of one RDMA device, like mlx5_0 or mlx5_0:1")
    return name


def gid_index(value: Any) -> int | str:
    """`auto`, or an index into a port's GID table."""
    if has_tag(value, "int"):
        return integer(0, 255)(value)
    if not has_tag(value, "str") or value.value != "auto":
        hint = did_you_mean(verbatim(value), ["auto"])
        raise ValueError(f"expected auto or a number from 0 to 255, got {describe(value)}{hint}")
    return "auto"


def subnet(value: Any) -> str:
    """A network in CIDR form."""
    line = text(value)
    try:
        network = ipaddress.ip_network(line, strict=False)
    except ValueError:
        raise ValueError(f"{line!r} is not a network like 10.11.8.0/24") from None
    if "/" not in line:
        raise ValueError(f"{line!r} has no prefix length, as in 10.11.8.0/24")
    if str(network.network_address) != line.split("/")[0]:
        raise ValueError(f"{line!r} is an address, not a network; did you mean '{network}'?")
    return str(network)


def variable_name(key: str) -> str:
    """The name of an environment variable."""
    if not _VARIABLE.fullmatch(key):
        raise ValueError(f"{key!r} is not a name for an environment variable")
    return key


def package_name(key: str) -> str:
    """A distribution's name on PyPI."""
    if not _PACKAGE.fullmatch(key):
        raise ValueError(f"{key!r} is not a package's name")
    return key


def specifier(value: Any) -> str:
    """Versions as in PEP 440: `==2.13.*`, `>=2.6,<3`."""
    line = verbatim(value).strip()
    try:
        SpecifierSet(line)
    except InvalidSpecifier:
        hint = f"; did you mean '=={line}'?" if re.fullmatch(r"[0-9][0-9A-Za-z.*+!]*", line) else ""
        raise ValueError(f"{line!r} says no versions as in PEP 440{hint}") from None
    if not line:
        raise ValueError('expected versions such as "==2.13.*", got nothing')
    return line


def _is_ipv6(line: str) -> bool:
    try:
        return ipaddress.ip_address(line).version == 6
    except ValueError:
        return False


def _is_unicode(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True
