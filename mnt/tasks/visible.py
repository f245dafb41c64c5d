"""Whether a file that one host writes is visible on the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypedDict

from mnt.fleet import HostConnection
from mnt.remote.probe.visible import file_in
from mnt.tasks.program import held, run_program
from mnt.tasks.shape import Duration, complete, shaped, wrong_answer


class Written(TypedDict):
    """The file that a host wrote, or why it could not write."""

    file: str | None
    error: str | None


class Seen(TypedDict):
    """Seconds until a host could read what another host wrote, or why it could not."""

    delay: Duration | None
    error: str | None


@contextmanager
def write_files(
    connection: HostConnection, content: str, places: Mapping[str, Sequence[str]], *, deadline: float
) -> Iterator[dict[str, Written]]:
    """Write files that contain `content`, and remove them at the end of the block or of the connection.

    Args:
        content: letters and digits.
        places: directories by name; the file goes to the first one that can be written to.
        deadline: seconds for writing; a directory that hangs counts as not written.

    Raises HostError if the host cannot be reached.
    """
    args = {"content": content, "write": places, "deadline": deadline}
    host = connection.target.name
    with held(connection, "probe.visible", args) as first:
        said = shaped(host, first.get("written"), dict[str, Written], "written")
        written = complete(host, said, places, "written")
        for place, directories in places.items():
            # The other hosts open this file, so no host names one that it was not told to write.
            file = written[place]["file"]
            if file is not None and file not in [file_in(directory, content) for directory in directories]:
                raise wrong_answer(host, f"written: {place}: another file")
        yield written


def await_files(
    connection: HostConnection, content: str, files: Mapping[str, str], *, deadline: float
) -> dict[str, Seen]:
    """Wait, at most `deadline` seconds, until the files (by name) contain `content`. Raises HostError."""
    args = {"content": content, "read": files, "deadline": deadline}
    answer, host = run_program(connection, "probe.visible", args), connection.target.name
    return complete(host, shaped(host, answer.get("seen"), dict[str, Seen], "seen"), files, "seen")
