"""All engines. A new one is a module here and its line in ENGINES; the first is the default."""

from mnt.launch.engines import deepspeed, fsdp

ENGINES = {engine.name: engine for engine in (fsdp.ENGINE, deepspeed.ENGINE)}
DEFAULT = next(iter(ENGINES.values()))
