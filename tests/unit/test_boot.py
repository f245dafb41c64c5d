"""The bootstrap, from a login shell to a program's answer, on this machine and without SSH."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from boot_host import Conversation, answer, script
from pythons import interpreter
from waiting import PATIENCE, alive, wait_for

from mnt.tasks import bootstrap

SHELLS = ["sh", "dash", "bash", "zsh", "ksh", "fish", "tcsh", "csh", "busybox"]
PYTHONS = ["python3.8", "python3.9", "python3.10", "python3.12", "python3.13"]
OLD_PYTHONS = ["python2.7", "python3.6", "python3.7"]

ECHO = """
def main(args, emit, stdin):
    emit({"frame": 1})
    return {"args": args, "stdin": stdin.read().decode("latin-1")}
"""


def shell_command(name: str) -> list[str]:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return [path, "sh"] if name == "busybox" else [path]


def wait_for_end(*pids: int) -> None:
    wait_for(lambda: not any(map(alive, pids)))


# -- the constant line, and what the shells make of it


def test_the_command_holds_nothing_that_a_shell_would_touch() -> None:
    quoted = bootstrap.COMMAND.partition("'")[2].rpartition("'")[0]
    assert f"exec sh -c '{quoted}'" == bootstrap.COMMAND
    assert not set("'\\!\n") & set(quoted)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_passes_it_on(shell: str) -> None:
    said = answer(ECHO, {"text": "a'b\"c\\d!e$f\n\u00e9"}, shell=shell_command(shell), stream=b"\0\xff\n")
    assert said["args"]["text"] == "a'b\"c\\d!e$f\n\u00e9"
    assert said["stdin"] == "\0\xff\n"


@pytest.mark.parametrize("shell", ["dash", "bash", "zsh", "ksh", "busybox"])
def test_the_first_stage_is_valid_in_every_posix_shell(shell: str) -> None:
    text = resources.files("mnt.remote").joinpath("boot/boot.sh").read_text()
    line = bootstrap.opening("mark", []).partition(b"\n")[0].decode()
    for source in (text, line):
        done = subprocess.run([*shell_command(shell), "-n"], input=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python(python: str) -> None:
    path = interpreter(python)
    said = answer(ECHO, {"n": 1}, python=[path], stream=b"data")
    assert said == {
        "args": {"n": 1, "_boot": {"python": [path], "configured": True, "why": ""}},
        "stdin": "data",
    }


# -- which interpreter


def test_the_configured_interpreter_may_be_several_words(tmp_path: Path) -> None:
    wrapper = script(tmp_path / "with space", f'#!/bin/sh\nshift\nexec {sys.executable} "$@"\n')
    said = answer(ECHO, python=[wrapper, "$x 'y'"])
    assert said["args"]["_boot"] == {"python": [wrapper, "$x 'y'"], "configured": True, "why": ""}


def test_an_interpreter_in_a_container(tmp_path: Path) -> None:
    container = ["unshare", "--pid", "--fork", "--kill-child", sys.executable]
    if subprocess.run([*container, "-c", ""], capture_output=True).returncode:
        pytest.skip("no PID namespaces here")
    assert answer(ECHO, python=container, stream=b"x")["stdin"] == "x"
    program = "import time\ndef main(args, emit, stdin):\n    emit({})\n    time.sleep(1000)\n"
    with Conversation(program, python=container) as conversation:
        conversation.until("frame")
        conversation.hang_up()
        assert conversation.process.wait(PATIENCE) is not None


def test_a_tilde_is_the_home_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    said = answer(ECHO, python=["~/python"], env={"HOME": str(tmp_path)})
    assert said["args"]["_boot"]["python"] == [f"{tmp_path}/python"]


@pytest.mark.parametrize("variable", ["PYTHONHOME", "PYTHONUTF8", "PYTHONIOENCODING"])
def test_variables_of_start_up_files_stop_no_interpreter(variable: str) -> None:
    boot = answer(ECHO, env={variable: "/nowhere"})["args"]["_boot"]
    assert boot["configured"], boot["why"]


def test_packages_are_looked_for_as_in_a_job(tmp_path: Path) -> None:
    program = "import sys\ndef main(args, emit, stdin):\n    return {'path': sys.path}\n"
    assert str(tmp_path) not in answer(program, env={"PYTHONPATH": str(tmp_path)})["path"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "not found: {path}"),
        ("#!/bin/sh\nexit 255\n", "exit code 255: {path}"),
        ("#!/nowhere/sh\n", "cannot be run: {path}"),
    ],
)
def test_another_one_steps_in_and_says_why(tmp_path: Path, text: str | None, why: str) -> None:
    path = str(tmp_path / "python")
    if text is not None:
        script(tmp_path / "python", text)
    boot = answer(ECHO, python=[path])["args"]["_boot"]
    assert boot == {"python": ["python3"], "configured": False, "why": why.format(path=path)}


@pytest.mark.parametrize("python", OLD_PYTHONS)
def test_an_old_one_is_not_used(python: str) -> None:
    path = interpreter(python)
    boot = answer(ECHO, python=[path])["args"]["_boot"]
    assert boot["why"] == f"older than Python 3.8: {path}"


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_no_interpreter_at_all(tmp_path: Path, shell: str) -> None:
    for tool in ("sh", "uname"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    argv = ["env", f"PATH={tmp_path}", f"HOME={tmp_path}", *shell_command(shell)]
    if Path("/usr/bin/python3").exists() or Path("/usr/local/bin/python3").exists():
        hide = ["unshare", "--mount", "sh", "-c"]
        mounts = (
            "for p in /usr/bin /usr/local/bin; do p=$p/python3; [ ! -e $p ] || mount -B /dev/null $p; done"
        )
        if subprocess.run([*hide, mounts], capture_output=True).returncode:
            pytest.skip("python3 cannot be hidden here: no mount namespaces")
        argv = [*hide, f'{mounts}; exec "$@"', "sh", *argv]
    with Conversation(ECHO, shell=argv, python=["/no/python"], stream=None) as conversation:
        frames = conversation.frames()
    kinds = [frame.kind for frame in frames]
    assert kinds[0] == "sh"
    assert kinds[-1] == "none"
    assert frames[1].value == "127 /no/python"
    facts = dict(frame.value.split(" ", 1) for frame in frames if frame.kind == "fact")
    assert facts["hostname"] == os.uname().nodename
    assert facts["kernel"] == f"Linux {os.uname().release}"
    assert facts["os"]


def test_a_hanging_attempt_is_killed_by_the_next(tmp_path: Path) -> None:
    hanging = script(tmp_path / "python", "#!/bin/sh\nsleep 1000\n")
    with Conversation(ECHO, python=[hanging], stream=None) as stuck:
        group = int(stuck.until("sh").value)
        said = answer(ECHO, python=[], stale=group, why="too slow")
        assert said["args"]["_boot"] == {"python": ["python3"], "configured": False, "why": "too slow"}
        assert stuck.process.wait(PATIENCE) == -signal.SIGKILL
        assert stuck.frames() == []  # its sleep is gone too, for the pipe has no writer left


@pytest.mark.parametrize("word", ["", "a\nb", "a\0b"])
def test_words_that_cannot_be_sent(word: str) -> None:
    with pytest.raises(ValueError, match="not a word"):
        bootstrap.opening("m", [word])


def test_a_module_in_the_home_does_not_shadow_the_library(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    program = "import json\ndef main(args, emit, stdin):\n    return {'file': json.__file__}\n"
    home = ["env", "-C", str(tmp_path), "sh"]
    assert str(tmp_path) not in answer(program, shell=home)["file"]


# -- noise, output and errors


def test_noise_around_the_frames_does_not_count() -> None:
    program = """
import subprocess
def main(args, emit, stdin):
    print("a stray print", flush=True)
    subprocess.run(["sh", "-c", "echo from a child; cat"], check=True)
    emit({"n": 1})
    print("another", flush=True)
    return {"n": 2}
"""
    noisy = ["env", "sh", "-c", 'printf "motd without a newline"; eval "$2"; echo bye', "sh"]
    with Conversation(program, shell=noisy) as conversation:
        frames = conversation.frames()
        assert conversation.process.stderr is not None
        errors = conversation.process.stderr.read().decode()
    assert [frame.value for frame in frames if frame.kind in ("frame", "answer")] == [{"n": 1}, {"n": 2}]
    assert errors.split("\n")[:3] == ["a stray print", "from a child", "another"]


def test_a_large_answer_with_another_writer_in_between() -> None:
    program = """
import os, threading
def main(args, emit, stdin):
    return {"text": "x" * 1_000_000}
"""
    noisy = ["sh", "-c", '(while sleep 0.001; do echo noise; done) & pid=$!; sh -c "$2"; kill $pid', "sh"]
    assert answer(program, shell=noisy) == {"text": "x" * 1_000_000}


def test_the_traceback_shows_lines_of_every_module() -> None:
    program = "def main(args, emit, stdin):\n    return args['missing']  # the line\n"
    with Conversation(program) as conversation:
        value = conversation.until("error").value
    assert value["error"] == "KeyError: 'missing'"
    assert 'File "mnt/remote/trial.py", line 2, in main' in value["traceback"]
    assert "return args['missing']  # the line" in value["traceback"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return {'x': object()}", "TypeError: Object of type object is not JSON serializable"),
        ("return {'x': float('nan')}", "ValueError: Out of range float values are not JSON compliant"),
        ("return {'x': 'y' * (65 << 20)}", "ValueError: answer of 68157449 bytes: more than"),
        ("emit({'x': b''})", "TypeError: Object of type bytes is not JSON serializable"),
    ],
)
def test_what_goes_wrong_is_said(body: str, error: str) -> None:
    with Conversation(f"def main(args, emit, stdin):\n    {body}\n") as conversation:
        assert conversation.until("error").value["error"].startswith(error)


def test_a_program_that_does_not_compile() -> None:
    with Conversation("def main(:\n") as conversation:
        assert conversation.until("error").value["error"].startswith("SyntaxError")


def test_a_program_that_dies_is_not_answered_by_another_interpreter() -> None:
    program = "import os, signal\ndef main(args, emit, stdin):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    with Conversation(program) as conversation:
        conversation.until("hello")
        assert conversation.until("tried").value == f"137 {sys.executable}"


# -- the program's stream


def test_the_stream_is_a_binary_file() -> None:
    program = """
def main(args, emit, stdin):
    first = stdin.read(3)
    line = stdin.readline()
    buffer = bytearray(4)
    count = stdin.readinto(buffer)
    rest = stdin.read()
    again = stdin.read(1)
    return {"parts": [b.hex() for b in (first, line, buffer[:count], rest, again)]}
"""
    with Conversation(program, stream=None) as conversation:
        conversation.until("hello")
        for part in (b"abc", b"def\ngh", b"i", b"\0\xff\n" * 3):
            conversation.send(bootstrap.piece(part))
        conversation.send(bootstrap.END_OF_STREAM)
        parts = conversation.until("answer").value["parts"]
    assert [bytes.fromhex(part) for part in parts] == [
        b"abc",
        b"def\n",
        b"ghi\0",
        b"\xff\n" + b"\0\xff\n" * 2,
        b"",
    ]


def test_children_cannot_take_the_stream() -> None:
    program = """
import subprocess
def main(args, emit, stdin):
    taken = subprocess.run(["cat"], stdout=subprocess.PIPE).stdout
    return {"taken": len(taken), "kept": len(stdin.read())}
"""
    assert answer(program, stream=b"x" * 1000) == {"taken": 0, "kept": 1000}


# -- the head goes away

SLEEPER = """
import os, signal, subprocess, time
def main(args, emit, stdin):
    if args.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sh", "-c", args.get("child", "sleep 1000")])
    supervisor = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        emit({"pids": [os.getpid(), child.pid], "supervisor": supervisor.pid})
        %s
    finally:
        open(args["file"], "w").close()
"""


@pytest.fixture
def hung_up(tmp_path: Path) -> Callable[..., Any]:
    """Start SLEEPER, hang up, and see that all of it but the supervisor ends; whether it could clean up."""

    def start(body: str, **options: Any) -> bool:
        args = {"file": str(tmp_path / "cleaned"), **options.pop("args", {})}
        ready = options.pop("ready", None)  # a file that the child makes
        with Conversation(SLEEPER % body, args, **options) as conversation:
            pids = conversation.until("frame").value
            try:
                if ready is not None:
                    wait_for(ready.exists)
                conversation.hang_up()
                wait_for_end(*pids["pids"])
                conversation.process.wait(PATIENCE)
                assert alive(pids["supervisor"])
            finally:
                os.kill(pids["supervisor"], signal.SIGKILL)
        return (tmp_path / "cleaned").exists()

    return start


def test_a_lost_head_ends_the_program_and_its_children(hung_up: Callable[..., bool]) -> None:
    assert hung_up("time.sleep(1000)")


def test_a_lost_head_lets_a_stopped_child_clean_up(hung_up: Callable[..., bool], tmp_path: Path) -> None:
    child = f"trap 'touch {tmp_path}/too; exit' TERM; touch {tmp_path}/set; kill -STOP $$; sleep 1000 & wait"
    patient = """while child.poll() is None:
            try: child.wait()
            except SystemExit: pass"""
    assert hung_up(patient, args={"child": child}, ready=tmp_path / "set")
    assert (tmp_path / "too").exists()


def test_a_lost_head_ends_a_program_that_reads(hung_up: Callable[..., bool]) -> None:
    assert hung_up("stdin.read()", stream=None)


@pytest.mark.parametrize("body", ["stdin.read()", "time.sleep(1000)"])
def test_the_loss_of_the_head_interrupts_once(hung_up: Callable[..., bool], body: str) -> None:
    """The signal that follows does not end the cleaning up of the program, nor that of a child."""
    cleaning = f"""file, args["file"] = args["file"], os.devnull
        try: {body}
        finally:
            pid = os.fork()
            time.sleep(0.3)  # the signal comes now, if it has not yet
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            if not pid: os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert subprocess.run(["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM
            args["file"] = file"""
    assert hung_up(cleaning, stream=None)


def test_a_lost_head_is_noticed_behind_data_that_nobody_reads(hung_up: Callable[..., bool]) -> None:
    assert hung_up("time.sleep(1000)", stream=b"x" * 20_000)


def test_a_program_that_ignores_it_is_killed(hung_up: Callable[..., bool]) -> None:
    assert not hung_up("time.sleep(1000)", args={"deaf": True, "child": "trap '' TERM; sleep 1000"})


def test_what_a_program_leaves_behind_is_gone_before_the_answer() -> None:
    program = """
import subprocess
def main(args, emit, stdin):
    shell = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE)
    return {"orphan": int(shell.stdout.readline()), "child": subprocess.Popen(["sleep", "1000"]).pid}
"""
    said = answer(program)
    wait_for_end(said["orphan"], said["child"])


def test_the_interrupt_signal_is_not_ignored() -> None:
    program = """
import signal
def main(args, emit, stdin):
    return {"ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN}
"""
    ignoring = ["sh", "-c", 'trap "" INT; eval "$2"', "sh"]
    assert answer(program, shell=ignoring) == {"ignored": False}


# -- how it is written


@pytest.mark.parametrize("name", ["boot/boot.py", "ssh/mesh.py"])
def test_host_programs_compile_for_python_3_8(name: str) -> None:
    import ast

    ast.parse(resources.files("mnt.remote").joinpath(name).read_text(), feature_version=(3, 8))
