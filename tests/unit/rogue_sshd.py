"""A malicious sshd on loopback, which accepts any key: for attacks with SSH's own messages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
import yaml
from waiting import PATIENCE

Deed = Callable[[paramiko.Channel], None]

KEY = paramiko.ECDSAKey.generate()


class RogueServer(paramiko.ServerInterface):
    """Lets anybody in, and does `deed` on the channel of a command or a subsystem, in a thread."""

    def __init__(self, deed: Deed, asked: list[str] | None = None) -> None:
        self._deed = deed
        self._asked = [] if asked is None else asked

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._do, args=(channel,), daemon=True).start()
        return True

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        return self.check_channel_exec_request(channel, b"")

    def check_channel_forward_agent_request(self, channel: paramiko.Channel) -> bool:
        self._asked.append("agent")
        return True

    def check_channel_x11_request(self, channel: paramiko.Channel, *_: Any) -> bool:
        self._asked.append("x11")
        return True

    def check_port_forward_request(self, address: str, port: int) -> int:
        self._asked.append("port")
        return port or 1

    def _do(self, channel: paramiko.Channel) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._deed(channel)


@contextmanager
def rogue(deed: Deed, *, asked: list[str] | None = None, receive_buffer: int = 0) -> Iterator[int]:
    """The port of a server that does this, in a thread, with the channel of each command.

    Args:
        asked: gets the forwardings that a client asks for.
        receive_buffer: bytes; 0: the kernel's default.
    """
    transports: list[paramiko.Transport] = []
    with socket.socket() as listener:
        if receive_buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)

        def serve() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    transport = paramiko.Transport(listener.accept()[0])
                    transport.add_server_key(KEY)
                    transports.append(transport)
                    with suppress(EOFError, paramiko.SSHException):
                        transport.start_server(event=threading.Event(), server=RogueServer(deed, asked))

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for transport in transports:
                transport.close()


def begin(channel: paramiko.Channel, group: str = "7") -> bytes:
    """Say that the command has started, as the wrapper of `mnt run` does; returns its mark.

    Args:
        group: `sh 7` for the boot code of a program.
    """
    head = channel.makefile("rb")
    head.readline()
    mark: bytes = head.readline().strip()
    channel.sendall(mark + f" {group}\n".encode())
    channel.sendall_stderr(mark + b"\n")
    return mark


def obey(channel: paramiko.Channel) -> None:
    """Pretend that the command has succeeded."""
    mark = begin(channel)
    channel.sendall_stderr(mark + b" 0\n")
    channel.send_exit_status(0)
    channel.close()


def inventory(directory: Path, ports: dict[str, int], **ssh: Any) -> Path:
    """An inventory of rogues; `ssh` are further settings of all hosts."""
    key = directory / "id"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    settings = {"user": "mnt", "identity": str(key), "known_hosts": str(directory / "known_hosts"), **ssh}
    hosts = {name: {"address": "127.0.0.1", "ssh": {"port": port}} for name, port in ports.items()}
    file = directory / "inventory.yaml"
    file.write_text(yaml.safe_dump({"cluster": "x", "ssh": settings, "hosts": hosts}, sort_keys=False))
    return file


def mnt(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`mnt` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from mnt.cli import main; main()", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **env},
    )
