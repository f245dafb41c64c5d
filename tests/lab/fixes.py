"""To do what a fix says, word for word, on a lab host; as the ordinary user, who may use sudo."""

from __future__ import annotations

import re

from mnt.lab.lab import LabHost

_LINE = re.compile(r"on the host, put this line at the top of (~/\.\w+): (.+?)(?:; if it is from .*)?")
_NFT = re.compile(
    r"into the table and chain that drop \((sudo nft list ruleset)\): (sudo nft .*?); without nft: .*"
)


def run_as_user(host: LabHost, command: str) -> str:
    """What the command prints; it must succeed."""
    done = host.exec(["sh", "-ec", command], user=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def put_at_the_top(host: LabHost, fix: str) -> None:
    """The fix for a start-up file."""
    match = _LINE.fullmatch(fix)
    assert match is not None, fix
    script = 'cd; { printf "%s\\n" "$2"; cat "$1"; } >new && mv new "$1"'
    done = host.exec(["sh", "-c", script, "sh", match[1].replace("~/", "./"), match[2]], user=True)
    assert done.returncode == 0, done.stderr


def open_with_nft(host: LabHost, fix: str) -> None:
    """The fix for a firewall: FAMILY, TABLE and CHAIN are those of the rule that drops, in what is listed."""
    match = _NFT.search(fix)
    assert match is not None, fix
    family, table, chain = dropping(run_as_user(host, match[1]))
    for command in match[2].split("; "):
        words = command.replace("FAMILY", family).replace("TABLE", table).replace("CHAIN", chain)
        run_as_user(host, words)


def dropping(ruleset: str) -> tuple[str, str, str]:
    """Family, table and chain of the first rule that drops."""
    family = table = chain = ""
    for words in map(str.split, ruleset.splitlines()):
        if words[:1] == ["table"]:
            family, table = words[1:3]
        elif words[:1] == ["chain"]:
            chain = words[1]
        elif "drop" in words:
            return family, table, chain
    raise AssertionError(f"no rule drops: {ruleset}")
