"""The checks: pure functions over `FleetFacts` that yield a `Problem` for each fault.

Each family of checks is one module. The id and the docstring of a check are part of the
interface: docs/checks.md is generated from them.
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
