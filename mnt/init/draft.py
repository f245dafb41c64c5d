"""What a first inventory says about hosts, each value with the reason for it. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from mnt import typed
from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Mounted, PathFacts
from mnt.facts.survey import Survey
from mnt.init import environments, training
from mnt.init.environments import Choice
from mnt.init.training import Training
from mnt.inventory.hostlist import brief
from mnt.inventory.schema import InventoryFile
from mnt.network.decision import NetworkDecision

# Types whose source names the server: the same on all hosts, and worth a check.
_NAMED_SOURCES = ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs")

_UNKNOWN_NAME = (
    "check the name; if another ssh_config than ~/.ssh/config has it: mnt init --ssh-config FILE; "
    "else set its `address` in the inventory"
)
_TEMPLATE = re.compile(r"\{[{%#]")  # what begins a template of Ansible's
_SHOWN = 200  # characters of a value that no inventory can have


@dataclass(frozen=True)
class Setting:
    """A value for a key of the inventory. `reason`: why, for a comment; empty: it needs none."""

    key: tuple[str, ...]  # ("defaults", "python")
    value: Any  # what YAML can hold
    reason: str = ""


@dataclass(frozen=True)
class HostEntry:
    """A host of the inventory."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # nic, gpus, ..
    note: str = ""  # what it is: `10.0.0.1, debian 12, 8 x H200`
    problem: str | None = None  # why nothing is known about it
    fix: str | None = None


@dataclass(frozen=True)
class Draft:
    """A first inventory. `hosts` are in rank order; `notes` are for the user, not for the file."""

    hosts: tuple[HostEntry, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What the hosts said. Every host is in `facts.facts` and `surveys`, or in `errors`."""

    facts: FleetFacts
    surveys: Mapping[str, Survey]
    errors: Mapping[str, HostError]
    numeric: Mapping[str, str] = field(default_factory=dict)  # where SSH goes, by host: an IPv4 address

    def known(self) -> dict[str, HostFacts]:
        """The facts of the hosts that answered, each machine once, in rank order."""
        twins = self.facts.twins()
        return {
            host.name: facts
            for host, facts in self.facts.answers()
            if host.name in self.surveys and host.name not in twins
        }


def candidates(found: Found) -> list[str]:
    """The storage that all hosts may share: one type of mount at the same place, which hangs nowhere."""
    surveys = [found.surveys[host] for host in found.known()]
    if len(surveys) < 2:
        return []
    points = Counter(
        (mount.point, mount.type)
        for survey in surveys
        for mount in survey.storage
        if mount.point in survey.paths and survey.paths[mount.point].kind == "dir"
    )
    return [point for (point, _), count in points.items() if count == len(surveys)]


def propose(found: Found, shared: Sequence[str]) -> Draft:
    """The inventory without a network mode and RDMA devices (`with_rdma`).

    Args:
        shared: the mount points of `candidates` at which all hosts see the same files.
    """
    known = found.known()
    surveys = {host: found.surveys[host] for host in known}
    workdir = _workdir(known, surveys, shared)
    environment = environments.choose(known, surveys, f"{workdir.value}-env/bin/python")
    network = training.propose(
        known, found.numeric, {host: survey.routes for host, survey in surveys.items()}
    )
    gpus = {host: len(facts.gpus.usable) if facts.gpus else 0 for host, facts in known.items()}
    usual = Counter(gpus.values()).most_common(1)[0][0] if gpus else 0
    settings = [*(_defaults(environment, workdir, usual) if known else ()), *_network(network)]
    settings += [*_storage(surveys, shared), *_require(environment)]
    entries = [
        _entry(
            host.name,
            found,
            network,
            {} if gpus.get(host.name, usual) == usual else {"gpus": gpus[host.name]},
        )
        for host in found.facts.hosts
    ]
    return Draft(tuple(entries), tuple(settings), tuple(_notes(known, environment, network)))


def with_rdma(draft: Draft, decision: NetworkDecision) -> Draft:
    """The draft with the RDMA devices that a job would use; unchanged if it would use none."""
    devices = {host: [hca.label for hca in node.hcas] for host, node in decision.nodes.items() if node.hcas}
    if decision.mode != "rdma" or not devices:
        return draft
    first = next(iter(devices.values()))
    if all(each == first for each in devices.values()):
        setting = Setting(("network", "rdma"), {"devices": first}, decision.reason)
        return replace(draft, settings=(*draft.settings, setting))
    hosts = [
        replace(entry, settings={**entry.settings, "network": {"rdma": {"devices": devices[entry.name]}}})
        if entry.name in devices
        else entry
        for entry in draft.hosts
    ]
    return replace(draft, hosts=tuple(hosts))


def writable(draft: Draft) -> Draft:
    """The draft without values that no inventory can have: what a host names is the problem of that host."""
    kept = [setting for setting in draft.settings if _fits(_nested(setting.key, setting.value))]
    notes = [
        f"{'.'.join(setting.key)} is left out: no inventory can have {setting.value!r}"[:_SHOWN]
        for setting in draft.settings
        if setting not in kept
    ]
    hosts = tuple(map(_writable, draft.hosts))
    return replace(draft, hosts=hosts, settings=tuple(kept), notes=(*draft.notes, *notes))


def _writable(entry: HostEntry) -> HostEntry:
    wrong = [
        f"{key} {value!r}"
        for key, value in entry.settings.items()
        if not _fits(_nested(("hosts", entry.name, key), value))
    ]
    if not wrong:
        return entry
    problem = f"no inventory can have what it names: {', '.join(wrong)}"[:_SHOWN]
    return HostEntry(entry.name, problem=problem, fix="give it another name on the host")


def _nested(key: Sequence[str], value: Any) -> Any:
    """`{"defaults": {"python": value}}`."""
    for part in reversed(key):
        value = {part: value}
    return value


def _fits(document: Mapping[str, Any]) -> bool:
    """Whether an inventory can have these values.

    The loader accepts them, all their characters are shown, and Ansible finds no template in them.
    """
    try:
        typed.convert({"hosts": {}, **document}, InventoryFile, lambda kind, value: kind(value))
    except typed.Misfit:
        return False
    text = json.dumps(document, ensure_ascii=False)
    return text.isprintable() and not _TEMPLATE.search(text)


def _entry(name: str, found: Found, network: Training, more: Mapping[str, Any]) -> HostEntry:
    if name in found.errors:
        error = found.errors[name]
        fix = _UNKNOWN_NAME if error.phase == "resolve" else error.advice
        return HostEntry(name, problem=f"{error.phase}: {error.reason}", fix=fix)
    if first := found.facts.twins().get(name):
        return HostEntry(name, problem=f"the same machine as {first}", fix="leave one of them out")
    nic = {"nic": network.nics[name]} if name in network.nics else {}
    # No `address`: ssh finds the host by its name, by which ssh_config may have more than a HostName for it.
    address = found.numeric.get(name, "")
    about = ", ".join(filter(None, [address, _described(found.facts.facts[name])]))
    return HostEntry(name, {**nic, **more}, about)


def _described(facts: HostFacts) -> str:
    system = f"{facts.os.id} {facts.os.version or ''}".strip() if facts.os else ""
    rows = facts.gpus.usable if facts.gpus else ()
    kinds = Counter(row.name or "GPU" for row in rows)
    return ", ".join(filter(None, [system, *(f"{count} x {kind}" for kind, count in kinds.items())]))


def _defaults(environment: Choice, workdir: Setting, gpus: int) -> list[Setting]:
    return [
        Setting(("defaults", "python"), environment.python, environment.reason),
        workdir,
        Setting(("defaults", "gpus"), gpus, "" if gpus else "no GPU was found: one process on each host"),
    ]


def _workdir(known: Mapping[str, HostFacts], surveys: Mapping[str, Survey], shared: Sequence[str]) -> Setting:
    """Where the releases go: to shared storage, if the user can write to it on every host."""
    key = ("defaults", "workdir")
    homes = {survey.home.point for survey in surveys.values() if survey.home is not None}
    if len(homes) == 1 and homes <= {*shared}:
        return Setting(key, "~/mnt", f"the home directory is on {homes.pop()}, which all hosts share")
    names = {facts.login.user for facts in known.values() if facts.login is not None and facts.login.user}
    room = {point: _room([survey.paths[point] for survey in surveys.values()]) for point in shared}
    point = max(room, key=room.__getitem__, default="")
    if len(names) == 1 and room.get(point):
        place = f"{point.rstrip('/')}/{names.pop()}/mnt"
        return Setting(key, place, f"all hosts share {point}: a push copies to it once")
    return Setting(key, "~/mnt", "each host has its own: what is pushed is copied to every host")


def _room(states: Sequence[PathFacts]) -> int:
    """Bytes that the user can write to a place on every host; 0: not on all of them."""
    return min(state.space.free if state.write == "ok" and state.space else 0 for state in states)


def _network(network: Training) -> list[Setting]:
    if network.subnet is None:
        return []
    return [Setting(("network", "subnet"), network.subnet, network.reason)]


def _storage(surveys: Mapping[str, Survey], shared: Sequence[str]) -> list[Setting]:
    mounts = [_mount(point, [_at(survey, point) for survey in surveys.values()]) for point in shared]
    return [Setting(("storage",), mounts, "what one host writes here, all others see")] if mounts else []


def _at(survey: Survey, point: str) -> Mounted:
    return next(mount for mount in survey.storage if mount.point == point)


def _mount(point: str, mounts: Sequence[Mounted]) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": point, "type": mounts[0].type}
    sources = {mount.source for mount in mounts}
    if len(sources) == 1 and (mounts[0].type in _NAMED_SOURCES or mounts[0].type.startswith("fuse.")):
        entry["source"] = sources.pop()
    return entry


def _require(environment: Choice) -> list[Setting]:
    pins = {
        name: f"=={_public(version)}" for name, version in environment.packages.items() if _public(version)
    }
    return [Setting(("require",), pins, "what all hosts have now")] if pins else []


def _public(version: str) -> str | None:
    """The version without the part after `+`, which the builds of one release differ in."""
    try:
        return Version(version[:100]).public
    except InvalidVersion:
        return None


def _notes(known: Mapping[str, HostFacts], environment: Choice, network: Training) -> list[str]:
    notes = []
    if known and environment.missing:
        notes.append(f"python: {environment.reason}")
    notes += environment.notes
    if len(known) > 1 and network.subnet is None:
        notes.append(f"training network: {network.reason}")
    lost = [
        host for host, facts in known.items() if facts.gpus and facts.gpus.on_bus and not facts.gpus.usable
    ]
    if lost:
        notes.append(f"{brief(lost)}: GPUs are on the bus, and nvidia-smi shows none: install the driver")
    return notes
