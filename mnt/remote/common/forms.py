"""The forms of what hosts and the head tell each other, where both check them. Runs on a host: Python 3.8."""

from __future__ import annotations

JOB_NAME = r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z"  # also the name of a directory
HOST_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}\Z"  # the same, and in an inventory
ADDRESS = r"\A[0-9a-fA-F:.]{2,45}(%[\w.-]{1,64})?\Z"  # numeric; an IPv6 address may have a zone
MOST_PID = 2**22  # PID_MAX_LIMIT, proc(5)
