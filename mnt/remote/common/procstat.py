"""What the kernel says of a process in one line. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations


def stat_fields(pid: int) -> tuple[str, list[bytes]] | None:
    """(command, the fields behind it, the state first) of /proc/PID/stat, proc(5). None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The command is in parentheses, and may itself contain spaces and parentheses.
    end = text.rindex(b")")
    return text[text.index(b"(") + 1 : end].decode("utf-8", "replace"), text[end + 2 :].split()
