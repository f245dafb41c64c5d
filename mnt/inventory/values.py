"""The types of scalars in an inventory: with constraints of msgspec, or classes where the check needs code.

A `description` completes the message "'x' is not ..". The classes are called with the value in the file, and
raise ValueError with what is wrong.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from msgspec import Meta

from mnt.inventory.document import describe, written
from mnt.remote.common import containers
from mnt.remote.common.forms import HOST_NAME

_CONTROL = r"\x00-\x1f\x7f-\x9f"
_ANY = f"[^{_CONTROL}]"
# Linux refuses `/`, `:` and white space in names (dev_valid_name), and alternative names of 128 bytes or
# more; `,`, `^` and `=` have a meaning in NCCL_SOCKET_IFNAME and NCCL_IB_HCA.
_DEVICE = rf"\A(?!-)[^\s/:,^={_CONTROL}]{{1,127}}\Z"
# A gateway: the longest name has 253 characters, with brackets and a port some more.
_HOP = rf"(?!-)(?:[^\s,{_CONTROL}]{{1,255}}@)?(?!-)[^\s,@{_CONTROL}]{{1,300}}"
_LONGEST_ADDRESS = 300  # characters, with the port

_LONGEST_SPECIFIER = 500  # characters

# The text exactly as written in the file, without conversion by YAML: `false`, `0123`, `12:30:00`, `1e3`.
AS_WRITTEN = "as_written"
AsWritten = Annotated[str, Meta(extra={AS_WRITTEN: True})]

Text = Annotated[str, Meta(pattern=rf"\A(?=.*\S){_ANY}+\Z")]  # one line
Word = Annotated[str, Meta(pattern=rf"\A(?!-)[^\s{_CONTROL}]+\Z")]  # no program can read it as an option
UserName = Annotated[
    str, Meta(pattern=rf"\A(?![-*])[^\s:{_CONTROL}]+\Z", description="the name of one user of the host")
]
HeadPath = Annotated[str, Meta(pattern=rf"\A(?!-)(?=.*\S){_ANY}+\Z")]  # on this machine
HostPath = Annotated[
    str, Meta(pattern=rf"\A[/~]{_ANY}*\Z", description="an absolute path or one that begins with '~/'")
]
AbsolutePath = Annotated[str, Meta(pattern=rf"\A/{_ANY}*\Z", description="an absolute path")]
Directory = Annotated[
    str,
    Meta(
        pattern=rf"\A(?!-)(?!(?:.*/)?\.{{0,2}}(?:/|\Z)){_ANY}+\Z",
        description="a directory within the release, like 'outputs'",
    ),
]
Interface = Annotated[str, Meta(pattern=_DEVICE, description="the name of one network interface")]
DevicePattern = Annotated[
    str, Meta(pattern=_DEVICE, description="a name or pattern of one device, like usb0 or docker*")
]
RdmaDevice = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*(:[1-9][0-9]{0,2})?\Z",
        description="the name of one RDMA device, like mlx5_0 or mlx5_0:1",
    ),
]
Gateway = Annotated[
    str,
    Meta(
        pattern=rf"\A{_HOP}(?:,{_HOP})*\Z",
        description="[user@]host[:port], or several of them with commas",
    ),
]
_VARIABLE = r"\A[A-Za-z_][A-Za-z0-9_]*\Z"
VariableName = Annotated[str, Meta(pattern=_VARIABLE, description="a name for an environment variable")]
PackageName = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z", description="a package's name")
]


def is_host_name(text: str) -> bool:
    """Whether `text` can be a host's name, which is also used in file names and command lines."""
    return re.match(HOST_NAME, text) is not None


def is_variable_name(text: str) -> bool:
    """Whether `text` can be the name of an environment variable."""
    return re.search(_VARIABLE, text) is not None


def text(value: Any) -> str:
    """One line of text, not empty. Raises ValueError."""
    if isinstance(value, (dict, list)) or value is None:
        raise ValueError(f"expected text, got {describe(value)}")
    if not isinstance(value, str):
        source = written(value)
        raise ValueError(f'expected text, got {source}; quote it if it is text: "{source}"')
    if not value.strip():
        raise ValueError(f"expected text, got {value!r}")
    if re.search(f"[{_CONTROL}]", value):
        raise ValueError(f"{value!r} contains a line break or another control character")
    return value


def word(value: Any) -> str:
    """Text without white space that no program can read as an option. Raises ValueError."""
    line = text(value)
    if line.startswith("-"):
        raise ValueError(f"{line!r} begins with '-'")
    if re.search(r"\s", line):
        raise ValueError(f"{line!r} contains white space")
    return line


class Interpreter(tuple[str, ...]):
    """The argv that starts Python: a string is only the program, a list also has arguments."""

    def __new__(cls, value: Any) -> Interpreter:
        items = value if isinstance(value, list) else [value]
        if not items:
            raise ValueError("expected a program, got an empty list")
        program, *arguments = map(text, items)
        if program.startswith("-"):
            raise ValueError(f"the program {program!r} begins with '-'")
        if "/" in program and not program.startswith(("/", "~")):
            raise ValueError(f"{program!r} must be a name, an absolute path, or begin with '~/'")
        problem = containers.problem_of((program, *arguments)) if arguments else None
        if problem is not None:
            raise ValueError(problem)
        return super().__new__(cls, (program, *arguments))


class ShellLines(tuple[str, ...]):
    """Lines for a shell: a list of them, or a text with one or several lines."""

    def __new__(cls, value: Any) -> ShellLines:
        items = value.splitlines() if isinstance(value, str) else value
        if not isinstance(items, list):
            raise ValueError(f"expected a line for bash, or a list of lines, got {describe(value)}")
        return super().__new__(
            cls, [text(item) for item in items if not isinstance(item, str) or item.strip()]
        )


class Address(str):
    """An address for SSH, split into `host` and `port`: a name, an IP, `name:port`, `[IPv6]:port`."""

    host: str
    port: int | None

    def __new__(cls, value: Any) -> Address:
        line = word(value)
        if len(line) > _LONGEST_ADDRESS:
            raise ValueError(f"expected at most {_LONGEST_ADDRESS} characters, got {len(line)}")
        address = super().__new__(cls, line)
        address.host, address.port = line, None
        if _is_ipv6(line):
            return address
        bracketed = re.fullmatch(r"\[([^\]]*)\](?::(\d{1,5}))?", line)
        plain = re.fullmatch(r"([^:\[\]]*)(?::(\d{1,5}))?", line)
        if bracketed and _is_ipv6(bracketed[1]):
            address.host, port = bracketed.groups()
        elif plain and is_host_name(plain[1]):
            address.host, port = plain.groups()
        elif "@" in line:
            raise ValueError(f"{line!r} is not an address; the user belongs in ssh: {{user: ..}}")
        else:
            raise ValueError(f"{line!r} is not an address: a name, an IP, name:port or [IPv6]:port")
        if port is not None:
            if not 1 <= int(port) <= 65535:
                raise ValueError(f"expected a port from 1 to 65535, got {port}")
            address.port = int(port)
        return address


SHORTEST_PREFIX = (
    8  # of a training network, as of 10.0.0.0/8: a larger one would be a good part of the internet
)


class Subnet(str):
    """A network in CIDR form, of SHORTEST_PREFIX or longer."""

    def __new__(cls, value: Any) -> Subnet:
        line = text(value)
        try:
            network = ipaddress.ip_network(line, strict=False)
        except ValueError:
            raise ValueError(f"{line!r} is not a network like 10.11.8.0/24") from None
        if "/" not in line:
            raise ValueError(f"{line!r} has no prefix length, as in 10.11.8.0/24")
        if str(network.network_address) != line.split("/")[0]:
            raise ValueError(f"{line!r} is an address, not a network; did you mean '{network}'?")
        if network.prefixlen < SHORTEST_PREFIX:
            raise ValueError(f"{line!r} is too large for a training network: at most a /{SHORTEST_PREFIX}")
        return super().__new__(cls, line)


class Specifier(str):
    """Versions as in PEP 440: `==2.13.*`, `>=2.6,<3`."""

    def __new__(cls, value: Any) -> Specifier:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet  # 6 ms, only if `require` is used

        if not isinstance(value, str):
            raise ValueError(f"expected text, got {describe(value)}")
        line = value.strip()
        if len(line) > _LONGEST_SPECIFIER:
            raise ValueError(f"expected at most {_LONGEST_SPECIFIER} characters, got {len(line)}")
        try:
            SpecifierSet(line)
        except InvalidSpecifier:
            hint = f"; did you mean '=={line}'?" if re.fullmatch(r"[0-9][0-9A-Za-z.*+!]*", line) else ""
            raise ValueError(f"{line!r} is not a version specifier as in PEP 440{hint}") from None
        if not line:
            raise ValueError('expected versions such as "==2.13.*", got nothing')
        return super().__new__(cls, line)


Versions = Annotated[Specifier, Meta(extra={AS_WRITTEN: True})]


def _is_ipv6(line: str) -> bool:
    try:
        return ipaddress.ip_address(line).version == 6
    except ValueError:
        return False
