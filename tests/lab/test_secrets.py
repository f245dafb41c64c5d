"""Secrets of a real job: while it runs and after it, their values are only where docs/security.md says."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from waiting import rest_of, wait_for

from mnt.inventory import loader
from mnt.inventory.model import Inventory
from mnt.lab.lab import Lab, LabHost
from mnt.launch.backends import backend_named
from mnt.launch.plan import LaunchOptions
from mnt.launch.run import Draft, dry_run
from mnt.launch.secret import Secret
from mnt.launch.staging import stage, take_back

Mnt = Callable[..., subprocess.CompletedProcess[str]]

NODES = ("node1", "node2")
NAMES = ("OF_FILE", "OF_ENV", "OF_COMMAND", "OF_ENV_FILE", "OF_OPTION")
# Where hosts have files of their own; the rest of the lab's machine is read-only there.
DIRECTORIES = ("/dev/shm", "/home", "/root", "/run", "/shared", "/tmp", "/var/log")
WAIT = f"""
import os, time
print("lengths", [len(os.environ.get(name, "")) for name in {NAMES}], flush=True)
time.sleep(600)
"""


class Secrets:
    """One value for each way into a job, and the lab's inventory with the sources of three of them."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.values = {name: f"{name.lower()}-{secrets.token_hex(12)}" for name in NAMES}
        self.ran = directory / "ran"
        self.env = {"MINE": self.values["OF_ENV"], "OF_OPTION": self.values["OF_OPTION"]}
        self.sources = directory / "sources"
        self.sources.mkdir(mode=0o700)
        self._file("token", self.values["OF_FILE"])
        self._file("printed", self.values["OF_COMMAND"])
        self.env_file = self._file("env", f"OF_ENV_FILE={self.values['OF_ENV_FILE']}\nOF_OPTION=weaker\n")
        document = yaml.safe_load(lab.inventory_path.read_text())
        document["secrets"] = {
            "OF_FILE": {"file": "sources/token"},
            "OF_ENV": {"env": "MINE"},
            "OF_COMMAND": {"command": ["sh", "-c", f"echo ran >>{self.ran}; cat sources/printed"]},
        }
        self.inventory = directory / "secrets.yaml"
        self.inventory.write_text(yaml.safe_dump(document))

    def _file(self, name: str, text: str) -> str:
        path = self.sources / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def launch_words(self, *words: str) -> list[str]:
        files = ["--env-file", self.env_file, "--env", "OF_OPTION"]
        return ["launch", "-i", str(self.inventory), "-n", "node[1-2]", *files, *words, "wait.py"]

    def shown_in(self, text: str) -> list[str]:
        return [name for name, value in self.values.items() if value in text]

    def found_on(self, host: LabHost) -> list[str]:
        """The files of a host that have one of the values."""
        patterns = "\n".join(self.values.values())
        found = host.exec(["grep", "-rlsaF", "-D", "skip", "-f", "-", *DIRECTORIES], input=patterns)
        assert found.returncode in (0, 1, 2), found.stderr  # 2: a file has gone meanwhile
        return found.stdout.split("\n")[:-1]

    def found_here(self, *directories: str | Path) -> list[str]:
        found = []
        for directory in directories:
            for path in Path(directory).rglob("*"):
                if path.is_file() and self.shown_in(path.read_bytes().decode("latin-1")):
                    found.append(str(path))
        return found


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "wait.py").write_text(WAIT)
    return root


@pytest.fixture
def job_secrets(lab: Lab, tmp_path: Path, pushed: Mnt) -> Iterator[Secrets]:
    yield Secrets(lab, tmp_path)
    assert pushed("stop", "--all", "--grace", "0").returncode == 0


def processes(what: str) -> dict[int, str]:
    """The command line, or the environment, of every process: those of the hosts are also processes here."""
    found = {}
    for path in Path("/proc").glob(f"[0-9]*/{what}"):
        try:
            found[int(path.parent.name)] = path.read_bytes().decode("latin-1")
        except OSError:  # it has ended
            continue
    return found


def test_secrets_of_a_job_are_in_its_environment_alone(
    job_secrets: Secrets, pushed: Mnt, lab: Lab, tmp_path: Path
) -> None:
    said: dict[str, str] = {}

    def keep(what: str, done: subprocess.CompletedProcess[str], code: int = 0) -> None:
        assert done.returncode == code, (what, done.stderr)
        said[what] = done.stdout + done.stderr

    def ask(*words: str, code: int = 0) -> None:
        keep(" ".join(words), pushed(*words, "-i", str(job_secrets.inventory)), code)

    # What starts no job reads nothing.
    page = tmp_path / "page.html"
    for more in ([], ["--json"]):
        keep(f"dry {more}", pushed(*job_secrets.launch_words("--dry-run", *more), env=job_secrets.env))
        ask("inventory", "show", *more)
        ask("net", "-n", "node[1-2]", *more)
        ask("preflight", "-n", "node[1-2]", *more, *([] if more else ["--html", str(page)]))
        ask("hostfile")
    assert said["dry []"].count("export OF_COMMAND='***'") == len(NODES)
    assert not job_secrets.ran.exists()

    # A job that runs.
    launch = subprocess.Popen(
        [sys.executable, "-m", "mnt", *job_secrets.launch_words()],
        env={**os.environ, **job_secrets.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert launch.stdout is not None
    said["launch"] = ""
    lengths = f"lengths {[len(value) for value in job_secrets.values.values()]}"
    while said["launch"].count(lengths) < len(NODES):
        line = launch.stdout.readline()
        assert line, said["launch"]
        said["launch"] += line
    assert job_secrets.ran.read_text() == "ran\n"

    assert job_secrets.shown_in("\n".join(processes("cmdline").values())) == []
    holders = {pid for pid, text in processes("environ").items() if job_secrets.shown_in(text)}
    environments, lines = processes("environ"), processes("cmdline")
    for pid in holders - {launch.pid}:
        assert "\0MNT_JOB=" in "\0" + environments[pid], lines[pid]
        assert "supervisor.py" not in lines[pid]
        assert os.stat(f"/proc/{pid}/environ").st_mode & 0o777 == 0o400
    assert len(holders - {launch.pid}) >= 2 * len(NODES)  # torchrun and its rank
    for name in NODES:
        assert job_secrets.found_on(lab.host(name)) == []

    for more in ([], ["--json"]):
        ask("status", *more)
    ask("logs")
    ask("stop", "--grace", "0", "--json")
    said["end"] = rest_of(launch)
    assert launch.returncode == 143, said["end"]

    # A launch that is refused by a host, and one that is refused before.
    missing = [*job_secrets.launch_words()[:-1], "none.py"]
    keep("missing", pushed(*missing, env=job_secrets.env), 125)
    keep("unset", pushed(*job_secrets.launch_words(), env={"OF_OPTION": job_secrets.values["OF_OPTION"]}), 2)
    assert f"{job_secrets.inventory}:" in said["unset"]
    assert "secrets.OF_ENV: MINE is not set in your environment" in said["unset"]

    # And after it all.
    ask("status", "--json")
    ask("logs")
    assert {what: shown for what, text in said.items() if (shown := job_secrets.shown_in(text))} == {}
    for host in lab.hosts:
        assert job_secrets.found_on(host) == []
    here = (os.environ["HOME"], tmp_path, lab.inventory_path.parent, *Path("/tmp").glob("mnt-*"))
    assert {str(Path(path).parent) for path in job_secrets.found_here(*here)} == {str(job_secrets.sources)}


def planned(inventory: Inventory, options: LaunchOptions) -> Draft:
    return dry_run(inventory, options, hosts=[inventory.host(name) for name in NODES])


def test_secrets_of_a_staged_job_are_in_one_private_file_of_each_node(
    job_secrets: Secrets, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", job_secrets.env["MINE"])
    options = LaunchOptions(
        script="wait.py", secrets={"OF_ENV_FILE": Secret(job_secrets.values["OF_ENV_FILE"])}
    )
    launch = planned(loader.load(job_secrets.inventory), options).launch()
    with backend_named("ssh").open_fleet(launch.hosts) as fleet:
        stage(fleet, launch.plan)
        for name in NODES:
            host = lab.host(name)
            (file,) = job_secrets.found_on(host)
            assert file.endswith(f"/{launch.plan.job}/{name}/secrets.json")
            assert file.startswith("/tmp/mnt-")
            assert host.exec(["stat", "-c", "%a %U", file]).stdout == "600 mnt\n"
            other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", file]
            assert "Permission denied" in host.exec(other).stderr
        take_back(fleet, launch.plan)
    for name in NODES:
        assert wait_for(lambda name=name: job_secrets.found_on(lab.host(name)) == [])  # type: ignore[misc]
