"""Starts a lab: the anchor, its hosts, the links between them."""

from __future__ import annotations

import os
import select
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from mnt import keys
from mnt.errors import MntError
from mnt.lab import files, network, store, system, tree
from mnt.lab.processes import TOKEN_VARIABLE, identify
from mnt.lab.spec import LabSpec
from mnt.remote.common.files import replace_file

_ANCHOR = Path(__file__).with_name("sh") / "anchor.sh"
_START_SECONDS = 30.0  # plus one second per host: enough for a slow machine


class _Anchor:
    """The lab's PID 1, and the line-based conversation with it."""

    def __init__(self, spec: LabSpec, log: Path, seconds: float) -> None:
        environment = {
            "PATH": system.PATH,
            TOKEN_VARIABLE: spec.token,
            "LAB_SOURCE": spec.source,
            "LAB_UID": str(spec.uid),
        }
        namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644), "ab") as errors:
            process = subprocess.Popen(
                # setsid: not our child, so the lab survives its creator, and init reaps it.
                ["setsid", "--fork", *namespaces, "/bin/sh", str(_ANCHOR)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd="/",
                umask=0o022,
                bufsize=0,
            )
        process.wait()
        assert process.stdin is not None  # noqa: S101 - narrows the type
        assert process.stdout is not None  # noqa: S101 - narrows the type
        self._input, self._output = process.stdin, process.stdout
        self._log = log
        self._deadline = time.monotonic() + seconds
        self._buffer = b""

    def say(self, word: str) -> None:
        try:
            self._input.write(f"{word}\n".encode())
        except BrokenPipeError:
            raise self.failure("it ended early") from None

    def hear(self) -> list[str]:
        """The words of the next line. Raises MntError if the anchor ends, or does not answer in time."""
        descriptor = self._output.fileno()
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], max(0.0, self._deadline - time.monotonic()))[0]:
                raise self.failure("no answer in time")
            piece = os.read(descriptor, 65536)
            if not piece:
                raise self.failure("it ended early")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode().split()

    def close(self) -> None:
        """End the conversation. The anchor ends too, unless it has received `stay`."""
        self._input.close()
        self._output.close()

    def failure(self, what: str) -> MntError:
        log = self._log.read_text(errors="replace").strip().splitlines()
        # mount(8) adds a line that does not describe the failure.
        errors = [line for line in log if "dmesg(1)" not in line]
        return MntError(f"the lab did not start: {': '.join([what, *errors[-1:]])}")


def boot(record: store.Record, *, cache: str) -> store.Record:
    """Start the lab that `record` describes, and update the record after each step.

    Args:
        record: a new record; only the directory of the lab exists yet.
        cache: the machine's cache for training (MNT_CACHE).

    Returns:
        The complete record.

    Raises:
        MntError: the start failed; the caller must take down the incomplete lab.
    """
    spec = record.spec
    directory = store.directory(spec.name)
    anchor = _Anchor(spec, directory / "boot.log", _START_SECONDS + len(spec.hosts))
    try:
        _, pid = anchor.hear()
        record = replace(record, anchor=identify(int(pid)))
        store.write(record)
        try:
            _lay_files(spec, int(pid), directory, cache)
        except OSError as error:  # out of memory, or the anchor ended
            raise anchor.failure(f"its files cannot be written: {error}") from error
        anchor.say("start")
        inits = _await_hosts(anchor, spec)
        _plug_in(spec, int(pid))
        record = replace(record, inits={name: identify(init) for name, init in inits.items()}, complete=True)
        store.write(record)
        replace_file(directory / "inventory.yaml", files.inventory(spec, str(directory), cache), mode=0o644)
        anchor.say("stay")
    finally:
        anchor.close()
    return record


def _lay_files(spec: LabSpec, anchor: int, directory: Path, cache: str) -> None:
    login = keys.generate()
    host_keys = {host.name: keys.generate() for host in spec.hosts}
    mounts = Path(f"/proc/{anchor}/mounts").read_bytes().decode(errors="surrogateescape")
    tree.lay(
        Path(f"/proc/{anchor}/root/run"), spec, mounts=mounts, login=login, host_keys=host_keys, cache=cache
    )
    replace_file(directory / "identity", login.private)
    replace_file(directory / "identity.pub", login.public + "\n", mode=0o644)
    public = {name: key.public for name, key in host_keys.items()}
    replace_file(directory / "known_hosts", files.known_hosts(spec, public), mode=0o644)


def _await_hosts(anchor: _Anchor, spec: LabSpec) -> dict[str, int]:
    """The pid of each host's init, once sshd listens on all of them."""
    inits: dict[str, int] = {}
    waiting = {host.name for host in spec.hosts}
    while waiting:
        match anchor.hear():
            case ["host", name, pid]:
                inits[name] = int(pid)
            case ["ready", name]:
                waiting.remove(name)
            case ["failed", name]:
                raise anchor.failure(name)
    return inits


def _plug_in(spec: LabSpec, anchor: int) -> None:
    in_switch = ["nsenter", "--net", "--target", str(anchor)]
    system.run(["ip", "-batch", "-"], stdin=network.head_link(spec, anchor))
    system.run([*in_switch, "ip", "-batch", "-"], stdin=network.ports(spec.hosts))
    if spec.rate is not None:
        system.run([*in_switch, "tc", "-batch", "-"], stdin=network.port_shaping(spec.hosts, spec.rate))
