"""Exceptions for a login that fails."""

from __future__ import annotations

from mnt.errors import HostError, Phase


class LoginFailure(Exception):
    """A login failed, in a phase of mnt.errors.HostError."""

    def __init__(self, phase: Phase, message: str, *, fix: str | None = None, again: bool = False) -> None:
        super().__init__(message)
        self.phase = phase
        self.message = message
        self.fix = fix
        self.again = again  # the server closed the connection before authentication: worth another try

    def of(self, host: str) -> HostError:
        """The failure as an error of a host."""
        return HostError(host, self.phase, self.message, fix=self.fix)

    def at_gateway(self, name: str) -> LoginFailure:
        """The failure of a gateway, for the hosts behind it."""
        return LoginFailure(self.phase, f"gateway {name}: {self.message}", fix=self.fix)


class LoginCancelled(LoginFailure):
    """The connection was closed while it was being opened."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase, "given up: the connection was closed")
