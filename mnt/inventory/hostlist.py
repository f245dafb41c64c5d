"""Hostlists: `node[1-4]`, `node[01-16,20]`, `a,b`, `@group`, `rack[1-2]n[1-4]`.

The syntax of ranges is that of ClusterShell (1.9 and newer), which folds names. It does not expand them: its
NodeSet sorts the hosts, but here the order is the rank order.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set

from mnt.errors import UsageError
from mnt.inventory.model import Host, Inventory
from mnt.inventory.spelling import did_you_mean
from mnt.inventory.values import is_host_name

# More hosts in one hostlist, or in one inventory, are a typing error, and would fill the memory.
MAX_HOSTS = 100_000

# The group of the hosts that failed in the last `mnt run`.
FAILED = "failed"

Groups = Mapping[str, Sequence[str]]

# ClusterShell folds names of which one number changes in linear time, of which more change in up to about the
# number of names to the power of the changing numbers.
_MOST_NUMBERS = 8  # in a name
_MANY = 1_000_000

_SYNTAX = "hostlists look like node[1-4], node[01-16,20], rack[1-2]n[1-4], a,b or @group"
_COLON = "; GPUs are selected for mnt launch only, and ports and IPv6 addresses belong in address:"
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,250})(?:-([0-9]{1,250})(?:/([0-9]{1,250}))?)?")
_LARGEST = 10**100  # number; as in ClusterShell
_MOST_BRACKETS = 253  # in a name, of as many characters


def expand(text: str, *, known: Collection[str] | None = None, groups: Groups | None = None) -> list[str]:
    """The hosts in `text`, in its order, each once.

    Args:
        text: a hostlist.
        known: the hosts of the inventory, best in a dict or a set; None: any valid name is accepted.
        groups: hosts by group, for `@group`; None: no groups are accepted.

    Raises:
        UsageError: bad syntax, an unknown host or group, or no host at all.
    """
    hosts = list(dict.fromkeys(names(text, groups=groups)))
    if known is not None:
        check_known(hosts, known)
    return hosts


def names(text: str, *, groups: Groups | None = None) -> list[str]:
    """Like `expand`, but a host that is there twice is returned twice. Raises UsageError."""
    if not text.strip():
        raise UsageError("the hostlist is empty", fix=_SYNTAX)
    found: list[str] = []
    for part in split(text):
        found += _expand_part(part.strip(), text, groups)
        _check_size(text, len(found))
    return found


def check_known(hosts: Sequence[str], known: Collection[str]) -> None:
    """Raises UsageError if a host is not known. `known` is best a dict or a set."""
    there = known if isinstance(known, (Mapping, Set)) else set(known)
    unknown = [host for host in hosts if host not in there]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise UsageError(
            f"no host named {brief(unknown)} in the inventory{hint}", fix=f"hosts: {brief(list(known))}"
        )


def fold(hosts: Sequence[str]) -> str:
    """A hostlist that `expand` turns back into `hosts`, in the same order: `node[1-4]`.

    It is the shortest one, except for names with many numbers: to fold them takes too long.
    """
    runs: list[list[str]] = []
    for host in hosts:
        if runs and _rises(runs[-1][-1], host):
            runs[-1].append(host)
        else:
            runs.append([host])
    return ",".join(_fold_runs(runs))


def brief(hosts: Sequence[str], longest: int = 200) -> str:
    """The same for people: cut if it has more than `longest` characters, `a,b and 7 more`."""
    folded = fold(hosts)
    if len(folded) <= longest:
        return folded
    lengths = itertools.accumulate(len(host) + 1 for host in hosts)
    kept = max(1, sum(length <= longest for length in lengths))
    more = f" and {len(hosts) - kept} more" if kept < len(hosts) else ""
    return ",".join(host[:longest] for host in hosts[:kept]) + more


def sentences(said: Iterable[tuple[str, str]]) -> list[str]:
    """`node[1-4]: text` for each text, in the order in which they first come.

    Args:
        said: host and text, as often as something is said of a host.
    """
    hosts: dict[str, list[str]] = {}
    for host, text in said:
        hosts.setdefault(text, []).append(host)
    return [f"{fold(names)}: {text}" for text, names in hosts.items()]


def group(answers: Mapping[str, Hashable]) -> list[tuple[str, ...]]:
    """Groups of hosts with equal answers, in the order of the hosts."""
    groups: dict[Hashable, list[str]] = {}
    for host, answer in answers.items():
        groups.setdefault(answer, []).append(host)
    return [tuple(hosts) for hosts in groups.values()]


def select(
    inventory: Inventory,
    *,
    nodes: str | None,
    exclude: str | None,
    last_failed: Callable[[], Sequence[str]] = tuple,
) -> tuple[Host, ...]:
    """The selected hosts of `inventory`, in rank order.

    Args:
        inventory: the cluster.
        nodes: a hostlist; None: every host, in the order of the file.
        exclude: a hostlist of hosts to exclude.
        last_failed: returns the hosts of `@failed`, unless the inventory has a group of that name.

    Raises:
        UsageError: a hostlist is not valid, or no host is left.
    """
    by_name = {host.name: host for host in inventory.hosts}
    known = list(by_name)
    groups = groups_for(inventory, f"{nodes},{exclude}", last_failed)
    chosen = known if nodes is None else expand(nodes, known=by_name, groups=groups)
    left_out = set() if exclude is None else set(expand(exclude, known=by_name, groups=groups))
    hosts = tuple(by_name[name] for name in chosen if name not in left_out)
    if not chosen:  # only @failed can be empty
        raise UsageError(f"no host failed in the last run: {nodes} is empty", fix="use -n with a hostlist")
    if not hosts:
        raise UsageError(
            f"no host is left: {exclude} excludes all of {fold(chosen)}", fix="exclude fewer hosts"
        )
    return hosts


def groups_for(inventory: Inventory, text: str, last_failed: Callable[[], Sequence[str]]) -> Groups:
    """The groups that a hostlist may name: those of the inventory, and `@failed` if it is there."""
    groups: Groups = inventory.groups
    if FAILED in groups or f"@{FAILED}" not in text:
        return groups
    known = set(inventory.names())  # without hosts that have been removed from the inventory since then
    return {**groups, FAILED: [name for name in last_failed() if name in known]}


def _bad(text: str, problem: str) -> UsageError:
    return UsageError(f"hostlist {text!r}: {problem}", fix=_SYNTAX)


def split(text: str) -> list[str]:
    """The parts between commas; commas inside brackets do not count. Raises UsageError."""
    parts, start, inside = [], 0, False
    for mark in re.finditer(r"[\[\],]", text):
        if mark[0] == ",":
            if not inside:
                parts.append(text[start : mark.start()])
                start = mark.end()
        elif inside is (mark[0] == "["):
            raise _bad(text, "the brackets do not match")
        else:
            inside = not inside
    if inside:
        raise _bad(text, "a bracket is not closed")
    return [*parts, text[start:]]


def _expand_part(part: str, text: str, groups: Groups | None) -> Sequence[str]:
    if not part:
        raise _bad(text, "there is nothing between two commas, or after the last one")
    if part.startswith("@"):
        return _group(part[1:], text, groups)
    literals_and_ranges = _BRACKETS.split(part)
    if len(literals_and_ranges) > 2 * _MOST_BRACKETS + 1:
        raise _bad(text, f"more than {_MOST_BRACKETS} brackets in a name")
    choices = []
    count = 1
    for i, piece in enumerate(literals_and_ranges):
        choices.append(_expand_ranges(piece, text) if i % 2 else [piece])
        count *= len(choices[-1])
        _check_size(text, count)
    longest = "".join(max(choice, key=len) for choice in choices)
    _check_name(longest, text)  # before there are many
    hosts = ["".join(pieces) for pieces in itertools.product(*choices)]
    for host in hosts:
        _check_name(host, text)
    return hosts


def _expand_ranges(ranges: str, text: str) -> list[str]:
    """`1-3,7` as `["1", "2", "3", "7"]`, in that order."""
    numbers: list[str] = []
    for piece in (piece.strip() for piece in ranges.split(",")):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _bad(text, f"{piece!r} is not a range" if piece else "a range is empty")
        first, last, step = match[1], match[2] or match[1], int(match[3] or 1)
        padded = first != "0" and first.startswith("0")
        if len(first) != len(last) and (padded or last.startswith("0")):
            raise _bad(text, f"the numbers of {piece!r} have different lengths, and begin with 0")
        if int(last) > _LARGEST:
            raise _bad(text, f"the number {last} is too large")
        if int(first) > int(last) or not step:
            raise _bad(text, f"the range {piece!r} is empty")
        chosen = range(int(first), int(last) + 1, step)
        _check_size(text, len(numbers) + (chosen[-1] - chosen[0]) // step + 1)  # len() has a limit
        width = len(first) if padded else 0
        numbers += [str(number).zfill(width) for number in chosen]
    return numbers


def _check_size(text: str, count: int) -> None:
    if count > MAX_HOSTS:
        shown = count if count < 10**18 else "far too many"
        raise _bad(text, f"it names {shown} hosts, more than {MAX_HOSTS}")


def _check_name(name: str, text: str) -> None:
    if is_host_name(name):
        return
    if name.startswith("-"):
        raise _bad(text, f"the name {name!r} begins with '-'")
    if "@" in name:
        raise _bad(text, f"{name!r} is not a host name; the user belongs in ssh: {{user: ..}}")
    if ":" in name:
        raise _bad(text, f"{name!r} is not a host name{_COLON}")
    raise _bad(text, f"{name!r} is not a host name")


def _group(name: str, text: str, groups: Groups | None) -> Sequence[str]:
    if groups is None:
        raise _bad(text, "a group cannot be used here")
    if name not in groups:
        there = ", ".join(groups) or "none"
        raise UsageError(
            f"no group named {name!r}{did_you_mean(name, groups)}", fix=f"groups known here: {there}"
        )
    return groups[name]


def _rises(before: str, after: str) -> bool:
    """Whether two names differ only in their numbers, and the first number rises."""
    one, other = re.split(r"(\d+)", before), re.split(r"(\d+)", after)
    numbers = [int(n) for n in one[1::2]], [int(n) for n in other[1::2]]
    return one[::2] == other[::2] and numbers[0] < numbers[1]


def _fold_runs(runs: Sequence[list[str]]) -> Iterator[str]:
    left = _MANY
    for run in runs:
        groups = [re.findall(r"\d+", host) for host in run]
        changing = sum(len(set(numbers)) > 1 for numbers in zip(*groups, strict=True))
        if changing > 1:
            left -= len(run) ** (changing - 1)
        yield _fold_run(run) if len(groups[0]) <= _MOST_NUMBERS and left >= 0 else ",".join(run)


def _fold_run(run: list[str]) -> str:
    if len(run) == 1:
        return run[0]
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # 10 ms, only when there is something to fold

    folded = str(NodeSet.fromlist(run, resolver=RESOLVER_NOGROUP))
    # ClusterShell may still have changed the order (mixed padding, several dimensions).
    return folded if names(folded) == run else ",".join(run)
