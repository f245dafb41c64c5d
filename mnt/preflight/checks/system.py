"""Do the hosts have enough free memory, and the right time?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Memory
from mnt.inventory.model import Host
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check, host_check
from mnt.preflight.writes import full_below

_MIB = 2**20
_GIB = 2**30
_AGREE, _FAR = 1.0, 30.0  # seconds

_SHM_A_RANK = 64 * _MIB  # buffers of NCCL and gloo for the other ranks on the same host
_SHM_USUAL = _GIB  # with less, data loaders run out of shared memory
_LITTLE = 0.05  # of the memory
_SWAPPED = 0.1  # of the memory


class Offset(NamedTuple):
    """The seconds by which a host's clock is ahead of the head's, plus or minus `uncertainty`."""

    seconds: float
    uncertainty: float

    def __sub__(self, other: Offset) -> Offset:
        return Offset(self.seconds - other.seconds, self.uncertainty + other.uncertainty)

    @property
    def certain(self) -> float:
        """The offset that is left if all uncertainty is subtracted."""
        return max(0.0, abs(self.seconds) - self.uncertainty)


HEAD = Offset(0.0, 0.0)


def reference(offsets: Mapping[str, Offset]) -> Offset:
    """The clock with which most clocks agree, the head's included; in a tie, the head's has precedence."""
    clocks = [HEAD, *offsets.values()]
    return max(clocks, key=lambda clock: sum((other - clock).certain <= _AGREE for other in clocks))


@check("clock", severity=Severity.WARN)
def clock(fleet: FleetFacts) -> Iterator[Problem]:
    """The clocks of all hosts agree within a second. A difference of more than 30 s is a failure.

    The difference is measured over one round trip of a program that already runs on the host. Half of the
    round trip is uncertain, and is counted in favour of the host. The right time is the one on which most
    hosts and this machine agree. If the clock of this machine is wrong, that is information. These clocks
    give files and log lines their times, and failures their order.
    """
    offsets = {
        host.name: Offset(facts.clock_offset, facts.clock_uncertainty)
        for host, facts in fleet.answers()
        if facts.clock_uncertainty is not None
    }
    right = reference(offsets)
    for name, offset in offsets.items():
        wrong = offset - right
        if wrong.certain > _AGREE:
            yield Problem(
                hosts=(name,),
                message=f"the clock is {_described(wrong)}",
                found=f"{wrong.seconds:+.1f} s, plus or minus {wrong.uncertainty:.2f} s",
                expected=f"the time of most clocks, within {_AGREE:g} s",
                fix="sudo timedatectl set-ntp true; then check: timedatectl timesync-status",
                severity=Severity.FAIL if wrong.certain > _FAR else None,
            )
    ours = HEAD - right
    if ours.certain > _AGREE:
        yield Problem(
            hosts=tuple(name for name, offset in offsets.items() if (offset - right).certain <= _AGREE),
            message=f"the clock of the machine that runs mnt is {_described(ours)}; theirs are right",
            found=f"{ours.seconds:+.1f} s, plus or minus {ours.uncertainty:.2f} s",
            expected=f"the time of most hosts, within {_AGREE:g} s",
            fix="on this machine: sudo timedatectl set-ntp true",
            severity=Severity.INFO,
        )


def _described(offset: Offset) -> str:
    return f"{abs(offset.seconds):.1f} s {'ahead' if offset.seconds > 0 else 'behind'}"


@host_check("shm", playbook="tuning")
def shm(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """/dev/shm is mounted, and has enough free space for the ranks of a host and their data loaders.

    Less than 64 MiB per rank is a failure, because NCCL cannot start. Less than 1 GiB in total is a warning.
    Often files of killed jobs take the space. If it is full, `writable` tells.
    """
    if facts.memory is None or full_below(facts, "/dev/shm"):
        return
    space = facts.memory.shm
    needed = _SHM_A_RANK * host.slots
    if space is None:
        yield Problem(
            message="nothing is mounted at /dev/shm",
            found="no separate file system",
            expected="a tmpfs",
            fix="sudo mount -t tmpfs -o rw,nosuid,nodev,mode=1777 tmpfs /dev/shm",
        )
    elif space.size and space.free < max(needed, _SHM_USUAL):
        small = space.size < max(needed, _SHM_USUAL)
        message = f"/dev/shm has {space.free // _MIB} of {space.size // _MIB} MiB free"
        fixed = small and facts.memory.shm_fixed
        yield Problem(
            message=f"{message}; root there cannot enlarge it (no CAP_SYS_ADMIN, as in a container)"
            if fixed
            else message,
            found=f"{space.free // _MIB} MiB free",
            expected=f"at least {max(needed, _SHM_USUAL) // _MIB} MiB free",
            fix="start the container with a larger one: docker run --shm-size=64g"
            if fixed
            else "sudo mount -o remount,size=50% /dev/shm"
            if small
            else "remove files of killed jobs: ls -l /dev/shm",
            playbook="tuning" if small and not fixed else None,
            severity=Severity.FAIL if space.free < needed else Severity.WARN,
        )


@host_check("memory", severity=Severity.WARN)
def memory(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """At least 5 % of the memory is available without swapping."""
    known = facts.memory or Memory()
    if known.total and known.available is not None and known.available < _LITTLE * known.total:
        yield Problem(
            message=f"only {_gib(known.available)} of {_gib(known.total)} of memory is available",
            found=_gib(known.available),
            expected=f"at least {_gib(int(_LITTLE * known.total))}",
            fix="find the processes that use it: ps -eo pid,user,rss,args --sort=-rss | head",
        )


@host_check("swap", severity=Severity.WARN)
def swap(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """Swap usage is less than 10 % of the memory: swapping slows a rank, and all other ranks wait for it."""
    known = facts.memory or Memory()
    if known.total and known.swap and known.swap_free is not None:
        used = known.swap - known.swap_free
        if used > _SWAPPED * known.total:
            yield Problem(
                message=f"{_gib(used)} of memory is swapped out",
                found=_gib(used),
                expected=f"less than {_gib(int(_SWAPPED * known.total))}",
                fix="end processes that are not needed; then: sudo swapoff -a && sudo swapon -a",
            )


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
