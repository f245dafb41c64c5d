"""Who failed first: judged over what torchrun 2.13 left (tests/data/torchrun), and over made-up cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnt.launch.engines import ENGINES
from mnt.remote.common.refusal import Refused
from mnt.remote.job.channel import Event
from mnt.remote.job.failures import Failure, last_exception, last_words, make_failure, tail
from mnt.remote.job.remains.readers import READERS, remains_of
from mnt.remote.job.remains.torchrun import (
    RankFiles,
    Written,
    error_time,
    find_failure,
    parse_summary,
    read_ranks,
)
from mnt.remote.job.verdict import reason_of, verdict

SAMPLES = Path(__file__).parent.parent / "data" / "torchrun"

GLOO = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:4004. This is typically caused by a remote worker crashing."
)


SUMMARY = "ChildFailedError:\n[0]:\n  rank      : 5 (local_rank: 1)\n  exitcode  : 2 (pid: 9)\n"


def sample(name: str) -> Failure:
    output, ranks = SAMPLES / name / "output.log", SAMPLES / name / "ranks"
    with output.open("rb") as file:
        return find_failure(tail(file), read_ranks(str(ranks), 2), 0, 1)


@pytest.mark.parametrize(
    ("name", "exit_code", "signal", "message"),
    [
        ("plain-raise", 1, None, "ValueError: the loss is nan"),
        ("plain-exit3", 3, None, "rank 1 exited with code 3"),
        ("plain-kill", 137, "SIGKILL", "rank 1 was killed by SIGKILL"),
        ("rec-raise", 1, None, "ValueError: the loss is nan"),
        ("rec-exit3", 3, None, "rank 1 exited with code 3"),
    ],
)
def test_the_culprit_of_two_ranks(name: str, exit_code: int, signal: str | None, message: str) -> None:
    """In each sample rank 1 fails; rank 0 dies of it, by gloo or by torchrun's TERM."""
    failure = sample(name)
    assert (failure["rank"], failure["local_rank"], failure["victim"]) == (1, 1, False)
    assert (failure["exit_code"], failure["signal"], failure["message"]) == (exit_code, signal, message)
    assert failure["time"] is not None


@pytest.mark.parametrize("name", ["plain-raise", "rec-raise"])
def test_the_traceback_is_the_culprits_own(name: str) -> None:
    traceback = sample(name)["traceback"]
    assert traceback is not None
    assert traceback.startswith("Traceback (most recent call last):\n  File ")
    assert traceback.rstrip().endswith("ValueError: the loss is nan")
    assert "[rank1]" not in traceback


def test_the_summary_names_every_process() -> None:
    reports = parse_summary((SAMPLES / "plain-kill" / "output.log").read_text())
    assert [(report.rank, report.local_rank, report.code) for report in reports] == [(0, 0, -15), (1, 1, -9)]
    assert parse_summary("no summary\n  exitcode  : 3 (pid: 1)\n") == []


def error_file(message: str) -> str:
    return f'{{"message": {{"message": "{message}", "extraInfo": {{"py_callstack": "Traceback"}}}}}}'


def test_a_rank_that_exits_without_an_exception_has_its_last_words() -> None:
    said = "usage: train.py [--lr LR]\n[rank5]: train.py: error: --lr: expected one argument\n"
    failure = find_failure(SUMMARY, {1: RankFiles(stderr=Written(said, 1.0))}, first_rank=4, code=1)
    message = failure["message"]
    assert message == "rank 5 exited with code 2: train.py: error: --lr: expected one argument"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "[W1127 22:37:45.436284 socket.cpp:764] [c10d] The IPv6 addresses of (n, 1) cannot be found\n",
            "",
        ),
        (
            "no such file: a.txt\n[W1127 22:37:45.436284 socket.cpp:764] [c10d] The client\n",
            "no such file: a.txt",
        ),
        ("bad\nW1127 22:37:45.436000 9011 torch/distributed/run.py:803] x\nI1127 22:37:45.4 x\n\n", "bad"),
        ("bad\n/a/b.py:12: UserWarning: old\n  warnings.warn(x)\n", "bad"),
        ("/a/b.py:12: UserWarning: old\n", ""),
        ("usage: x\n  and more\n", "and more"),
        ("[rank3]: E1127 22:37:45.1 broke\n", "E1127 22:37:45.1 broke"),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_warnings_are_nobodys_last_words(stderr: str, words: str) -> None:
    assert last_words(stderr) == words
    failed = find_failure(SUMMARY, {1: RankFiles(stderr=Written(stderr, 0.0))}, 4, 1)
    assert failed["message"] == f"rank 5 exited with code 2{words and ': '}{words}"


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00 GiB. GPU 0 has a total capacity of "
    "139.80 GiB of which 19.29 GiB is free. Including non-PyTorch memory, this process has 120.51 GiB in "
    "use. Of the allocated memory 120.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            OOM,
            "torch.OutOfMemoryError: CUDA out of memory: tried to allocate 60.00 GiB;"
            " 19.29 GiB of 139.80 GiB on GPU 0 are free",
        ),
        (
            OOM.partition(": ")[2],
            "CUDA out of memory: tried to allocate 60.00 GiB; 19.29 GiB of 139.80 GiB on GPU 0",
        ),
        (
            "RuntimeError: HIP out of memory. Tried to allocate 2.00 MiB. and more",
            "RuntimeError: HIP out of memory: tried to allocate 2.00 MiB",
        ),
        ("OSError: out of memory. So it goes.", "OSError: out of memory. So it goes."),
    ],
)
def test_a_full_gpu_is_one_sentence_and_its_traceback_is_whole(message: str, sentence: str) -> None:
    failure = make_failure(message, 1, traceback=f"Traceback\n{message}")
    assert failure["message"].startswith(sentence)
    assert len(failure["message"]) < 130
    assert message in (failure["traceback"] or "")


def test_without_a_summary_the_error_files_tell() -> None:
    """The agent was ended before it could say anything."""
    ranks = {
        0: RankFiles(Written(error_file(GLOO), 10.5)),
        1: RankFiles(Written(error_file("KeyError: 'x'"), 10.9)),
    }
    failure = find_failure("", ranks, first_rank=6, code=-15)
    assert (failure["rank"], failure["local_rank"], failure["exit_code"]) == (7, 1, 1)
    assert (failure["message"], failure["victim"], failure["time"]) == ("KeyError: 'x'", False, 10.9)


def test_what_comes_after_the_order_to_end_does_not_count() -> None:
    ranks = {0: RankFiles(Written(error_file("KeyError: 'x'"), 20.0))}
    assert find_failure("", ranks, 0, 1, before=21.0)["rank"] == 0
    assert find_failure("", ranks, 0, 1, before=19.0)["rank"] is None


@pytest.mark.parametrize(
    ("modified", "when"),
    [
        (1000.4, 1000.4),
        (1001.2, 1001.2),  # the exception was caught within that second, and written in the next
        (990.0, 1000.0),  # a file server whose clock is behind
        (1060.0, 1000.0),
    ],
)
def test_when_an_error_file_was_written(modified: float, when: float) -> None:
    text = '{"message": {"message": "KeyError", "extraInfo": {"py_callstack": "", "timestamp": "1000"}}}'
    assert error_time(text, modified) == when
    assert error_time('{"message": "text"}', modified) == modified


def test_of_two_culprits_the_first() -> None:
    ranks = {
        0: RankFiles(Written(error_file("ValueError: late"), 10.9)),
        1: RankFiles(Written(error_file("ValueError: early"), 10.5)),
    }
    assert find_failure("", ranks, 0, 1)["message"] == "ValueError: early"


@pytest.mark.parametrize(
    ("message", "victim"),
    [
        (GLOO, True),
        ("torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed", True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", True),
        ("torch.distributed.DistNetworkError: port: 29500, code: -98, name: EADDRINUSE", False),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),  # reading data, perhaps
        ("BrokenPipeError: [Errno 32] Broken pipe", False),
        ("torch.OutOfMemoryError: CUDA out of memory.", False),
    ],
)
def test_victims(message: str, victim: bool) -> None:
    failure = find_failure("", {0: RankFiles(Written(error_file(message), 1.0))}, 0, 1)
    assert failure["victim"] is victim


def test_an_abort_by_nccls_watchdog_is_a_victims() -> None:
    output = (
        "ChildFailedError: \n[0]:\n  time      : 2026-11-27_22:37:51\n  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : -6 (pid: 12)  (SIGABRT)\n"
    )
    said = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\nterminate called\n"
    failure = find_failure(output, {0: RankFiles(stderr=Written(said, 1.0))}, 0, 1)
    assert (failure["exit_code"], failure["victim"]) == (134, True)
    assert failure["message"] == "rank 0 was killed by SIGABRT: terminate called"
    assert not find_failure(output, {0: RankFiles(stderr=Written("Aborted\n", 1.0))}, 0, 1)["victim"]


def test_torchrun_itself_may_fail() -> None:
    output = "/usr/bin/python3: Error while finding module specification for 'torch.distributed.run'\n\n"
    failure = find_failure(output, {}, 0, 1)
    assert (failure["rank"], failure["exit_code"]) == (None, 1)
    assert failure["message"] == output.strip()


def test_messages_and_tracebacks_are_bounded() -> None:
    stderr = "Traceback (most recent call last):\n" + "  deep\n" * 10_000 + "ValueError: " + "x" * 10_000
    failure = find_failure(stderr, {}, 0, 1)
    assert len(failure["message"]) == 500
    assert failure["traceback"] is not None
    assert len(failure["traceback"]) == 8192


def test_the_last_of_chained_exceptions() -> None:
    stderr = (
        "Traceback (most recent call last):\n  File 'a', line 1\nKeyError: 1\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File 'b', line 2\nRuntimeError: two\nlines\nsome warning\n"
    )
    assert last_exception(stderr) == (
        "RuntimeError: two",
        "Traceback (most recent call last):\n  File 'b', line 2\nRuntimeError: two",
    )
    assert last_exception("nothing here") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"message": 3}', "null"])
def test_error_files_that_are_none(text: str) -> None:
    assert find_failure("", {0: RankFiles(Written(text, 1.0))}, 0, 5)["exit_code"] == 5


# --- the node's verdict ------------------------------------------------------------------------------------


def failure_of(rank: int | None, *, victim: bool) -> Failure:
    failure = make_failure("why", 3, rank=rank, local_rank=0, time=10.0)
    return {**failure, "victim": victim}


CULPRIT, VICTIM = failure_of(1, victim=False), failure_of(1, victim=True)
AGENT = failure_of(None, victim=False)


@pytest.mark.parametrize(
    ("code", "event", "failure", "state", "exit_code"),
    [
        (0, None, None, "finished", 0),
        (1, None, CULPRIT, "failed", 3),
        (1, None, VICTIM, "failed", 3),
        (-15, "failed", VICTIM, "stopped", None),
        (1, "failed", CULPRIT, "failed", 3),  # it had failed by itself before it heard of the other
        (1, "failed", AGENT, "stopped", None),  # what torchrun says after our TERM proves nothing
        (0, "stopped", AGENT, "stopped", None),
        (-9, "lost", VICTIM, "failed", None),
    ],
)
def test_the_nodes_verdict(
    code: int, event: str | None, failure: Failure | None, state: str, exit_code: int | None
) -> None:
    lost = "lost contact with node2 over 10.0.0.1 for 20 s"
    reason = None if event is None else reason_of(Event("node2", event, message=lost), now=11.0)
    ended = verdict(code, reason, failure)
    assert (ended["state"], ended["exit_code"]) == (state, exit_code)
    if event == "lost":
        assert (ended["failure"]["message"], ended["failure"]["time"]) == (lost, 11.0)


def test_what_an_unknown_engine_left_is_not_guessed_at() -> None:
    assert remains_of({}) is READERS["torchrun"]  # an older mnt's jobs name no reader
    with pytest.raises(Refused, match="cannot read what mpirun leaves"):
        remains_of({"remains": "mpirun"})


def test_every_engine_has_a_reader() -> None:
    assert {engine.remains for engine in ENGINES.values()} <= READERS.keys()
