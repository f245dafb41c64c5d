"""Do the hosts have the memory that jobs need, and the right time?"""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import Memory, Space
from mnt.preflight.clocks import AGREE, HEAD, Offset, reference
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check

_MIB = 2**20
_GIB = 2**30
_FAR = 30.0  # seconds

_SHM_A_RANK = 64 * _MIB  # NCCL's and gloo's buffers for one rank's neighbours on the same host
_SHM_USUAL = _GIB  # below that, data loaders run out of it
_LITTLE = 0.05  # of the memory
_SWAPPED = 0.1  # of the memory


@check("clock", severity=Severity.WARN)
def clock(fleet: FleetFacts) -> Iterator[Problem]:
    """All hosts have the same time, within a second; half a minute fails.

    Measured over one round trip of a program that runs on the host already; half of it is uncertain, and
    counts for the host. With what most hosts and this machine agree on, the others are compared; where this
    machine itself is off, that is only worth knowing. Files, logs and the order of failures are compared by
    these clocks.
    """
    offsets = {
        host.name: Offset(facts.clock_offset, facts.clock_uncertainty)
        for host, facts in fleet.answers()
        if facts.clock_uncertainty is not None
    }
    right = reference(offsets)
    for name, offset in offsets.items():
        wrong = offset - right
        if wrong.certain > AGREE:
            yield Problem(
                hosts=(name,),
                message=f"the clock is {_described(wrong)}",
                found=f"{wrong.seconds:+.1f} s, give or take {wrong.uncertainty:.2f} s",
                expected=f"the time of most clocks, within {AGREE:g} s",
                fix="sudo timedatectl set-ntp true; then see timedatectl timesync-status or chronyc tracking",
                severity=Severity.FAIL if wrong.certain > _FAR else None,
            )
    ours = HEAD - right
    if ours.certain > AGREE:
        yield Problem(
            hosts=tuple(name for name, offset in offsets.items() if (offset - right).certain <= AGREE),
            message=f"the clock of the machine that runs mnt is {_described(ours)}, not theirs",
            found=f"{ours.seconds:+.1f} s, give or take {ours.uncertainty:.2f} s",
            expected=f"the time of most hosts, within {AGREE:g} s",
            fix="on this machine: sudo timedatectl set-ntp true",
            severity=Severity.INFO,
        )


def _described(offset: Offset) -> str:
    return f"{abs(offset.seconds):.1f} s {'ahead' if offset.seconds > 0 else 'behind'}"


@check("shm")
def shm(fleet: FleetFacts) -> Iterator[Problem]:
    """/dev/shm is there, and has room for what the ranks of a host and their data loaders share.

    Less than 64 MiB a rank fails: NCCL cannot start then. Less than 1 GiB in all is a warning; so is room
    that is mostly taken, often by what killed jobs have left.
    """
    for host, facts in fleet.answers():
        if facts.memory is None:
            continue
        space = facts.memory.shm
        needed = _SHM_A_RANK * host.slots
        if space is None:
            yield Problem(
                hosts=(host.name,),
                message="nothing is mounted at /dev/shm",
                found="no file system of its own",
                expected="a tmpfs",
                fix="sudo mount -t tmpfs -o rw,nosuid,nodev,mode=1777 tmpfs /dev/shm",
            )
        elif space.size and space.free < max(needed, _SHM_USUAL):
            yield _little_shm(host.name, space, needed)


def _little_shm(host: str, space: Space, needed: int) -> Problem:
    small = space.size < max(needed, _SHM_USUAL)
    return Problem(
        hosts=(host,),
        message=f"/dev/shm has {space.free // _MIB} MiB left of {space.size // _MIB}",
        found=f"{space.free // _MIB} MiB free",
        expected=f"at least {max(needed, _SHM_USUAL) // _MIB} MiB free",
        fix="sudo mount -o remount,size=50% /dev/shm"
        if small
        else "see what killed jobs have left, and remove it: ls -l /dev/shm",
        severity=Severity.FAIL if space.free < needed else Severity.WARN,
    )


@check("memory", severity=Severity.WARN)
def memory(fleet: FleetFacts) -> Iterator[Problem]:
    """A twentieth of the memory is available, without swapping."""
    for host, facts in fleet.answers():
        known = facts.memory or Memory()
        if known.total and known.available is not None and known.available < _LITTLE * known.total:
            yield Problem(
                hosts=(host.name,),
                message=f"only {_gib(known.available)} of {_gib(known.total)} of memory are available",
                found=_gib(known.available),
                expected=f"at least {_gib(int(_LITTLE * known.total))}",
                fix="see who has it: ps -eo pid,user,rss,args --sort=-rss | head",
            )


@check("swap", severity=Severity.WARN)
def swap(fleet: FleetFacts) -> Iterator[Problem]:
    """Less is swapped out than a tenth of the memory: the slowest rank holds up all others."""
    for host, facts in fleet.answers():
        known = facts.memory or Memory()
        if known.total and known.swap and known.swap_free is not None:
            used = known.swap - known.swap_free
            if used > _SWAPPED * known.total:
                yield Problem(
                    hosts=(host.name,),
                    message=f"{_gib(used)} are swapped out",
                    found=_gib(used),
                    expected=f"less than {_gib(int(_SWAPPED * known.total))}",
                    fix="see who was swapped out, then take it back: sudo swapoff -a && sudo swapon -a",
                )


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
