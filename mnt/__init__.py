"""mnt: SSH bare-metal orchestration for multi-node training."""

__version__ = "0.1.0"
