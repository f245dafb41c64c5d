"""Texts that others have written: the time that a regular expression takes, and what ends a line."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from waiting import cpu_at_most

import mnt
from mnt.fleet.shell import shell_of
from mnt.remote.probe.filesystems import parse_mounts

LONG = 60_000  # characters: with a time that grows with their square, a text takes 10 seconds or more
SECONDS = 4.0  # of processor time; each takes less than 0.2 on an idle machine

# By module and name: how it is used, and what is repeated. The others are tried with ANYTHING.
ATTACKS: dict[str, tuple[str, list[str]]] = {
    "facts.system._NO_ANSWER": ("search", ["lost", "requires ", "require", "a"]),
    "fleet.login.hostkeys._TYPE": ("fullmatch", ["a"]),
    "fleet.login.sshconfig._PART": ("findall", ["a", '"', "'a", '"a', "\\", "a ", "#", "=", " "]),
    "fleet.startup._ASKS": ("search", ["PS", "*", "$"]),
    "fleet.startup._ENDS": ("search", ["exit-", "a", "."]),
    "fleet.startup._READS": ("search", ["read-", "a", "ssh."]),
    "fleet.startup._RETURNS": ("search", ["PS1 returns ", "return1"]),
    "inventory.hostlist._BRACKETS": ("findall", ["[", "[a", "[]", "a"]),
    "inventory.hostlist._RANGE": ("fullmatch", ["1", "1-", "1-1/"]),
    "inventory.hints._REFERENCE": ("search", ["$", "${", "${a", "$1"]),
    "launch.banner._NOTICE": ("match", ["W1111 ", "W1111  torch/distributed/elastic/agent/"]),
    "launch.banner._OF_AGENT": ("match", ["torch.distributed.elastic.", "torch.distributed.elastic.a"]),
    "launch.banner._RULE": ("match", ["="]),
    "launch.bars._BAR": ("search", ["1%|", "1%|x", "1%| ", "1%|x|", "1/1 [", "1/", "1"]),
    "launch.bars._FIGURES": ("findall", ["1", "a", "a1", " "]),
    "launch.bars._PREFIX": ("match", ["[rank1", "[rank", "[rank1]1"]),
    "network.used._HCA": ("findall", ["a", "a:", "a:1/", "a:1/RoCE", "[0]a"]),
    "network.used._INTERFACE": ("findall", ["[1]", "[1]a:", "[1]a:a<1", "[1]a:<", "OOB a", "[1"]),
    "preflight.checks.network._LOCALHOST": ("fullmatch", ["localhost.", "ip6-localhost"]),
    "preflight.checks.storage._TAKES_RIGHTS": ("fullmatch", ["chmod go-w /", "chmod 700 /tmp/mnt-1"]),
    "preflight.checks.versions._BUILD": ("search", ["+cu1", "+rocm1.", "+cu"]),
    "push.keys._KEY": ("search", ["-----BEGIN PRIVATE KEY-----\n", "-", "A: ", "----BEGIN A "]),
    "push.notices._WEIGHTS": ("fullmatch", ["model-1-of-", "pytorch_", "model-1"]),
    "remote.job.failures._NOTICE": ("match", ["[W1111 1", "a:1", "a:1: a", "a"]),
    "remote.job.remains.torchrun._FIELD": ("match", ["  rank", "  rank :", " "]),
    "tasks.bounds._STRING": ("findall", ['"', 'a"', "a"]),
    "tasks.shape._OF_ANOTHER": ("findall", [";", "; ", ";a", ";  a.", "a"]),
    "trial.output._CHOICE": ("match", ["NET/a", "NET/a: Using [1", "Using network "]),
    "trial.output._GID": ("match", ["NET/IB: Dev 1 Port 1 qpn 1 ", "NET/IB: Dev 1 Port 1 qpn 1 GID 1"]),
    "trust.fingerprints._FINGERPRINT": ("search", ["SHA256:", "SHA256:a", "a"]),
    "ui.console._ESCAPES": ("findall", ["\x1b", "\x1b[", "\x1b[1", "\x1b[1;", "\x1b[ ", "\x1b]", "\x1b]a"]),
}
ANYTHING = ["a", "1", " ", "a ", "a.", "a:", "[", "[a", "a-1", "/", "a/", '"', "\\", "%", "_"]
CUT = {"launch.banner._NOTICE": 500, "trial.output._GID": 1024}  # characters that it gets of a line
# Modules that name a file of /proc, and split other texts at each end of a line that Python knows.
OTHER_LINES = {
    "fleet/login/sshconfig.py": "what ssh says",
    "lab/boot.py": "a lab's log",
    "remote/probe/nvidia.py": "what nvidia-smi says",
    "remote/probe/probe.py": "os-release",
    "remote/probe/survey.py": "a list of the user's conda",
}
OWN = {"lab.spec._RATE"}  # reads only what the user has written on the command line


def patterns() -> dict[str, re.Pattern[str] | re.Pattern[bytes]]:
    """What the modules have compiled, by module and name."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(mnt.__path__, "mnt.")
        if found.name not in ("mnt.__main__", "mnt.remote.boot.boot")  # they run when they are loaded
    ]
    return {
        f"{module.__name__.removeprefix('mnt.')}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern)
    }


PATTERNS = patterns()


@pytest.mark.parametrize("name", sorted(PATTERNS.keys() - OWN))
def test_no_text_takes_long(name: str) -> None:
    how, pieces = ATTACKS.get(name, ("search", ANYTHING))
    pattern, most = PATTERNS[name], CUT.get(name, LONG)
    for piece in pieces:
        for begin, end in (("", "!"), ("x", ""), (pieces[0], "\n")):
            text = (begin + piece * (most // len(piece)))[: most - len(end)] + end
            read = text.encode() if isinstance(pattern.pattern, bytes) else text
            with cpu_at_most(SECONDS):
                getattr(pattern, how)(read)


def test_each_attack_is_for_an_expression_that_exists() -> None:
    assert ATTACKS.keys() | CUT.keys() | OWN <= PATTERNS.keys()


def test_a_line_of_the_kernel_ends_with_a_newline_only() -> None:
    """Any user may choose names there (a mount point, a process) with other ends of lines."""
    house = Path(mnt.__file__).parent
    texts = {str(path.relative_to(house)): path.read_text() for path in house.rglob("*.py")}
    split = {name for name, text in texts.items() if "/proc/" in text and ".splitlines(" in text}
    assert split == OTHER_LINES.keys()
    opened = re.compile(r'open\(f?"/proc/[^"]*"(, encoding|\))')  # as text
    assert [name for name, text in texts.items() if opened.search(text)] == ["remote/job/procs.py"]  # boot_id


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_another_end_of_a_line_ends_none_there(end: str) -> None:
    point = f"/home/eve/a{end}tmpfs /data nfs rw 0 0"
    fields = point.replace(" ", "\\040")
    assert [mount["point"] for mount in parse_mounts(f"eve {fields} fuse rw 0 0\n")] == [point]
    assert (
        shell_of(f"eve:x:9:9:{end}me:x:1:1:::/evil:/home/eve:/bin/sh\nme:x:1:1::/:/bin/sh\n", "me")
        == "/bin/sh"
    )
