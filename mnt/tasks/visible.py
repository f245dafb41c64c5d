"""Is what one host writes seen by the others?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypedDict

from mnt.fleet import HostConnection
from mnt.tasks.held import held
from mnt.tasks.program import run_program
from mnt.tasks.shape import shaped


class Written(TypedDict):
    """The file that a host wrote, or why it could not."""

    file: str | None
    error: str | None


class Seen(TypedDict):
    """Seconds until a host could read what another wrote, or why it never could."""

    delay: float | None
    error: str | None


@contextmanager
def write_nonce(
    connection: HostConnection, nonce: str, places: Mapping[str, Sequence[str]], *, deadline: float
) -> Iterator[dict[str, Written]]:
    """Files that hold `nonce`, for as long as the block runs; the host removes them even if it loses us.

    Args:
        nonce: letters and digits.
        places: by name, directories, of which the first that takes a file gets it.
        deadline: seconds for writing; what hangs has not been written.

    Raises HostError where the host cannot be asked.
    """
    args = {"nonce": nonce, "write": places, "deadline": deadline}
    with held(connection, "probe.visible", args) as first:
        yield shaped(connection.target.name, first.get("written"), dict[str, Written], "written")


def read_nonce(
    connection: HostConnection, nonce: str, files: Mapping[str, str], *, deadline: float
) -> dict[str, Seen]:
    """Look for the files, by name, until they hold `nonce`, at most `deadline` seconds. Raises HostError."""
    args = {"nonce": nonce, "read": files, "deadline": deadline}
    answer = run_program(connection, "probe.visible", args)
    return shaped(connection.target.name, answer.get("seen"), dict[str, Seen], "seen")
