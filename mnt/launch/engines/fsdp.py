"""PyTorch FSDP."""

from mnt.launch.engines.torchrun import torchrun_engine

ENGINE = torchrun_engine("fsdp", script="train/train_fsdp.py")
