"""The specification of a lab: names, addresses and NICs. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from itertools import pairwise

from mnt.errors import MntError, UsageError

DEFAULT_NAME = "default"
DEFAULT_NICS = ("eth0", "enp26s0np0", "ens3f0", "eno1")
MANAGEMENT_NIC = "mgmt0"
MAX_HOSTS = 256
USER = "mnt"  # the ordinary user of the hosts; the machine itself does not have it

# The address ranges for labs, in this order: parts of two private ranges (RFC 1918), then the range for
# benchmarks (RFC 2544), for machines with routes for all of 10/8 and 172.16/12.
_POOLS = ("10.213.0.0/16", "172.29.0.0/16", "198.18.0.0/15")
_LAB_PREFIX = 22  # a lab uses one /22: the lower /23 for SSH, the upper /23 for training
_FIRST_HOST = 11  # node1 has .11: lower addresses stay free for the head and for tests
_HEAD = 1

# The ids for labs' users. A directory (LDAP, SSSD) may have people with ids that nobody lists, or give an id
# to somebody tomorrow. So these are above all ids that systemd documents as people's, services' and
# containers', and below 2^31, from where on programs have trouble (https://systemd.io/UIDS-GIDS/). They are
# also above what users get for containers (login.defs(5), SUB_UID_MAX: 600100000), and what SSSD gives to the
# users of an Active Directory (sssd-ldap(5), ldap_idmap_range_max: 2000200000).
UIDS = range(2_100_000_000, 2_100_065_536)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")  # Linux: 15 characters at most, no `/`, no space
_RATE = re.compile(r"([1-9][0-9]*)([kmg])bit")
_BITS = {"k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True)
class HostSpec:
    """One host of a lab. Addresses are plain IPv4, without a prefix length."""

    name: str
    number: int  # from 1
    management: str
    training: str
    nic: str
    gpus: tuple[int, ...] = ()  # its share: indices, as CUDA_VISIBLE_DEVICES has them


@dataclass(frozen=True)
class LabRequest:
    """The properties that the user chooses. Raises UsageError if they are not valid."""

    name: str = DEFAULT_NAME
    count: int = 4
    nics: tuple[str, ...] = DEFAULT_NICS  # names of the training NICs, assigned to the hosts in turn
    rate: int | None = None  # bits per second of each training link in both directions; None: no limit
    shared_home: bool = False  # one home directory for all hosts, as over NFS
    gpus: int = 0  # GPUs of the machine to deal out; 0: the hosts train on CPUs

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"lab name {self.name!r} is not valid",
                fix="use lower-case letters, digits and `-`, 63 at most",
            )
        if not 1 <= self.count <= MAX_HOSTS:
            raise UsageError(f"a lab has 1 to {MAX_HOSTS} hosts, not {self.count}")
        if 0 < self.gpus < self.count:
            raise UsageError(
                f"{self.gpus} GPUs are too few for {self.count} hosts",
                fix=f"mnt lab up {self.gpus} --gpus auto",
            )


@dataclass(frozen=True, kw_only=True)
class LabSpec(LabRequest):
    """The complete specification."""

    token: str  # a unique random token: 8 hexadecimal digits
    subnet: str  # the /22 that holds both networks
    hosts: tuple[HostSpec, ...]
    uid: int  # of USER, and its group's id
    python: str

    @property
    def management(self) -> IPv4Network:
        """The network for SSH; the head has an address in it."""
        return _halves(self.subnet)[0]

    @property
    def training(self) -> IPv4Network:
        """The network for training; only the hosts have addresses in it."""
        return _halves(self.subnet)[1]

    @property
    def head_address(self) -> str:
        return str(self.management[_HEAD])

    @property
    def head_link(self) -> str:
        """The lab's one link in the machine's own network namespace."""
        return f"mntlab{self.token}"

    @property
    def source(self) -> str:
        """The source of the lab's file systems: the first column of /proc/mounts."""
        return f"mnt-lab-{self.name}"


def parse_nics(text: str) -> tuple[str, ...]:
    """The NIC names in `eth0,ens3f0`. Raises UsageError."""
    names = tuple(text.split(","))
    for name in names:
        if not _NIC.fullmatch(name) or name in ("lo", MANAGEMENT_NIC):
            raise UsageError(
                f"--nics: {name!r} is not a valid name for a training NIC",
                fix=f"use names of at most 15 characters, not lo or {MANAGEMENT_NIC}: eth0,ens3f0",
            )
    return names


def parse_gpus(text: str, found: int) -> int:
    """The number of GPUs to deal out in `auto` or `2`, on a machine that has `found`. Raises UsageError."""
    if text == "auto":
        return found
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) > found:
        fix = f"use auto, or at most {found}" if found else "leave --gpus out"
        raise UsageError(f"--gpus {text}: this machine has {found} GPUs", fix=fix)
    return int(text)


def deal(gpus: int, hosts: int) -> list[tuple[int, ...]]:
    """Disjoint shares of the GPUs 0 to `gpus` - 1, neighbours together; the first ones may have one more."""
    size, more = divmod(gpus, hosts)
    ends = [(number + 1) * size + min(number + 1, more) for number in range(hosts)]
    return [tuple(range(start, end)) for start, end in pairwise([0, *ends])]


def parse_rate(text: str) -> int:
    """The bits per second in `400mbit`, with the units of tc. Raises UsageError."""
    match = _RATE.fullmatch(text)
    if not match:
        raise UsageError(
            f"--rate: {text!r} is not a rate", fix="use a whole number of kbit, mbit or gbit: 400mbit"
        )
    return int(match[1]) * _BITS[match[2]]


def plan(request: LabRequest, *, token: str, subnet: str, uid: int, python: str) -> LabSpec:
    """The complete specification: hosts node1, node2, .., with addresses in the two halves of `subnet`."""
    management, training = _halves(subnet)
    shares = deal(request.gpus, request.count)
    hosts = tuple(
        HostSpec(
            name=f"node{number}",
            number=number,
            management=str(management[_FIRST_HOST - 1 + number]),
            training=str(training[_FIRST_HOST - 1 + number]),
            nic=request.nics[(number - 1) % len(request.nics)],
            gpus=shares[number - 1],
        )
        for number in range(1, request.count + 1)
    )
    return LabSpec(**asdict(request), token=token, subnet=subnet, hosts=hosts, uid=uid, python=python)


def choose_subnet(taken: Iterable[str]) -> str:
    """The first /22 that overlaps none of the networks `taken` (CIDR). Raises UsageError."""
    used = [ipaddress.IPv4Network(network, strict=False) for network in taken]
    for pool in _POOLS:
        for candidate in IPv4Network(pool).subnets(new_prefix=_LAB_PREFIX):
            if not any(candidate.overlaps(network) for network in used):
                return str(candidate)
    raise UsageError(
        f"no free network for a lab in {', '.join(_POOLS)}", fix="remove labs: mnt lab down --all"
    )


def choose_uid(taken: Iterable[int], is_known: Callable[[int], bool] = lambda _: False) -> int:
    """A user and group id for a lab.

    Args:
        taken: ids in use.
        is_known: whether the machine knows an id that is not in `taken`.

    Raises MntError if all are in use.
    """
    used = set(taken)
    for uid in UIDS:
        if uid not in used and not is_known(uid):
            return uid
    raise MntError(
        f"all user ids for labs, {UIDS[0]} to {UIDS[-1]}, are in use", fix=f"getent passwd {UIDS[0]}"
    )


def _halves(subnet: str) -> tuple[IPv4Network, IPv4Network]:
    lower, upper = IPv4Network(subnet).subnets(prefixlen_diff=1)
    return lower, upper
