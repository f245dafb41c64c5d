"""Do jobs work in the session in which they are started, and do they survive its end?

The checks use the same kind of session as `mnt launch`: not interactive, not a login shell.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator

from mnt.errors import counted
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.facts.system import Logind
from mnt.fleet import startup
from mnt.inventory.model import Host
from mnt.network.decision import NetworkDecision
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority
from mnt.preflight.registry import check, host_check, network_check

_SLOW = 2.0  # seconds
_BUSY = 2.0  # times the start time of Python, which shows how busy the host is
_LINE = 100  # characters shown of a start-up file's output

_PINNABLE = 2**30  # bytes; NCCL registers its buffers, and memory that a program sends without copies
_USUAL_FILES = 1024  # the soft limit of most distributions
_FILES_A_RANK = 4  # sockets of the store, of gloo and of NCCL, and some files

# Of a limit that no playbook can raise.
_KEPT = "; root there cannot raise it (no CAP_SYS_RESOURCE, as in a container)"

_SYSTEM_UIDS = 1000  # logind does not remove the objects of users below: SYS_UID_MAX
_YES = ("1", "yes", "y", "true", "t", "on")  # systemd.syntax(7)


@host_check("shell-slow", severity=Severity.WARN)
def shell_slow(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """The start-up files of the login shell take less than 2 s.

    They run before every command over SSH. The time is measured on the host, from the start of the shell to
    the start of Python. The limit is higher on a busy host, where Python itself starts slowly too.
    """
    session = facts.session
    if session is None:
        return
    took, python = session.shell_seconds, session.python_seconds
    if took is not None and python is not None and took > _SLOW + _BUSY * python:
        shell = _shell(facts) or "the shell"
        yield Problem(
            message=f"start-up files delay every command by {took:.1f} s",
            found=f"{took:.1f} s until {shell} has started Python",
            expected=f"less than {_SLOW:g} s",
            fix=startup.for_people_only(_shell(facts)),
        )


@host_check("shell-noise", severity=Severity.WARN)
def shell_noise(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """The start-up files of the login shell print nothing to standard output.

    `mnt` ignores such output. It breaks rsync, scp, sftp, and programs that read the output of pdsh or
    mpirun.
    """
    lines = facts.noise.strip().splitlines()
    if lines:
        yield Problem(
            message="start-up files print to standard output",
            found=lines[0][:_LINE],
            expected="nothing",
            fix=startup.for_people_only(_shell(facts)),
        )


def _shell(facts: HostFacts) -> str | None:
    return facts.login.shell if facts.login else None


def _start_up_file(facts: HostFacts) -> str:
    return startup.own_file(_shell(facts))


@check("umask", severity=Severity.WARN)
def umask(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same umask, and it leaves the owner all permissions.

    The umask decides who else can read checkpoints and logs on shared storage. A umask that removes
    permissions from the owner is a failure.
    """
    masks = fleet.reported(lambda facts: facts.session.umask if facts.session else None)
    for name, mask in masks.items():
        if mask & 0o700:
            yield Problem(
                hosts=(name,),
                message=f"umask {mask:04o} removes the owner's permissions from new files",
                found=f"{mask:04o}",
                expected="0022, 0002 or 0077",
                fix=f"set it in the first lines of {_start_up_file(fleet.facts[name])}: umask 022",
                severity=Severity.FAIL,
            )
    subject = Subject(
        "umask",
        fix=lambda host, mask: (
            f"set it in {_start_up_file(fleet.facts[host])}: umask {mask}; "
            "or UMASK for all users in /etc/login.defs"
        ),
        pin_value=str,
        tie_fix="set one umask in ~/.bashrc (zsh: ~/.zshenv) on every host: umask MASK",
    )
    yield from by_majority(subject, {name: f"{mask:04o}" for name, mask in masks.items()})


@host_check("session-path")
def session_path(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """PATH contains the directories of the system's programs, and no relative directory.

    Jobs get this PATH, with the directory of the interpreter in front. A relative or empty entry is a
    warning, because then the working directory of a job decides which programs it runs.
    """
    if facts.session is None:
        return
    directories = facts.session.path.split(":")
    if not {"/usr/bin", "/bin"} & set(map(posixpath.normpath, filter(None, directories))):
        yield Problem(
            message="PATH has neither /usr/bin nor /bin",
            found=facts.session.path or "empty",
            expected="at least /usr/local/bin:/usr/bin:/bin",
            fix="correct PATH where it is set: /etc/environment, ~/.ssh/environment or "
            f"{_start_up_file(facts)}",
        )
    elif relative := [entry or "an empty entry" for entry in directories if not entry.startswith("/")]:
        yield Problem(
            message=f"PATH has entries that depend on the working directory: {', '.join(relative)}",
            found=facts.session.path,
            expected="absolute directories",
            fix=f"remove them from PATH in {_start_up_file(facts)} or /etc/environment",
            severity=Severity.WARN,
        )


@network_check("memlock", playbook="tuning")
def memlock(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """If jobs train over RDMA, they may lock enough memory for the RDMA devices.

    A limit below 1 GiB is a failure in mode rdma. If the host has RDMA devices but does not use them, it is
    information. A user with CAP_IPC_LOCK, such as root, has no limit. In a container without
    CAP_SYS_RESOURCE not even root can raise it: then no playbook mends it.
    """
    trains = network.mode == "rdma"
    for host, facts in fleet.answers():
        session = facts.session
        if session is None or session.memlock is None or session.memlock >= _PINNABLE:
            continue
        if trains or (facts.rdma and facts.rdma.devices):
            message = f"only {session.memlock // 1024} KiB of memory may be locked, but RDMA needs more"
            kept = session.memlock_most is not None and session.memlock_most < _PINNABLE
            yield Problem(
                hosts=(host.name,),
                message=message + _KEPT if kept else message,
                found=f"{session.memlock // 1024} KiB",
                expected="unlimited",
                fix="start the container with a higher limit: docker run --ulimit memlock=-1"
                if kept
                else "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf; "
                "if this has no effect, set LimitMEMLOCK=infinity for ssh.service",
                severity=Severity.FAIL if trains else Severity.INFO,
                playbook=None if kept else "tuning",
            )


@check("nofile", severity=Severity.WARN, playbook="tuning")
def nofile(fleet: FleetFacts) -> Iterator[Problem]:
    """A process may open as many files as a job of this size needs: 1024, or on large clusters 4 per rank.

    In a container without CAP_SYS_RESOURCE not even root can raise the limit: then no playbook mends it.
    """
    ranks = sum(host.slots for host in fleet.hosts)
    needed = max(_USUAL_FILES, _FILES_A_RANK * ranks)
    for name, session in fleet.reported(lambda facts: facts.session).items():
        if session.nofile is None or session.nofile >= needed:
            continue
        message = f"a process may open only {session.nofile} files; {counted(ranks, 'rank')} need {needed}"
        kept = session.nofile_most is not None and session.nofile_most < needed
        yield Problem(
            hosts=(name,),
            message=message + _KEPT if kept else message,
            found=f"{session.nofile} files",
            expected=f"at least {needed} files",
            fix="start the container with a higher limit: docker run --ulimit nofile=1048576"
            if kept
            else f"remove `ulimit -n` from {_start_up_file(fleet.facts[name])} if it is there; else: "
            "echo '* - nofile 1048576' | sudo tee /etc/security/limits.d/nofile.conf",
            playbook=None if kept else "tuning",
        )


@host_check("ulimit", playbook="tuning")
def ulimit(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """The hard limits allow jobs what `ulimit` in the inventory says.

    A supervisor raises the soft limits of a job as far as the hard limits of the login allow it.
    """
    for found in facts.session.ulimit if facts.session else ():
        yield Problem(
            message=found.message,
            found=found.message,
            expected=f"{host.ulimit.numbers} (inventory: ulimit; -1 is unlimited)",
            fix=found.fix or "mnt setup tuning",
        )


@host_check("session-linger", severity=Severity.WARN, playbook="tuning")
def session_linger(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """A detached job survives the session that started it, and keeps its shared memory.

    With KillUserProcesses=yes systemd-logind kills the processes of a session when the session ends.
    Lingering does not prevent this, because it only keeps processes below user@.service. With RemoveIPC=yes
    logind removes the user's objects in /dev/shm when the last session of the user ends. A job in a session
    that logind knows prevents this. Any other job loses its objects unless the user lingers. The settings are
    read from logind.conf(5) and its drop-ins. Neither applies to root, and RemoveIPC does not apply to system
    users.
    """
    login, logind = facts.login, facts.logind
    if login is None or logind is None or login.uid == 0:
        return
    user = login.user or str(login.uid)
    kept = logind.lingers or facts.session is None or facts.session.scope is not None
    if _kills(logind, user):
        yield Problem(
            message="logind kills detached jobs when the session ends",
            found=f"{_kill_setting(logind)} for {user}",
            expected="KillUserProcesses=no, or the user in KillExcludeUsers",
            fix=_keep_processes(logind, user),
            playbook=None,  # it is a policy of the administrator
        )
    elif not kept and login.uid >= _SYSTEM_UIDS and _setting(logind, "RemoveIPC"):
        yield Problem(
            message="logind removes a job's objects in /dev/shm when the user logs out",
            found=f"RemoveIPC=yes, and {user} does not linger",
            expected="RemoveIPC=no, or a user who lingers",
            fix=f"sudo loginctl enable-linger {shlex.quote(user)}",
        )


def _keep_processes(logind: Logind, user: str) -> str:
    """The command; users that KillOnlyUsers names are killed whatever KillUserProcesses is."""
    named = user in logind.settings.get("KillOnlyUsers", "").split()
    excluded = f"{logind.settings.get('KillExcludeUsers') or 'root'} {user}"
    setting = f"KillExcludeUsers={excluded}" if named else "KillUserProcesses=no"
    text = shlex.quote(f"[Login]\\n{setting}\\n")
    return (
        "sudo mkdir -p /etc/systemd/logind.conf.d && "
        f"printf {text} | sudo tee /etc/systemd/logind.conf.d/zz-mnt.conf && "
        "sudo systemctl kill -s HUP systemd-logind"
    )


def _kills(logind: Logind, user: str) -> bool:
    """In the order of logind.conf(5): excluded users, then named users, then the setting for all."""
    named = logind.settings.get("KillOnlyUsers", "").split()
    if user in logind.settings.get("KillExcludeUsers", "").split():
        return False
    return user in named if named else _setting(logind, "KillUserProcesses")


def _kill_setting(logind: Logind) -> str:
    names = ("KillOnlyUsers", "KillUserProcesses")
    return next((f"{name}={logind.settings[name]}" for name in names if logind.settings.get(name)), "default")


def _setting(logind: Logind, name: str) -> bool:
    """The value of a setting; else, if logind runs, the default in the distribution's file."""
    value = logind.settings.get(name) or (logind.defaults.get(name, "no") if logind.booted else "no")
    return value.lower() in _YES
