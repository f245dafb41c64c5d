"""The kernel log since boot. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import re
import time

from mnt.remote.common.files import strerror
from mnt.remote.probe.commands import find, run_all

_KEPT = 200  # lines: the last
_RECORD = 8192  # bytes: more than the kernel puts into one


def kernel_log(wanted: str, deadline: float) -> dict[str, object]:
    """The lines that contain this text, or why they are unknown, as `mnt.facts.system.KernelLog`."""
    try:
        lines, error = _from_kmsg(wanted.encode()), None
    except OSError as problem:
        lines, error = _from_journal(wanted, deadline), strerror(problem)
    return {"lines": (lines or [])[-_KEPT:], "error": error if lines is None else None}


def _from_kmsg(wanted: bytes) -> list[dict[str, object]] | None:
    """From /dev/kmsg, one record per read: `priority,sequence,microseconds,flags;text`. Raises OSError."""
    found: list[dict[str, object]] = []
    now = time.monotonic()
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD)
            except BrokenPipeError:  # the record was just overwritten: the next read continues after it
                continue
            except BlockingIOError:
                return found
            if wanted in record:
                head, _, text = record.partition(b";")
                age = max(0.0, now - int(head.split(b",")[2]) / 1e6)
                found.append({"age": age, "text": text.split(b"\n")[0].decode("utf-8", "replace")})
    finally:
        os.close(descriptor)


def _from_journal(wanted: str, deadline: float) -> list[dict[str, object]] | None:
    """From the journal, which the groups adm and systemd-journal may read; None if this user may not."""
    tool = find("journalctl")
    if tool is None:
        return None
    argv = [tool, "--dmesg", "--boot", "--no-pager", "--output=short-unix", "--grep=" + re.escape(wanted)]
    code, output = run_all({"journal": argv}, deadline)["journal"]
    # If this user may read only other messages, it prints a hint and exits with 0.
    if code not in (0, 1) or re.search(r"not seeing messages|No journal files|ermission", output):
        return None
    lines = re.findall(r"^(\d+\.\d+) \S+ kernel: (.*)$", output, re.MULTILINE)
    return [{"age": time.time() - float(at), "text": text} for at, text in lines]
