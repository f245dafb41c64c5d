"""Transports, commands over their channels, and OpenSSH's client in place of both."""
