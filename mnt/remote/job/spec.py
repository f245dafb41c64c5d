"""What a node's spec (`mnt.tasks.job.NodeSpec`) means: pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

SESSION_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG")


def marks(job: str, host: str) -> dict[str, str]:
    """The environment by which every process of a node's part of a job is known."""
    return {"MNT_JOB": job, "MNT_HOST": host}


def job_environment(spec: Mapping[str, Any], session: Mapping[str, str]) -> dict[bytes, bytes]:
    """What the job sees: the session's few variables, the spec's, the marks; nothing else of any caller."""
    environment = {name: session[name] for name in SESSION_VARIABLES if name in session}
    environment.update(spec["env"])
    path = [*spec.get("path_prepend", ()), *environment.get("PATH", os.defpath).split(os.pathsep)]
    environment["PATH"] = os.pathsep.join(dict.fromkeys(path))
    environment["MNT_NODE_RANK"] = str(spec["node_rank"])
    environment.update(marks(spec["job"], spec["host"]))
    return {encode(name): encode(value) for name, value in environment.items()}


def encode(text: str) -> bytes:
    """The bytes that the head meant, whatever this host's locale is."""
    return text.encode("utf-8", "surrogateescape")


def first_rank(spec: Mapping[str, Any]) -> int:
    """The global rank of local rank 0."""
    return sum(int(node["nproc"]) for node in spec["nodes"] if node["node_rank"] < spec["node_rank"])


def rank_count(spec: Mapping[str, Any]) -> int:
    """How many ranks this node has."""
    return sum(int(node["nproc"]) for node in spec["nodes"] if node["node_rank"] == spec["node_rank"])
