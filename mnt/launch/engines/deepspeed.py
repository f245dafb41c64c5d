"""DeepSpeed, started by torchrun."""

from mnt.launch.engines.api import Engine
from mnt.launch.engines.torchrun import REMAINS, torchrun

ENGINE = Engine("deepspeed", script="train/train_deepspeed.py", argv=torchrun, remains=REMAINS)
