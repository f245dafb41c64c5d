"""What a server offers for a key exchange, and what is said if paramiko has nothing of it."""

from __future__ import annotations

import pytest

from mnt.fleet.wire.algorithms import lacking, way_out

OURS = (
    ("mlkem768x25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"),
    ("ssh-ed25519", "rsa-sha2-512"),
    ("aes128-gcm@openssh.com", "aes256-ctr"),
    ("hmac-sha2-256",),
)
LISTS = {
    "kex_algo_list": ["ecdh-sha2-nistp256", "ext-info-s"],
    "server_key_algo_list": ["ssh-ed25519"],
    "client_encrypt_algo_list": ["aes256-ctr"],
    "server_encrypt_algo_list": ["aes256-ctr"],
    "client_mac_algo_list": ["hmac-sha2-256"],
    "server_mac_algo_list": ["hmac-sha2-256"],
}
MARKS = ["ext-info-s", "kex-strict-s-v00@openssh.com"]


@pytest.mark.parametrize(
    ("offered", "said", "added"),
    [
        ({}, [], ""),
        (
            {"kex_algo_list": ["sntrup761x25519-sha512@openssh.com", *MARKS]},
            ["key exchange: only sntrup761x25519-sha512@openssh.com"],
            "curve25519-sha256@libssh.org to KexAlgorithms",
        ),
        (
            {"server_key_algo_list": ["ssh-dss"]},
            ["host key: only ssh-dss"],
            "ssh-ed25519 to HostKeyAlgorithms",
        ),
        ({"server_encrypt_algo_list": ["a", "b"]}, ["cipher: only a, b"], "aes256-ctr to Ciphers"),
        (
            {"client_encrypt_algo_list": [""], "server_mac_algo_list": [f"m{n}" for n in range(9)]},
            ["cipher: only ", "MAC: only m0, m1, m2, m3, m4, m5, m6, m7, .."],
            "aes256-ctr to Ciphers and hmac-sha2-256 to MACs",
        ),
        ({"client_mac_algo_list": ["x" * 10_000]}, ["MAC: only " + "x" * 64], "hmac-sha2-256 to MACs"),
    ],
)
def test_what_differs(offered: dict[str, list[str]], said: list[str], added: str) -> None:
    lacks = lacking({**LISTS, **offered}, OURS)
    assert [str(lack) for lack in lacks] == said
    if lacks:
        assert way_out(lacks) == (
            f"add {added} in the host's sshd_config; without that, use OpenSSH's client: mnt run --worker ssh"
        )
