"""What the kernel has said since boot. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import re
import time

from mnt.remote.probe.commands import find, run_all

_KEPT = 200  # lines: the last
_RECORD = 8192  # bytes: more than the kernel puts into one


def kernel_log(wanted: str, deadline: float) -> dict[str, object]:
    """The lines with this text in them, and why they are not known, as `mnt.facts.system.KernelLog`."""
    try:
        lines, error = _from_kmsg(wanted.encode()), None
    except OSError as problem:
        lines, error = _from_journal(wanted, deadline), problem.strerror
    return {"lines": (lines or [])[-_KEPT:], "error": error if lines is None else None}


def _from_kmsg(wanted: bytes) -> list[dict[str, object]] | None:
    """From /dev/kmsg, a record a read: `priority,sequence,microseconds,flags;text`. Raises OSError."""
    found: list[dict[str, object]] = []
    now = time.monotonic()
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD)
            except BrokenPipeError:  # it was overwritten just now: the next read goes on behind it
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
    """From the journal, which the groups adm and systemd-journal may read; None where this user may not."""
    tool = find("journalctl")
    if tool is None:
        return None
    argv = [tool, "--dmesg", "--boot", "--no-pager", "--output=short-unix", "--grep=" + re.escape(wanted)]
    code, output = run_all({"journal": argv}, deadline)["journal"]
    # It says so, and ends well, where it has shown only the messages that this user may read: none of these.
    if code not in (0, 1) or re.search(r"not seeing messages|No journal files|ermission", output):
        return None
    lines = re.findall(r"^(\d+\.\d+) \S+ kernel: (.*)$", output, re.MULTILINE)
    return [{"age": time.time() - float(at), "text": text} for at, text in lines]
