"""What a server offers for a key exchange, and what of it paramiko lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

HOST_KEY = "host key"
_SHOWN = 8  # algorithms of a list
_LONGEST = 64  # characters of a name (RFC 4251, 6)


@dataclass(frozen=True)
class _Kind:
    """A kind of algorithm.

    `lists` are those of a KEXINIT message, `option` is that of sshd_config, and `common` what each OpenSSH
    since 6.5 has: sshd does not start with a name that it does not know.
    """

    name: str
    lists: tuple[str, ...]
    option: str
    common: tuple[str, ...]


# RFC 4253, 7.1. The names of the lists are paramiko's.
_KINDS = (
    _Kind(
        "key exchange",
        ("kex_algo_list",),
        "KexAlgorithms",
        ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"),
    ),
    _Kind(HOST_KEY, ("server_key_algo_list",), "HostKeyAlgorithms", ("ssh-ed25519", "ecdsa-sha2-nistp256")),
    _Kind(
        "cipher",
        ("client_encrypt_algo_list", "server_encrypt_algo_list"),
        "Ciphers",
        ("aes256-gcm@openssh.com", "aes256-ctr"),
    ),
    _Kind(
        "MAC",
        ("client_mac_algo_list", "server_mac_algo_list"),
        "MACs",
        ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-256"),
    ),
)


@dataclass(frozen=True)
class Lack:
    """A kind of algorithm of which client and server have none in common."""

    kind: str
    option: str  # of sshd_config
    offered: tuple[str, ...]  # by the server
    common: str | None  # one that both have, if sshd_config allows it

    def __str__(self) -> str:
        names = [name[:_LONGEST] for name in self.offered[:_SHOWN]]
        more = ", .." if len(self.offered) > _SHOWN else ""
        return f"{self.kind}: only {', '.join(names)}{more}"


def lacking(offered: Mapping[str, Sequence[str]], ours: Sequence[Sequence[str]]) -> list[Lack]:
    """The kinds of algorithms without a common one.

    Args:
        offered: the lists of the server's KEXINIT.
        ours: those of the client: key exchange, host key, cipher, MAC.
    """
    return list(_lacking(offered, ours))


def _lacking(offered: Mapping[str, Sequence[str]], ours: Sequence[Sequence[str]]) -> Iterator[Lack]:
    for kind, have in zip(_KINDS, ours, strict=True):
        for name in kind.lists:
            theirs = tuple(word for word in offered.get(name, ()) if not _is_mark(word))
            if not set(theirs) & set(have):
                common = next((word for word in kind.common if word in have), None)
                yield Lack(kind.name, kind.option, theirs, common)
                break


def _is_mark(word: str) -> bool:
    """Whether it is no algorithm, but an extension that a list of key exchanges announces."""
    return word.startswith(("ext-info-", "kex-strict-"))


def way_out(lacks: Sequence[Lack]) -> str:
    """The fix: what to add to sshd_config, or the client that has more."""
    added = " and ".join(f"{lack.common} to {lack.option}" for lack in lacks if lack.common)
    return f"add {added} in the host's sshd_config; without that, use OpenSSH's client: mnt run --worker ssh"
