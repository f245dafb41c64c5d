"""Explain failed connections by their causes. Pure.

A pair is (source, target). The failed pairs are folded into few causes: hosts that are cut off, groups that
do not reach each other, hosts that accept no connection or can open none. Only the remaining pairs are
reported one by one.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mnt.facts.reach import Reach, Reached
from mnt.inventory.hostlist import fold
from mnt.preflight.findings import Problem, Severity

Pair = tuple[str, str]

# The faults of a pair, the worst first: nothing gets through; no port of the local range is open; some of
# these ports are closed; only the master port is closed.
NOTHING, RANGE, SOME, MASTER = "nothing", "range", "some", "master"


@dataclass(frozen=True)
class Cause:
    """A cause that explains some of the failed pairs.

    `shape` is one of:
        `apart`: `hosts` are all hosts, and `groups` the separate parts of the network;
        `cut off`: `hosts` are separate from the largest part, which is the last of `groups`;
        `in`, `out`, `both`: `hosts` accept no connection, can open none, or both;
        `pairs`: only `sources` cannot connect to `hosts`.
    """

    shape: str
    hosts: tuple[str, ...]
    pairs: frozenset[Pair]  # the failed pairs that it explains
    groups: tuple[tuple[str, ...], ...] = ()
    sources: tuple[str, ...] = ()


def problems(
    reach: Reach,
    hosts: Sequence[str],
    master: str,
    port: int,
    explained: Collection[Pair] = (),
    *,
    subnet: str | None = None,
) -> Iterator[Problem]:
    """The problems between the hosts, except for pairs that the check `route` explains.

    Args:
        hosts: all selected hosts, in rank order.
        master: the master of a job on these hosts.
        port: the master port.
        explained: further pairs that something else explains.
        subnet: the inventory's `network.subnet`.
    """
    rank = [host for host in hosts if host in reach.pairs]
    tried = {(host, other): reached for host in rank for other, reached in reach.pairs[host].items()}
    stray = {pair for pair in tried if strays(reach, pair)}
    tried = {(a, b): reached for (a, b), reached in tried.items() if not stray & {(a, b), (b, a)}}
    tried = {pair: reached for pair, reached in tried.items() if pair not in explained}
    faults = {pair: grade(reached) for pair, reached in tried.items()}
    texts = _Texts(reach, tried, port, master, subnet)
    dead = {pair for pair, fault in faults.items() if fault == NOTHING}
    denied = {pair for pair, reached in tried.items() if "denied" in reached.outcomes}  # by the source itself
    for cause in explain_dead(dead, set(tried), rank, denied):
        yield with_witness(texts.dead(cause), cause, rank)
    for kind in (RANGE, SOME, MASTER):
        bad = {pair for pair, fault in faults.items() if fault == kind}
        for cause in explain_by_direction(bad, set(tried) - dead, rank):
            yield with_witness(texts.partial(kind, cause), cause, rank)


def with_witness(problem: Problem, cause: Cause, rank: Sequence[str]) -> Problem:
    """If only one host says something about others, this counts against both: that host may lie."""
    sources = {source for source, _ in cause.pairs}
    if len(sources) > 1 or sources & {*cause.hosts}:
        return problem
    (witness,) = sources
    message = f"{fold(cause.hosts)}, as only {witness} says: {problem.message}"
    return replace(problem, message=message, hosts=tuple(h for h in rank if h in {witness, *cause.hosts}))


def strays(reach: Reach, pair: Pair) -> bool:
    """Whether packets leave through another NIC than the training NIC, which explains a failed connection."""
    host, other = pair
    route = reach.pairs[host][other].route
    return route is not None and route != reach.nics[host].name


def grade(reached: Reached) -> str | None:
    """The fault of a pair: NOTHING, RANGE, SOME or MASTER; None: it has no fault."""
    if not reached.ports and reached.master is None:
        return None  # there was no port to try
    range_ok = [outcome == "ok" for outcome in reached.ports.values()]
    master_ok = reached.master == "ok"
    if not any(range_ok) and not master_ok:
        return NOTHING
    if range_ok and not any(range_ok):
        return RANGE
    if not all(range_ok):
        return SOME
    return MASTER if reached.master is not None and not master_ok else None


# --- causes ----------------------------------------------------------------------------------------------


def explain_dead(
    bad: set[Pair], tried: set[Pair], hosts: Sequence[str], denied: Collection[Pair]
) -> Iterator[Cause]:
    """Explain pairs where nothing gets through: by separate parts of the network, then within each part."""
    if not bad:
        return
    parts = _parts(bad, tried, hosts)
    across = {pair for pair in bad if not any(pair[0] in part and pair[1] in part for part in parts)}
    if len(parts) > 1:
        yield from _between(parts, across)
    for part in parts:
        within = {pair for pair in tried if pair[0] in part and pair[1] in part}
        yield from explain_by_direction(bad & within, within, part, denied)


def _parts(bad: set[Pair], tried: set[Pair], hosts: Sequence[str]) -> list[list[str]]:
    """The connected parts of the network, the largest last. A connection in either direction connects."""
    linked: dict[str, set[str]] = {host: set() for host in hosts}
    for source, target in tried - bad:
        linked[source].add(target)
        linked[target].add(source)
    parts, left = [], list(hosts)  # `left`: hosts that are in no part yet
    while left:
        part, edge = {left[0]}, [left[0]]
        while edge:
            edge = list(set().union(*(linked[host] for host in edge)) - part)
            part.update(edge)
        parts.append([host for host in left if host in part])
        left = [host for host in left if host not in part]
    return sorted(parts, key=len)


def _between(parts: list[list[str]], across: set[Pair]) -> Iterator[Cause]:
    """Smaller parts are cut off from the largest part. If no single part is the largest, all are apart."""
    groups = tuple(map(tuple, parts))
    if len(parts[-2]) == len(parts[-1]):
        hosts = tuple(host for part in parts for host in part)
        yield Cause("apart", hosts, frozenset(across), groups)
        return
    largest = groups[-1]
    for group in groups[:-1]:
        pairs = frozenset(pair for pair in across if pair[0] in group or pair[1] in group)
        yield Cause("cut off", group, pairs, (group, largest))


def explain_by_direction(
    bad: set[Pair], tried: set[Pair], hosts: Sequence[str], denied: Collection[Pair] = ()
) -> Iterator[Cause]:
    """Explain pairs by hosts that block one direction, or both. The cause that explains most comes first."""
    left = set(bad)
    if bad and bad == tried and len(hosts) > 2:
        yield Cause("both", tuple(hosts), frozenset(bad))
        return
    while left:
        candidates = [cause for host in hosts for cause in _directions(host, bad, tried, left)]
        enough = [cause for cause in candidates if len(cause.pairs) > 1 or len(hosts) == 2]
        if not enough:
            break
        # If two causes explain equally many pairs, choose the target, unless the source itself rejected them.
        best = max(
            enough,
            key=lambda cause: (len(cause.pairs), (cause.shape == "out") == bool(cause.pairs & set(denied))),
        )
        yield best
        left -= best.pairs
    for target in hosts:
        sources = tuple(host for host in hosts if (host, target) in left)
        if sources:
            pairs = frozenset((source, target) for source in sources)
            yield Cause("pairs", (target,), pairs, sources=sources)


def _directions(host: str, bad: set[Pair], tried: set[Pair], left: set[Pair]) -> Iterator[Cause]:
    """The directions that the host blocks for all others, with the pairs of `left` that this explains."""
    into = {pair for pair in tried if pair[1] == host}
    out = {pair for pair in tried if pair[0] == host}
    for shape, pairs in (("in", into), ("out", out), ("both", into | out)):
        if pairs and pairs <= bad and (shape != "both" or (into and out)):
            yield Cause(shape, (host,), frozenset(pairs & left))


# --- texts -----------------------------------------------------------------------------------------------

_EXPECTED = "every host connects to every other over the training network"
_RULES = "sudo nft list ruleset; sudo iptables -S"
_OURS = "where ufw or firewalld runs: mnt setup firewall"


class _Way(NamedTuple):
    """The words of nft(8) and iptables(8) for one direction."""

    shape: str
    word: str
    chain: str
    option: str


_DIRECTIONS = (_Way("in", "saddr", "INPUT", "-s"), _Way("out", "daddr", "OUTPUT", "-d"))

_STRANGER = "another host answers"  # one that claims the target's address; see `mnt/remote/net/reach.py`
_OUTCOMES = {"refused", "timeout", "unreachable", "denied", _STRANGER, *map(os.strerror, errno.errorcode)}


def _known(outcome: str) -> str:
    """An outcome without words of the source's own: the finding may be about another host."""
    return outcome if outcome in _OUTCOMES else "another error"


@dataclass(frozen=True)
class _Texts:
    """Turns a Cause into a Problem."""

    reach: Reach
    tried: dict[Pair, Reached]
    port: int
    master: str
    subnet: str | None

    def dead(self, cause: Cause) -> Problem:
        hosts = cause.hosts
        if cause.shape == "apart" and all(len(group) == 1 for group in cause.groups) and len(hosts) > 2:
            message = "no host reaches any other over the training network"
            fix = "check VLANs and port isolation on the switch, and the firewall of every host"
        elif subnets := self._subnets(cause.groups):
            message = f"{subnets}: no traffic gets from one to the other"
            fix = "add a route between them, or put all training NICs in one subnet and set network.subnet"
        elif cause.shape == "apart":
            message = f"these do not reach each other: {' | '.join(fold(group) for group in cause.groups)}"
            fix = f"check the link between them, VLANs and firewalls: {_RULES}"
        elif cause.shape == "cut off" and len(hosts) > 1:
            largest = fold(cause.groups[-1])
            message = f"they reach each other, but not {largest}, and {largest} cannot reach them"
            fix = "check the link between the two groups: uplink, VLAN, firewall"
        elif cause.shape in ("cut off", "both"):
            message = "it reaches no other host over the training network, and no other host reaches it"
            fix = f"check its training NIC, cable, VLAN and firewall: ip -s link; {_RULES}"
            if (opened := self._opened(cause, "in")) is not None:
                fix += f"; if rules drop its packets, {opened}"
        elif cause.shape == "in":
            message = "no other host can connect to it over the training network, but it can connect to them"
            fix = "allow incoming connections from the training network in its firewall"
            fix += f": {self._opened(cause, 'in') or f'{_RULES}; {_OURS}'}"
        elif cause.shape == "out":
            message = (
                "it cannot connect to any other host over the training network, but they can connect to it"
            )
            fix = "allow outgoing connections to the training network in its firewall"
            fix += f": {self._opened(cause, 'out') or _RULES}"
        else:
            message = f"{fold(cause.sources)} cannot connect to it over the training network"
            fix = f"check the firewalls on both sides and between them: {_RULES}"
        return Problem(message, self._outcomes(cause.pairs), _EXPECTED, fix, hosts=hosts)

    def partial(self, kind: str, cause: Cause) -> Problem:
        what = {
            RANGE: f"the master port {self.port} is open, but the ports that NCCL and gloo use are closed",
            SOME: "some of the ports that NCCL and gloo use are closed",
            MASTER: f"the master port {self.port} is closed, but other ports are open",
        }[kind]
        direction = {
            "in": "for incoming connections",
            "out": "for outgoing connections",
            "both": "in both directions",
            "pairs": f"for {fold(cause.sources)}" if cause.sources else "",
        }[cause.shape]
        allowed = f"port {self.port}" if kind == MASTER else "net.ipv4.ip_local_port_range"
        fix = f"open {allowed}, or better all ports, between the training hosts"
        if (opened := self._opened(cause, "in" if cause.shape == "pairs" else cause.shape)) is not None:
            fix += f": {opened}"
        # The master port of a worker is used only if a job has that worker as its master.
        leads = any(target == self.master for _, target in cause.pairs)
        severity = Severity.WARN if kind == MASTER and not leads else None
        outcomes = self._outcomes(cause.pairs)
        return Problem(f"{what} {direction}", outcomes, _EXPECTED, fix, severity, cause.hosts)

    def _opened(self, cause: Cause, shape: str) -> str | None:
        """How a host's firewall lets the training network in (or `out`, or `both`); None: which is unknown.

        An `accept` of one table of nftables ends nothing: what another one drops is dropped. And iptables,
        where it is there at all, is such a table today. So a rule must be where the one is that drops.
        """
        network = self._network(cause)
        if network is None:
            return None
        ways = [way for way in _DIRECTIONS if shape in (way.shape, "both")]
        nft = "; ".join(
            f"sudo nft insert rule FAMILY TABLE CHAIN ip {way.word} {network} accept" for way in ways
        )
        old = "; ".join(f"sudo iptables -I {way.chain} {way.option} {network} -j ACCEPT" for way in ways)
        ours = f"; {_OURS}" if shape == "in" else ""
        return f"into the table and chain that drop (sudo nft list ruleset): {nft}; without nft: {old}{ours}"

    def _network(self, cause: Cause) -> str | None:
        """The network to open: the inventory's, else the host's own. What another host says opens none."""
        if self.subnet is not None:
            return self.subnet
        return self.reach.nics[cause.hosts[0]].network if len(cause.hosts) == 1 else None

    def _outcomes(self, pairs: Iterable[Pair]) -> str:
        """The outcomes of the failed connections, the most frequent first."""
        counted: Counter[str] = Counter()
        for pair in pairs:
            reached = self.tried[pair]
            counted.update(_known(outcome) for outcome in reached.outcomes if outcome != "ok")
            if reached.no_route:
                counted[f"no route ({_known(reached.no_route).lower()})"] += 1
        return "connections end with: " + (", ".join(name for name, _ in counted.most_common()) or "nothing")

    def _subnets(self, groups: Sequence[Sequence[str]]) -> str | None:
        """The subnets of the groups, if each group has its own; else None."""
        if not groups:
            return None
        networks = [sorted({self.reach.nics[host].network for host in group}) for group in groups]
        if any(set(one) & set(other) for i, one in enumerate(networks) for other in networks[:i]):
            return None
        subnets = [f"{', '.join(nets)} ({fold(group)})" for nets, group in zip(networks, groups, strict=True)]
        return f"{len(subnets)} subnets without a route between them, {' and '.join(subnets)}"
