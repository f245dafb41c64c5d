"""Files that earlier pushes and builds have left. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import time

from mnt.remote.common.files import entries


def artifacts(workdir: str, extensions: str) -> dict[str, object]:
    """As `mnt.facts.system.Artifacts`. It may hang: run it in a child with a deadline."""
    return {"release": release(workdir), "locks": locks(extensions)}


def release(workdir: str) -> dict[str, object]:
    """The release that `current` points to, and whether it is complete; see `mnt.remote.push.releases`."""
    directory = os.path.expanduser(workdir)
    try:
        target = os.readlink(os.path.join(directory, "current"))
    except OSError:
        return {"id": None, "whole": False}
    tree = os.path.join(directory, target)
    return {
        "id": os.path.basename(target),
        "whole": os.path.isdir(tree) and os.path.exists(tree + ".manifest.json"),
    }


def locks(extensions: str) -> list[dict[str, object]]:
    """The locks of torch's JIT builds: in $TORCH_EXTENSIONS_DIR/NAME, by default one directory deeper."""
    top = os.path.expanduser(extensions)
    found: list[dict[str, object]] = []
    for first in entries(top):
        builds = [first, *(os.path.join(first, second) for second in entries(os.path.join(top, first)))]
        for build in builds:
            path = os.path.join(top, build, "lock")
            try:
                found.append({"path": path, "age": time.time() - os.stat(path).st_mtime})
            except OSError:  # there is no lock
                continue
    return found
