"""What TAB offers, in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

from mnt.launch import seen

INVENTORY = """\
hosts: ["node[1-2]", other]
groups: {train: "node[1-2]", trial: other}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an inventory, and `mnt` on PATH."""
    (tmp_path / "inventories").mkdir()
    (tmp_path / "inventories" / "default.yaml").write_text(INVENTORY)
    program = tmp_path / "bin" / "mnt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mnt "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MNT_INVENTORY", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# As typed, and what is offered then.
TYPED = {
    "mnt pref": ["preflight"],
    "mnt preflight -n no": ["node1", "node2"],
    "mnt preflight -n node1,o": ["node1,other"],
    "mnt preflight -n @tr": ["@train", "@trial"],
    "mnt preflight -n node1,@tra": ["node1,@train"],
    "mnt preflight --only torch-version,mem": ["torch-version,memlock", "torch-version,memory"],
    "mnt preflight -i def": ["default"],
    "mnt setup tun": ["tuning"],
    "mnt shell oth": ["other"],
    "mnt trust @tri": ["@trial"],
    "mnt preflight -n node[1-2],o": ["node[1-2],other"],
    "mnt preflight -n zzz": [],
    "mnt preflight --dee": ["--deep"],
}


def bash(line: str) -> list[str]:
    """What the function of bash leaves, with bash's own words: it splits at `@` and `:`."""
    program = """
        eval "$(mnt completion bash)"
        compopt() { :; }
        COMP_LINE=$1; COMP_POINT=${#1}
        _mnt_completion mnt
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", program, "bash", line], capture_output=True, text=True, check=True)
    typed = line.rsplit(" ", 1)[-1]
    before = typed[: typed.rfind("@") if "@" in typed else max(map(typed.rfind, ":=")) + 1]
    return [before + word for word in done.stdout.split()]


def fish(line: str) -> list[str]:
    program = "mnt completion fish | source; complete -C $argv[1]"
    done = subprocess.run(["fish", "-c", program, line], capture_output=True, text=True, check=True)
    return [offered.split("\t")[0] for offered in done.stdout.splitlines()]


@pytest.mark.parametrize("line", TYPED)
def test_what_is_offered(place: Path, line: str) -> None:
    assert sorted(bash(line)) == TYPED[line]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
@pytest.mark.parametrize("line", ["mnt pref", "mnt preflight -n node1,@tra", "mnt preflight -n zzz"])
def test_what_fish_offers(place: Path, line: str) -> None:
    assert sorted(fish(line)) == TYPED[line]


def read_to(terminal: int, wanted: str) -> None:
    """Fails if that is not shown."""
    seen = ""
    while wanted not in seen:
        assert select.select([terminal], [], [], PATIENCE)[0], f"{wanted!r} never came: {seen!r}"
        seen += os.read(terminal, 65536).decode(errors="replace")


def test_bash_with_the_key(place: Path) -> None:
    """On a terminal, with the real key: the word after `@` is completed, and no more is written."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", "--norc", "-i"], {**os.environ, "PS1": "> ", "TERM": "dumb"})
    try:
        os.write(terminal, b'eval "$(mnt completion bash)"; echo ready\n')
        read_to(terminal, "\nready\r\n")
        os.write(terminal, b"mnt preflight -n node1,@trai\t")
        read_to(terminal, "mnt preflight -n node1,@train ")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)


def test_zsh_takes_it(place: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh")
    program = 'autoload -U compinit; compinit -D -u; eval "$(mnt completion zsh)"; print $_comps[mnt]'
    done = subprocess.run(["zsh", "-fc", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "_mnt_completion\n", "")


def test_jobs_that_were_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    seen.remember(["20261129-080000-aaaaaa", "20261128-080000-bbbbbb"])
    seen.remember(["20261129-090000-cccccc", "20261129-080000-aaaaaa", "../../etc"])
    kept = ["20261129-090000-cccccc", "20261129-080000-aaaaaa", "20261128-080000-bbbbbb"]
    assert seen.recall() == kept
    assert bash("mnt stop 20261129-08") == [kept[1]]
    assert bash("mnt stop aaa") == []  # an abbreviation; bash would replace what is typed
    (place / "state" / "mnt").chmod(0o777)  # another user could write there
    assert seen.recall() == []
    seen.remember(["20261129-100000-dddddd"])
    assert "dddddd" not in (place / "state" / "mnt" / "jobs").read_text()


def test_what_cannot_be_read_offers_nothing(place: Path) -> None:
    (place / "inventories" / "default.yaml").write_text("hosts: [\n")
    assert bash("mnt preflight -n no") == []


COMMANDS = [
    "gpus;touch${IFS}x;",
    "gp$(x)",
    "gp`x`",
    "gp x",
    "gp\nplain,gpx",
    "gp&x",
    "gp>x",
    "gp'x",
    "gp*",
    "gp~x",
]


def test_a_name_that_a_shell_would_execute_is_not_offered(place: Path) -> None:
    """An inventory of somebody else's tree: bash inserts its name as it is, and Enter would run it."""
    for name in [*COMMANDS, "-gpx", "gpu-1.a"]:
        (place / "inventories" / f"{name}.yaml").write_text(INVENTORY)
    assert bash("mnt preflight -i gp") == ["gpu-1.a"]
    if shutil.which("fish"):
        assert fish("mnt preflight -i gp") == ["gpu-1.a"]


def test_bash_takes_no_such_word_from_any_command(place: Path) -> None:
    offers = "".join(f"plain,{name}\n" for name in [*COMMANDS, "gpu-1.a,@b"] if "\n" not in name)
    program, real = place / "bin" / "mnt", (place / "bin" / "mnt").read_text()
    (place / "offers").write_text(offers)
    asked = '[ "$_MNT_COMPLETE" != bash_complete ] || exec cat offers\n'
    program.write_text(real.replace("exec", asked + "exec", 1))
    assert bash("mnt preflight -i gp") == ["gpu-1.a,@b"]


def test_a_shell_that_is_not_known(place: Path) -> None:
    done = subprocess.run(["mnt", "completion", "tcsh"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr
