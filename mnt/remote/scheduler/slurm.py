"""What Slurm shows of a job, for the head and for a supervisor. Runs on a host: Python 3.8."""

from __future__ import annotations


def fields(text: str) -> dict[str, str]:
    """The fields in the answer of `scontrol show job ID` (Slurm 22.05); none if it is no such answer.

    The comment, which is free text and has a line of its own, is one field and hides no other.
    """
    lines = [line.strip() for line in text.splitlines()]
    rest = " ".join(line for line in lines if not line.startswith("Comment="))
    found = {name: value for name, _, value in (word.partition("=") for word in rest.split())}
    comments = [line.partition("=")[2] for line in lines if line.startswith("Comment=")]
    return {**found, **({"Comment": comments[0]} if comments else {})}
