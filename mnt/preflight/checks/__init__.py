"""The checks, one family a module: pure functions over `FleetFacts` that yield a `Problem` for what is wrong.

They read what was gathered and touch nothing. A check's id and its docstring are part of the interface.
"""

# The order in which families are run and shown.
ORDER = (
    "ssh",
    "session",
    "versions",
    "storage",
    "network",
    "reach",
    "nccl",
    "gpus",
    "system",
    "processes",
    "ports",
    "deep",
)
