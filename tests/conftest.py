"""What all tests share: how hypothesis works, and that signals mean what they do at a terminal.

A busy machine is slow, which is no finding. What is started in the background, or by nohup, ignores the
signals of a terminal, and so would all that the tests start.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

for _signum, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signum) == signal.SIG_IGN:
        signal.signal(_signum, _usual)
