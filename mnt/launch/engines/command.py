"""Any program, one process a slot, without torchrun."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mnt.launch.engines.api import Engine, NodeRole
from mnt.launch.engines.slots import slots, slots_files

REMAINS = "slots"
NAMES = ("pet", "ompi")  # further names of the variables of a rank: see `mnt.remote.slots.slots.variables`


def command_engine(names: Sequence[str] = ()) -> Engine:
    """The engine; `names` are those of NAMES under which a rank gets its variables too."""
    return Engine(
        "command",
        script=None,
        argv=partial(_command, tuple(dict.fromkeys(names))),
        remains=REMAINS,
        python_files=slots_files(),
        executable=True,
        torch=False,
        listens=False,
    )


def _command(names: tuple[str, ...], node: NodeRole) -> list[str]:
    options = [f"--names={','.join(names)}"] if names else []
    return slots(node, "command", *options, words=[node.program.name, *node.program.args])


ENGINE = command_engine()
