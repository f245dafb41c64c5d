"""DeepSpeed, started by torchrun.

What DeepSpeed's own launcher does for a script (0.19: `launch.py`, `runner.py`) is done here too: each rank
gets `--local_rank=N`, and the variables in `.deepspeed_env`.
"""

from __future__ import annotations

from collections.abc import Mapping

from mnt.launch.engines.torchrun import torchrun_engine


def _env_file(caller: Mapping[str, str]) -> str:
    return caller.get("DS_ENV_FILE", ".deepspeed_env")


ENGINE = torchrun_engine("deepspeed", script="train/train_deepspeed.py", local_rank=True, env_file=_env_file)
