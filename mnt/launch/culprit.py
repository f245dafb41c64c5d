"""Which failure of a job's nodes came first, and which ones were its consequences. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mnt.inventory.hostlist import fold
from mnt.launch.nodes import Node

if TYPE_CHECKING:
    from mnt.tasks.job import Failure, JobEntry

_GONE = {"lost": "its supervisor was killed", "unreachable": "it cannot be reached"}
_AT_ONCE = 0.05  # seconds
_REBOOTED = "it was rebooted while the job ran"


@dataclass(frozen=True)
class Culprit:
    """Where and why a job failed. `rank` is global; None: the host itself failed, not a process."""

    host: str
    rank: int | None
    exit_code: int | None
    message: str
    traceback: str | None = None

    def document(self) -> dict[str, Any]:
        return {"host": self.host, "rank": self.rank, "exit_code": self.exit_code, "message": self.message}

    def sentence(self) -> str:
        """The culprit in one line, for people."""
        rank = f"rank {self.rank}"
        named = self.rank is None or re.match(rf"{rank}\b", self.message)
        where = self.host if named else f"{self.host}, {rank}"
        told = self.exit_code is None or re.search(rf"\bcode {self.exit_code}\b", self.message)
        return f"{where}: {self.message}" + ("" if told else f" (exit code {self.exit_code})")


def why_lost(entry: JobEntry) -> str:
    """Why a node is lost that answers: nobody there cares for the job any more."""
    if entry["failure"]:
        return entry["failure"]["message"]
    return _REBOOTED if entry.get("rebooted") else _GONE["lost"]


def find_culprit(nodes: Sequence[Node]) -> Culprit | None:
    """The first failure that is no consequence of another; else a lost host; else the first failure.

    None if nothing is known to have failed: see `_RULES`.
    """
    return next((culprit for rule in _RULES for culprit in rule(nodes)), None)


def _first_failures(nodes: Sequence[Node]) -> Iterator[Culprit]:
    return (_culprit(host, failure) for _, host, failure in _in_time(nodes) if not failure["victim"])


def _rebooted(nodes: Sequence[Node]) -> Iterator[Culprit]:
    return (Culprit(node.host, None, None, _REBOOTED) for node in nodes if node.rebooted)


def _without_nic(nodes: Sequence[Node]) -> Iterator[Culprit]:
    """Hosts that say that their own NIC is down: one that is cut off has lost others, too."""
    for node in nodes:
        if nic := node.reason.get("nic"):
            yield Culprit(node.host, None, None, f"its training NIC {nic} is down")


def _lost(nodes: Sequence[Node]) -> Iterator[Culprit]:
    """The hosts that others have lost; first the one that most have."""
    states = {node.host: node.state for node in nodes}
    for host, witnesses in sorted(_votes(nodes).items(), key=lambda vote: -len(vote[1])):
        said = f"{fold(witnesses)} lost contact with it"
        yield Culprit(host, None, None, _GONE.get(states.get(host, ""), said))


def _gone(nodes: Sequence[Node]) -> Iterator[Culprit]:
    return (Culprit(node.host, None, None, _GONE[node.state]) for node in nodes if node.state in _GONE)


def _victims(nodes: Sequence[Node]) -> Iterator[Culprit]:
    return (_culprit(host, failure) for _, host, failure in _in_time(nodes))


def _witnesses(nodes: Sequence[Node]) -> Iterator[Culprit]:
    """What a node says of another, and does not count, counts against the one that says it."""
    for node in nodes:
        if host := node.reason.get("lost"):
            yield Culprit(node.host, None, None, f"it says that it lost contact with {host}")
        elif node.state == "failed" and (host := node.reason.get("peer")):
            yield Culprit(node.host, None, None, f"it says that {host} has failed")


# Each names candidates; the first candidate of all is the culprit.
_RULES: tuple[Callable[[Sequence[Node]], Iterator[Culprit]], ...] = (
    _first_failures,
    _rebooted,
    _without_nic,
    _lost,
    _gone,
    _victims,
    _witnesses,
)


def _votes(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """The hosts that others have lost, each with those that say so.

    A host is not lost that says itself that it has finished, or that is no node of the job.
    """
    may_be_lost = {node.host for node in nodes if node.state != "finished"}
    votes: dict[str, list[str]] = {}
    for node in nodes:
        host = node.reason.get("lost")
        if host in may_be_lost and _counts(nodes, node, host):
            votes.setdefault(host, []).append(node.host)
    return votes


def _counts(nodes: Sequence[Node], witness: Node, host: str) -> bool:
    """Whether a node's word about another one counts.

    Node 0 knows of each other node how it ended or that it is lost, and each other node only that of node 0
    (`mnt.remote.job.peers`). The others repeat what node 0 has told them: their word counts if it cannot be
    asked. No word counts of a node that, as others say, was the first to end.
    """
    master = next((node for node in nodes if node.node_rank == 0), None)
    decides = master is None or master.entry is None or master.host in (host, witness.host)
    return decides and not any(
        other.reason.get("peer") == witness.host for other in nodes if other is not witness
    )


def _culprit(host: str, failure: Failure) -> Culprit:
    return Culprit(host, failure["rank"], failure["exit_code"], failure["message"], failure["traceback"])


def _in_time(nodes: Sequence[Node]) -> list[tuple[float, str, Failure]]:
    """The failures, the first one first; of those that come at once, that of the lowest node rank.

    The clocks of the hosts are known to some hundredths of a second, and anew each time: the answer may not
    differ each time.
    """
    found = sorted(_failures(nodes), key=lambda failure: failure[0])
    rank = {node.host: node.node_rank for node in nodes}
    at_once = [failure for failure in found if failure[0] - found[0][0] < _AT_ONCE]
    return sorted(at_once, key=lambda failure: rank.get(failure[1], 0)) + found[len(at_once) :]


def _failures(nodes: Sequence[Node]) -> Iterable[tuple[float, str, Failure]]:
    """(time by the head's clock, host, failure) of each node, also of nodes that only a peer reported.

    A node's own report is preferred, because only that has the traceback.
    """
    for node in nodes:
        if node.entry is not None and node.entry["failure"] is not None and not node.reason.get("lost"):
            failure = node.entry["failure"]
            yield (failure["time"] or node.entry["ended"] or 0.0) - node.clock_offset, node.host, failure
    for node, host, failure in heard(nodes):
        yield (failure["time"] or 0.0) - node.clock_offset, host, failure


def heard(nodes: Sequence[Node]) -> Iterable[tuple[Node, str, Failure]]:
    """(witness, host, failure) of each host that cannot be asked, and whose failure ended the witness.

    The message is shown as the word of the witness. A host that answers that it has no part of the job is no
    such host.
    """
    unheard = {node.host for node in nodes if node.entry is None and node.state != "absent"}
    for node in nodes:
        peer, failure = node.reason.get("peer"), node.reason.get("failure")
        if peer in unheard and failure and _counts(nodes, node, peer):
            message = f"as {node.host} says: {failure['message']}"
            yield node, peer, {**failure, "message": message, "traceback": None}
