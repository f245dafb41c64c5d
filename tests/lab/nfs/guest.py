"""One guest: a User-Mode Linux process, and a shell on its serial line that needs no network."""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import time
from pathlib import Path

from mnt.lab.system import PATH
from nfs import packages

MEMORY = "96M"
_BOOT_SECONDS = 180.0  # it takes two; the machine may be busy
_LINE = 4000  # bytes; a serial line in raw mode holds 4096


class GuestError(Exception):
    """A guest did not start, or a command in it failed."""


class Guest:
    """A running guest.

    Args:
        name: its host name.
        anchor: pid of the lab's PID 1, whose namespaces it lives in.
        settings: environment of its init: ROLE and ADDRESSES.
        mac: of its NIC, whose other end is `tap-NAME` in the anchor's network namespace.
        memory: how much it has, in the kernel's words.
        disk: the size of a disk, which takes memory of the machine for what is written to it; 0: none.
    """

    def __init__(
        self,
        name: str,
        anchor: int,
        settings: dict[str, str],
        mac: str,
        *,
        memory: str = MEMORY,
        disk: int = 0,
    ) -> None:
        self.name = name
        self._mark = f"guest-{secrets.token_hex(8)}"
        self._buffer = b""
        self._log = Path(f"/proc/{anchor}/root/run/guests/{name}.log")
        kernel = _kernel(name, {**settings, "GUEST": name, "MARK": self._mark}, mac, memory)
        if disk:
            file = f"/run/guests/{name}.disk"
            with open(f"/proc/{anchor}/root{file}", "wb") as sparse:
                sparse.truncate(disk)
            kernel.append(f"ubda={file}")
        with open(self._log, "wb") as console:
            self._process = subprocess.Popen(
                [
                    *("nsenter", f"--target={anchor}", "--mount", "--net", "--pid", "--"),
                    *kernel,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                env={
                    "PATH": PATH,
                    "TMPDIR": "/run/guests",  # its memory is a file there
                    "LD_PRELOAD": str(packages.PTRACE),
                },
                bufsize=0,
            )

    def wait_until_up(self) -> None:
        """Raises GuestError if it does not come up."""
        self._answer("boot", _BOOT_SECONDS)

    def run(self, script: str, *, timeout: float = 120.0) -> str:
        """Run a line of sh as root; its output. Raises GuestError where it fails or takes too long.

        A guest whose command took too long is of no use any more.
        """
        line = script.encode() + b"\n"
        assert line.count(b"\n") == 1, "a script is one line"
        assert len(line) <= _LINE, "a script fits the serial line"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
        except BrokenPipeError:
            raise self._death(script) from None
        return self._answer(script, timeout)

    def _answer(self, what: str, timeout: float) -> str:
        """The lines up to the next mark."""
        deadline = time.monotonic() + timeout
        mark = self._mark.encode() + b" "
        while mark not in self._buffer or not self._buffer.partition(mark)[2].endswith(b"\n"):
            self._buffer += self._read(what, deadline - time.monotonic())
        output, _, code = self._buffer.partition(mark)
        self._buffer = b""
        text = output.decode(errors="replace")
        if code.strip() != b"0":
            raise GuestError(f"{self.name}: {what}: exit code {code.decode().strip()}: {text.strip()}")
        return text

    def _read(self, what: str, seconds: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], max(0.0, seconds))[0]:
            raise GuestError(f"{self.name}: {what}: no answer in time{self._last_words()}")
        data = os.read(descriptor, 65536)
        if not data:
            raise self._death(what)
        return data

    def _death(self, what: str) -> GuestError:
        return GuestError(f"{self.name}: {what}: the guest has died{self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return "".join(f"\n    {line}" for line in lines[-10:])

    def close(self) -> None:
        """Give back what this process holds of it, once the lab's end has ended it."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()


def _kernel(name: str, settings: dict[str, str], mac: str, memory: str) -> list[str]:
    """A guest's kernel and its command line (Linux 6.1, virt/uml/user_mode_linux_howto_v2.rst)."""
    return [
        "/run/root/usr/bin/linux.uml",
        f"umid={name}",
        "uml_dir=/run/guests",
        f"mem={memory}",
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/run/root", "ro"),
        *("quiet", "init=/etc/guest/init.sh", "module_blacklist=ipv6"),
        *("con=null", "con0=null,fd:2", "ssl=null", "ssl0=fd:0,fd:1"),
        f"vec0:transport=tap,ifname=tap-{name},depth=64,gro=1,mac={mac}",
        *(f"{key}={value}" for key, value in settings.items()),
    ]
