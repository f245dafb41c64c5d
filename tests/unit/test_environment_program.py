"""What playbooks/tasks/environment.py decides. tests/lab/test_playbook_environment.py has it build."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "playbooks" / "tasks" / "environment.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
