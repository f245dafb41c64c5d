"""The user's login shell on a host, for an error message."""

from __future__ import annotations

import contextlib
import threading

import paramiko

from mnt.errors import HostError
from mnt.fleet.connection import HostConnection
from mnt.fleet.wire.channel import CHANNEL_ERRORS

_PASSWD_LIMIT = 1 << 20  # bytes
_PACKET_LIMIT = 1 << 18  # bytes; the largest of OpenSSH's sftp-server (SFTP_MAX_MSG_LENGTH)
_LINE_SHOWN = 500  # characters


def runs_nothing(connection: HostConnection, exit_code: int | None, output: str) -> HostError:
    """The error for a host whose login shell ended without running the command.

    Args:
        exit_code: of the shell.
        output: its output, if any; the last line is in the message.
    """
    shell = login_shell(connection)
    named = "the login shell" if shell is None else f"the login shell, {shell},"
    code = "" if exit_code is None else f", exit code {exit_code}"
    last = "".join(output.strip().splitlines()[-1:])[:_LINE_SHOWN]
    return HostError(
        connection.target.name,
        "command",
        f"{named} runs no command{code}" + (f": {last}" if last else ""),
        fix=f"as root on the host: usermod --shell /bin/bash {connection.destination.user}",
    )


def login_shell(connection: HostConnection) -> str | None:
    """The shell in the host's /etc/passwd; None if it is not there, or the file cannot be read.

    The file is read over SFTP, which sshd's own `internal-sftp` serves without a shell, within
    `Timeouts.channel` seconds.
    """
    with (
        contextlib.suppress(HostError, paramiko.SSHException, OSError, EOFError),
        contextlib.closing(connection.open_session()) as channel,
    ):
        limit = connection.timeouts.channel
        end = threading.Timer(limit, _close, (channel,))
        end.daemon = True
        channel.settimeout(limit)
        channel.invoke_subsystem("sftp")
        end.start()
        try:
            with _Sftp(channel).open("/etc/passwd") as file:
                text = file.read(_PASSWD_LIMIT).decode(errors="replace")
        finally:
            end.cancel()
        return shell_of(text, connection.destination.user)
    return None


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
    entries = (line.split(":") for line in passwd.splitlines())
    return next((entry[6] for entry in entries if entry[0] == user and len(entry) == 7), None)
