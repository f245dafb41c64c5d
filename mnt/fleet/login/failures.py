"""How a login ends that does not succeed."""

from __future__ import annotations


class LoginFailure(Exception):
    """A login failed, in a phase of mnt.errors.HostError."""

    def __init__(self, phase: str, message: str, *, fix: str | None = None, again: bool = False) -> None:
        super().__init__(message)
        self.phase = phase
        self.message = message
        self.fix = fix
        self.again = again  # the server cut the connection before authentication: worth another try

    def at_gateway(self, name: str) -> LoginFailure:
        """The failure as the hosts behind a gateway see it."""
        return LoginFailure(self.phase, f"gateway {name}: {self.message}", fix=self.fix)


class Cancelled(Exception):
    """The connection was closed while it was being opened."""
