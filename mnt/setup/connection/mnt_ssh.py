"""Ansible's connection `ssh`, with bounds for what a host answers. Ansible loads it, in the worker of a task.

All that a host says comes through here. A worker ends with its task, and harms only its host. But what it
hands to Ansible's main process is there for all hosts, and much of it until the end: so a worker hands over
no more than these bounds, and nothing that acts in the main process and that no playbook needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.json_utils import _filter_non_json_lines
from ansible.plugins.connection import ssh
from ansible.plugins.connection.ssh import DOCUMENTATION as DOCUMENTATION

MOST = 2 << 20  # bytes of an answer
MOST_STDERR = 64 << 10  # bytes of what ssh, or a host by it, says besides; the end is kept
DEPTH = 32  # levels of an answer
_MOST_VALUES = 50_000  # of an answer, with the lines of its texts: Ansible copies each several times
_MOST_MEMORY = 16 << 20  # bytes that an answer takes in memory
_MOST_DIFF = 64 << 10  # bytes in memory of a `diff`, which a module may add with --check; else it is left out
_SMALL = 64 << 10  # bytes in memory; answers of no more do not count for the sum of a host's
_VALUE = (
    200  # bytes that a value counts for besides: for each task, Ansible goes through the facts of each host
)
_LINE = 64  # bytes of memory for a line of a text, which Ansible also has as a list of lines
# What acts in the main process, for all hosts, or is kept there for good; besides these `_ansible_*`.
_LEFT_OUT = ("ansible_stats", "warnings", "deprecations", "add_host", "add_group")
_CHUNK = 64 << 10


class Connection(ssh.Connection):  # type: ignore[misc, unused-ignore] # Ansible has no types
    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        code, out, err = super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        said, memory = bounded(out)
        tell(self.host)
        spend(f"{self.host} {self.port}", memory)
        return code, said, err[-MOST_STDERR:]


class _Output:
    """A pipe of ssh, of which no more than MOST is read."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._left = MOST

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def read(self) -> bytes:
        """Some of what has come. Ansible's own would read for as long as more comes."""
        data = os.read(self._pipe.fileno(), _CHUNK)
        self._left -= len(data)
        if self._left < 0:
            raise AnsibleError(f"the host has answered more than {MOST} bytes")
        return data


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if self.stdout is not None and self.stderr is not None:
            self.stdout, self.stderr = _Output(self.stdout), _Output(self.stderr)  # type: ignore[assignment]


ssh.subprocess = SimpleNamespace(Popen=_Popen, PIPE=subprocess.PIPE, run=subprocess.run)


def bounded(out: bytes) -> tuple[bytes, int]:
    """What is left of an answer, and how many bytes of memory it takes. Raises AnsibleError."""
    try:
        text, _ = _filter_non_json_lines(out.decode("utf-8", "replace"), objects_only=True)
        answer = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        return out, len(out) + _LINE * out.count(b"\n")  # Ansible finds no answer either, and keeps the text
    for key in list(answer):
        if key.startswith("_ansible_") or key in _LEFT_OUT:
            del answer[key]
    if not isinstance(answer.get("ansible_facts", {}), dict):
        del answer["ansible_facts"]
    if _measure(answer.get("diff"))[0] > _MOST_DIFF:
        del answer["diff"]
    memory, values = _measure(answer)
    for text in (answer.get(key) for key in ("stdout", "stderr")):
        if isinstance(text, str):
            lines = len(text.splitlines())
            memory, values = memory + sys.getsizeof(text) + _LINE * lines, values + lines
    if memory > _MOST_MEMORY:
        raise AnsibleError(f"the host's answer takes more than {_MOST_MEMORY} bytes of memory")
    if values > _MOST_VALUES:
        raise AnsibleError(f"the host's answer has more than {_MOST_VALUES} values and lines")
    return json.dumps(answer).encode("ascii"), memory


def _measure(value: object) -> tuple[int, int]:
    """Bytes of memory, roughly, and the number of values. Raises AnsibleError for too many levels."""
    memory, values, level = 0, 0, [value]
    for _ in range(DEPTH):
        memory += sum(map(sys.getsizeof, level)) + _VALUE * len(level)
        values += len(level)
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.keys()
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not inner:
            return memory, values
        level = inner
    raise _too_deep()


def _too_deep() -> AnsibleError:
    return AnsibleError(f"the host's answer has more than {DEPTH} levels")


def tell(address: str) -> None:
    """Tell `mnt setup` that this host has answered. If Ansible ends now, this may be why."""
    told = {"event": "answer", "host": str(address), "task": "", "changed": False}
    line = json.dumps({**told, "messages": [], "stderr": ""}).encode("ascii") + b"\n"
    file = os.open(os.environ["MNT_SETUP_EVENTS"], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def spend(host: str, memory: int) -> None:
    """Count what is kept of a host's answers, in a file: each task has a worker of its own.

    Raises AnsibleError if it is too much.
    """
    if memory <= _SMALL:
        return
    file = os.path.join(
        os.environ["MNT_SETUP_KEPT"], hashlib.sha256(host.encode("utf-8", "replace")).hexdigest()
    )
    try:
        with open(file, encoding="ascii") as before:
            memory += int(before.read())
    except FileNotFoundError:
        pass
    most = int(os.environ["MNT_SETUP_MOST_KEPT"])
    if memory > most:
        raise AnsibleError(f"the host's answers take more than {most} bytes of memory")
    with open(file, "w", encoding="ascii") as after:
        after.write(str(memory))
