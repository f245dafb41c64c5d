"""The edge of `mnt setup`: runs a playbook by ansible-runner, and turns its events into results."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnt.errors import UsageError
from mnt.setup.hosts import literal

_LONGEST = 600  # characters of a task's message
_CANCELED = "canceled"
_SETTINGS = """\
[defaults]
forks = 32
interpreter_python = auto_silent
retry_files_enabled = false
deprecation_warnings = false
[connection]
pipelining = true
[ssh_connection]
ssh_args = -o ControlMaster=auto -o ControlPersist=30
"""


@dataclass
class HostResult:
    """What a playbook did on a host. `problem`: the task that failed, and what it said; None: none did."""

    ok: int = 0
    changed: int = 0
    skipped: int = 0
    problem: str | None = None
    unreachable: bool = False

    @property
    def status(self) -> str:
        """ok, changed, failed or unreachable."""
        if self.unreachable:
            return "unreachable"
        return "failed" if self.problem is not None else "changed" if self.changed else "ok"


@dataclass(frozen=True)
class Played:
    """The result of a playbook, by host; `error`: why it ran on none, as Ansible says it."""

    hosts: Mapping[str, HostResult]
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and all(host.status in ("ok", "changed") for host in self.hosts.values())


def play(
    playbook: Path,
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
        KeyboardInterrupt: on Ctrl-C or SIGTERM; Ansible has ended then.
    """
    try:
        import ansible_runner  # takes 0.2 s, and is an extra
    except ImportError:
        raise UsageError("mnt setup needs Ansible", fix="pip install 'mnt-cluster[setup]'") from None
    results = {host: HostResult() for host in inventory["all"]["hosts"]}

    def hear(event: dict[str, Any]) -> None:
        _take(event, results, tell)

    words = ["--become"]
    words += ["--ask-become-pass"] if become_password is not None else []
    words += ["--check", "--diff"] if check else []
    with tempfile.TemporaryDirectory(prefix="mnt-setup-") as private:  # mode 0700: it gets the password
        done = ansible_runner.run(
            private_data_dir=private,
            playbook=os.fspath(playbook),
            inventory=literal(inventory),
            extravars=dict(variables),
            cmdline=" ".join(words),
            passwords={r"^BECOME password.*:\s*?$": become_password or ""},
            envvars=_environment(Path(private)),
            event_handler=hear,
            quiet=True,
            suppress_env_files=True,
        )
        shutil.copyfile(done.stdout.name, log)
        text = log.read_text(encoding="utf-8", errors="replace")
    if done.status == _CANCELED:
        raise KeyboardInterrupt
    ran = any(host.ok or host.problem is not None for host in results.values())
    return Played(results, None if ran else _last_words(text))


def _environment(private: Path) -> dict[str, str]:
    """The variables of Ansible, with settings of our own: the current directory may have another's."""
    settings = private / "ansible.cfg"
    settings.write_text(_SETTINGS, encoding="utf-8")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "ANSIBLE_CONFIG": os.fspath(settings), "ANSIBLE_NOCOLOR": "1"}


def _take(event: Mapping[str, Any], results: Mapping[str, HostResult], tell: Callable[[str], None]) -> None:
    kind, data = event.get("event"), event.get("event_data", {})
    if kind == "playbook_on_task_start":
        tell(str(data.get("task", "")))
    host = results.get(data.get("host", ""))
    if host is None:
        return
    if kind == "runner_on_ok":
        host.ok += 1
        host.changed += bool(data.get("res", {}).get("changed"))
    elif kind == "runner_on_skipped":
        host.skipped += 1
    elif kind == "runner_on_unreachable":
        host.unreachable, host.problem = True, _said(data)
    elif kind == "runner_on_failed" and not data.get("ignore_errors"):
        host.problem = f"{data.get('task', 'a task')}: {_said(data)}"


def _said(data: Mapping[str, Any]) -> str:
    """What the module says of its failure; for a command, the end of its error output."""
    result = data.get("res", {})
    said = [
        str(each.get("msg")) for each in result.get("results", ()) if each.get("failed") and each.get("msg")
    ]
    text = "; ".join(dict.fromkeys(said)) or str(result.get("msg") or "no reason given")
    stderr = str(result.get("stderr") or result.get("module_stderr") or "").strip()
    if stderr and re.search("non-zero return code|MODULE FAILURE|failed to validate", text):
        text = stderr.splitlines()[-1]
    return " ".join(text.removeprefix("Task failed: ").split())[:_LONGEST]


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    said = next(
        (line for line in lines if line.startswith(("ERROR!", "[ERROR]"))), lines[-1] if lines else ""
    )
    return said or "Ansible said nothing"
