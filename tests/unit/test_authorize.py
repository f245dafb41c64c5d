"""The files of an account: what `ssh-setup` writes, and that it leaves alone what is right."""

from __future__ import annotations

import base64
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fix_style import complaint

from mnt.remote.ssh import authorize
from mnt.remote.ssh.publickey import canonical


def blob(number: int) -> str:
    """An Ed25519 public key as authorized_keys has it, without its type."""
    return base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(31) + bytes([number])).decode()


HEADS, NODES, TWOS, NEWS = map(blob, range(4))
HEAD = {"key": f"ssh-ed25519 {HEADS}", "comment": "me@head", "options": ""}
NODE = {"key": f"ssh-ed25519 {NODES}", "comment": "mnt:c:node1", "options": "no-port-forwarding"}
PEER = {"names": ["node1"], "address": "10.0.0.1", "user": "u", "port": 22, "keys": ["ssh-ed25519 AAAA1"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    return tmp_path


def run(**args: Any) -> dict[str, Any]:
    given = {"cluster": "c", "authorized": [HEAD], "node_key": False, "peers": [], "dry_run": False, **args}
    return authorize.main(given, lambda frame: None, None)  # type: ignore[arg-type]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_added_once() -> None:
    text = "# mine\nssh-rsa AAAAmine\n"
    once = authorize.authorized(text, [HEAD, NODE])
    assert once == text + f"ssh-ed25519 {HEADS} me@head\nno-port-forwarding ssh-ed25519 {NODES} mnt:c:node1\n"
    assert authorize.authorized(once, [HEAD, NODE]) == once


@pytest.mark.parametrize(
    "text",
    [
        f"ssh-ed25519 {HEADS} somebody else's comment\n",
        f'command="a b",no-pty ssh-ed25519 {HEADS}\n',
        f"ssh-ed25519 {HEADS}\n\n# end",
    ],
)
def test_a_key_that_is_let_in_already_keeps_its_line(text: str) -> None:
    assert authorize.authorized(text, [HEAD]).startswith(text)
    assert authorize.authorized(text, [HEAD]).count(HEADS) == 1


def test_a_key_in_a_comment_does_not_count() -> None:
    assert authorize.authorized(f"#ssh-ed25519 {HEADS}\n", [HEAD]).endswith(
        f"\nssh-ed25519 {HEADS} me@head\n"
    )


def test_a_nodes_new_key_takes_the_place_of_its_old_one() -> None:
    old = authorize.authorized("", [NODE, {**NODE, "comment": "mnt:c:node2", "key": f"ssh-ed25519 {TWOS}"}])
    new = authorize.authorized(old, [{**NODE, "key": f"ssh-ed25519 {NEWS}"}])
    assert NODES not in new
    assert TWOS in new
    assert NEWS in new


def test_what_a_node_says_is_its_key_makes_no_other_key_come_and_go() -> None:
    """node1 names the key of the head, then that of node2, and at last its own."""
    two = {**NODE, "comment": "mnt:c:node2", "key": f"ssh-ed25519 {TWOS}"}
    planted = authorize.authorized("", [{**NODE, "key": f"ssh-ed25519 {HEADS}"}])
    with_head = authorize.authorized(planted, [HEAD])
    assert with_head == f"ssh-ed25519 {HEADS} me@head\n"
    again = authorize.authorized(with_head, [HEAD, {**NODE, "key": f"ssh-ed25519 {TWOS}"}, two])
    assert again.count(TWOS) == 2
    last = authorize.authorized(again, [HEAD, NODE])  # without node2, which is not selected
    assert sorted(line.rpartition(" ")[2] for line in last.splitlines()) == [
        "me@head",
        "mnt:c:node1",
        "mnt:c:node2",
    ]
    assert last.startswith(f"ssh-ed25519 {HEADS} me@head\n")


def test_nodes_that_share_a_home_have_a_line_each() -> None:
    both = [NODE, {**NODE, "comment": "mnt:c:node2"}]
    once = authorize.authorized("", both)
    assert once.count(NODES) == 2
    assert authorize.authorized(once, both) == once


def test_ports_and_names_of_known_hosts() -> None:
    other = {**PEER, "names": ["node2"], "address": "fd00::2", "port": 2222}
    assert authorize.known_hosts([PEER, other]) == (
        "10.0.0.1,node1 ssh-ed25519 AAAA1\n[fd00::2]:2222,[node2]:2222 ssh-ed25519 AAAA1\n"
    )


@pytest.mark.skipif(not shutil.which("ssh"), reason="no OpenSSH client")
def test_ssh_reads_the_config_as_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        authorize.config("c", [{**PEER, "port": 2222}]) + "Host *\n User other\n"
    )
    said = subprocess.run(["ssh", "-G", "-F", tmp_path / "config", "node1"], capture_output=True, text=True)
    lines = said.stdout.splitlines()
    assert {"hostname 10.0.0.1", "user u", "port 2222", "stricthostkeychecking true"} <= set(lines)
    assert "identityfile ~/.ssh/mnt/c/id_ed25519" in lines


def test_modes_and_a_second_run(home: Path) -> None:
    (home / ".ssh").mkdir(mode=0o755)
    (home / ".ssh" / "authorized_keys").write_text("ssh-rsa AAAAmine")  # no newline at its end
    (home / ".ssh" / "authorized_keys").chmod(0o644)
    first = run(peers=[PEER])
    assert len(first["changes"]) > 3
    assert (home / ".ssh" / "authorized_keys").read_text().startswith("ssh-rsa AAAAmine\nssh-ed25519 ")
    for path in (home / ".ssh").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert mode(home / ".ssh") == 0o700
    assert run(peers=[PEER])["changes"] == []


def test_a_dry_run_tells_the_same_and_does_nothing(home: Path) -> None:
    planned = run(peers=[PEER], dry_run=True)
    assert not (home / ".ssh").exists()
    done = run(peers=[PEER])
    assert [line for line in planned["changes"] if "mode" not in line] == done["changes"]


def test_a_link_stays_a_link(home: Path) -> None:
    (home / "elsewhere").write_text("")
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh" / "authorized_keys").symlink_to(home / "elsewhere")
    run()
    assert (home / ".ssh" / "authorized_keys").is_symlink()
    assert HEADS in (home / "elsewhere").read_text()


def test_a_home_that_others_may_write(home: Path) -> None:
    home.chmod(0o777)
    refused = run()["refused"]
    assert refused["fix"] == f"on the host: chmod go-w {home}"
    assert os.listdir(home) == []


# --- what another user has planted, which sshd and ssh ignore

EVE = 64999  # no such user here
FILES = ("authorized_keys", "config", "mnt/c/known_hosts", "mnt/c/config", "mnt/c/id_ed25519")
PLACES = (".", "mnt", "mnt/c", *FILES)
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def filled(home: Path) -> Path:
    """~/.ssh as `ssh-setup` leaves it, with a line of Eve's in each file."""
    (home / ".ssh" / "mnt" / "c").mkdir(parents=True)
    for name in FILES:
        (home / ".ssh" / name).write_text("# Eve\n")
        (home / ".ssh" / name).chmod(0o600)
    for name in ("mnt/c", "mnt", "."):
        (home / ".ssh" / name).chmod(0o700)
    return home / ".ssh"


def state(top: Path) -> dict[str, tuple[int, int, str]]:
    return {
        str(path): (path.stat().st_mode, path.stat().st_uid, path.read_text() if path.is_file() else "")
        for path in (top, *top.rglob("*"))
    }


def assert_refused(ssh: Path, message: str, **args: Any) -> str:
    """Each trip refuses, and changes nothing: neither texts nor modes."""
    before, fix = state(ssh), ""
    for trip in ({"node_key": True}, {"peers": [PEER]}, {"node_key": True, "dry_run": True}):
        refused = run(**{**trip, **args})["refused"]
        assert message in refused["message"]
        assert complaint(refused["fix"]) is None
        fix = refused["fix"]
        assert state(ssh) == before
    return fix


@needs_root
@pytest.mark.parametrize("name", PLACES)
def test_what_belongs_to_another_user_does_not_become_valid(filled: Path, name: str) -> None:
    os.chown(filled / name, EVE, EVE)
    assert_refused(filled, f"{filled / name} belongs to uid {EVE}, not to root (uid 0) or root")


@needs_root
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    ("group", "mode", "who"),
    [(0, 0o666, "all users"), (EVE, 0o664, f"the group {EVE}"), (0, 0o602, "all users")],
)
def test_what_another_user_can_write_to_does_not_become_valid(
    filled: Path, name: str, group: int, mode: int, who: str
) -> None:
    place = filled / name
    place.chmod(mode | 0o111 if place.is_dir() else mode)
    os.chown(place, 0, group)
    assert_refused(filled, f"{who} can write to {place} (mode ")


@needs_root
def test_a_link_that_another_user_made_in_place_of_a_file(filled: Path) -> None:
    for name in ("authorized_keys", "config"):
        file = filled / name
        file.rename(filled / "mine")
        file.symlink_to("mine")
        os.chown(file, EVE, EVE, follow_symlinks=False)
        assert_refused(filled, f"{file} belongs to uid {EVE}")
        file.unlink()
        (filled / "mine").rename(file)


@needs_root
def test_without_logins_between_the_nodes_only_what_is_used_is_judged(filled: Path) -> None:
    (filled / "config").chmod(0o666)
    assert "refused" not in run()
    (filled / "authorized_keys").chmod(0o666)
    assert "authorized_keys" in run()["refused"]["message"]


def fixed(fix: str) -> None:
    """Do what a fix says, except for what a person looks at."""
    commands = fix.removeprefix("on the host: ").replace("then: ", "").split("; ")
    for command in commands:
        if not command.removeprefix("then ").startswith(("check ", "the next ")):
            command = command.partition(" (only a workdir")[0]
            subprocess.run(["sh", "-c", command], check=True)


@needs_root
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
@pytest.mark.parametrize("name", PLACES)
def test_the_fix_leads_out(filled: Path, name: str) -> None:
    """And what Eve has open is then no file of the account."""
    (filled / "mnt/c/id_ed25519").unlink()
    run(node_key=True)
    place = filled / name
    os.chown(place, 0, EVE)
    place.chmod(0o777)
    fix = assert_refused(filled, f"{place}")
    inode = place.stat().st_ino
    fixed(fix)
    assert place.is_dir() or not place.exists() or place.stat().st_ino != inode
    assert "refused" not in run(node_key=True, peers=[PEER])
    assert run(node_key=True, peers=[PEER])["changes"] == []


def test_a_key_of_the_node_that_others_can_read(filled: Path) -> None:
    """They may have a copy."""
    key = filled / "mnt/c/id_ed25519"
    for above in (filled.parent, filled, filled / "mnt", filled / "mnt/c"):
        above.chmod(0o755)
    key.chmod(0o640)
    refused = run(node_key=True)["refused"]
    assert refused["message"].startswith(f"others can read {key} (mode 0640)")
    assert refused["fix"].startswith(f"on the host: rm {key}; ")
    filled.chmod(0o700)
    assert "others can read" not in str(run(node_key=True))


def test_ones_own_group_is_nobody_else(home: Path) -> None:
    """With umask 002, as on Debian: sshd there accepts it, and it is closed."""
    before = os.umask(0o002)
    try:
        (home / ".ssh").mkdir()
        (home / ".ssh" / "authorized_keys").write_text("ssh-rsa AAAAmine\n")
    finally:
        os.umask(before)
    assert mode(home / ".ssh") == 0o775
    answer = run()
    assert "~/.ssh: mode 700" in answer["changes"]
    assert (home / ".ssh" / "authorized_keys").read_text().startswith("ssh-rsa AAAAmine\nssh-ed25519 ")


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen")
def test_a_nodes_key_is_made_once(home: Path) -> None:
    public = run(node_key=True)["public"]
    assert public.startswith("ssh-ed25519 AAAA")
    assert run(node_key=True) == {"changes": [], "public": public}
    assert sorted(path.name for path in (home / ".ssh" / "mnt" / "c").iterdir()) == ["id_ed25519"]


HOSTILE_KEYS = [
    f"ssh-ed25519 {NODES}\nssh-ed25519 {TWOS}",
    f"ssh-ed25519 {NODES} x\nssh-ed25519 {TWOS}",
    f'command="x" ssh-ed25519 {NODES}',
    f"ssh-ed25519  {NODES}",
    f"ssh-ed25519 {NODES}\r",
    f"ssh-ed25519 {NODES[:-4]}",
    f"ssh-ed25519 {NODES}AAAA",
    f"ssh-rsa {NODES}",
    "ssh-ed25519 ",
    "ssh-ed25519 \u0661",
    "ssh-ed25519 AAAA",
    "",
]


@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_what_is_not_one_key_is_refused(home: Path, key: str) -> None:
    """A node's public key is any string that the node likes: it must not become a second line."""
    answer = run(authorized=[{**NODE, "key": key}])
    assert "is not a public key" in answer["refused"]["message"]
    assert not (home / ".ssh").exists()
    with pytest.raises(ValueError, match="not a public key"):
        canonical(key, types="ssh-ed25519")


@pytest.mark.parametrize("field", ["comment", "options"])
def test_a_comment_that_begins_a_new_line_is_refused(home: Path, field: str) -> None:
    answer = run(authorized=[{**NODE, field: f"x\nssh-ed25519 {TWOS}"}])
    assert "control character" in answer["refused"]["message"]
    assert not (home / ".ssh" / "authorized_keys").exists()
