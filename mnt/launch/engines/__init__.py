"""All engines. A new one is a module here and its line in ENGINES; the first is the default."""

from __future__ import annotations

from collections.abc import Sequence

from mnt.errors import UsageError
from mnt.launch.engines import accelerate, command, deepspeed, fsdp
from mnt.launch.engines.api import Engine
from mnt.launch.engines.torchrun import torchrun, with_c10d

_ALL = (fsdp.ENGINE, deepspeed.ENGINE, accelerate.ENGINE, command.ENGINE)
ENGINES = {engine.name: engine for engine in _ALL}
DEFAULT = next(iter(ENGINES.values()))


def chosen_engine(
    name: str,
    *,
    rdzv: str = "static",
    deepspeed_launcher: bool = False,
    rank_env: Sequence[str] = (),
    accelerate_config: str | None = None,
) -> Engine:
    """The engine of that name with the options of `mnt launch` that change it: pure.

    Raises UsageError: an option is not for this engine.
    """
    engine = ENGINES[name]
    if deepspeed_launcher:
        engine = deepspeed.LAUNCHER if name == "deepspeed" else _not_for("--deepspeed-launcher", "deepspeed")
    if rank_env:
        engine = command.command_engine(rank_env) if name == "command" else _not_for("--rank-env", "command")
    if accelerate_config is not None:
        if name != "accelerate":
            _not_for("--accelerate-config", "accelerate")
        engine = accelerate.accelerate_engine(accelerate_config)
    if rdzv != "static":
        if engine.argv is not torchrun:
            what = "DeepSpeed's launcher" if deepspeed_launcher else f"--engine {name}"
            raise UsageError(
                f"{what} has no --rdzv {rdzv}: only mnt's own torchrun has it", fix="remove --rdzv"
            )
        engine = with_c10d(engine)
    return engine


def _not_for(option: str, name: str) -> Engine:
    raise UsageError(f"{option} is only for --engine {name}", fix=f"remove {option}, or use --engine {name}")
