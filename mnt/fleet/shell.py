"""The user's login shell on a host, and its start-up files, for an error message."""

from __future__ import annotations

import contextlib
import re
import threading
import time

import paramiko

from mnt.errors import HostError
from mnt.fleet.connection import HostConnection
from mnt.fleet.startup import FILES, Found, explain
from mnt.fleet.wire.channel import CHANNEL_ERRORS
from mnt.fleet.wire.command import ReadTimeout, remaining
from mnt.remote.common.files import unix_lines

_FILE_LIMIT = 1 << 20  # bytes
_PACKET_LIMIT = 1 << 18  # bytes; the largest of OpenSSH's sftp-server (SFTP_MAX_MSG_LENGTH)
_LOOK_LIMIT = 5.0  # seconds

# Any login shell passes it on (see bootstrap.COMMAND). Who only repeats the command does not know the sum.
_LOOKED = b"mnt-looked-42\n"
_LOOK = (
    'exec sh -c \'echo mnt-looked-$((6 * 7)); echo "$SHELL"; cd; '
    f'grep -n "" /dev/null {" ".join(name.replace("~/", "./") for name in FILES)}\''
)


def runs_nothing(connection: HostConnection, exit_code: int | None, output: str) -> HostError:
    """The error for a host whose login shell has ended without running a command, or does not get that far.

    Args:
        exit_code: of the shell; None: it has not ended.
        output: of the shell, if any; its end is in the message.
    """
    ending = f"exit code {exit_code}"
    if exit_code is None:
        ending = f"and has not ended within {connection.timeouts.start:g} s"
    found = _look(connection) or over_sftp(connection)
    message, fix = explain(found, ending, output, connection.destination.user)
    return HostError(connection.target.name, "command", message, fix=fix)


def _look(connection: HostConnection) -> Found | None:
    """What a command without any input finds; None if the shell does not run it either."""
    output, deadline = b"", time.monotonic() + _LOOK_LIMIT
    with contextlib.suppress(HostError, ReadTimeout), connection.start(_LOOK) as running:
        running.end_input()
        while data := running.read(remaining(deadline)):
            output = (output + data)[:_FILE_LIMIT]
    _, mark, answer = output.partition(_LOOKED)
    if not mark:
        return None
    shell, *lines = answer.decode(errors="replace").split("\n")
    files: dict[str, str] = {}
    for line in lines:
        match = re.match(r"([^:]+):\d+:", line)
        name = match[1].replace("./", "~/") if match else ""
        if name in FILES and match:
            files[name] = files.get(name, "") + line[match.end() :] + "\n"
    return Found(shell or None, True, files)


def over_sftp(connection: HostConnection) -> Found:
    """What the host's files say of the shell.

    They are read over SFTP, which sshd's own `internal-sftp` serves without a shell, within `_LOOK_LIMIT`.
    """
    texts: dict[str, str] = {}
    with (
        contextlib.suppress(HostError, paramiko.SSHException, paramiko.SFTPError, OSError, EOFError),
        contextlib.closing(connection.open_session()) as channel,
    ):
        end = threading.Timer(_LOOK_LIMIT, _close, (channel,))
        end.daemon = True
        end.start()
        try:
            channel.settimeout(_LOOK_LIMIT)
            channel.invoke_subsystem("sftp")
            sftp = _Sftp(channel)
            for name in ("/etc/passwd", *FILES):
                with contextlib.suppress(FileNotFoundError), sftp.open(name.removeprefix("~/")) as file:
                    texts[name] = file.read(_FILE_LIMIT).decode(errors="replace")
        finally:
            end.cancel()
    return Found(shell_of(texts.pop("/etc/passwd", ""), connection.destination.user), False, texts)


def _close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(*CHANNEL_ERRORS):
        channel.close()


class _Sftp(paramiko.SFTPClient):
    """Paramiko's own believes a server that announces a packet of 16 MiB."""

    def _read_all(self, size: int) -> bytes:
        if size > _PACKET_LIMIT:
            raise paramiko.SSHException(f"an SFTP packet of {size} bytes")
        data: bytes = super()._read_all(size)  # type: ignore[misc]  # missing in the stubs
        return data


def shell_of(passwd: str, user: str) -> str | None:
    """A user's shell according to a table in the format of passwd(5)."""
    entries = (line.split(":") for line in unix_lines(passwd))
    return next((entry[6] for entry in entries if entry[0] == user and len(entry) == 7), None)
