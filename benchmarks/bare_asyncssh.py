"""The least that asyncssh needs to run a command on many hosts: what `mnt run` is measured against.

python benchmarks/bare_asyncssh.py COMMAND USER KEY KNOWN_HOSTS ADDRESS...
"""

from __future__ import annotations

import asyncio
import sys

import asyncssh


async def run(address: str, command: str, **login: str) -> None:
    async with asyncssh.connect(address, config=None, **login) as connection:
        done = await connection.run(command)
        print(f"{address} | {done.stdout}", end="")


async def main() -> None:
    command, user, key, known_hosts, *addresses = sys.argv[1:]
    login = {"username": user, "client_keys": key, "known_hosts": known_hosts}
    await asyncio.gather(*(run(address, command, **login) for address in addresses))


asyncio.run(main())
