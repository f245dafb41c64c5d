"""The words of an `ssh` command line, and what ssh's errors mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnt.fleet.wire.sshwords import failure_of, master_argv, proxy_command, ssh_argv
from mnt.fleet.wire.timeouts import Timeouts
from mnt.inventory.model import Host, Ssh

USUAL = [
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"),
    *("-o", "StrictHostKeyChecking=accept-new", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"),
    *("-o", "ClearAllForwardings=yes", "-o", "Tunnel=no", "-o", "PermitLocalCommand=no"),
]
SESSION = ["-o", "RemoteCommand=none", "-o", "RequestTTY=no", "-o", "ExitOnForwardFailure=no"]
SESSION += ["-o", "LogLevel=INFO", "-o", "ControlMaster=no", "-o", "ControlPath=none"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (Host("node1", "node1"), [*USUAL, *SESSION, "--", "node1", "CMD"]),
        (Host("node1", "[fe80::1%eth0]"), [*USUAL, *SESSION, "--", "fe80::1%eth0", "CMD"]),
        (
            Host("node1", "10.0.0.1", Ssh(user="-oProxyCommand=x", port=2222)),
            [*USUAL, "-l", "-oProxyCommand=x", "-p", "2222", *SESSION, "--", "10.0.0.1", "CMD"],
        ),
        (
            Host("node1", "10.0.0.1", Ssh(config=None)),
            [*USUAL[:2], "-F", "none", *USUAL[2:], *SESSION, "--", "10.0.0.1", "CMD"],
        ),
        (
            Host("node1", "10.0.0.1", Ssh(identity="/a b/%key", known_hosts="/k", gateway="")),
            [
                *(*USUAL, "-o", 'IdentityFile="/a b/%%key"', "-o", "IdentitiesOnly=yes"),
                *("-o", 'UserKnownHostsFile="/k"', *SESSION, "-J", "none", "--", "10.0.0.1", "CMD"),
            ],
        ),
    ],
)
def test_words(host: Host, expected: list[str]) -> None:
    timeouts = Timeouts(connect=9.5, keepalive=15)
    assert ssh_argv(host, timeouts, "CMD") == expected


def test_a_session_stays_ours_with_a_newer_client() -> None:
    session = {"SessionType=default", "StdinNull=no", "ForkAfterAuthentication=no"}
    assert session < set(ssh_argv(Host("a", "a"), Timeouts(), "CMD", newer=True))
    master = set(master_argv(Host("a", "a"), Timeouts(), "/tmp/d/0", newer=True))
    assert {"SessionType=none", "StdinNull=no", "ForkAfterAuthentication=no", "ControlMaster=yes"} < master


def test_strict_and_a_file_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ssh_argv(Host("a", "a", Ssh(host_keys="strict", config="~/other")), Timeouts(), "CMD")
    assert "StrictHostKeyChecking=yes" in words
    assert words[2:4] == ["-F", f"{tmp_path}/other"]


# As OpenSSH 9.2 says it.
@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ("ssh: Could not resolve hostname nowhere: Name or service not known", "resolve"),
        ("ssh: connect to host 10.0.0.9 port 22: Connection refused", "connect"),
        ("ssh: connect to host 10.0.0.9 port 22: No route to host", "connect"),
        ("Connection timed out during banner exchange\nConnection to 10.0.0.9 port 22 timed out", "banner"),
        ("kex_exchange_identification: Connection closed by remote host", "key exchange"),
        ("No ED25519 host key is known for a.\nHost key verification failed.", "host key"),
        ("mnt@10.0.0.9: Permission denied (publickey).", "authentication"),
        (
            "Stdio forwarding request failed: Session open refused by peer\nkex_exchange_identification: x",
            "connect",
        ),
        ("client_loop: send disconnect: Broken pipe", "channel"),
        ("", "channel"),
    ],
)
def test_phases(said: str, phase: str) -> None:
    assert failure_of(said)[0] == phase


def test_messages() -> None:
    assert failure_of("a\nssh: connect to host a port 22: Connection refused\n") == (
        "connect",
        "ssh: connect to host a port 22: Connection refused",
    )
    assert failure_of("Stdio forwarding request failed: x\nConnection closed by UNKNOWN port 65535")[1] == (
        "the gateway cannot reach it, or forwards nothing"
    )
    assert failure_of("") == ("channel", "ssh: it ended")


def test_the_way_through_a_gateway() -> None:
    proxy = proxy_command("/tmp/d/0", "fe80::1%eth0", 23)
    assert proxy == (
        "ssh -F none -S /tmp/d/0 -o BatchMode=yes -o ProxyCommand=false -W '[fe80::1%%eth0]:23' gateway"
    )
    timeouts = Timeouts(connect=9.5, keepalive=15)
    words = ssh_argv(Host("node1", "10.0.0.1", Ssh(gateway="a")), timeouts, "CMD", proxy=proxy)
    assert words == [*USUAL, *SESSION, "-o", f"ProxyCommand={proxy}", "--", "10.0.0.1", "CMD"]
    # The gateway itself, as `gateway: a` for all hosts suggests: reached without itself.
    words = ssh_argv(Host("a", "a", Ssh(gateway="a")), timeouts, "CMD")
    assert words == [*USUAL, *SESSION, "-J", "none", "--", "a", "CMD"]
    master = master_argv(Host("b", "b", Ssh(user="u")), timeouts, "/tmp/d/1", proxy=proxy)
    assert master[:2] == ["ssh", "-N"]
    assert master[-5:] == [f"ProxyCommand={proxy}", "-S", "/tmp/d/1", "--", "b"]
    assert {"ControlMaster=yes", "ControlPersist=no", "BatchMode=yes"} < set(master)


@pytest.mark.parametrize("name", ["", "-oProxyCommand=x", "'; touch /tmp/x; '", "$(id)", "a b", "a\nb", "é"])
def test_what_is_no_name_of_a_host_meets_no_shell(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a host"):
        proxy_command("/tmp/d/0", name, 22)
