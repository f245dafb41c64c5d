"""torchrun's own words about a failure, which are not shown above the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnt.launch.banner import WithoutBanner

SAMPLES = Path(__file__).parent.parent / "data" / "torchrun"


def shown(text: str, size: int = 0) -> str:
    """What is shown of a node's output that comes in pieces of this size; 0: in one."""
    said: list[str] = []
    view = WithoutBanner(lambda host, text: said.append(text))
    for start in range(0, len(text), size or len(text) or 1):
        view.feed("node1", text[start : start + size] if size else text)
    view.close()
    return "".join(said)


def recorded(name: str) -> str:
    """What torchrun 2.13 left, with the prefix that a launch sets."""
    text = (SAMPLES / name / "output.log").read_text()
    return text.replace("[default0]:", "[rank0] ").replace("[default1]:", "[rank1] ")


@pytest.mark.parametrize("size", [0, 1, 7, 4096])
@pytest.mark.parametrize("name", ["plain-raise", "plain-exit3", "plain-kill", "rec-raise", "rec-exit3"])
def test_the_ranks_lines_are_all_that_is_left_of_a_real_failure(name: str, size: int) -> None:
    text = recorded(name)
    ranks = "".join(line for line in text.splitlines(keepends=True) if line.startswith("[rank"))
    assert "ChildFailedError" in text
    assert shown(text, size) == ranks


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\n    x()\n'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no end of line",
        "\n\n",
        "[rank0] 10%\r[rank0] 20%",
        f"{TRACEBACK}ValueError: of torchrun itself\nnext\n",
        f"{TRACEBACK}ModuleNotFoundError: No module named 'torch'",
        TRACEBACK,
        "=====\n[rank0] x\n=====\n",
        "W1127 22:37:45.436000 9011 torch/distributed/run.py:803] Setting OMP_NUM_THREADS\n",
        "a\x0bb\u2028c\rd\n",
        "[rank0] torch.distributed.elastic.multiprocessing.errors.ChildFailedError: of the script\n",
        "x" * 100_000,
    ],
)
@pytest.mark.parametrize("size", [0, 1])
def test_what_is_no_banner_is_shown_as_it_came(text: str, size: int) -> None:
    assert shown(text, size) == text


def test_a_ranks_line_inside_the_banner_is_shown() -> None:
    failed = (
        f"{TRACEBACK}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n===\nx FAILED\n"
    )
    assert shown(f"{failed}[rank1] late\n---\n[0]:\n===\nafter\n") == "[rank1] late\nafter\n"
    stopped = f"{TRACEBACK}torch.distributed.elastic.multiprocessing.api.SignalException: got signal: 15\n"
    assert shown(f"{stopped}after\n") == "after\n"


def test_a_ranks_text_is_shown_before_its_line_ends() -> None:
    said: list[str] = []
    view = WithoutBanner(lambda host, text: said.append(f"{host}:{text}"))
    for host, text in (("a", "[rank0] 10%"), ("b", "Trace"), ("a", " 20%"), ("b", "s\n")):
        view.feed(host, text)
    assert said == ["a:[rank0] 10%", "a: 20%", "b:Traces\n"]


def test_a_traceback_without_end_is_not_kept() -> None:
    shown: list[int] = []
    view = WithoutBanner(lambda host, text: shown.append(len(text)))
    view.feed("node1", "Traceback (most recent call last):\n")
    for _ in range(100):
        view.feed("node1", f"  {'x' * 60_000}\n")
    view.close()
    assert sum(shown) == 35 + 100 * 60_003
    assert shown[0] < 400_000
