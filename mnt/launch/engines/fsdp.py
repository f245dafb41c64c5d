"""PyTorch FSDP."""

from mnt.launch.engines.api import Engine
from mnt.launch.engines.torchrun import REMAINS, torchrun

ENGINE = Engine("fsdp", script="train/train_fsdp.py", argv=torchrun, remains=REMAINS)
