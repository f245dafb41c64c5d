"""The supervisor really run: what its job sees, how its end is told, and that its whole tree ends."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from job_host import JobHost
from waiting import PATIENCE, alive, at_most, wait_for

from mnt.remote.job.entry import FROZEN_AFTER
from mnt.remote.job.procs import all_pids
from mnt.remote.job.spec import job_environment

# For scripts: `note(NAME)` writes the process's pid into a file, in one step.
NOTE = """
import os, signal, subprocess, sys, time
def note(name):
    with open(name + "~", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + "~", name)
"""

# A worker as torchrun makes them, and worse: in a session of its own, deaf to TERM.
STUBBORN_WORKER = """
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("worker")
    time.sleep(600)
"""

WHEN_TOLD = """
for _ in range(15000):  # 300 s: a killed test leaves nothing that lives on
    if os.path.exists("go"):
        break
    time.sleep(0.02)
"""

LISTEN = """
import socket
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
"""


def script(*parts: str) -> str:
    return "\n".join((NOTE, *parts))


def until(path: Path) -> str:
    """An expression, for a text of the supervisor's, that waits until there is such a file; it is false."""
    return f'any(time.sleep(0.02) for _ in iter(lambda: os.path.exists("{path}"), True))'


def test_a_job_that_ends_well_is_finished_and_leaves_nothing_local(host: JobHost) -> None:
    host.script("print('hello', flush=True)")
    spec = host.spec()
    answer = host.start(spec)
    assert answer["peer"] is None
    state = host.ended(spec["job"])
    assert (state["state"], state["exit_code"], state["failure"]) == ("finished", 0, None)
    assert host.output(spec["job"]) == "hello\n"
    wait_for(lambda: not alive(answer["pid"]))
    assert not host.local(spec["job"]).exists()


def test_the_job_sees_its_own_environment_and_nothing_of_the_callers(host: JobHost) -> None:
    host.script("import os\nfor item in sorted(os.environb.items()): print(*item)")
    environment = {"NCCL_SOCKET_IFNAME": "=eth0", "ODD": "a b\n\"'\udcff"}
    spec = host.spec(env=environment, path_prepend=["/opt/venv/bin"])
    host.start(spec)
    host.ended(spec["job"])
    seen = dict(line.split(" ", 1) for line in host.output(spec["job"]).splitlines())
    assert seen.pop("b'ODD'") == repr(b"a b\n\"'\xff")
    assert seen.pop("b'PATH'") == repr(b"/opt/venv/bin:/usr/bin:/bin")
    assert seen.pop("b'NCCL_SOCKET_IFNAME'") == repr(b"=eth0")
    assert seen.pop("b'MNT_JOB'") == repr(spec["job"].encode())
    assert (seen.pop("b'MNT_HOST'"), seen.pop("b'MNT_NODE_RANK'")) == (repr(b"node1"), repr(b"0"))
    kept = f"/tmp/mnt-tmp-{host.uid}".encode()
    assert seen.pop("b'TMPDIR'") == repr(kept)
    assert seen.pop("b'TORCHINDUCTOR_CACHE_DIR'") == repr(kept + b"/torchinductor")
    session = {f"b'{name}'" for name in ("HOME", "USER", "LOGNAME", "SHELL", "LANG")}
    assert set(seen) - {"b'LC_CTYPE'"} == session  # LC_CTYPE is Python's own doing (PEP 538)


def test_its_temporary_files_are_in_a_directory_of_its_users_that_outlives_it(host: JobHost) -> None:
    host.script("""
        import os, tempfile
        os.makedirs(os.environ["TORCHINDUCTOR_CACHE_DIR"], exist_ok=True)
        found = os.stat(tempfile.gettempdir())
        print(tempfile.gettempdir(), oct(found.st_mode), found.st_uid)
    """)
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    kept = Path(f"/tmp/mnt-tmp-{host.uid}")
    assert host.output(spec["job"]) == f"{kept} 0o40700 {host.uid}\n"
    wait_for(lambda: not host.local(spec["job"]).exists())
    assert (kept / "torchinductor").exists()


def test_the_inventory_has_the_last_word_about_temporary_files(host: JobHost) -> None:
    spec = host.spec(env={"TMPDIR": "/scratch"})
    found = job_environment(spec, {}, {"TORCHINDUCTOR_CACHE_DIR": "/cache"})
    assert (found[b"TMPDIR"], found[b"TORCHINDUCTOR_CACHE_DIR"]) == (b"/scratch", b"/cache")


@pytest.mark.parametrize("own", [None, "/opt/lib:/opt/more"])
def test_the_files_for_its_python_come_first_on_pythonpath(host: JobHost, own: str | None) -> None:
    host.script("""
        import os, lent
        print(lent.WORD)
        print(os.environ["PYTHONPATH"])
        beside = os.path.join(os.path.dirname(lent.__file__), "lent-1.dist-info", "METADATA")
        print(oct(os.stat(beside).st_mode))
    """)
    spec = host.spec(env={"PYTHONPATH": own} if own else {})
    spec["python_files"] = {"lent.py": "WORD = 'lent'", "lent-1.dist-info/METADATA": "Name: lent"}
    host.start(spec)
    host.ended(spec["job"])
    word, path, mode = host.output(spec["job"]).splitlines()
    directory, _, rest = path.partition(":")
    assert (word, rest, mode) == ("lent", own or "", "0o100600")
    assert directory == str(host.local(spec["job"]) / "python")


@pytest.mark.parametrize(
    ("own", "path"), [(None, "/tree"), ("", "/tree"), ("/opt/lib:/opt/more", "/tree:/opt/lib:/opt/more")]
)
def test_the_root_of_the_tree_comes_before_the_users_own_pythonpath(
    host: JobHost, own: str | None, path: str
) -> None:
    """Also where the user's is a secret."""
    for where in ("env", "secrets"):
        given = {} if own is None else {"PYTHONPATH": own}
        spec = host.spec(env=given if where == "env" else {}, python_path=["/tree"])
        secrets = given if where == "secrets" else {}
        assert job_environment(spec, {}, secrets)[b"PYTHONPATH"] == path.encode()


def test_arguments_arrive_byte_for_byte(host: JobHost) -> None:
    host.script("import os, sys\nprint([os.fsencode(a) for a in sys.argv[1:]])")
    arguments = ["a b", "$HOME;'\"", "two\nlines", "\udcfe", "", "ü", "{job_dir}"]
    spec = host.spec(*arguments)
    host.start(spec)
    host.ended(spec["job"])
    sent = [argument.encode("utf-8", "surrogateescape") for argument in arguments]
    assert host.output(spec["job"]) == f"{sent}\n"


@pytest.mark.parametrize(
    ("source", "exit_code", "signal_name", "message"),
    [
        ("raise SystemExit(3)", 3, None, "exit code 3"),
        ("print('last words'); raise SystemExit(4)", 4, None, "last words"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGKILL", "killed by SIGKILL"),
        ("raise ValueError('bad data')", 1, None, "ValueError: bad data"),
    ],
)
def test_a_job_that_fails_keeps_its_code(
    host: JobHost, source: str, exit_code: int, signal_name: str | None, message: str
) -> None:
    host.script(source)
    spec = host.spec()
    host.start(spec)
    state = host.ended(spec["job"])
    assert (state["state"], state["exit_code"], state["signal"]) == ("failed", exit_code, signal_name)
    assert state["failure"]["message"] == message
    assert state["started"] <= state["failure"]["time"] <= state["ended"]


def test_the_state_and_the_logs_are_closed_to_others(host: JobHost) -> None:
    host.script("print('secret')")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    directory = os.path.join(host.jobs_dir, spec["job"], host.name)
    assert os.stat(directory).st_mode & 0o077 == 0
    for name in ("about.json", "state.json", "output.log"):
        assert os.stat(os.path.join(directory, name)).st_mode & 0o077 == 0, name


def test_stop_ends_a_worker_that_left_the_session_and_ignores_term(host: JobHost) -> None:
    host.script(script(STUBBORN_WORKER, "note('main'); time.sleep(600)"))
    spec = host.spec()
    host.start(spec)
    pids = [host.word("worker"), host.word("main")]
    with at_most(15):  # which is when it would give up on the supervisor
        answer = host.stop(spec["job"], grace=0.5)
    assert (answer["status"], answer["left"], answer["port_free"]) == ("stopped", [], True)
    assert answer["killed"] == 2
    assert not any(alive(pid) for pid in pids)
    state = host.state(spec["job"])
    assert (state["state"], state["reason"], state["exit_code"]) == ("stopped", {"request": True}, None)


def test_a_job_gets_its_grace_to_end_in_order(host: JobHost) -> None:
    host.script(
        script(
            "def save(*_): time.sleep(0.5); print('saved', flush=True); sys.exit(0)",
            "signal.signal(signal.SIGTERM, save); note('main'); time.sleep(600)",
        )
    )
    spec = host.spec(grace=0.0)
    host.start(spec)
    host.word("main")
    assert host.stop(spec["job"], grace=10)["status"] == "stopped"
    assert host.output(spec["job"]) == "saved\n"


def test_a_stopped_rank_ends_in_order_too(host: JobHost) -> None:
    """A stopped process takes TERM only when it goes on."""
    host.script(
        script(
            "def save(*_): print('saved', flush=True); sys.exit(0)",
            "signal.signal(signal.SIGTERM, save); note('main'); signal.raise_signal(signal.SIGSTOP)",
            "time.sleep(600)",
        )
    )
    spec = host.spec()
    host.start(spec)
    main = host.word("main")
    wait_for(lambda: "T (stopped)" in Path(f"/proc/{main}/status").read_text())
    with at_most(PATIENCE):
        assert host.stop(spec["job"], grace=10 * PATIENCE)["status"] == "stopped"
    assert host.output(spec["job"]) == "saved\n"


def test_orphans_end_with_the_job(host: JobHost) -> None:
    """Forked twice, in another session, with an empty environment: only the subreaper can know them."""
    host.script(
        script(
            """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, time; open('orphan', 'w').write(str(os.getpid())); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-c", code], {})
    os._exit(0)
os.wait()
for _ in range(30000):  # 300 s: a killed test leaves nothing that lives on
    if os.path.exists("orphan"):
        break
    time.sleep(0.01)
""",
        )
    )
    spec = host.spec()
    host.start(spec)
    orphan = host.word("orphan")
    state = host.ended(spec["job"])
    assert (state["state"], state["killed"]) == ("finished", 1)
    assert not alive(orphan)


# Each process has a child and dies, in a session of its own: nobody is there for long. Ends by itself, should
# a test be killed: a machine full of these is of no use to anyone.
FORKING = """
import time
end = time.monotonic() + 60
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("main")
while time.monotonic() < end:
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    time.sleep({life})
"""


@pytest.mark.parametrize("life", [0, 0.001, 0.005])
@pytest.mark.parametrize("supervised", [True, False])
def test_a_tree_that_keeps_forking_is_ended(host: JobHost, life: float, supervised: bool) -> None:
    host.script(script(FORKING.format(life=life)))
    spec = host.spec(argv=["/bin/sh", "-c", f"{host.python} train.py; sleep 600"])
    supervisor = host.start(spec)["pid"]
    host.word("main")
    if not supervised:
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: not alive(supervisor))
    answer = host.stop(spec["job"], grace=0.2)
    assert (answer["status"], answer["left"]) == ("stopped", [])
    assert not host.inhabitants()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_stop_works_without_the_supervisors_help(host: JobHost, signum: signal.Signals) -> None:
    """Killed, or frozen; one worker cannot even be known by its environment."""
    scrubbed = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    scrubbed += f"  # {host.directory}"  # unlike that of the same test in another process
    host.script(
        script(
            STUBBORN_WORKER,
            f"subprocess.Popen([sys.executable, '-c', {scrubbed!r}], env={{}}, start_new_session=True)",
            "note('main'); time.sleep(600)",
        )
    )
    spec = host.spec()
    answer = host.start(spec)
    host.word("main")
    recorded = host.local(spec["job"]) / "processes.json"
    wait_for(lambda: len(json.loads(recorded.read_text())["processes"]) == 3)
    os.kill(answer["pid"], signum)
    if signum == signal.SIGKILL:
        wait_for(lambda: not alive(answer["pid"]))
        assert host.entry(spec["job"])["state"] == "lost"
        assert alive(host.word("worker"))
    stopped = host.stop(spec["job"], grace=0.3)
    assert (stopped["status"], stopped["left"]) == ("stopped", [])
    assert not alive(answer["pid"])
    assert not alive(host.word("worker"))
    assert not _running(scrubbed)
    assert host.entry(spec["job"])["state"] == "stopped"
    assert not host.local(spec["job"]).exists()


def test_a_stopped_supervisor_is_lost_once_it_has_given_no_sign_of_life(host: JobHost) -> None:
    host.script(script("note('main'); time.sleep(600)"))
    spec = host.spec()
    supervisor = host.start(spec)["pid"]
    host.word("main")
    os.kill(supervisor, signal.SIGSTOP)
    assert host.entry(spec["job"])["state"] == "starting"  # someone may only look at it
    os.utime(host.local(spec["job"]) / "processes.json", (0, time.time() - FROZEN_AFTER - 1))
    entry = host.entry(spec["job"])
    assert (entry["state"], entry["failure"]["message"]) == ("lost", "its supervisor is stopped (SIGSTOP)")
    os.kill(supervisor, signal.SIGCONT)
    wait_for(lambda: host.entry(spec["job"])["state"] == "starting")


@pytest.mark.parametrize("signum", [None, signal.SIGKILL, signal.SIGSTOP])
def test_a_part_that_is_ended_for_a_reason_has_failed(host: JobHost, signum: signal.Signals | None) -> None:
    host.script(script("note('main'); time.sleep(600)"))
    spec = host.spec()
    supervisor = host.start(spec)["pid"]
    host.word("main")
    if signum is not None:
        os.kill(supervisor, signum)
    why = {"message": "node2 cannot be reached", "lost": "node2"}
    assert host.call("stop", job=spec["job"], grace=0.3, why=why)["status"] == "stopped"
    entry = host.entry(spec["job"])
    assert (entry["state"], entry["failure"]["message"]) == ("failed", why["message"])
    assert entry["reason"]["lost"] == "node2"


def _running(code: str) -> bool:
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                if file.read().split("\0")[2:3] == [code]:
                    return True
        except OSError:
            continue
    return False


def test_stop_leaves_another_job_of_the_same_script_alone(host: JobHost) -> None:
    host.script(script("note(sys.argv[1]); time.sleep(600)"))
    first, second = host.spec("first"), host.spec("second")
    host.start(first)
    host.start(second)
    pids = host.word("first"), host.word("second")
    assert host.stop(first["job"])["status"] == "stopped"
    assert [alive(pid) for pid in pids] == [False, True]
    assert host.entry(second["job"])["state"] == "starting"  # it opens no port


def test_the_job_outlives_the_login_that_started_it(host: JobHost) -> None:
    """The connection drops in the middle of the start: its process group and session get the worst."""
    host.script(script("note('main')", WHEN_TOLD, LISTEN, "time.sleep(600)"))
    spec = host.spec()
    spec["argv"].append(str(spec["master"]["port"]))
    host.jobs.append(spec["job"])
    call = host.begin("start", spec=spec, wait_for_port=True, timeout=PATIENCE)
    main = host.word("main")
    supervisor = host.state(spec["job"])["supervisor"]["pid"]
    os.killpg(call.process.pid, signal.SIGHUP)
    os.killpg(call.process.pid, signal.SIGKILL)
    call.process.wait()
    os.kill(supervisor, signal.SIGHUP)
    (host.directory / "go").touch()  # it has to be there to see the job listen
    wait_for(lambda: host.state(spec["job"])["listening"])
    assert alive(supervisor)
    assert alive(main)
    assert host.stop(spec["job"])["killed"] == 1


def test_the_job_ends_with_its_supervisor(host: JobHost) -> None:
    """A process that does not ignore TERM needs no `stop` when the supervisor is killed."""
    host.script(script("note('main'); time.sleep(600)"))
    spec = host.spec()
    answer = host.start(spec)
    main = host.word("main")
    os.kill(answer["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(main))


def test_a_full_disk_or_lost_directory_does_not_end_the_job(host: JobHost) -> None:
    host.script(script("note('main')", WHEN_TOLD, LISTEN, "os.remove('go')", WHEN_TOLD))
    spec = host.spec()
    spec["argv"].append(str(spec["master"]["port"]))
    answer = host.start(spec)
    main = host.word("main")
    directory = Path(host.jobs_dir) / spec["job"]
    away = directory.with_suffix(".away")
    directory.rename(away)
    (host.directory / "go").touch()  # it listens, which the supervisor cannot write down
    log = away / host.name / "supervisor.log"
    wait_for(lambda: "cannot write" in log.read_text())
    assert alive(main)
    (host.directory / "go").touch()
    wait_for(lambda: not alive(main))
    away.rename(directory)
    assert host.ended(spec["job"])["state"] == "finished"
    wait_for(lambda: not alive(answer["pid"]))


FULL_LOG = 'os.dup2(os.open("/dev/full", os.O_WRONLY), 2)'


def on_a_full_disk(host: JobHost, spec: dict[str, Any], changes: dict[str, str] | None = None) -> Path:
    """Stage and spawn; the supervisor's log is full. Gives the job's directory, to be closed and opened."""
    host.jobs.append(spec["job"])
    full = {"    spec = read_json(arguments[0])": f"    {FULL_LOG}; spec = read_json(arguments[0])"}
    assert "refused" not in host.call("stage", {**full, **(changes or {})}, spec=spec)
    directory = Path(host.jobs_dir) / spec["job"] / host.name
    names = {"job": spec["job"], "peer": None}
    assert "refused" not in host.call("spawn", **names)
    return directory


def test_a_full_disk_hides_neither_the_job_nor_its_end(host: JobHost) -> None:
    """Neither the state nor the log can be written: the state is in the node-local directory meanwhile."""
    host.script(script("note('main')", WHEN_TOLD, LISTEN, "os.remove('go')", WHEN_TOLD))
    spec = host.spec()
    spec["argv"].append(str(spec["master"]["port"]))
    directory = on_a_full_disk(host, spec)
    main = host.word("main")
    directory.chmod(0o500)
    (host.directory / "go").touch()
    wait_for(lambda: host.entry(spec["job"])["listening"])
    assert host.entry(spec["job"])["state"] == "running"
    wait_for(lambda: not (host.directory / "go").exists())
    (host.directory / "go").touch()
    wait_for(lambda: host.entry(spec["job"])["state"] == "finished")
    assert not alive(main)
    assert host.state(spec["job"])["ended"] is None
    directory.chmod(0o700)  # there is space again
    state = host.ended(spec["job"])
    assert state["state"] == "finished"
    wait_for(lambda: not alive(state["supervisor"]["pid"]))
    assert not host.local(spec["job"]).exists()


@pytest.mark.parametrize("ended", [True, False])
def test_stop_on_a_full_disk(host: JobHost, ended: bool) -> None:
    """Stop ends the supervisor that waits for space, and saves the state if there is some."""
    host.script(script("note('main')", "time.sleep(600)" if not ended else WHEN_TOLD))
    spec = host.spec()
    directory = on_a_full_disk(host, spec)
    main = host.word("main")
    directory.chmod(0o500)
    if ended:
        (host.directory / "go").touch()
        wait_for(lambda: host.entry(spec["job"])["state"] == "finished")
    with at_most(15):
        answer = host.stop(spec["job"])
    assert (answer["status"], answer["left"]) == ("none" if ended else "stopped", [])
    assert not alive(main)
    assert not host.local(spec["job"]).exists()
    directory.chmod(0o700)


def test_a_state_that_a_dead_supervisor_could_not_write_is_saved_by_stop(host: JobHost) -> None:
    host.script(script("note('main')", WHEN_TOLD))
    spec = host.spec()
    directory = on_a_full_disk(host, spec)
    directory.chmod(0o500)
    (host.directory / "go").touch()
    wait_for(lambda: host.entry(spec["job"])["state"] == "finished")
    os.kill(host.state(spec["job"])["supervisor"]["pid"], signal.SIGKILL)
    directory.chmod(0o700)
    assert host.entry(spec["job"])["state"] == "finished"
    assert host.stop(spec["job"])["status"] == "none"
    assert not host.local(spec["job"]).exists()
    assert host.entry(spec["job"])["state"] == "finished"


def test_a_bug_of_the_supervisor_on_a_full_disk_leaves_nothing_running(host: JobHost) -> None:
    host.script(script(STUBBORN_WORKER, "note('main'); time.sleep(600)"))
    spec = host.spec()
    told = host.directory / "go"
    broken = {"            self._watch_port()": f'            1 / (not os.path.exists("{told}"))'}
    directory = on_a_full_disk(host, spec, broken)
    pids = [host.word("main"), host.word("worker")]
    directory.chmod(0o500)
    told.touch()
    wait_for(lambda: host.entry(spec["job"])["state"] == "failed")
    assert not any(alive(pid) for pid in pids)
    directory.chmod(0o700)
    message = host.ended(spec["job"])["failure"]["message"]
    assert message == "the supervisor failed: ZeroDivisionError: division by zero"


def test_a_log_that_cannot_be_made_is_a_job_that_never_started(host: JobHost) -> None:
    host.script("")
    spec = host.spec()
    host.jobs.append(spec["job"])
    assert "refused" not in host.call("stage", spec=spec)
    log = Path(host.jobs_dir) / spec["job"] / host.name / "output.log"
    log.symlink_to("/no/such/directory/log")
    answer = host.call("spawn", job=spec["job"], peer=None)
    assert answer["refused"]["message"] == f"cannot write {log}: a link to another file"
    assert os.listdir(host.jobs_dir) == []


def test_a_bug_of_the_supervisor_leaves_nothing_running(host: JobHost) -> None:
    host.script(script(STUBBORN_WORKER, "note('main'); time.sleep(600)"))
    spec = host.spec()
    # Fine until it is told, and then a division by zero.
    told = host.directory / "go"
    broken = {"            self._watch_port()": f'            1 / (not os.path.exists("{told}"))'}
    answer = host.start(spec, changes=broken)
    pids = [answer["pid"], host.word("main"), host.word("worker")]
    told.touch()
    state = host.ended(spec["job"])
    assert state["state"] == "failed"
    assert state["failure"]["message"] == "the supervisor failed: ZeroDivisionError: division by zero"
    wait_for(lambda: not any(alive(pid) for pid in pids))
    assert not host.local(spec["job"]).exists()


def test_a_bug_at_the_start_is_a_job_that_never_started(host: JobHost) -> None:
    host.script(script("note('main'); time.sleep(600)"))
    spec = host.spec()
    broken = {"        self._record(time.monotonic())": f"        {until(host.directory / 'main')}; 1 / 0"}
    refused = host.start(spec, changes=broken)["refused"]
    assert refused["message"] == "the supervisor did not start: ZeroDivisionError: division by zero"
    assert not alive(host.word("main"))
    assert os.listdir(host.jobs_dir) == []
    assert not host.local(spec["job"]).parent.exists()


def test_a_start_that_nobody_waits_for_any_more_is_a_job_that_was_stopped(host: JobHost) -> None:
    host.script(script(STUBBORN_WORKER, "note('main'); time.sleep(600)"))
    spec = host.spec()
    host.jobs.append(spec["job"])
    told = host.directory / "go"
    late = {"if not answer(started)": f"if {until(told)} or not answer(started)"}
    start = host.begin("start", late, spec=spec, wait_for_port=False, timeout=PATIENCE)
    pids = [host.word("main"), host.word("worker")]
    start.process.kill()
    start.process.communicate()
    told.touch()
    assert host.ended(spec["job"])["state"] == "stopped"
    assert not any(alive(pid) for pid in pids)
    wait_for(lambda: not host.local(spec["job"]).exists())
