"""The kernel's line about a process. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations


def stat_fields(pid: int) -> tuple[str, list[bytes]] | None:
    """(command, the fields after it, beginning with the state) of /proc/PID/stat. None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The command is in parentheses, and may contain spaces and parentheses: proc(5).
    end = text.rindex(b")")
    return text[text.index(b"(") + 1 : end].decode("utf-8", "replace"), text[end + 2 :].split()
