"""Logging in to a server: where and how, its host key, our keys, the gateways on the way, and what fails."""
