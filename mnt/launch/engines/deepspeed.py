"""DeepSpeed, started by torchrun."""

from mnt.launch.engines.torchrun import torchrun_engine

ENGINE = torchrun_engine("deepspeed", script="train/train_deepspeed.py")
