"""The values of a job's secrets on a host: in a node-local file from its staging to its start, and no longer.

Runs on a host: Python 3.8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mnt.remote.common.files import strerror
from mnt.remote.common.refusal import Refused
from mnt.remote.job.files import JobPaths


def put_secrets(paths: JobPaths, values: Mapping[str, str]) -> None:
    """Keep the values, by variable, for the supervisor. Raises OSError."""
    if values:
        paths.write(paths.secrets, dict(values))


def take_secrets(paths: JobPaths, spec: Mapping[str, Any]) -> dict[str, str]:
    """The values of the spec's secrets; their file is removed. Raises Refused."""
    names = spec.get("secrets") or []
    if not names:
        return {}
    values = paths.read(paths.secrets) or {}
    try:
        os.unlink(paths.secrets)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Refused(f"cannot remove {paths.secrets}: {strerror(error)}") from error
    if not values.keys() >= set(names):
        raise Refused(f"the job's secrets are not in {paths.secrets} any more", "start it again: mnt launch")
    return {name: values[name] for name in names}
