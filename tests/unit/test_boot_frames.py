"""Finding frames in an output that may hold anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnt.tasks.bootstrap import BadFrame, Frame, FrameReader
from mnt.tasks.bounds import MOST, Bound

MARK = "mnt-" + "0123456789abcdef" * 2


def chunk(kind: str, data: bytes, more: bool = False) -> bytes:
    return f"{MARK} {kind} {len(data)} {more:d}\n".encode() + data


def read(*pieces: bytes, bound: Bound = MOST) -> list[Frame]:
    reader = FrameReader(MARK, bound)
    return [frame for piece in pieces for frame in reader.feed(piece)]


@given(
    noise=st.lists(
        st.binary(max_size=60).filter(lambda data: MARK.encode() not in data), min_size=3, max_size=3
    ),
    value=st.dictionaries(st.text(max_size=5), st.text(max_size=20)),
    cut=st.lists(st.integers(1, 40), max_size=30),
    part=st.integers(1, 50),
)
def test_noise_and_cuts_anywhere(
    noise: list[bytes], value: dict[str, str], cut: list[int], part: int
) -> None:
    data = json.dumps(value).encode()
    parts = [data[start : start + part] for start in range(0, len(data), part)]
    chunks = [chunk("answer", piece, index < len(parts) - 1) for index, piece in enumerate(parts)]
    output = noise[0] + f"{MARK} sh 17\n".encode() + noise[1] + noise[2].join(chunks)
    pieces = []
    for size in cut:
        pieces.append(output[:size])
        output = output[size:]
    assert read(*pieces, output) == [Frame("sh", "17"), Frame("answer", value)]


def test_noise_is_kept_for_messages() -> None:
    reader = FrameReader(MARK)
    list(reader.feed(b"x" * 10_000 + b"This account is disabled.\n"))
    assert reader.noise.endswith("This account is disabled.\n")
    assert len(reader.noise) <= 4096


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (chunk("answer", b"{"), "Expecting property name"),
        (chunk("answer", b'{"x": NaN}'), "NaN is not JSON"),
        (chunk("answer", b"\xff"), "no UTF-8"),
        (chunk("frame", b"x" * 600, more=True) * 2, "more than 1000 bytes"),
        (f"{MARK} answer many 0\n".encode(), "no known size"),
        (f"{MARK} answer 999999999 0\n".encode(), "no known size"),
        (f"{MARK} gossip\n".encode(), "no known kind"),
        (f"{MARK} ".encode() + b"x" * 70_000, "does not end"),
    ],
)
def test_what_is_no_frame(output: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        read(output, bound=Bound(1000, MOST.values))


def test_the_mark_of_another_run_is_noise() -> None:
    assert read(chunk("answer", b"{}").replace(b"mnt-0", b"mnt-1")) == []


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.builds(
                lambda kind, size, more, data: f"{MARK} {kind} {size} {more}\n".encode() + data,
                st.sampled_from(["answer", "frame", "hello", "error", "tried", "sh", "", "x"]),
                st.one_of(st.integers(-5, 90), st.text(max_size=5)),
                st.one_of(st.integers(0, 2), st.text(max_size=2)),
                st.binary(max_size=90),
            ),
        ),
        max_size=12,
    )
)
def test_any_output_is_frames_or_no_frame(pieces: list[bytes]) -> None:
    """Nothing but BadFrame ever comes out, and nothing is kept for ever."""
    reader = FrameReader(MARK, Bound(100, 1 << 20))
    try:
        frames = [frame for piece in pieces for frame in reader.feed(piece)]
    except BadFrame:
        return
    assert all(frame.kind for frame in frames)
    assert len(reader.noise) <= 4096


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[" * 50_000, "nested too deeply"),
        (b'{"n": ' + b"9" * 41 + b"}", "too many digits"),
        (b'{"n": 1e999}', "too large"),
        (b'{"n": -1e999}', "too large"),
    ],
)
def test_what_json_lets_through_and_we_do_not(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        read(chunk("answer", data))
