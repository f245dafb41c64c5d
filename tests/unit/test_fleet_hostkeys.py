"""Host keys: what known_hosts says, what follows, and what is written."""

from __future__ import annotations

import base64
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnt.fleet.login.failures import LoginFailure
from mnt.fleet.login.hostkeys import HostKey, KnownHosts, judge, parse

ED = HostKey("ssh-ed25519", b"ed")
ED2 = HostKey("ssh-ed25519", b"ed, another")
RSA = HostKey("ssh-rsa", b"rsa")


def line(names: str, key: HostKey, mark: str = "") -> str:
    return f"{mark}{names} {key.type} {base64.b64encode(key.blob).decode()} a comment\n"


def known(text: str, name: str) -> list[HostKey]:
    return [entry.key for entry in parse(text, "f") if entry.is_for(name)]


@pytest.mark.parametrize(
    ("names", "name", "speaks"),
    [
        ("node1", "node1", True),
        ("node1", "node10", False),
        ("NODE1,10.0.0.1", "node1", True),
        ("node1,10.0.0.1", "10.0.0.1", True),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222", True),
        ("[10.0.0.1]:2222", "10.0.0.1", False),
        ("10.0.0.1", "[10.0.0.1]:2222", False),
        ("node*", "node17", True),
        ("node?", "node17", False),
        ("*,!node2", "node2", False),
        ("*,!node2", "node1", True),
        ("[node1]", "n", False),  # no character class
        ("fe80::1", "fe80::1", True),
    ],
)
def test_which_lines_speak_of_a_host(names: str, name: str, speaks: bool) -> None:
    assert known(line(names, ED), name) == ([ED] if speaks else [])


NAMES = [
    "node1",
    "NODE1",
    "node1,10.0.0.1",
    "10.0.0.1",
    "node?",
    "*,!node2",
    "node2,node2",
    "[node1]:22",
    "!node1",
]


@given(st.lists(st.sampled_from(NAMES), max_size=8), st.sampled_from(["node1", "Node2", "10.0.0.1", "other"]))
def test_found_by_name_as_by_a_look_at_each_line(tmp_path_factory: Any, names: list[str], name: str) -> None:
    file = tmp_path_factory.mktemp("known") / "known_hosts"
    lines = [line(each, ED) for each in names]
    hashed = KnownHosts()
    file.write_text("".join(lines))
    hashed.record("node1", RSA, str(file), hashed=True)
    for store in (hashed, KnownHosts()):  # one that wrote a line itself, one that read it
        found = store.lines_for(name, [str(file)])
        assert found == [each for each in parse(file.read_text(), str(file)) if each.is_for(name)]


def test_lines_that_are_no_keys_are_skipped() -> None:
    text = "# a comment\n\nnode1\nnode1 ssh-ed25519\nnode1 ssh-ed25519 !!!\n@cert-authority " + line("*", ED)
    assert known(text, "node1") == []


def test_hashed_names_of_ssh_keygen(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line("node1", ED) + line("[10.0.0.1]:2222", RSA))
    blob = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)).decode()
    file.write_text(f"node1 ssh-ed25519 {blob}\n[10.0.0.1]:2222 ssh-ed25519 {blob}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    text = file.read_text()
    assert "node1" not in text
    for name in ("node1", "[10.0.0.1]:2222"):
        assert len(known(text, name)) == 1
    assert known(text, "node2") == []


def decide(text: str, key: HostKey, *, strict: bool = False) -> bool:
    return judge(parse(text, "~/.ssh/known_hosts"), key, strict=strict)


def test_a_known_key_is_no_news() -> None:
    assert decide(line("n", RSA) + line("n", ED), ED) is False


def test_an_unknown_key_is_new_unless_strict() -> None:
    assert decide("", ED) is True
    with pytest.raises(
        LoginFailure, match=rf"no key of this host is known; it shows ssh-ed25519 {ED.fingerprint}"
    ):
        decide("", ED, strict=True)


def test_a_changed_key_is_refused_with_both_fingerprints_and_the_place() -> None:
    with pytest.raises(LoginFailure) as refusal:
        decide("# first\n" + line("n", RSA) + line("n", ED), ED2)
    assert refusal.value.message == (
        f"changed: ~/.ssh/known_hosts:3 has ssh-ed25519 {ED.fingerprint}, "
        f"the host shows ssh-ed25519 {ED2.fingerprint}"
    )
    assert refusal.value.fix is not None
    assert refusal.value.fix.startswith("ask the administrator of the host whether it was reinstalled")


def test_a_key_of_another_type_is_a_change_too() -> None:
    with pytest.raises(LoginFailure, match=r"changed: ~/\.ssh/known_hosts:1 has ssh-rsa"):
        decide(line("n", RSA), ED)


def test_a_revoked_key_is_refused() -> None:
    with pytest.raises(LoginFailure, match=r"is revoked by ~/.ssh/known_hosts:2"):
        decide(line("n", ED) + line("*", ED, "@revoked "), ED)
    assert decide(line("n", ED) + line("*", ED2, "@revoked "), ED) is False


def test_the_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    file = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
    said = subprocess.run(["ssh-keygen", "-lf", file], check=True, capture_output=True, text=True).stdout
    kind, blob = file.with_suffix(".pub").read_text().split()[:2]
    assert HostKey(kind, base64.b64decode(blob)).fingerprint == said.split()[1]


def test_recording_makes_the_file_and_its_directory_private(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    store = KnownHosts()
    assert store.lines_for("node1", [str(file)]) == []
    store.record("node1", ED, str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert known(file.read_text(), "node1") == [ED]
    (entry,) = store.lines_for("node1", [str(file)])  # known at once, without reading again
    assert entry.place == f"{file}:1"


def test_recording_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("# no newline at the end")
    KnownHosts().record("node1", ED, str(file))
    assert file.read_text() == "# no newline at the end\n" + line("node1", ED).replace(" a comment", "")


def test_recording_hashed(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    KnownHosts().record("[node1]:2222", ED, str(file), hashed=True)
    text = file.read_text()
    assert text.startswith("|1|")
    assert known(text, "[node1]:2222") == [ED]


def test_many_at_once_lose_no_line(tmp_path: Path) -> None:
    file = str(tmp_path / "known_hosts")
    stores = [KnownHosts() for _ in range(8)]  # as several processes would

    def record(store: KnownHosts, first: int) -> None:
        for number in range(first, first + 25):
            store.record(f"node{number}", ED, file)

    threads = [
        threading.Thread(target=record, args=(store, 100 * index)) for index, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(parse(Path(file).read_text(), file)) == 200
