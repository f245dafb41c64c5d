"""What playbooks/tasks/environment.py decides. tests/lab/test_playbook_environment.py has it build."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import netrc
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused

PROGRAM = Path(__file__).parents[2] / "playbooks" / "tasks" / "environment.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_of_those_that_find_the_lock_of_a_dead_build_one_at_a_time_builds(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        program, "time", SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(0.01))
    )
    place = program.Place(str(tmp_path / "env"))
    inside, most = [], []

    def build(number: int) -> None:
        with program.alone(place, 30):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.005)
            inside.remove(number)

    for _ in range(4):
        lock = Path(place.builds) / "lock"
        lock.mkdir(parents=True)
        owner = {"host": socket.gethostname(), "pid": 4_000_000}  # above the highest pid
        (lock / "owner").write_text(json.dumps(owner))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(build, range(8)))
        assert os.listdir(place.builds) == []
    assert len(most) == 32
    assert max(most) == 1


@pytest.mark.parametrize("text", ["", "[]", "5", "{}", '{"host": "x"}', '{"host": "x", "pid": "y"}'])
def test_an_owner_that_is_none(program: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "owner").write_text(text)
    assert program.lock_owner(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("packages", "require", "wanted"),
    [
        ("torch>=2.6,<3  deepspeed", {}, ["deepspeed", "torch>=2.6,<3"]),
        (["torch"], {"torch": "==2.7.1"}, ["torch==2.7.1"]),
        ("torch>=2.6", {"Torch": ">= 2.7, <3"}, ["torch>=2.6,>=2.7,<3"]),
        ("torch", {"peft": ">=0.10", "python": ">=3.10", "kernel": "==6.1"}, ["peft>=0.10", "torch"]),
        ("flash_attn[cpu]==2.*", {}, ["flash_attn[cpu]==2.*"]),
    ],
)
def test_requirements(program: ModuleType, packages: Any, require: dict[str, str], wanted: list[str]) -> None:
    assert program.requirements(packages, require) == wanted


@pytest.mark.parametrize(
    "packages", ["torch;reboot", "-r/etc/passwd", "--index-url=x", "torch=2", "../x", ""]
)
def test_what_is_no_requirement(program: ModuleType, packages: str) -> None:
    with pytest.raises(program.Failed):
        program.requirements(packages, {})


@pytest.mark.parametrize(
    ("specifier", "fits"),
    [
        ("", True),
        (">=3.10", True),
        (">=3.10,<3.12", True),
        ("==3.11.*", True),
        ("==3.11.2", True),
        ("==3.11", False),  # as PEP 440: 3.11.0
        ("!=3.11.*", False),
        ("~=3.10", True),
        ("~=3.10.0", False),
        (">3.11.2", False),
        ("<=3.11", False),
        (">=3.12", False),
    ],
)
def test_pythons_that_fit(program: ModuleType, specifier: str, fits: bool) -> None:
    assert program.satisfies((3, 11, 2), specifier) is fits


def test_the_specifiers_agree_with_packaging(program: ModuleType) -> None:
    from packaging.specifiers import SpecifierSet

    for sign in ("==", "!=", "<=", ">=", "<", ">", "~="):
        for number in ("3.10", "3.11", "3.11.0", "3.11.2", "3.12.1"):
            for version in ((3, 10, 13), (3, 11, 0), (3, 11, 2), (3, 11, 9), (3, 12, 1), (3, 13, 0)):
                expected = ".".join(map(str, version)) in SpecifierSet(sign + number)
                assert program.satisfies(version, sign + number) is expected, (sign, number, version)


@pytest.mark.parametrize(
    ("path", "storage", "shared"),
    [
        ("/shared/train", ["/shared"], "/shared"),
        ("/shared/train", ["/shared/", "/shared/train/"], "/shared/train"),
        ("/sharedtrain", ["/shared"], None),
        ("/opt/train", [], None),
        ("", ["/shared"], None),
    ],
)
def test_which_storage(program: ModuleType, path: str, storage: list[str], shared: str | None) -> None:
    assert program.shared_by(storage, path) == shared


EVE = 64999  # no such user here
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A complete environment, in a directory like /tmp, whose interpreter leaves a file where it has run."""
    build = tmp_path / "train.builds" / "20260101000000-01234567"
    (build / "bin").mkdir(parents=True)
    python = build / "bin" / "python"
    python.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\necho \'{{"torch": "2.7.1"}}\'\n')
    python.chmod(0o755)
    document = {"id": "x", "python": "3.11.2", "request": ["torch"], "lock": ["torch==2.7.1"]}
    (build / "mnt-environment.json").write_text(json.dumps(document))
    (tmp_path / "train").symlink_to("train.builds/20260101000000-01234567")
    tmp_path.chmod(0o1777)
    return tmp_path


def looked(program: ModuleType, place: Path, **others: Any) -> dict[str, Any]:
    arguments = {"path": str(place / "train"), "packages": "torch", "require": {}, "storage": [], "head": {}}
    more = {"upgrade": False, "patience": 0, "env": {}, "base": "", "lock": [], "wait": 0}
    answer: dict[str, Any] = program.look({**arguments, **more, **others})
    return answer


def test_what_is_complete(program: ModuleType, built: Path) -> None:
    assert looked(program, built)["complete"]
    assert (built / "ran").exists()


@needs_root
@pytest.mark.parametrize(
    "level",
    ["", "train", "train.builds", "train.builds/*", "train.builds/*/bin", "train.builds/*/bin/python"],
)
def test_nothing_is_run_that_another_user_could_exchange(
    program: ModuleType, built: Path, level: str
) -> None:
    (path,) = built.glob(level) if level else (built,)
    os.chown(path, EVE, EVE, follow_symlinks=False)
    with pytest.raises(program.Failed, match=f"{path} belongs to uid {EVE}: "):
        looked(program, built)
    with pytest.raises(program.Failed, match=f"{path} belongs to uid {EVE}: "):
        program.ops({"path": str(built / "train"), "env": {}, "ops": ["x"], "check": True})
    assert not (built / "ran").exists()


@needs_root
def test_the_owner_that_the_inventory_names(
    program: ModuleType, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a user may own it, and nobody else; that user's group may not write to it, as for preflight."""
    for path in (built, *built.rglob("*")):
        os.chown(path, EVE, EVE, follow_symlinks=False)
    assert looked(program, built, owner=str(EVE))["complete"]
    for owner in ("", "nobody", "no-such-user", str(EVE + 1)):
        with pytest.raises(program.Failed, match=f"{built} belongs to uid {EVE}: "):
            looked(program, built, owner=owner)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *args: False)  # only the owner can write there
        answer = looked(program, built, owner=str(EVE))
        assert (answer["complete"], answer["root"]) == (True, False)
        with pytest.raises(program.Failed, match=f"{built} belongs to uid {EVE}: "):  # root would build
            looked(program, built, owner=str(EVE), upgrade=True)
    (built / "train.builds").chmod(0o775)
    with pytest.raises(program.Failed, match=f"the group {EVE} can write to {built}/train.builds: "):
        looked(program, built, owner=str(EVE))


@needs_root
@pytest.mark.parametrize("builds", [True, False])
def test_nothing_is_built_where_another_user_was_first(
    program: ModuleType, tmp_path: Path, builds: bool
) -> None:
    first = tmp_path / ("train.builds" if builds else "x")
    first.mkdir()
    os.chown(first, EVE, EVE)
    path = tmp_path / "train" if builds else first / "train"
    arguments = {"path": str(path), "packages": "torch", "require": {}, "base": "", "wait": 0, "lock": []}
    with pytest.raises(program.Failed, match=f"{first} belongs to uid {EVE}: "):
        program.build({**arguments, "upgrade": False, "uv": "false", "index": "", "wheels": ""})
    assert not [each for each in os.listdir(first) if each != "train.builds"]


@needs_root
@pytest.mark.parametrize("builds", [True, False])
def test_root_builds_only_where_all_levels_are_roots(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: bool
) -> None:
    """The user who logs in has root's rights, but what is in a directory of that user others may reach."""
    place = program.Place(str(tmp_path / "own" / "train"))
    os.makedirs(place.builds if builds else tmp_path / "own")
    monkeypatch.setattr(os, "access", lambda *args: False)
    assert place.owner_is_root() is True
    os.chown(tmp_path / "own", EVE, EVE)
    with pytest.raises(program.Failed, match=f"{tmp_path}/own belongs to uid {EVE}: "):
        place.owner_is_root()


@needs_root
@pytest.mark.parametrize("place", ["bin", ".local/bin"])
@pytest.mark.parametrize("whose", ["owner", "mode", "directory"])
def test_uv_of_another_user_is_not_run(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, whose: str
) -> None:
    uv = tmp_path / place / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    uv.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.defpath}")
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert program.found_uv() == str(uv)
    if whose == "owner":
        os.chown(uv, EVE, EVE)
    elif whose == "mode":
        uv.chmod(0o757)
    else:
        uv.parent.chmod(0o1777)
        os.chown(uv, EVE, EVE)
    assert program.found_uv() is None
    (tmp_path / "wheels").mkdir()
    arguments = {"wheels": str(tmp_path / "wheels"), "index": "", "uv": "auto", "lock": []}
    program.fill(str(tmp_path / "train"), sys.executable, [], arguments)
    assert not (tmp_path / "ran").exists()


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_who_can_write_to_the_builds(program: ModuleType, built: Path, mode: int) -> None:
    os.chown(built / "train.builds", 0, EVE)
    (built / "train.builds").chmod(mode)
    with pytest.raises(program.Failed, match=f"can write to {built}/train.builds: "):
        looked(program, built)
    assert not (built / "ran").exists()


@needs_root
def test_where_compiled_ops_are(program: ModuleType, built: Path) -> None:
    (built / "extensions").mkdir()
    os.chown(built / "extensions", EVE, EVE)
    (build,) = (built / "train.builds").iterdir()
    (build / "bin" / "python").write_text('#!/bin/sh\necho \'{"deepspeed": "0.17"}\'\n')
    arguments = {"path": str(built / "train"), "env": {"TORCH_EXTENSIONS_DIR": f"{built}/extensions"}}
    with pytest.raises(program.Failed, match=f"{built}/extensions belongs to uid {EVE}: "):
        program.ops({**arguments, "ops": ["x"], "check": False})


@needs_root
def test_the_rule_is_that_of_mnt(program: ModuleType, tmp_path: Path) -> None:
    """For trees with owners, modes and links of all kinds."""
    for number, (uid, gid, mode, link) in enumerate(
        itertools.product((0, EVE), (0, EVE), (0o755, 0o775, 0o777, 0o1777, 0o700), (False, True))
    ):
        top = tmp_path / str(number)
        (top / "x").mkdir(parents=True)
        (top / "x" / "end").touch()
        (top / "link").symlink_to("./x/../x/")
        for path in (top / "link",) if link else (top / "x",):
            os.chown(path, uid, gid, follow_symlinks=False)
        (top / "x").chmod(mode)
        for path in (top / "x", top / "x" / "end", top / "link", top / "link" / "end", top / "x" / "none"):
            assert accepted(program.judge, program.Failed, path) == accepted(check_owners, Refused, path), (
                path
            )


def accepted(judge: Callable[[str], object], refused: type[Exception], path: Path) -> bool:
    try:
        judge(str(path))
    except refused:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "uid", "why"),
    [
        (b"fuse.x", EVE, "another user has mounted a file system"),
        (b"fuse", EVE, "another user has mounted a file system"),
        (b"fuse.x", 0, ""),
        (b"ext4", EVE, ""),
        (None, EVE, "cannot be found out who has mounted"),
    ],
)
def test_a_file_system_that_a_user_has_mounted(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes, uid: int, why: str
) -> None:
    """It is found by what was entered, also if it was unmounted since (None); nothing of it is asked."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(program, "user", lambda uid: pytest.fail("its owner was asked"))
    place = (tmp_path / "a").stat().st_ino
    mine = program.mount_of

    def mount_of(descriptor: int) -> bytes:
        return b"7777" if os.fstat(descriptor).st_ino == place else bytes(mine(descriptor))

    names = b"1 1 0:1 / /a\rb rw - fuse.e\xff e\xff rw\n2 1 0:2 / /a\\040b rw - fuse e rw,user_id=5\n"
    line = b"7777 1 0:3 / /x rw,nosuid shared:1 - %b e\xff rw,user_id=%d,group_id=0\n" % (kind or b"", uid)
    own = Path("/proc/self/mountinfo").read_bytes()
    listed = tmp_path / "mountinfo"
    listed.write_bytes(names + (line if kind else b"") + own)
    monkeypatch.setattr(program, "mount_of", mount_of)
    paths = {"/proc/self/mountinfo": str(listed)}
    reading = functools.partial(open, mode="rb")
    monkeypatch.setattr(program, "open", lambda path, *mode: reading(paths.get(path, path)), raising=False)
    if why:
        with pytest.raises(program.Failed, match=f"{why}.* on {tmp_path}/a; "):
            program.judge(str(tmp_path / "a" / "b"))
    else:
        program.judge(str(tmp_path / "a" / "b"))


def test_what_others_made_is_refused(program: ModuleType, tmp_path: Path) -> None:
    own = program.Place(str(tmp_path / "train"))
    assert own.current() is None
    build = tmp_path / "train.builds" / "20260101000000-01234567"
    build.mkdir(parents=True)
    (tmp_path / "train").symlink_to(os.path.relpath(build, tmp_path))
    assert own.current() is None  # it has no marker: it is not complete
    (build / program.MARKER).write_text(json.dumps({"lock": ["torch==2"]}))
    assert own.current() == {"lock": ["torch==2"]}
    (tmp_path / "theirs").mkdir()
    with pytest.raises(program.Failed, match="was not made by this playbook"):
        program.Place(str(tmp_path / "theirs")).current()
    with pytest.raises(program.Failed, match="by its whole path"):
        program.Place("train")


@pytest.mark.parametrize(
    "line", ["evil @ http://10.0.0.3/evil.whl", "torch==2.7.1\n", "--index-url=x", "torch>=2", 1]
)
def test_a_lock_is_checked_before_it_is_used(program: ModuleType, tmp_path: Path, line: Any) -> None:
    place = str(tmp_path / "train")
    with pytest.raises(program.Failed, match="is no line of a lock"):
        program.build({"path": place, "lock": ["numpy==2.1.0", line]})
    assert not os.path.exists(place + ".builds")


def test_versions_as_they_are(program: ModuleType) -> None:
    lock = ["torch==2.7.1+cu128", "a.b-c_d==2024.02.02.post1", "x==1!2.0rc1.dev3", "y==1.0-1"]
    assert program.pinned(lock) == lock


@pytest.mark.parametrize(
    ("missing", "new", "says"),
    [
        ([], ["torch==2.7.1"], None),
        ([], ["pip==25.0", "torch==2.7.1"], None),  # venv brings one, and another version may be needed
        (["evil==1.0"], ["torch==2.7.1"], "nothing here needs evil==1.0"),
        ([], ["tomli==2.0", "torch==2.7.1"], "they lack tomli==2.0"),
    ],
)
def test_a_lock_has_what_is_needed_and_no_more(
    program: ModuleType, missing: list[str], new: list[str], says: str | None
) -> None:
    lock = ["Torch==2.7.1", *missing]
    if says is None:
        return program.check_lock(lock, missing, new, {"pip": "24.0"})
    with pytest.raises(program.Failed, match=says):
        program.check_lock(lock, missing, new, {"pip": "24.0"})


# --- the index -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "bare", "found"),
    [
        ("https://eve:T0KEN@host:8/simple/", "https://host:8/simple/", ["eve", None, "T0KEN"]),
        ("http://eve%40x:%23T0%25K@host/s", "http://host/s", ["eve@x", None, "#T0%K"]),
        ("https://host/simple/", "https://host/simple/", None),
    ],
)
def test_a_user_and_a_password_are_in_no_url_of_pip(
    program: ModuleType, url: str, bare: str, found: list[str | None] | None
) -> None:
    with program.index_variables(url, sys.executable) as variables:
        assert (variables["PIP_INDEX_URL"], variables["UV_DEFAULT_INDEX"]) == (bare, url)
        file = variables.get("NETRC")
        assert (file is None) is (found is None)
        if found is not None:
            assert os.stat(file).st_mode & 0o777 == 0o600
            login, account, password = netrc.netrc(file).authenticators("host") or ("", "", "")
            assert [login, account or None, password] == found
    assert file is None or not os.path.exists(file)


def test_no_index(program: ModuleType) -> None:
    with program.index_variables("", sys.executable) as variables:
        assert variables == {}


@pytest.mark.one_python  # which passwords a netrc file can have depends on it
@pytest.mark.parametrize("password", ["a%20b", "a%5Cb", "%22a", "a%0Amachine%20x", "a%C3%A9%20"])
def test_a_password_that_netrc_cannot_have(program: ModuleType, password: str) -> None:
    with (
        pytest.raises(program.Failed, match="pip_index"),
        program.index_variables(f"https://eve:{password}@host/", sys.executable),
    ):
        pass


def test_an_error_does_not_show_the_password_of_a_url(program: ModuleType) -> None:
    with pytest.raises(program.Failed) as caught:
        program.run(["sh", "-c", "echo error: https://eve:T0KEN@host/simple; exit 1"], "it failed")
    assert str(caught.value) == "it failed: error: https://***@host/simple"
