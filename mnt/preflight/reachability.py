"""From who reached whom to who is to blame. Pure.

A pair is a host and a target. What is wrong with single pairs is folded: into hosts that are cut off, groups
that do not reach each other, hosts that nobody gets in to or that get out to nobody. Only what is left is
told pair by pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mnt.facts.reach import Reach, Reached
from mnt.inventory.hostlist import fold
from mnt.preflight.findings import Problem, Severity

Pair = tuple[str, str]

# What may be wrong with a pair, the worst first.
NOTHING, RANGE, SOME, MASTER = "nothing", "range", "some", "master"


@dataclass(frozen=True)
class Blame:
    """What explains some pairs that fail.

    `shape` is `apart` (all hosts are; `groups` are the parts of the network), `cut off` (groups, of which the
    last is the largest), `in` and `out` and `both` (whichever way nothing goes, at `hosts`), or `pairs` (only
    these `sources` fail to get in to `hosts`).
    """

    shape: str
    hosts: tuple[str, ...]
    pairs: frozenset[Pair]
    groups: tuple[tuple[str, ...], ...] = ()
    sources: tuple[str, ...] = ()


def problems(reach: Reach, hosts: Sequence[str], master: str, port: int) -> Iterator[Problem]:
    """What keeps the hosts from reaching each other, but for routes that stray.

    Args:
        hosts: all that were selected, in rank order.
        master: the first of them that a job would be led from.
        port: the master port.
    """
    rank = [host for host in hosts if host in reach.pairs]
    seen = {(host, other): reached for host in rank for other, reached in reach.pairs[host].items()}
    stray = {pair for pair, reached in seen.items() if strays(reach, pair)}
    seen = {(a, b): reached for (a, b), reached in seen.items() if not stray & {(a, b), (b, a)}}
    grades = {pair: grade(reached) for pair, reached in seen.items()}
    words = _Words(reach, seen, port, master)
    dark = {pair for pair, found in grades.items() if found == NOTHING}
    for blame in fold_dark(dark, set(seen), rank, _denied(seen)):
        yield words.dark(blame)
    for kind in (RANGE, SOME, MASTER):
        bad = {pair for pair, found in grades.items() if found == kind}
        for blame in fold_ways(bad, set(seen) - dark, rank, set()):
            yield words.partial(kind, blame)


def strays(reach: Reach, pair: Pair) -> bool:
    """Whether packets take another NIC than the chosen one: that explains what does not get through."""
    host, other = pair
    route = reach.pairs[host][other].route
    return route is not None and route != reach.endpoints[host].nic


def grade(reached: Reached) -> str | None:
    """What is wrong with a pair: nothing gets through, no port of the range, some do not, the master port."""
    if not reached.ports and reached.master is None:
        return None  # it had no port to try
    range_ok = [outcome == "ok" for outcome in reached.ports.values()]
    master_ok = reached.master == "ok"
    if not any(range_ok) and not master_ok:
        return NOTHING
    if range_ok and not any(range_ok):
        return RANGE
    if not all(range_ok):
        return SOME
    return MASTER if reached.master is not None and not master_ok else None


def _denied(seen: dict[Pair, Reached]) -> set[Pair]:
    """The pairs that the first host itself has refused."""
    return {pair for pair, reached in seen.items() if "denied" in (reached.master, *reached.ports.values())}


# --- folding ---------------------------------------------------------------------------------------------


def fold_dark(
    bad: set[Pair], tried: set[Pair], hosts: Sequence[str], denied: Collection[Pair]
) -> Iterator[Blame]:
    """Explain pairs between which nothing gets through: by parts of the network, then within each part."""
    if not bad:
        return
    parts = _parts(bad, tried, hosts)
    across = {pair for pair in bad if not any(pair[0] in part and pair[1] in part for part in parts)}
    if len(parts) > 1:
        yield from _between(parts, across)
    for part in parts:
        within = {pair for pair in tried if pair[0] in part and pair[1] in part}
        yield from fold_ways(bad & within, within, part, denied)


def _parts(bad: set[Pair], tried: set[Pair], hosts: Sequence[str]) -> list[list[str]]:
    """The hosts by parts within which each is reached by another, or reaches one; the largest part last."""
    linked: dict[str, set[str]] = {host: set() for host in hosts}
    for source, target in tried - bad:
        linked[source].add(target)
        linked[target].add(source)
    parts, left = [], list(hosts)
    while left:
        part, edge = {left[0]}, [left[0]]
        while edge:
            edge = [host for host in {*_union(linked[host] for host in edge)} if host not in part]
            part.update(edge)
        parts.append([host for host in left if host in part])
        left = [host for host in left if host not in part]
    return sorted(parts, key=len)


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)


def _between(parts: list[list[str]], across: set[Pair]) -> Iterator[Blame]:
    """Who is apart: what is smaller than the largest part. Where no part is the largest, all are."""
    groups = tuple(map(tuple, parts))
    if len(parts[-2]) == len(parts[-1]):
        hosts = tuple(host for part in parts for host in part)
        yield Blame("apart", hosts, frozenset(across), groups)
        return
    largest = groups[-1]
    for group in groups[:-1]:
        pairs = frozenset(pair for pair in across if pair[0] in group or pair[1] in group)
        yield Blame("cut off", group, pairs, (group, largest))


def fold_ways(
    bad: set[Pair], tried: set[Pair], hosts: Sequence[str], denied: Collection[Pair]
) -> Iterator[Blame]:
    """Explain pairs by hosts at which one way, or both, is closed; who explains most comes first."""
    left = set(bad)
    if bad and bad == tried and len(hosts) > 2:
        yield Blame("both", tuple(hosts), frozenset(bad))
        return
    while left:
        candidates = [blame for host in hosts for blame in _ways(host, bad, tried, left)]
        enough = [blame for blame in candidates if len(blame.pairs) > 1 or len(hosts) == 2]
        if not enough:
            break
        # Of two that explain the same, the target is at fault, unless the source says that it is.
        best = max(
            enough,
            key=lambda blame: (len(blame.pairs), (blame.shape == "out") == bool(blame.pairs & set(denied))),
        )
        yield best
        left -= best.pairs
    for target in hosts:
        sources = tuple(host for host in hosts if (host, target) in left)
        if sources:
            pairs = frozenset((source, target) for source in sources)
            yield Blame("pairs", (target,), pairs, sources=sources)


def _ways(host: str, bad: set[Pair], tried: set[Pair], left: set[Pair]) -> Iterator[Blame]:
    """By which ways the host is closed to all, and what of `left` that explains."""
    into = {pair for pair in tried if pair[1] == host}
    out = {pair for pair in tried if pair[0] == host}
    for shape, pairs in (("in", into), ("out", out), ("both", into | out)):
        if pairs and pairs <= bad and (into and out if shape == "both" else True):
            yield Blame(shape, (host,), frozenset(pairs & left))


# --- words -----------------------------------------------------------------------------------------------

_EXPECTED = "every host connects to every other over the training network"
_RULES = "sudo nft list ruleset; sudo iptables -S"


@dataclass(frozen=True)
class _Words:
    """Says a Blame to people."""

    reach: Reach
    seen: dict[Pair, Reached]
    port: int
    master: str

    def dark(self, blame: Blame) -> Problem:
        hosts = blame.hosts
        if blame.shape == "apart" and all(len(group) == 1 for group in blame.groups) and len(hosts) > 2:
            message = "no host reaches any other over the training network"
            fix = "look at the switch, its VLANs and isolation of ports, and at the firewall of every host"
        elif blame.shape in ("apart", "cut off") and self._apart(blame.groups):
            message = f"{self._apart(blame.groups)}: no traffic gets from one to the other"
            fix = "route between the two, or put all training NICs in one subnet and name it: network.subnet"
        elif blame.shape == "apart":
            message = f"these do not reach each other: {' | '.join(fold(group) for group in blame.groups)}"
            fix = f"look at the link between them, at VLANs and firewalls: {_RULES}"
        elif blame.shape == "cut off" and len(hosts) > 1:
            message = f"they reach each other, but not {fold(blame.groups[-1])}, nor does it reach them"
            fix = "look at the link between the two groups: uplink, VLAN, firewall"
        elif blame.shape in ("cut off", "both"):
            message = "it reaches no other host over the training network, and none reaches it"
            fix = f"look at its training NIC, cable, VLAN and firewall: ip -s link; {_RULES}"
        elif blame.shape == "in":
            message = "no other host gets in over the training network, though it gets out to them"
            fix = f"let the training network in; a firewall there closes that way: {_RULES}"
        elif blame.shape == "out":
            message = "it gets out to no other host over the training network, though they get in"
            fix = f"let it out; a firewall there closes that way: {_RULES}"
        else:
            message = f"{fold(blame.sources)} cannot connect to it over the training network"
            fix = f"look at the firewall between them, and on both: {_RULES}"
        return Problem(hosts, message, self._outcomes(blame.pairs), _EXPECTED, fix)

    def partial(self, kind: str, blame: Blame) -> Problem:
        what = {
            RANGE: f"the master port {self.port} is open, but the ports that NCCL and gloo use are closed",
            SOME: "some of the ports that NCCL and gloo use are closed",
            MASTER: f"the master port {self.port} is closed, though other ports are open",
        }[kind]
        way = {
            "in": "to what comes in",
            "out": "to what goes out",
            "both": "both ways",
            "pairs": f"to {fold(blame.sources)}" if blame.sources else "",
        }[blame.shape]
        allowed = f"port {self.port}" if kind == MASTER else "net.ipv4.ip_local_port_range"
        fix = (
            f"open {allowed}, better all ports, between the training hosts: "
            f"sudo iptables -I INPUT -s {self._networks(blame)} -j ACCEPT"
        )
        # Nobody connects to a worker's master port: only a job that it leads would fail.
        leads = any(target == self.master for _, target in blame.pairs)
        severity = Severity.WARN if kind == MASTER and not leads else None
        return Problem(blame.hosts, f"{what} {way}", self._outcomes(blame.pairs), _EXPECTED, fix, severity)

    def _outcomes(self, pairs: Iterable[Pair]) -> str:
        """How connections failed: the outcomes there were, the most frequent first."""
        counted: Counter[str] = Counter()
        for pair in pairs:
            reached = self.seen[pair]
            outcomes = [*reached.ports.values(), *([reached.master] if reached.master else [])]
            counted.update(outcome for outcome in outcomes if outcome != "ok")
            if reached.no_route:
                counted[f"no route ({reached.no_route.lower()})"] += 1
        return "connections end with: " + (", ".join(name for name, _ in counted.most_common()) or "nothing")

    def _apart(self, groups: Sequence[Sequence[str]]) -> str | None:
        """The subnets of the groups, where these are what divides them."""
        networks = [sorted({self.reach.endpoints[host].network for host in group}) for group in groups]
        if any(set(one) & set(other) for i, one in enumerate(networks) for other in networks[:i]):
            return None
        told = [f"{', '.join(nets)} ({fold(group)})" for nets, group in zip(networks, groups, strict=True)]
        return f"{len(told)} subnets without a way between them, {' and '.join(told)}"

    def _networks(self, blame: Blame) -> str:
        return ",".join(sorted({self.reach.endpoints[source].network for source, _ in blame.pairs}))
