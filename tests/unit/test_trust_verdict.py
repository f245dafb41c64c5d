"""What the keys of a host are worth, and the administrator's list."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from mnt.errors import MntError, UsageError
from mnt.fleet.login.hostkeys import HostKey, KnownHosts, KnownKey, parse
from mnt.trust import fingerprints
from mnt.trust.verdict import judge

ED, ED2 = HostKey("ssh-ed25519", b"ed"), HostKey("ssh-ed25519", b"ed2")
RSA, RSA2 = HostKey("ssh-rsa", b"rsa"), HostKey("ssh-rsa", b"rsa2")
ECDSA = HostKey("ecdsa-sha2-nistp256", b"ec")


def known(*keys: HostKey, revoked: HostKey | None = None) -> list[KnownKey]:
    lines = [KnownKey("node1", key, False, "known_hosts", number) for number, key in enumerate(keys, start=1)]
    return [*lines, KnownKey("*", revoked, True, "known_hosts", 99)] if revoked else lines


def listed(*keys: HostKey) -> frozenset[str]:
    return frozenset(key.fingerprint for key in keys)


@pytest.mark.parametrize(
    ("shown", "recorded", "vouched", "status", "record"),
    [
        ([ED, RSA], known(), None, "new", (ED, RSA)),
        ([ED, RSA], known(RSA), None, "known", ()),
        ([ED], known(ED, RSA), None, "known", ()),
        ([ED2], known(ED), None, "changed", (ED2,)),
        ([ED2, RSA], known(ED, RSA), None, "changed", (ED2,)),
        ([ECDSA], known(ED), None, "changed", (ECDSA,)),
        ([ED, ED2], known(ED), None, "changed", (ED2,)),
        ([ED], known(ED, revoked=ED), None, "revoked", ()),
        ([ED2], known(revoked=ED), None, "new", (ED2,)),
        ([ED, RSA], known(), listed(RSA), "new", (RSA,)),
        ([ED], known(), listed(ED2), "mismatch", ()),
        ([ED], known(ED), listed(ED2), "mismatch", ()),
        ([ED], known(ED), listed(ED), "known", ()),
        ([ED2], known(ED), listed(ED2), "changed", (ED2,)),
        ([ED2, RSA2], known(ED), listed(ED2), "changed", (ED2,)),
        ([ED], known(), frozenset(), "unlisted", ()),
    ],
)
def test_verdicts(
    shown: list[HostKey],
    recorded: list[KnownKey],
    vouched: frozenset[str] | None,
    status: str,
    record: tuple[HostKey, ...],
) -> None:
    verdict = judge(shown, recorded, vouched)
    assert (verdict.status, verdict.record) == (status, record)


def test_a_changed_host_loses_the_keys_that_it_does_not_show() -> None:
    assert [line.key for line in judge([ED2, RSA], known(ED, RSA), None).old] == [ED]


def test_a_list(tmp_path: Path) -> None:
    file = tmp_path / "list"
    file.write_text(
        f"# ours\n\nnode1 {ED.fingerprint} # new\nnode1 {RSA.fingerprint}\n10.0.0.2 {ED2.fingerprint}\n"
    )
    found = fingerprints.read(str(file))
    assert fingerprints.of(["node1", "10.0.0.1"], found) == listed(ED, RSA)
    assert fingerprints.of(["node2", "10.0.0.2"], found) == listed(ED2)
    assert fingerprints.of(["node3"], found) == frozenset()


@pytest.mark.parametrize(
    "line", ["node1", "node1 MD5:aa", "node1 SHA256:short", "256 node1 SHA256:x (ED25519)"]
)
def test_a_list_that_cannot_be_read_names_the_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "list"
    file.write_text(f"# first\n{line}\n")
    with pytest.raises(UsageError, match=r"list:2: not a host and a fingerprint"):
        fingerprints.read(str(file))


def test_a_list_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        fingerprints.read(str(tmp_path / "none"))
    (tmp_path / "list").write_text("# nothing\n")
    with pytest.raises(UsageError, match="no fingerprints"):
        fingerprints.read(str(tmp_path / "list"))


# -- forgetting


def test_forgetting_takes_only_the_name(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    text = "# mine\nnode1,10.0.0.1 ssh-ed25519 AAAA comment\nnode1 ssh-rsa AAAA\nother ssh-rsa AAAA\n"
    file.write_text(text)
    file.chmod(0o640)
    KnownHosts().forget("node1", [line for line in parse(text, str(file)) if line.is_for("node1")])
    assert file.read_text() == "# mine\n10.0.0.1 ssh-ed25519 AAAA comment\nother ssh-rsa AAAA\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "known_hosts.old").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["known_hosts", "known_hosts.old"]


def test_a_pattern_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("node* ssh-ed25519 AAAA\n")
    with pytest.raises(MntError, match=r"known_hosts:1 matches node1 by a pattern: node\*"):
        KnownHosts().forget("node1", parse(file.read_text(), str(file)))
    assert file.read_text() == "node* ssh-ed25519 AAAA\n"


def test_a_link_in_the_place_of_the_old_file_is_not_followed(tmp_path: Path) -> None:
    """Another user may have made it, if the directory is open."""
    precious = tmp_path / "precious"
    precious.write_text("important")
    (tmp_path / "known_hosts.old").symlink_to(precious)
    file = tmp_path / "known_hosts"
    file.write_text(f"node1 {ED.type} {base64.b64encode(ED.blob).decode()}\n")
    known = KnownHosts()
    known.forget("node1", known.lines_for("node1", [str(file)]))
    assert file.read_text() == ""
    assert precious.read_text() == "important"
    assert (tmp_path / "known_hosts.old").read_text().startswith("node1 ")
