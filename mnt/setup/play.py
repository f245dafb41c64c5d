"""The edge of `mnt setup`: runs a playbook in a process of its own, and turns its events into results."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypedDict

from msgspec import Meta

from mnt.errors import HostError, MntError, UsageError
from mnt.inventory.hostlist import brief
from mnt.remote.common.files import parse_json, strerror
from mnt.remote.common.owners import make_private_directory
from mnt.remote.common.refusal import Refused
from mnt.setup import below
from mnt.setup.hosts import literal
from mnt.setup.playbooks import Playbook
from mnt.tasks.shape import shaped

_LONGEST = 600  # characters of a task's message, and of a line of a report
_MOST_REPORTED = 100  # lines of a host
_MOST_TOLD = 1 << 20  # bytes of events at a time
_TAIL = 64 * 1024  # bytes of Ansible's output that are searched for its last words
_TICK = 0.1  # seconds
# Seconds after the limit of a task in which Ansible tells that it, or an item of its loop, has ended.
_SLACK = 300.0
_MOST_KEPT = 256 << 20  # bytes of memory for what all hosts have answered, in Ansible's main process
_MOST_KEPT_OF_ONE, _LEAST_KEPT_OF_ONE = 32 << 20, 16 << 20  # of one host
_SETTINGS = """\
[defaults]
forks = 32
interpreter_python = auto_silent
retry_files_enabled = false
deprecation_warnings = false
host_key_checking = true
inject_facts_as_vars = false
fact_caching = memory
task_timeout = {seconds}
local_tmp = {private}/{temporary}
transport = mnt_ssh
connection_plugins = {plugins}
[connection]
pipelining = true
[ssh_connection]
ssh_args = -o ControlMaster=auto -o ControlPersist=30
control_path_dir = {private}/cp
"""
_END = "The playbook has come to its end"
# The last play runs on the hosts for which the playbook has come to its end: of the others, one may have
# failed, or Ansible has ended it for all.
_PLAYS = """\
- import_playbook: {file}
- name: {end}
  hosts: all
  gather_facts: false
  become: false
  tasks:
    - name: {end}
      ansible.builtin.debug:
        msg: ""
"""
# A process that imports what this one does, whatever is in its directory.
_START = "import sys; sys.path[:] = sys.argv[1:]; from mnt.setup.below import main; main()"

_Text = Annotated[str, Meta(max_length=2000)]


class Told(TypedDict):
    """An event, as callback/awx_display.py tells it. Its texts are a host's words."""

    # answer: the address has answered, which is not a result yet; item: something goes on, in a loop
    event: Literal["task", "ok", "skipped", "failed", "unreachable", "end", "answer", "item"]
    host: str  # "": of none; the address for `answer`
    task: _Text
    changed: bool
    messages: Annotated[list[_Text], Meta(max_length=16)]  # in a loop, of each item that failed
    report: Annotated[list[_Text], Meta(max_length=17)]  # what the playbook says to people
    stderr: _Text  # the end of it


@dataclass
class HostResult:
    """What a playbook did on a host.

    `problem`: the task that failed, and what it said; None: none did. `fix`: how to repair it, if known.
    """

    ok: int = 0
    changed: int = 0
    skipped: int = 0
    problem: str | None = None
    fix: str | None = None
    unreachable: bool = False
    ended: bool = False  # the playbook has come to its end here
    reports: list[str] = field(default_factory=list)  # lines that the playbook says of the host

    @property
    def status(self) -> str:
        """ok, changed, failed, unreachable, or stopped: another host failed, or Ansible did."""
        if self.unreachable:
            return "unreachable"
        if self.problem is not None:
            return "failed"
        if not self.ended:
            return "stopped"
        return "changed" if self.changed else "ok"


@dataclass(frozen=True)
class Played:
    """The result of a playbook, by host; `error`: why Ansible failed, where no host did; no host's words."""

    hosts: Mapping[str, HostResult]
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and all(host.status in ("ok", "changed") for host in self.hosts.values())


class _Silence(Exception):
    """Ansible has told nothing for longer than a task may take."""


class _Watch:
    """Whether Ansible still works, and whose answers it was taking if it does not."""

    def __init__(self, inventory: Mapping[str, Any], seconds: float) -> None:
        hosts = inventory["all"]["hosts"]
        self._names = {str(variables.get("ansible_host", name)): name for name, variables in hosts.items()}
        self._longest = seconds + _SLACK
        self._heard = time.monotonic()
        self._taking: dict[str, None] = {}  # hosts that have answered, in this order, without a result yet
        self.heard_of_hosts = False

    def hear(self, event: str, host: str) -> None:
        self._heard = time.monotonic()
        self.heard_of_hosts |= host != ""
        name = self._names.get(host) if event == "answer" else host
        self._taking.pop(name or "", None)
        if event == "answer" and name is not None:
            self._taking[name] = None

    def check(self) -> None:
        """Raises _Silence."""
        if time.monotonic() - self._heard > self._longest:
            raise _Silence

    def why(self, ending: str, log: Path) -> str:
        """What hosts have said is in the log too, from where nothing is shown: it could be a host's word."""
        if not self.heard_of_hosts:
            return f"{ending}: {_last_words(_tail(log))}"
        taking = f", while it took the answer of {brief(list(self._taking))}" if self._taking else ""
        return f"{ending}{taking}; its output is in {log}"

    def silence(self) -> str:
        return f"Ansible was ended, because it had told nothing for {round(self._longest)} seconds"


def play(
    playbook: Playbook,
    file: Path,
    inventory: Mapping[str, Any],
    log: Path,
    *,
    variables: Mapping[str, Any],
    check: bool,
    become_password: str | None,
    tell: Callable[[str], None],
) -> Played:
    """Run a playbook on the hosts of an inventory for Ansible (`hosts.ansible_inventory`).

    Args:
        log: the file to which Ansible's output is written.
        variables: extra variables, which override those of the playbook.
        check: change nothing, and say what would change.
        become_password: of the user, for sudo; None: sudo asks for none.
        tell: is called with the name of each task as it begins.

    Raises:
        UsageError: Ansible is not installed.
        MntError: there is no place for its files.
        KeyboardInterrupt: on Ctrl-C or SIGTERM; Ansible has ended then.
    """
    if importlib.util.find_spec("ansible_runner") is None:
        raise UsageError("mnt setup needs Ansible", fix="in the clone of mnt: pip install -e '.[setup]'")
    results = {host: HostResult() for host in inventory["all"]["hosts"]}
    watch = _Watch(inventory, playbook.seconds)
    with _private_directory() as private:
        _write(private, playbook, file, inventory, variables)
        words = ["--inventory", _Files.hosts, "--extra-vars", f"@{_Files.variables}", "--become"]
        words += ["--become-password-file", "-"] if become_password is not None else []
        words += ["--check", "--diff"] if check else []
        order: below.Order = {
            "parent": os.getpid(),
            "words": [*words, _Files.plays],
            "log": os.fspath(log.absolute()),
            "memory": playbook.memory,
            "password": become_password,
        }
        try:
            code = _run(
                order,
                private,
                _environment(private, len(results)),
                watch,
                lambda line: _take(line, results, tell, watch),
            )
        except _Silence:
            return Played(results, watch.why(watch.silence(), log))
    failed = any(host.problem is not None for host in results.values())
    if failed or (code == 0 and all(host.ended for host in results.values())):
        return Played(results)
    return Played(results, watch.why(f"Ansible has ended early, with code {code}", log))


class _Files:
    """Names in the private directory."""

    settings = "ansible.cfg"
    hosts = "hosts.json"
    variables = "variables.json"
    plays = "plays.yml"
    events = "events"
    temporary = "tmp"  # a directory
    kept = "kept"  # a directory: how much of each host's answers Ansible keeps


@contextlib.contextmanager
def _private_directory() -> Iterator[Path]:
    """A directory that only this user can enter. Raises MntError."""
    try:
        private = make_private_directory("mnt-setup-")
    except Refused as refusal:
        raise MntError(refusal.message, fix=refusal.fix) from None
    except OSError as error:
        fix = "make room for files of this user in /tmp, and run this again"
        raise MntError(f"no directory for Ansible's files: {strerror(error)}", fix=fix) from None
    try:
        yield Path(private)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _write(
    private: Path,
    playbook: Playbook,
    file: Path,
    inventory: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> None:
    """Settings of our own: the current directory may have another's."""
    for directory in (_Files.temporary, _Files.kept):
        (private / directory).mkdir(mode=0o700)
    texts = {
        _Files.settings: _SETTINGS.format(
            private=private,
            temporary=_Files.temporary,
            seconds=playbook.seconds,
            plugins=Path(__file__).parent / "connection",
        ),
        _Files.hosts: json.dumps(literal(inventory)),
        _Files.variables: json.dumps(dict(variables)),
        _Files.plays: _PLAYS.format(file=json.dumps(os.fspath(file.absolute())), end=_END),
        _Files.events: "",
    }
    for name, text in texts.items():
        (private / name).write_text(text, encoding="utf-8")


def _environment(private: Path, count: int) -> dict[str, str]:
    """Without variables for Ansible of the user's, which come before settings.

    Ansible runs modules on the head from below TMPDIR: in the user's, others may be able to exchange them.
    """
    kept = max(_LEAST_KEPT_OF_ONE, min(_MOST_KEPT_OF_ONE, _MOST_KEPT // max(count, 1)))
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return {
        **own,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]),
        "ANSIBLE_CONFIG": os.fspath(private / _Files.settings),
        "ANSIBLE_HOST_KEY_CHECKING": "True",  # else ansible-runner sets it to False
        "ANSIBLE_NOCOLOR": "1",
        "TMPDIR": os.fspath(private / _Files.temporary),
        "AWX_LIB_DIRECTORY": os.fspath(Path(__file__).parent / "callback"),
        "MNT_SETUP_EVENTS": os.fspath(private / _Files.events),
        "MNT_SETUP_END": _END,
        "MNT_SETUP_KEPT": os.fspath(private / _Files.kept),
        "MNT_SETUP_MOST_KEPT": str(kept),
    }


def _run(
    order: below.Order,
    private: Path,
    environment: Mapping[str, str],
    watch: _Watch,
    take: Callable[[bytes], None],
) -> int:
    """Run Ansible in a process below; its exit code.

    Raises KeyboardInterrupt, and _Silence, when all has ended.
    """
    command = [sys.executable, "-c", _START, *map(os.path.abspath, sys.path)]
    with (
        open(order["log"], "ab") as log,
        open(private / _Files.events, "rb") as events,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=private,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process
        ) as child,
    ):
        try:
            _send(child, order)
            rest = b""
            while True:
                ended = _has_ended(child)
                rest = _take_lines(rest, events, take)
                if ended:
                    return child.returncode
                watch.check()
        except BaseException:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(2 * below.PATIENCE)
            child.kill()
            raise


def _send(child: subprocess.Popen[bytes], order: below.Order) -> None:
    """If it has ended, its exit code says so."""
    stdin = child.stdin
    assert stdin is not None  # noqa: S101 - narrows the type
    with contextlib.suppress(BrokenPipeError), stdin:
        stdin.write(json.dumps(order).encode())


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Waits for a moment."""
    try:
        child.wait(_TICK)
    except subprocess.TimeoutExpired:
        return False
    return True


def _take_lines(rest: bytes, events: BinaryIO, take: Callable[[bytes], None]) -> bytes:
    """Take all whole lines that have come; returns the beginning of the next one."""
    while data := events.read(_MOST_TOLD):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            take(line)
    return rest


def _take(line: bytes, results: Mapping[str, HostResult], tell: Callable[[str], None], watch: _Watch) -> None:
    """An event. What is wrong with it is a failure of its host."""
    document = parse_json(line)
    name = str(document["host"])
    host = results.get(name)
    try:
        told = shaped(name, document, Told, "event")
    except HostError as error:
        if host is not None:
            host.problem = error.reason
        return
    watch.hear(told["event"], name)
    if told["event"] == "task":
        tell(told["task"])
    if host is None or told["event"] == "answer":
        return
    if told["event"] == "end":
        host.ended = True
    elif told["event"] == "ok":
        host.ok += 1
        host.changed += told["changed"]
        room = _MOST_REPORTED - len(host.reports)
        host.reports += [" ".join(line.split())[:_LONGEST] for line in told["report"][: max(0, room)]]
    elif told["event"] == "skipped":
        host.skipped += 1
    elif told["event"] == "unreachable":
        host.unreachable, host.problem = True, _said(told)
    elif told["event"] == "failed":
        host.problem = f"{told['task'] or 'a task'}: {_said(told)}"


def _said(told: Told) -> str:
    """What the module says of its failure; for a command, the end of its error output."""
    text = "; ".join(filter(None, told["messages"])) or "no reason given"
    stderr = told["stderr"].strip()
    if stderr and re.search("non-zero return code|MODULE FAILURE|failed to validate", text):
        text = stderr.splitlines()[-1]
    return " ".join(text.removeprefix("Task failed: ").split())[:_LONGEST]


def _tail(log: Path) -> str:
    """The end of Ansible's output."""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        return file.read(_TAIL).decode("utf-8", "replace")


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    said = next(
        (line for line in lines if line.startswith(("ERROR!", "[ERROR]"))), lines[-1] if lines else ""
    )
    return said[:_LONGEST] or "it said nothing"
