"""The running interpreter's packages, without importing them. Runs on a host: Python 3.8, standard library.

`search` is `sys.path`; its "" (the working directory) is ignored, because jobs run elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from mnt.remote.common.files import entries, read

NCCL_PREFIX = "nvidia-nccl-"


def canonical(name: str) -> str:
    """The normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(names: Iterable[str], search: Iterable[str]) -> dict[str, str]:
    """Versions by canonical name, of `names` and of every nvidia-nccl-*, from metadata.

    The first directory that has a package counts, as in an import. Two metadata directories of one package in
    the same place (an interrupted upgrade) give "1.0 and 2.0". Only directories with a matching name are
    opened: importlib.metadata reads all of them, and takes 30 ms to import.
    """
    wanted = {canonical(name) for name in names}
    prefixes = (*wanted, NCCL_PREFIX)
    found: dict[str, str] = {}
    for directory in filter(None, search):
        here: dict[str, set[str]] = {}
        for entry in entries(directory):
            if entry.endswith((".dist-info", ".egg-info")) and canonical(entry).startswith(prefixes):
                name, version = metadata(os.path.join(directory, entry))
                if name in wanted or name.startswith(NCCL_PREFIX):
                    here.setdefault(name, set()).add(version)
        for name, versions in here.items():
            found.setdefault(name, " and ".join(sorted(versions)))
    return found


def metadata(path: str) -> tuple[str, str]:
    """(canonical name, version) of a .dist-info or .egg-info; ("", "") if it does not contain them."""
    # The .egg-info of distutils is itself the file.
    candidates = (os.path.join(path, "METADATA"), os.path.join(path, "PKG-INFO"), path)
    text = next(filter(None, (read(candidate, 4096) for candidate in candidates)), "")
    name = re.search(r"^Name:[ \t]*(\S+)", text, re.MULTILINE)
    version = re.search(r"^Version:[ \t]*(\S+)", text, re.MULTILINE)
    return (canonical(name.group(1)), version.group(1)) if name and version else ("", "")


def torch_cuda(search: Iterable[str]) -> str | None:
    """The CUDA version that torch was built for, "13.0"; "none" for a CPU build; None if it is unknown.

    From torch/version.py, written by torch's own build: `cuda: Optional[str] = '13.0'`, and without the
    annotation before 1.12. The metadata of a wheel from PyPI does not contain it.
    """
    text = _first(search, "torch/version.py", 4096)
    match = re.search(r"^cuda\b[^=\n]*=[ \t]*(?:None|['\"]([^'\"]+)['\"])", text, re.MULTILINE)
    return (match.group(1) or "none") if match else None


def numa_binding(search: Iterable[str]) -> bool | None:
    """Whether torchrun has the option --numa-binding (torch 2.13 has it); None: there is no torch."""
    text = _first(search, "torch/distributed/run.py", 131072)
    return "--numa-binding" in text if text else None


def nccl_library(search: Iterable[str]) -> str | None:
    """The version of the NCCL library that torch loads, from the header next to it; None if there is none.

    All nvidia-nccl-* packages install into the same directory, nvidia/nccl: of several packages, the one
    installed last is there, whatever the metadata says.
    """
    text = _first(search, "nvidia/nccl/include/nccl.h", 8192)
    numbers = re.findall(r"^#define NCCL_(?:MAJOR|MINOR|PATCH)[ \t]+(\d+)", text, re.MULTILINE)
    return ".".join(numbers) if len(numbers) == 3 else None


def _first(search: Iterable[str], relative: str, size: int) -> str:
    """The beginning of the first file of that name on the import path: the one that Python would use."""
    paths = (os.path.join(directory, relative) for directory in search if directory)
    return next(filter(None, (read(path, size) for path in paths)), "")
