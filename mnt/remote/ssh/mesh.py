"""Whether this host can log in to others without being asked anything.

Runs on a host: standard library only, Python 3.8 and newer. It uses the host's own `ssh`, with its user's
configuration and keys, as DeepSpeed, pdsh and mpirun do.

Arguments:
    workers: [{"name": str, "address": str, "user": str | None, "port": int | None}, ..]
    timeout: float     seconds for each login; default 10

Answer: {"results": {NAME: {"ok": bool, "error": str | None}}}
"""

from __future__ import annotations

import concurrent.futures
import math
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

AT_ONCE = 16  # simultaneous logins
_LINE_KEPT = 300  # characters

# The post-quantum key exchange that OpenSSH prefers since 9.0 costs each side 80 ms of CPU, its curve25519 5
# ms, OpenSSL's P-256 almost nothing. For a master that logs in to 255 workers the difference is seconds. All
# remain available, P-256 first: it does not affect who may log in, and no secret is sent. Further host keys
# of the worker are not requested: each would cost it a signature, and be added to the user's known_hosts.
_CHEAP = ("-o", "KexAlgorithms=^ecdh-sha2-nistp256", "-o", "UpdateHostKeys=no")
_NOT_CHEAP = ("kex", "key exchange", "host key type", "configuration option")

# A worker gets no agent, display or port of this host, whatever its user's ssh_config has.
_CLOSED = ("-a", "-x", "-o", "ClearAllForwardings=yes", "-o", "Tunnel=no", "-o", "PermitLocalCommand=no")


def main(args: dict[str, Any], emit: Callable[[dict[str, Any]], None], stdin: BinaryIO) -> dict[str, Any]:
    """Log in to every worker, several at once."""
    workers, timeout = args["workers"], float(args.get("timeout", 10.0))
    with concurrent.futures.ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        errors = pool.map(lambda worker: log_in(worker, timeout), workers)
        results = {
            worker["name"]: {"ok": error is None, "error": error} for worker, error in zip(workers, errors)
        }
    return {"results": results}


def log_in(worker: dict[str, Any], timeout: float) -> str | None:
    """None if ssh logs in, otherwise the reason: the last line that ssh printed."""
    error = _run(command(worker, timeout, _CHEAP), timeout)
    if error is not None and any(words in error.lower() for words in _NOT_CHEAP):
        # An old ssh, or one whose user has configured other algorithms.
        return _run(command(worker, timeout), timeout)
    return error


def _run(argv: list[str], timeout: float) -> str | None:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=2 * timeout,  # ConnectTimeout ends at the banner; later steps may hang, too
            check=False,
        )
    except FileNotFoundError:
        return "this host has no ssh client"
    except subprocess.TimeoutExpired:
        return f"not done within {2 * timeout:g} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:_LINE_KEPT] if lines else f"ssh: exit code {done.returncode}"


def command(worker: dict[str, Any], timeout: float, options: Sequence[str] = ()) -> list[str]:
    """The argv that logs in to a worker. It never asks; the host's own configuration decides on host keys.

    It leaves no process that keeps the connection open, and uses none that another one keeps open, even if
    the user's ssh_config asks for that.
    """
    argv = [
        "ssh",
        "-o",
        "BatchMode=yes",
        "-o",
        "ControlMaster=no",
        "-o",
        "ControlPath=none",
        "-o",
        f"ConnectTimeout={max(1, math.ceil(timeout))}",
        *_CLOSED,
        "-T",
        *options,
    ]
    if worker.get("user"):
        argv += ["-o", f"User={worker['user']}"]
    if worker.get("port"):
        argv += ["-p", str(int(worker["port"]))]
    return [*argv, "--", worker["address"], "true"]
