"""How a login ends that does not succeed."""

from __future__ import annotations

from mnt.errors import HostError


class LoginFailure(Exception):
    """A login failed, in a phase of mnt.errors.HostError."""

    def __init__(self, phase: str, message: str, *, fix: str | None = None, again: bool = False) -> None:
        super().__init__(message)
        self.phase = phase
        self.message = message
        self.fix = fix
        self.again = again  # the server cut the connection before authentication: worth another try

    def of(self, host: str) -> HostError:
        """The failure as that of a host."""
        return HostError(host, self.phase, self.message, fix=self.fix)

    def at_gateway(self, name: str) -> LoginFailure:
        """The failure as the hosts behind a gateway see it."""
        return LoginFailure(self.phase, f"gateway {name}: {self.message}", fix=self.fix)


class LoginCancelled(LoginFailure):
    """The connection was closed while it was being opened."""

    def __init__(self, phase: str) -> None:
        super().__init__(phase, "given up: the connection was closed")
