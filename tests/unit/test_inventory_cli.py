"""`mnt inventory` and `mnt hostfile`, as they are typed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from waiting import PATIENCE

PAIR = """
cluster: pair
ssh: {user: ubuntu}
hosts:
  node[1-2]: {gpus: 8}
  node2: {address: "[fd00::2]:2222", nic: eth1, python: [apptainer, exec, x.sif, python]}
  node3:
groups: {train: "node[2,1]"}
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "inventories").mkdir()
    (tmp_path / "inventories/default.yaml").write_text(PAIR)
    return tmp_path


def mnt(here: Path, *args: str, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "MNT_INVENTORY"}
    return subprocess.run(
        [sys.executable, "-m", "mnt", *args],
        cwd=here,
        stdin=stdin,
        env={**env, "MNT_LAB_DIR": str(here / "labs")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_show_is_a_table_in_rank_order(here: Path) -> None:
    shown = mnt(here, "inventory", "show", "-n", "@train,node3")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == (
        "HOST   ADDRESS         USER    PYTHON                       GPUS  NIC   GROUPS\n"
        "node2  [fd00::2]:2222  ubuntu  apptainer exec x.sif python  8     eth1  train\n"
        "node1  node1           ubuntu  python3                      8     auto  train\n"
        "node3  node3           ubuntu  python3                      0     auto  -\n"
    )
    assert "pair: 3 of 3 hosts, inventories/default.yaml" in shown.stderr


def test_show_as_json_is_the_resolved_inventory(here: Path) -> None:
    document = json.loads(mnt(here, "inventory", "show", "--json", "-x", "node[1,3]").stdout)
    (host,) = document["hosts"]
    assert document["cluster"] == "pair"
    assert document["groups"] == {"train": ["node2", "node1"]}
    assert host["address"] == "fd00::2"
    assert host["ssh"]["port"] == 2222
    assert host["python"] == ["apptainer", "exec", "x.sif", "python"]
    assert (host["workdir"], host["keep"]) == ("~/mnt", ["outputs"])
    assert (host["rdma"]["gid_index"], host["tuning"]["debug_subsys"]) == ("auto", [])


def test_list_names_files_labs_the_default_and_what_is_broken(here: Path) -> None:
    (here / "inventories/broken.yaml").write_text("hots: {}")
    (here / "labs/small").mkdir(parents=True)
    (here / "labs/small/inventory.yaml").write_text("hosts: [a]")
    listed = mnt(here, "inventory", "list", "--json")
    entries = {entry["name"]: entry for entry in json.loads(listed.stdout)["inventories"]}
    assert list(entries) == ["broken", "default", "lab:small"]
    assert entries["default"]["default"] is True
    assert (entries["default"]["cluster"], entries["default"]["hosts"]) == ("pair", 3)
    assert "broken.yaml:1: unknown key 'hots'" in entries["broken"]["error"]
    assert entries["lab:small"]["file"] == str(here / "labs/small/inventory.yaml")
    table = mnt(here, "inventory", "list").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["NAME", "broken", "default", "lab:small"]


def lay_pipe(path: Path) -> None:
    os.mkfifo(path)


def lay_link(path: Path) -> None:
    path.symlink_to("/dev/stdin")


def lay_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("lay", [lay_pipe, lay_link, lay_device])
@pytest.mark.parametrize("args", [["status"], ["inventory", "show"], ["inventory", "list"]])
def test_a_file_that_nobody_named_may_be_no_pipe(
    here: Path, lay: Callable[[Path], None], args: list[str]
) -> None:
    """It would be waited for, for ever. git carries links, and an archive pipes."""
    (here / "inventories/default.yaml").unlink()
    lay(here / "inventories/default.yaml")
    reading, writing = os.pipe()
    try:
        ran = mnt(here, *args, stdin=reading)
    finally:
        os.close(reading)
        os.close(writing)
    listed = args[-1] == "list"
    assert ran.returncode == (0 if listed else 2)
    assert "default.yaml is not a regular file" in (ran.stdout if listed else ran.stderr)


@pytest.mark.parametrize("path", ["/dev/stdin", "./pipe"])
def test_a_file_that_is_named_may_be_a_pipe(here: Path, path: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"hosts: [node7]\n")
    os.close(writing)
    os.symlink("/dev/stdin", here / "pipe")
    shown = mnt(here, "inventory", "show", "-i", path, stdin=reading)
    os.close(reading)
    assert shown.stdout.splitlines()[1].startswith("node7 ")


def test_a_list_judges_each_file(here: Path) -> None:
    (here / "inventories/other.yaml").write_text(PAIR)
    (here / "inventories/other.yaml").chmod(0o666)
    listed = json.loads(mnt(here, "inventory", "list", "--json").stdout)["inventories"]
    errors = {entry["name"]: entry["error"] for entry in listed}
    assert errors["default"] is None
    assert "may be another user's: all users can write" in errors["other"]


LONG = "$X" * 50_000


def with_env(hosts: int, env: Iterable[str]) -> str:
    return f"hosts: {{'n[1-{hosts}]': {{env: {{{','.join(env)}}}}}}}"


MANY = {
    "groups": "hosts: ['n[1-100000]']\ngroups: {a: 'n[1-100000]', b: 'n[1-100000]', c: 'n[1-100000]'}\n",
    "values": with_env(90_000, (f"A{i}: $X" for i in range(18))),
    "different values": with_env(900, (f"A{i}: $X{i}" for i in range(2000))),
    "long values": with_env(20, (f"A{i}: {LONG}" for i in range(80))),
}


@pytest.mark.parametrize("text", MANY.values(), ids=MANY)
def test_an_inventory_that_is_shown_soon(here: Path, text: str) -> None:
    (here / "many.yaml").write_text(text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = mnt(here, "inventory", "show", "-i", "many.yaml")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert shown.returncode == 0
    assert after.ru_utime - before.ru_utime < 40  # 4 on an idle machine
    assert len(shown.stderr) < 20_000


def test_a_long_inventory_is_shown_as_json_host_by_host(here: Path) -> None:
    """A file of some KiB makes a document of 28 MB, which took 400 MiB as a whole."""
    env = "".join(f"  K{i}: '{'x' * 98}'\n" for i in range(12)) + "  W: '\U0001f600'\n"
    (here / "many.yaml").write_text(f"hosts: ['n[1-20000]']\nenv:\n{env}")
    argv = [sys.executable, "-m", "mnt", "inventory", "show", "--json", "-i", "many.yaml"]
    # Started by a small process: the memory of whoever forks counts for the child.
    measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); \
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)"
    with open(here / "shown.json", "w") as file:
        ran = subprocess.run(
            [sys.executable, "-c", measure, *argv], cwd=here, stdout=file, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stderr) < 200 * 1024  # KiB; 60 MiB here
    hosts = json.loads((here / "shown.json").read_text())["hosts"]
    assert (len(hosts), hosts[-1]["name"], hosts[0]["env"]["W"]) == (20_000, "n20000", "\U0001f600")


def test_long_texts_count_as_several_settings(here: Path) -> None:
    (here / "many.yaml").write_text(with_env(20_000, (f"A{i}: {LONG}" for i in range(80))))
    refused = mnt(here, "inventory", "show", "--json", "-i", "many.yaml")
    assert refused.returncode == 2
    assert "more than 2000000 settings in all" in refused.stderr


def test_hostfile_goes_to_stdout_or_a_file(here: Path) -> None:
    lines = "node1 slots=8\nnode2 slots=8\nnode3 slots=1\n"
    to_stdout = mnt(here, "hostfile")
    assert (to_stdout.returncode, to_stdout.stdout) == (0, lines)
    assert "node2: DeepSpeed logs in by name" in to_stdout.stderr
    to_file = mnt(here, "hostfile", "-o", "hosts", "--slots", "2", "-n", "node[2,1]")
    assert (to_file.returncode, to_file.stdout) == (0, "")
    assert (here / "hosts").read_text() == "node2 slots=2\nnode1 slots=2\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["hostfile", "--slots", "0"], "--slots"),
        (["hostfile", "-n", "node9"], "no host named node9 in the inventory; did you mean"),
        (["hostfile", "-n", ""], "the hostlist is empty"),
        (["hostfile", "-o", "gone/hosts"], "gone/hosts: cannot be written"),
        (["inventory", "show", "-i", "gone"], "no inventory named 'gone'"),
        (["inventory", "show", "-i", "gone.yaml"], "gone.yaml: cannot be read"),
        (["inventory", "show", "-x", "node[1-3]"], "no host is left"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(here: Path, args: list[str], said: str) -> None:
    ran = mnt(here, *args)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
