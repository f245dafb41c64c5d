"""Another user of a host, eve: what she makes in /tmp, or can write to, is neither believed nor touched."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from terminals import on_a_terminal
from waiting import wait_for

from mnt.lab.lab import Lab, LabHost

EVE = 64999
Run = Callable[..., subprocess.CompletedProcess[str]]


class Attacked:
    """A host with eve on it, and `mnt` on an inventory of it."""

    def __init__(self, lab: Lab, run_mnt: Run, directory: Path) -> None:
        self.host: LabHost = lab.hosts[0]
        self.uid = int(self.as_user("id", "-u"))
        self.inventory = directory / "inventory.yaml"
        self.document: dict[str, Any] = yaml.safe_load(lab.inventory_path.read_text())
        self._run = run_mnt
        self.settings()

    def settings(self, **defaults: str) -> None:
        changed = {**self.document, "defaults": {**self.document["defaults"], **defaults}}
        self.inventory.write_text(yaml.safe_dump(changed, sort_keys=False))

    def mnt(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self._run(args[0], "-i", str(self.inventory), *args[1:])

    def trained(self, tree: Path) -> str:
        """Push the tree, and train; the job."""
        for command in (("push", str(tree)), ("launch", "--json", "train.py")):
            done = self.mnt(*command)
            assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["job"])

    def as_user(self, *argv: str) -> str:
        return self._done(self.host.exec(argv, user=True))

    def as_root(self, script: str) -> str:
        return self._done(self.host.exec(["sh", "-c", script]))

    @staticmethod
    def eve(gid: int = EVE) -> list[str]:
        """The command that runs another as eve."""
        return ["setpriv", f"--reuid={EVE}", f"--regid={gid}", "--clear-groups"]

    def as_eve(self, script: str, *, gid: int = EVE) -> str:
        return self._done(self.host.exec([*self.eve(gid), "sh", "-c", script]))

    def files(self, *tops: str) -> str:
        """Every file below, with owner, mode, time of the last change (but of directories) and content.

        The check `writable` makes a file where a push would, and removes it.
        """
        return self.as_root(
            f"find {' '.join(tops)} -type d -printf '%p %U %m\\n' -o -printf '%p %U %m %T@ %l\\n' "
            "-type f -exec sha256sum {} \\; | sort"
        )

    @staticmethod
    def _done(ran: subprocess.CompletedProcess[str]) -> str:
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()


@pytest.fixture
def attacked(make_lab: Callable[..., Lab], run_mnt: Run, tmp_path: Path) -> Attacked:
    return Attacked(make_lab(count=1), run_mnt, tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("print('trained', flush=True)\n")
    (tree / "train.py").chmod(0o666)  # as on a disk that knows no modes
    tree.chmod(0o777)
    return tree


@pytest.mark.parametrize("how", [pytest.param("directory", marks=pytest.mark.matrix), "link"])
def test_the_directory_in_tmp_is_made_by_eve(attacked: Attacked, tree: Path, how: str) -> None:
    """She knows the job from `ps`, and wants the user's process killed, and the user's files removed."""
    host, top = attacked.host.name, f"/tmp/mnt-{attacked.uid}"
    job = attacked.trained(tree)
    wait_for(lambda: attacked.host.exec(["test", "!", "-e", top]).returncode == 0)
    attacked.as_user(
        "sh", "-c", f"mkdir -p -m 755 ~/precious/{job}/{host} && echo 1 > ~/precious/{job}/{host}/x"
    )
    victim = attacked.as_user("sh", "-c", "sleep 1234 >/dev/null 2>&1 & echo $!")
    start_time = int(attacked.as_root(f"cat /proc/{victim}/stat").rpartition(")")[2].split()[19])
    process = {"pid": int(victim), "start_time": start_time}
    boot = attacked.as_root("cat /proc/sys/kernel/random/boot_id")
    record = {"supervisor": {**process, "boot_id": boot}, "processes": [process]}
    state = {"format": 1, "state": "running", **record}
    if how == "link":
        attacked.as_eve(f"ln -s /home/*/precious {top}")
    else:
        attacked.as_eve(
            f"mkdir -p {top}/{job}/{host} && chmod -R 777 {top}; ln -s /home/*/precious {top}/{job}/{host}/x"
        )
        for name, document in (("processes", record), ("state", state)):
            attacked.as_eve(f"echo '{json.dumps(document)}' > {top}/{job}/{host}/{name}.json")
    before = attacked.files("/tmp", "/home/*/precious/")

    for command in (
        ("stop", job),
        ("stop",),
        ("status",),
        ("launch", "--no-preflight", "train.py"),
        ("launch", "train.py"),
    ):
        done = attacked.mnt(*command)
        assert done.returncode in (1, 125), (command, done.stdout, done.stderr)
        assert f"{top} " in done.stderr, (command, done.stderr)
        if how == "directory":
            assert f"{top} belongs to uid {EVE}" in done.stderr, (command, done.stderr)
    found = json.loads(attacked.mnt("preflight", "--json", "--only", "file-owner").stdout)
    assert top in found["findings"][0]["message"]

    assert attacked.files("/tmp", "/home/*/precious/") == before
    assert attacked.as_root(f"cat /proc/{victim}/comm") == "sleep"
    attacked.as_root(f"kill {victim}")


@pytest.mark.matrix
def test_the_cache_of_torch_is_made_by_eve(attacked: Attacked, tree: Path) -> None:
    """By default torch takes compiled code from it, and runs it as the user; a file there stops the job."""
    name = attacked.as_user("id", "-un")
    attacked.as_eve(f"touch /tmp/torchinductor_{name}")
    (tree / "train.py").write_text(
        "import tempfile\n"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir\n"
        "print(cache_dir(), tempfile.gettempdir())\n"
    )
    job, kept = attacked.trained(tree), f"/tmp/mnt-tmp-{attacked.uid}"
    assert f"{kept}/torchinductor {kept}\n" in attacked.mnt("logs", job).stdout
    attacked.as_user("rm", "-r", kept)
    attacked.as_eve(f"mkdir -m 777 {kept}")
    named = f"{kept} belongs to uid {EVE}"
    for command in (("launch", "--no-preflight", "train.py"), ("launch", "train.py")):
        done = attacked.mnt(*command)
        assert (done.returncode, named in done.stderr) == (125, True), done.stderr
    found = json.loads(attacked.mnt("preflight", "--json", "--only", "file-owner").stdout)
    assert named in found["findings"][0]["message"]
    assert attacked.as_root(f"ls {kept}") == ""


PRECIOUS = "mkdir -p ~/precious && echo important > ~/precious/train.py && chmod 755 ~ ~/precious"


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("mkdir -m 777 {w}", "{w} belongs to uid 64999"),
        ("mkdir {w} && mkdir -m 777 {w}/releases {w}/shared", "{w} belongs to uid 64999"),
        ("mkdir {w}.real && chmod 777 {w}.real && ln -s {w}.real {w}", "{w} belongs to uid 64999"),
        ("ln -s /home/*/precious {w}", "{w} belongs to uid 64999"),
    ],
)
def test_a_workdir_of_eve(attacked: Attacked, tree: Path, made: str, named: str) -> None:
    workdir = "/tmp/project"
    attacked.settings(workdir=workdir)
    attacked.as_user("sh", "-c", PRECIOUS)
    attacked.as_eve(made.format(w=workdir))
    refused(attacked, tree, named.format(w=workdir))


@pytest.mark.parametrize(
    ("open_it", "planted", "named"),
    [
        ("chmod 777 {w}", "true", "all users can write to {w} (mode 0777)"),
        (
            "chmod 777 {w}",
            "rm -r {w}/current && ln -s releases/x {w}/current",
            "all users can write to {w} (mode 0777)",
        ),
        ("chmod 1777 {w}", "true", "all users can write to {w} (mode 1777)"),
        ("chmod 777 {w}/releases", "true", "all users can write to {w}/releases (mode 0777)"),
        ("chmod 777 {w}/shared", "true", "all users can write to {w}/shared (mode 0777)"),
        ("chmod 777 {w}/..", "true", "all users can write to /srv/data (mode 0777)"),
    ],
)
def test_a_workdir_to_which_eve_can_write(
    attacked: Attacked, tree: Path, open_it: str, planted: str, named: str
) -> None:
    workdir = "/srv/data/project"
    attacked.as_root(f"install -d -o {attacked.uid} /srv/data {workdir}")
    attacked.settings(workdir=workdir)
    assert attacked.mnt("push", str(tree)).returncode == 0
    attacked.as_user("sh", "-c", PRECIOUS)
    attacked.as_user("sh", "-c", open_it.format(w=workdir))
    attacked.as_eve(planted.format(w=workdir))
    refused(attacked, tree, named.format(w=workdir))


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("ln -s /home/*/precious {w}/shared/outputs", "{w}/shared/outputs belongs to uid 64999"),
        (
            "ln -s /home/*/precious {w}/releases/20260101-000000-abcdef01",
            "/releases/20260101-000000-abcdef01 belongs",
        ),
        ("mkdir {w}/releases/20260101-000000-abcdef01", "/releases/20260101-000000-abcdef01 belongs"),
        ("ln -s releases/20260101-000000-abcdef01 {w}/current", "{w}/current belongs to uid 64999"),
        ("echo > {w}/releases/.lock", "{w}/releases/.lock belongs to uid 64999"),
    ],
)
def test_what_eve_made_while_a_workdir_was_open(
    attacked: Attacked, tree: Path, planted: str, named: str
) -> None:
    workdir = "/srv/project"
    attacked.as_root(f"install -d -o {attacked.uid} {workdir} {workdir}/releases {workdir}/shared")
    attacked.as_user("sh", "-c", PRECIOUS)
    directories = f"{workdir} {workdir}/releases {workdir}/shared"
    attacked.as_user("sh", "-c", f"chmod 777 {directories}")
    attacked.as_eve(planted.format(w=workdir))
    attacked.as_user("sh", "-c", f"chmod 755 {directories}")
    attacked.settings(workdir=workdir)
    refused(attacked, tree, named.format(w=workdir), launch=False)


def test_a_shell_is_in_no_directory_to_which_eve_can_write(attacked: Attacked) -> None:
    """What is typed there would find her files: `python -c 'import json'`."""
    workdir = "/srv/data/project"
    attacked.as_root("install -d -m 1777 /srv/data")
    attacked.settings(workdir=workdir)
    shell = [sys.executable, "-m", "mnt", "shell", "-i", str(attacked.inventory)]
    for made, by, where in (
        (f"mkdir {workdir} && ln -s /srv/data {workdir}/current", attacked.as_eve, "/home/"),
        (f"rm -r {workdir}", attacked.as_root, "/home/"),
        (f"install -d -o {attacked.uid} -m 777 {workdir}", attacked.as_root, "/home/"),
        (f"chmod 755 {workdir}", attacked.as_root, workdir),
    ):
        by(made)
        said = on_a_terminal(shell, [("$ ", "pwd; exit 7")])
        assert said.code == 7, said.text
        assert any(line.startswith(where) for line in said.text.splitlines()), (made, said.text)


def test_code_that_eve_can_write_is_not_launched(attacked: Attacked, tree: Path) -> None:
    """Only a push closes releases/; somebody, or an older mnt, opened it again."""
    workdir = "/srv/project"
    attacked.as_root(f"install -d -o {attacked.uid} {workdir}")
    attacked.settings(workdir=workdir)
    assert attacked.mnt("push", str(tree)).returncode == 0
    attacked.as_user("chmod", "755", f"{workdir}/releases")
    attacked.as_eve(f"echo 'print(\"eve\")' > {workdir}/current/json.py")  # the tree's modes allow it
    named = f"all users can write to {workdir}/releases/20"
    for command in (("launch", "train.py"), ("launch", "--no-preflight", "train.py")):
        done = attacked.mnt(*command)
        assert (done.returncode, named in done.stderr) == (125, True), (command, done.stderr)
    assert named in attacked.mnt("preflight", "--only", "file-owner").stdout
    # The next push closes it, and takes neither eve's file for the code, nor a file that she holds open.
    attacked.as_root(f"rm {workdir}/current/json.py")
    write = "import sys; file = open(sys.argv[1], 'r+'); sys.stdin.read(); file.write('print(1) #eve')"
    argv = [*attacked.eve(), "/usr/bin/python3", "-c", write, f"{workdir}/current/train.py"]
    environment = attacked.host.environment()
    with subprocess.Popen(attacked.host.command(argv), env=environment, stdin=subprocess.PIPE) as held:
        holds = f"ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q {workdir}/releases/.*/train.py"
        wait_for(lambda: attacked.host.exec(["sh", "-c", holds]).returncode == 0)
        assert attacked.mnt("push", str(tree)).returncode == 0
        assert attacked.as_root(f"stat -c %a {workdir}/releases") == "700"
    assert held.returncode == 0
    assert "#eve" in attacked.as_root(f"cat {workdir}/releases/*/train.py")
    attacked.trained(tree)
    assert "#eve" not in attacked.as_root(f"cat {workdir}/current/train.py")
    assert "json.py" not in attacked.as_root(f"ls {workdir}/current/")


def refused(attacked: Attacked, tree: Path, named: str, *, launch: bool = True) -> None:
    """Neither a push nor a launch uses the workdir; preflight names the problem; nothing was written."""
    before = attacked.files("/tmp", "/srv", "/home/*/precious/")
    push = ("push", str(tree))
    launches = [("launch", "train.py"), ("launch", "--no-preflight", "train.py")] if launch else []
    for command in (push, *launches):
        done = attacked.mnt(*command)
        assert done.returncode in (1, 125), (command, done.stdout, done.stderr)
        assert named in done.stdout + done.stderr, (command, done.stdout, done.stderr)
        assert "fix: " in done.stderr
    if launch:
        found = json.loads(attacked.mnt("preflight", "--json", "--only", "file-owner").stdout)["findings"]
        assert named in found[0]["message"]
    assert attacked.files("/tmp", "/srv", "/home/*/precious/") == before


def test_a_directory_of_jobs_of_eve(attacked: Attacked, tree: Path) -> None:
    """It would show her jobs as the user's, or hide the user's own."""
    jobs = "/tmp/jobs"
    attacked.as_eve(f"mkdir -m 777 {jobs}")
    attacked.settings(jobs_dir=jobs)
    assert attacked.mnt("push", str(tree)).returncode == 0
    before = attacked.files(jobs)
    for command in (("status",), ("stop",), ("logs",), ("launch", "--no-preflight", "train.py")):
        done = attacked.mnt(*command)
        assert done.returncode in (1, 125), (command, done.stdout, done.stderr)
        assert f"{jobs} belongs to uid {EVE}" in done.stderr, (command, done.stderr)
    assert attacked.files(jobs) == before


@pytest.mark.matrix
def test_an_interpreter_that_eve_could_exchange(attacked: Attacked, tree: Path) -> None:
    """In a directory like /tmp, she was first at the place that the inventory names."""
    place, ran = "/srv/shared/env", "/tmp/ran"
    real = attacked.document["defaults"]["python"]
    attacked.as_root("install -d -m 1777 /srv/shared; echo eve:x:64999:64999::/:/bin/sh >> /etc/passwd")
    attacked.as_eve(
        f"mkdir -p {place}/bin && cd {place}/bin && "
        f"printf '#!/bin/sh\\nid -u >>{ran}; exec {real} \"$@\"\\n' >python && chmod 755 python"
    )
    attacked.settings(python=f"{place}/bin/python")
    assert attacked.mnt("push", str(tree)).returncode == 0
    named = f"another user could exchange it: {place} belongs to eve (uid {EVE})"
    (finding,) = json.loads(attacked.mnt("preflight", "--json", "--only", "python-version").stdout)[
        "findings"
    ]
    assert (finding["severity"], finding["playbook"]) == ("fail", None)
    assert named in finding["message"]
    for command in (("launch", "train.py"), ("launch", "--no-preflight", "train.py")):
        done = attacked.mnt(*command)
        assert done.returncode == 125, (command, done.stdout, done.stderr)
        assert named in done.stderr, (command, done.stderr)
    for command in (("status",), ("stop",), ("net",)):
        assert attacked.mnt(*command).returncode in (0, 1), command
    assert attacked.host.exec(["test", "!", "-e", ran]).returncode == 0

    attacked.settings(python=f"{place}/bin/python", python_owner="eve")
    (finding,) = json.loads(attacked.mnt("preflight", "--json", "--only", "python-version").stdout)[
        "findings"
    ]
    assert finding["severity"] == "warn"
    assert "eve (uid 64999)" in finding["message"]
    attacked.trained(tree)
    assert attacked.as_root(f"sort -u {ran}") == str(attacked.uid)


def test_a_group_that_shares_a_workdir(attacked: Attacked, tree: Path) -> None:
    """Eve is a colleague in the group `crew`, and made the workdir: refused, until the inventory names it."""
    host, workdir = attacked.host, "/srv/project"
    user = attacked.as_user("id", "-un")
    attacked.as_root(
        f"echo eve:x:{EVE}:{EVE}::/tmp:/bin/sh >> /etc/passwd; echo crew:x:64998:{user},eve >> /etc/group"
    )
    attacked.as_root(f"install -d -o eve -g crew -m 2775 {workdir}")
    attacked.settings(workdir=workdir)
    refused(attacked, tree, f"{workdir} belongs to eve (uid {EVE})")
    attacked.settings(workdir=workdir, workdir_group="crew")
    attacked.trained(tree)
    assert attacked.as_root(f"stat -c '%a %G' {workdir}/releases {workdir}/shared/outputs").split("\n") == [
        "2770 crew",
        "2775 crew",
    ]
    attacked.as_root(f"chown -R eve {workdir}")  # as if eve had pushed
    attacked.trained(tree)
    attacked.as_root(f"chmod o+w {workdir}")
    refused(attacked, tree, f"all users can write to {workdir} (mode 2777)")
    attacked.settings(workdir=workdir, workdir_group="no-such")
    assert "this host has no group no-such" in attacked.mnt("push", str(tree)).stderr
    assert host.alive


@pytest.mark.matrix
def test_a_primary_group_that_eve_has_too(attacked: Attacked, tree: Path) -> None:
    """No list of this host names her: as with SSSD and LDAP, which list no users, and no primary members."""
    top, gid = "/srv/data", 64997
    user = attacked.as_user("id", "-un")
    attacked.as_root(f"groupadd -g {gid} research && usermod -g research {user}")
    attacked.as_root(f"install -d -o {user} -g research -m 775 {top}")  # as with umask 002
    attacked.settings(workdir=f"{top}/project")
    named = f"the group research can write to {top} (mode 0775)"
    refused(attacked, tree, named)
    attacked.as_root(f"chmod g-w {top}")
    attacked.trained(tree)
    attacked.as_root(f"chmod g+w {top}")
    attacked.as_eve(f"cd {top} && mv project old && mkdir -m 777 project", gid=gid)
    refused(attacked, tree, named)
