"""The playbooks, without a host: their syntax and style, their list, and their documentation."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mnt.inventory.playbook_variables import VARIABLES, misfit
from mnt.preflight.registry import all_checks
from mnt.setup.playbooks import PLAYBOOKS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "playbooks").glob("*.yml"))
NAMES = [playbook.name for playbook in PLAYBOOKS]
LINT = shutil.which("ansible-lint", path=os.path.dirname(sys.executable)) or shutil.which("ansible-lint")


def run(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Without settings of the user, and without files in the tree."""
    settings = tmp_path / "ansible.cfg"
    settings.touch()
    directories = {name: str(tmp_path) for name in ("HOME", "ANSIBLE_HOME", "XDG_CACHE_HOME")}
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, **directories, "PATH": path, "ANSIBLE_CONFIG": str(settings), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(importlib.util.find_spec("ansible") is None, reason="pip install 'mnt-cluster[setup]'")
def test_ansible_reads_them(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "ansible", "playbook", "--syntax-check", "--inventory", "node1,"]
    done = run(tmp_path, *check, *map(str, FILES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(LINT is None, reason="pip install ansible-lint")
def test_they_have_the_style_of_production(tmp_path: Path) -> None:
    assert LINT is not None
    done = run(tmp_path, LINT, "--profile", "production", "--offline", *map(str, FILES))
    assert done.returncode == 0, done.stdout + done.stderr


ROOT_RUNS = [file for file in FILES if file.stem != "ssh"]
TASKS = sorted((ROOT / "playbooks" / "tasks").glob("*.yml"))


@pytest.mark.parametrize("file", ROOT_RUNS, ids=lambda file: file.stem)
def test_what_root_runs_finds_nothing_in_a_home(file: Path) -> None:
    """`python3 -c` in the home of the user who logs in would import a json.py that is there."""
    for play in yaml.safe_load(file.read_text()):
        starts = {f"ansible.builtin.{module}": {"chdir": "/"} for module in ("command", "shell", "script")}
        assert play["module_defaults"] == starts


@pytest.mark.parametrize("file", [*FILES, *TASKS], ids=lambda file: file.stem)
def test_programs_of_pythons_are_isolated(file: Path) -> None:
    lists = [list(map(str, words)) for words in lists_in(yaml.safe_load(file.read_text()))]
    programs = [words for words in lists if "python" in words[0] and {"-", "-c"}.intersection(words)]
    assert all(words[1] == "-I" for words in programs)
    assert not re.findall(r"executable, (?!'-I')", file.read_text())


def lists_in(node: Any) -> Iterator[list[Any]]:
    """All lists in a document that are not empty."""
    if isinstance(node, list) and node:
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from lists_in(child)


def test_the_pythons_of_an_environment_are_isolated() -> None:
    text = re.sub(r"\s+", " ", (ROOT / "playbooks" / "tasks" / "environment.py").read_text())
    started = re.findall(r'(?:"-I", )?"-[cm]", (?!write_lines)', text)
    assert len(started) == 6
    assert all(words.startswith('"-I"') for words in started)


@pytest.mark.parametrize("name", [file.stem for file in FILES])
def test_each_file_is_in_the_list(name: str) -> None:
    assert name in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_of_the_list_is_a_file_with_a_section(name: str) -> None:
    assert ROOT / "playbooks" / f"{name}.yml" in FILES
    sections = re.findall(r"(?m)^## (.*)$", (ROOT / "docs" / "setup.md").read_text())
    assert name in sections


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_first_comment_says_how_to_run_it(file: Path) -> None:
    comment = file.read_text().partition("\n\n")[0]
    assert f"mnt setup {file.stem}" in comment
    assert f"playbooks/{file.name}" in comment


def test_checks_name_playbooks_that_there_are() -> None:
    assert {check.playbook for check in all_checks() if check.playbook} <= {*NAMES}


# What Ansible defines itself; all else that begins with `ansible_` may be a fact, which a host has chosen.
MAGIC = "check_mode|play_hosts|play_hosts_all|playbook_python|facts|host|user|port|no_target_syslog"


@pytest.mark.parametrize("file", [*FILES, *sorted((ROOT / "playbooks" / "tasks").glob("*.yml"))], ids=str)
def test_facts_are_used_by_their_full_names(file: Path) -> None:
    text = re.sub("(?m)#.*$", "", file.read_text())
    assert [name for name in re.findall(r"\bansible_(\w+)", text) if not re.fullmatch(MAGIC, name)] == []


@pytest.mark.parametrize("file", [*FILES, *sorted((ROOT / "playbooks" / "tasks").glob("*.yml"))], ids=str)
def test_what_runs_once_runs_on_the_head(file: Path) -> None:
    """All hosts get the answer, with its facts: no host may choose those of the others."""
    for task in tasks(yaml.safe_load(file.read_text())):
        if task.get("run_once"):
            assert task.get("delegate_to") == "localhost" or "ansible.builtin.assert" in task, task["name"]


@pytest.mark.parametrize("file", [*FILES, *sorted((ROOT / "playbooks" / "tasks").glob("*.yml"))], ids=str)
def test_programs_are_files_of_their_own(file: Path) -> None:
    """There ruff reads them, and tests can run them."""
    for task in tasks(yaml.safe_load(file.read_text())):
        module = task.get("ansible.builtin.command")
        words = module.get("argv", []) if isinstance(module, dict) else []
        assert not [word for word in words if isinstance(word, str) and "\n" in word], task["name"]


# --- variables -------------------------------------------------------------------------------------------

PLAIN = re.compile(r"\(?(\w+)(?: \| string)?\)? is match\('(.*?)\$?'\)")
CHOICE = re.compile(r"\(?(\w+)(?: \| string)?((?: \| lower)?)\)? in \[(.*)\]")
ITEMS = re.compile(r"(\w+) \| reject\('match', '(.*?)\$?'\)")
OF_LISTS = {"system_more": "system_packages", "ops": "deepspeed_ops", "untouched_ports": "open_ports"}


def texts_of(name: str) -> str:
    """A playbook with the tasks that it includes."""
    text = (ROOT / "playbooks" / f"{name}.yml").read_text()
    included = re.findall(r"tasks/(\w+\.yml)", text)
    return text + "".join((ROOT / "playbooks" / "tasks" / file).read_text() for file in included)


def defaults(name: str) -> dict[str, Any]:
    (play,) = yaml.safe_load((ROOT / "playbooks" / f"{name}.yml").read_text())
    found: dict[str, Any] = play["vars"]
    return found


def forms_in(name: str) -> dict[str, str]:
    """What a playbook itself asks of its variables, as patterns."""
    (play,) = yaml.safe_load((ROOT / "playbooks" / f"{name}.yml").read_text())
    found = {}
    for task in tasks(play["tasks"]):
        that = task.get("ansible.builtin.assert", {}).get("that", [])
        for condition in [that] if isinstance(that, str) else that:
            for part in str(condition).split(" and "):
                if match := PLAIN.fullmatch(part):
                    found[match[1]] = match[2]
                elif match := CHOICE.fullmatch(part):
                    words = "|".join(re.findall("'([^']*)'", match[3]))
                    found[match[1]] = f"(?i:{words})" if match[2] else words
                elif match := ITEMS.match(part):
                    found[OF_LISTS[match[1]]] = match[2]
    if name == "container":
        found["runtime"] = "|".join(defaults(name)["commands"])  # `runtime in commands`
    return found


def test_variables_are_known_for_each_playbook() -> None:
    assert [*VARIABLES] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_those_of_the_playbook(name: str) -> None:
    """Of its own, or of the tasks that it includes."""
    text = texts_of(name)
    optional = {*re.findall(r"(\w+) \| default\(", text)}
    assert {*VARIABLES[name]} <= {*defaults(name)} | optional


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_those_of_the_page(name: str) -> None:
    page = (ROOT / "docs" / "setup.md").read_text()
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert {word for row in rows for word in re.findall(r"`(\w+)`", row)} == {*VARIABLES[name]}


@pytest.mark.parametrize("name", NAMES)
def test_forms_of_variables_are_those_of_the_playbook(name: str) -> None:
    wanted = {key: form.pattern for key, form in VARIABLES[name].items() if form is not None}
    found = {key: pattern for key, pattern in forms_in(name).items() if key in VARIABLES[name]}
    assert {key: wanted.get(key) for key in found} == found


@pytest.mark.parametrize("name", NAMES)
def test_defaults_of_variables_have_their_form(name: str) -> None:
    for key, value in defaults(name).items():
        form = VARIABLES[name].get(key)
        if form is not None and value != [] and not (key == "image" and value == ""):
            assert misfit(key, str(value)) is None, key


def test_a_variable_of_several_playbooks_has_one_form() -> None:
    forms: dict[str, set[object]] = {}
    for variables in VARIABLES.values():
        for key, form in variables.items():
            forms.setdefault(key, set()).add(form)
    assert [key for key, found in forms.items() if len(found) > 1] == []


def tasks(tree: object) -> Iterator[dict[str, Any]]:
    """All tasks and blocks in a file, at any depth."""
    if isinstance(tree, dict):
        yield tree
        tree = [
            each for key in ("tasks", "block", "rescue", "always", "handlers") for each in tree.get(key, [])
        ]
    if isinstance(tree, list):
        for each in tree:
            yield from tasks(each)


# --- what rdma.sh reports ----------------------------------------------------------------------------------

DEVINFO = """hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				20.36.1010
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			1
			link_layer:		InfiniBand

hca_id:	mlx5_1
		port:	1
			state:			PORT_DOWN (1)
			active_mtu:		1024 (3)
			link_layer:		Ethernet

"""


@pytest.mark.parametrize(
    ("printed", "report"),
    [
        (
            DEVINFO,
            "mlx5_0 port 1: PORT_ACTIVE, InfiniBand, MTU 4096\n"
            "mlx5_1 port 1: PORT_DOWN, Ethernet, MTU 1024\n",
        ),
        ("No IB devices found\n", "No IB devices found\n"),
        ("Failed to get IB devices list: no such thing\n", "Failed to get IB devices list: no such thing\n"),
    ],
)
def test_rdma_reports_a_line_for_each_port(tmp_path: Path, printed: str, report: str) -> None:
    (tmp_path / "said").write_text(printed)
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "mlx5_0").mkdir()
    program = (ROOT / "playbooks" / "tasks" / "rdma.sh").read_text()
    stand_in = f"ibv_devinfo() {{ cat {tmp_path}/said; }}\n"
    script = stand_in + program.replace("/sys/class/infiniband", str(tmp_path / "class"))
    done = subprocess.run(["sh", "-s", "report"], input=script, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (report, "")
