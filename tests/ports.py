"""TCP ports for tests that name one before they use it."""

from __future__ import annotations

import random
import socket
from collections import deque
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_held: deque[socket.socket] = deque()
_MOST = 100
_random = random.Random()  # not the one that a plugin seeds alike in every process


def free_port() -> int:
    """A port on which nobody listens, and that nobody else is given meanwhile.

    The kernel hands out ports of its own range to whoever asks for any, so this one is below it. Of the tests
    that run at the same time, the one that holds the UDP port of that number has it.
    """
    above = int(_RANGE.read_text().split()[0])
    while True:
        port = _random.randrange(above // 2, above)
        held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            held.bind(("127.0.0.1", port))
            socket.create_server(("0.0.0.0", port)).close()
        except OSError:
            held.close()
            continue
        _held.append(held)
        if len(_held) > _MOST:
            _held.popleft().close()
        return port
