"""Run a command of a scheduler (sbatch, scontrol, ..) as this host's user. See `mnt.tasks.scheduler`."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

_MOST = 96 * 1024  # bytes that are kept of each stream
_MISSING = 127  # as a shell has it


def main(args: dict[str, Any], *_: object) -> dict[str, Any]:
    """Run `argv` with `input`, for at most `timeout` seconds.

    Returns `code` (128+N for a signal), `out`, `err`.
    """
    environment = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        process = subprocess.Popen(
            args["argv"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return {"code": _MISSING, "out": "", "err": os.strerror(error.errno or 0)}
    try:
        out, err = process.communicate(args["input"].encode(), timeout=args["timeout"])
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return {"code": 124, "out": "", "err": f"no answer within {args['timeout']:g} s"}
        raise
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return {"code": code, "out": _text(out[:_MOST]), "err": _text(err[-_MOST:])}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
