"""A signal that comes when the result is there: it has no effect on the exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Moments at the end of mnt.
ENDS = {
    "at exit": "atexit.register(strike)",
    "as a thread ends": "threading.Thread(target=lambda: (threading.main_thread().join(), strike())).start()",
    "as modules are cleared": "builtins.last = Last()",
}
PROGRAM = """
import atexit, builtins, os, signal, sys, threading

def strike(kill=os.kill, pid=os.getpid(), number=signal.{signal}):
    kill(pid, number)

class Last:
    def __del__(self, strike=strike):
        strike()

{end}
from mnt.cli import main
sys.argv = ["mnt", *{argv!r}]
main()
"""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(("argv", "code"), [(["--version"], 0), (["push", "-n", ""], 2)])
def test_a_signal_at_the_very_end(end: str, signal: str, argv: list[str], code: int) -> None:
    program = PROGRAM.format(end=ENDS[end], signal=signal, argv=argv)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr
