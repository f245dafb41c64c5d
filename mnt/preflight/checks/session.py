"""Does the session in which jobs are started let them work, and go on after it ends?

Measured in the very kind of session that launch uses: not interactive, not a login shell.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.facts.system import Logind, Session
from mnt.network.decision import NetworkDecision
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import check, network_check

_SLOW = 2.0  # seconds
_BUSY = 2.0  # times as long as Python's own start, which tells how busy the host is
_LINE = 100  # characters of a start-up file's output that are shown

_PINNABLE = 2**30  # bytes; NCCL registers its buffers, and what a program sends without copies
_USUAL_FILES = 1024  # the soft limit that most distributions have
_FILES_A_RANK = 4  # sockets of the store, of gloo and of NCCL, and some files

_KEEP_PROCESSES = (
    "sudo mkdir -p /etc/systemd/logind.conf.d && "
    "printf '[Login]\\nKillUserProcesses=no\\n' | sudo tee /etc/systemd/logind.conf.d/mnt.conf && "
    "sudo systemctl kill -s HUP systemd-logind"
)
_SYSTEM_UIDS = 1000  # logind leaves what belongs to these alone: SYS_UID_MAX
_YES = ("1", "yes", "y", "true", "t", "on")  # systemd.syntax(7)


def _sessions(fleet: FleetFacts) -> Iterator[tuple[str, HostFacts, Session]]:
    for host, facts in fleet.answers():
        if facts.session is not None:
            yield host.name, facts, facts.session


@check("shell-slow", severity=Severity.WARN)
def shell_slow(fleet: FleetFacts) -> Iterator[Problem]:
    """The start-up files of the login shell are through within 2 s.

    They run before every command over SSH. Measured on the host, from the start of the shell to that of
    Python; a host that is slow at everything, where Python's own start takes long too, is given more.
    """
    for name, facts, session in _sessions(fleet):
        took, python = session.shell_seconds, session.python_seconds
        if took is not None and python is not None and took > _SLOW + _BUSY * python:
            shell = facts.login.shell if facts.login and facts.login.shell else "the shell"
            yield Problem(
                hosts=(name,),
                message=f"start-up files delay every command by {took:.1f} s",
                found=f"{took:.1f} s until {shell} has started Python",
                expected=f"less than {_SLOW:g} s",
                fix="let ~/.bashrc return first thing where the shell is not interactive: "
                "case $- in *i*) ;; *) return;; esac",
            )


@check("shell-noise", severity=Severity.WARN)
def shell_noise(fleet: FleetFacts) -> Iterator[Problem]:
    """The start-up files of the login shell print nothing to standard output.

    `mnt` reads past it; rsync, scp, sftp, and whoever reads the output of pdsh or mpirun, do not.
    """
    for host, facts in fleet.answers():
        lines = facts.noise.strip().splitlines()
        if lines:
            yield Problem(
                hosts=(host.name,),
                message="start-up files print to standard output",
                found=lines[0][:_LINE],
                expected="nothing",
                fix="let ~/.bashrc print where the shell is interactive only: case $- in *i*) echo ..;; esac",
            )


@check("umask", severity=Severity.WARN)
def umask(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same umask, and one that leaves users their own files.

    It decides who else can read checkpoints and logs on shared storage. One that takes rights from the owner
    fails.
    """
    masks = {name: session.umask for name, _, session in _sessions(fleet)}
    for name, mask in masks.items():
        if mask & 0o700:
            yield Problem(
                hosts=(name,),
                message=f"umask {mask:04o} takes new files from their own user",
                found=f"{mask:04o}",
                expected="0022, 0002 or 0077",
                fix="set it in ~/.bashrc, before anything returns: umask 022",
                severity=Severity.FAIL,
            )
    subject = Subject(
        "umask",
        "",
        fix=lambda host, _: "set it in ~/.bashrc, or for all in /etc/login.defs: UMASK",
        settle=lambda mask: f"umask {mask} in every ~/.bashrc",
    )
    yield from by_majority(subject, {name: f"{mask:04o}" for name, mask in masks.items()}, Severity.WARN)


@check("session-path")
def session_path(fleet: FleetFacts) -> Iterator[Problem]:
    """PATH has the directories of the system's own programs, and no relative one.

    Jobs get it as it is here, with the directory of the interpreter before it. A relative or empty entry is a
    warning: what runs would depend on where a job runs.
    """
    for name, _, session in _sessions(fleet):
        directories = session.path.split(":")
        if not {"/usr/bin", "/bin"} & set(map(posixpath.normpath, filter(None, directories))):
            yield Problem(
                hosts=(name,),
                message="PATH has neither /usr/bin nor /bin",
                found=session.path or "empty",
                expected="/usr/local/bin:/usr/bin:/bin, and what is added",
                fix="see what sets it: /etc/environment, ~/.ssh/environment, ~/.bashrc",
            )
        elif relative := [entry or "an empty entry" for entry in directories if not entry.startswith("/")]:
            yield Problem(
                hosts=(name,),
                message=f"PATH has entries that depend on the working directory: {', '.join(relative)}",
                found=session.path,
                expected="absolute directories",
                fix="take them out of PATH in ~/.bashrc or /etc/environment",
                severity=Severity.WARN,
            )


@network_check("memlock")
def memlock(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Where jobs train over RDMA, they may lock the memory that the devices read and write.

    Less than 1 GiB fails there; where an RDMA device is not used, it is only worth knowing. Whoever has
    CAP_IPC_LOCK, as root does, has no limit.
    """
    trains = network.mode == "rdma"
    for name, facts, session in _sessions(fleet):
        limit = session.memlock
        if limit is not None and limit < _PINNABLE and (trains or (facts.rdma and facts.rdma.devices)):
            yield Problem(
                hosts=(name,),
                message=f"only {limit // 1024} KiB of memory may be locked, and RDMA needs more",
                found=f"{limit // 1024} KiB",
                expected="unlimited",
                fix="echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf; "
                "if it does not help: LimitMEMLOCK=infinity for ssh.service",
                severity=Severity.FAIL if trains else Severity.INFO,
            )


@check("nofile", severity=Severity.WARN)
def nofile(fleet: FleetFacts) -> Iterator[Problem]:
    """A process may open as many files as a job of this size needs: 1024, and on large clusters 4 a rank."""
    ranks = sum(host.slots for host in fleet.hosts)
    needed = max(_USUAL_FILES, _FILES_A_RANK * ranks)
    for name, _, session in _sessions(fleet):
        if session.nofile is not None and session.nofile < needed:
            yield Problem(
                hosts=(name,),
                message=f"a process may open {session.nofile} files; {ranks} ranks need {needed}",
                found=str(session.nofile),
                expected=f"at least {needed}",
                fix="echo '* - nofile 1048576' | sudo tee /etc/security/limits.d/nofile.conf",
            )


@check("session-linger", severity=Severity.WARN)
def session_linger(fleet: FleetFacts) -> Iterator[Problem]:
    """A detached job outlives the session that started it, and keeps its shared memory.

    With KillUserProcesses=yes systemd-logind kills what a session has started when it ends; lingering does
    not help against that, for it keeps only what runs below user@.service. With RemoveIPC=yes it removes the
    objects in /dev/shm once the user is logged out everywhere: a job in a session that logind knows holds
    that off, any other job loses them unless the user lingers. Read from logind.conf(5) and its drop-ins.
    Root is exempt from both, system users from the latter.
    """
    for host, facts in fleet.answers():
        login, logind = facts.login, facts.logind
        if login is None or logind is None or login.uid == 0:
            continue
        user = login.user or str(login.uid)
        if _kills(logind, user):
            yield Problem(
                hosts=(host.name,),
                message="logind kills detached jobs when the session ends",
                found=f"{_told(logind)} for {user}",
                expected="KillUserProcesses=no, or the user in KillExcludeUsers",
                fix=_KEEP_PROCESSES,
            )
        elif _removes(logind, facts.session) and login.uid >= _SYSTEM_UIDS:
            yield Problem(
                hosts=(host.name,),
                message="logind removes a job's objects in /dev/shm when the user logs out",
                found=f"RemoveIPC=yes, and {user} does not linger",
                expected="RemoveIPC=no, or a user who lingers",
                fix=f"sudo loginctl enable-linger {user}",
            )


def _kills(logind: Logind, user: str) -> bool:
    """In the order of logind.conf(5): who is excluded, then who is named, then all."""
    named = logind.settings.get("KillOnlyUsers", "").split()
    if user in logind.settings.get("KillExcludeUsers", "").split():
        return False
    return user in named if named else _setting(logind, "KillUserProcesses")


def _told(logind: Logind) -> str:
    names = ("KillOnlyUsers", "KillUserProcesses")
    return next((f"{name}={logind.settings[name]}" for name in names if logind.settings.get(name)), "default")


def _removes(logind: Logind, session: Session | None) -> bool:
    held_off = logind.lingers or session is None or session.scope is not None
    return not held_off and _setting(logind, "RemoveIPC")


def _setting(logind: Logind, name: str) -> bool:
    """What is set; else, where logind runs at all, the default that the distribution's file tells."""
    value = logind.settings.get(name) or (logind.defaults.get(name, "no") if logind.booted else "no")
    return value.lower() in _YES
