"""known_hosts and ssh_config files that somebody else has written: one bad line concerns no other host."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import random
import re
import resource
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnt.errors import MntError, UsageError
from mnt.fleet.login import sshconfig
from mnt.fleet.login.hostkeys import HostKey, KnownHosts, parse
from mnt.fleet.login.sshconfig import SshConfig, matches

ED, RSA = HostKey("ssh-ed25519", b"ed"), HostKey("ssh-rsa", b"rsa")
GOOD = b"node1 ssh-ed25519 " + base64.b64encode(b"ed") + b"\n"

CASES = 10_000 if os.environ.get("MNT_FUZZ") else 500

LINES = (
    b"\xff\xfe\x80 ssh-ed25519 AAAA",
    b"node1 ssh-ed25519 \xff\xff\xff",
    "nöde1 ssh-ed25519 AAAA".encode(),
    "node1 ssh-ed25519 ÄÖÜ=".encode(),
    "|1|salz|prüf ssh-ed25519 AAAA".encode(),
    b"|1|\xff|\xff ssh-ed25519 AAAA",
    b"|1|A|A ssh-ed25519 AAAA",
    b"|1|| ssh-ed25519 AAAA",
    b"|1 ssh-ed25519 AAAA",
    "@revoked nö* ssh-ed25519 AAAA".encode(),
    b"@cert-authority * ssh-ed25519 AAAA",
    b"node1\x85node2 ssh-ed25519 AAAA",
    b"x ssh-\x1b]52;c;AAAA\x07 AAAA",
    b"\0\0\0 \0 \0",
    b"a*" * 1000 + b" ssh-ed25519 AAAA",
    b"*" * 5000 + b" ssh-ed25519 AAAA",
    b"\xe2\x80\xa8 ssh-ed25519 AAAA \xe2\x80\xa9 \x0b\x0c\x1c",
    b"!,!!,,*?*? ssh-ed25519 AAAA=",
    b"[[[ ssh-ed25519 A",
    "\u212a ssh-ed25519 AAAA".encode(),
)


@pytest.mark.parametrize("bad", LINES)
@pytest.mark.parametrize("name", ["node1", "nöde1", "\udcff", "[::1]:22", chr(0xD800)])
def test_one_line_does_not_hide_the_others(tmp_path: Path, bad: bytes, name: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(bad + b"\n" + GOOD + bad)
    store = KnownHosts()
    store.lines_for(name, [str(file)])
    assert [line.place for line in store.lines_for("node1", [str(file)]) if line.key == ED] == [f"{file}:2"]


@pytest.mark.parametrize("bad", LINES)
def test_other_bytes_stay(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / "known_hosts"
    before = bad + b"\n\r\n\x0c\n" + GOOD + b"# \xff no newline"
    file.write_bytes(before)
    store = KnownHosts()
    store.record("node9", RSA, str(file))
    recorded = b"node9 ssh-rsa " + base64.b64encode(b"rsa") + b"\n"
    assert file.read_bytes() == before + b"\n" + recorded
    (line,) = (line for line in store.lines_for("node9", [str(file)]) if line.names == "node9")
    assert line in parse(file.read_bytes().decode(errors="surrogateescape"), str(file))
    store.forget("node9", [line])
    assert file.read_bytes() == before + b"\n"


def test_a_line_that_moved_is_still_forgotten_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(GOOD)
    store = KnownHosts()
    known = store.lines_for("node1", [str(file)])
    other = b"node2 ssh-ed25519 " + base64.b64encode(b"two") + b"\n"
    file.write_bytes(other + GOOD)
    store.forget("node1", known)
    assert file.read_bytes() == other


@pytest.mark.parametrize("name", ["a b", "a\nb", "a,b", "*", "no?e", "!a", "#a", "@revoked", "|1|x"])
def test_a_name_that_would_be_something_else_is_not_written(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known_hosts"
    with pytest.raises(OSError, match="cannot be a name"):
        KnownHosts().record(name, ED, str(file))
    assert not file.exists()


def fuzzed(source: random.Random) -> bytes:
    data = bytearray(b"\n".join([*source.sample(LINES, 3), GOOD[:-1]]))
    for _ in range(source.randrange(1, 20)):
        place = source.randrange(len(data))
        kind = source.randrange(3)
        if kind == 0:
            data[place] = source.randrange(256)
        elif kind == 1:
            del data[place : place + source.randrange(1, 9)]
        else:
            data[place:place] = source.choice(
                [b"\n", b" ", b"\xc2\x85", b"|1|", b"@", b"*", b"\0", b"=", b"\xff"]
            )
        data = data or bytearray(b"x")
    return bytes(data)


def test_fuzzed_files(tmp_path: Path) -> None:
    """No file makes any of the functions fail, and recording then always finds its own line."""
    source = random.Random(9)
    file = tmp_path / "known_hosts"
    for _ in range(CASES):
        data = fuzzed(source)
        file.write_bytes(data)
        store = KnownHosts()
        for name in ("node1", "nöde", "\udcff", "[10.0.0.1]:2222"):
            store.lines_for(name, [str(file)])
        store.record("fresh.host", ED, str(file))
        assert file.read_bytes().startswith(data)
        known = store.lines_for("fresh.host", [str(file)])
        mine = [line for line in known if line.names == "fresh.host" and line.key == ED]
        assert mine
        try:
            store.forget("fresh.host", mine)
        except MntError:  # another name in the line is a pattern
            continue
        assert file.read_bytes().startswith(data)


@pytest.mark.parametrize("lay", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_of_another_kind_counts_as_empty_and_is_not_written(
    tmp_path: Path, lay: Callable[[Path], object]
) -> None:
    file = tmp_path / "known_hosts"
    lay(file)
    store = KnownHosts()
    assert store.lines_for("node1", [str(file)]) == []
    with pytest.raises(OSError):  # noqa: PT011
        store.record("node1", ED, str(file))


@pytest.mark.parametrize("text", [GOOD + b"#" * (16 << 20), GOOD + b"\n" * 200_001, GOOD * 300_000])
def test_a_file_that_is_too_large_is_not_taken_for_an_empty_one(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(text)
    started = time.process_time()
    store = KnownHosts()
    for use in (lambda: store.lines_for("node1", [str(file)]), lambda: store.record("node1", RSA, str(file))):
        with pytest.raises(UsageError, match="known_hosts: more than 16,777,216 bytes, or 200,000 lines"):
            use()
    assert time.process_time() - started < 2
    assert file.read_bytes() == text


def timed(most: float) -> contextlib.AbstractContextManager[None]:
    """Within that many seconds of processor time, and 300 MiB."""

    @contextlib.contextmanager
    def measured() -> Iterator[None]:
        started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield
        assert time.process_time() - started < most
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024

    return measured()


KEY = b" ssh-ed25519 " + base64.b64encode(b"x" * 51) + b"\n"
MEGABYTES = 15 << 20


def lines(count: int, names: Callable[[int], str]) -> bytes:
    return b"".join(names(index).encode() + KEY for index in range(count))


def hashed(index: int) -> str:
    return f"|1|{base64.b64encode(index.to_bytes(20, 'big')).decode()}|{'A' * 27}="


ONE_BAD_LINE = {
    "patterns": b"!*9*9*," * (MEGABYTES // 7) + b"zz" + KEY,
    "question marks": b"*?a?a?b," * (MEGABYTES // 8) + b"zz" + KEY,
    "names": b"a," * (MEGABYTES // 2) + b"zz" + KEY,
    "a name": b"a" * MEGABYTES + KEY,
    "a pattern": b"*a" * (MEGABYTES // 2) + KEY,
    "words": b"ab " * (MEGABYTES // 3) + KEY,
    "a salt": b"|1|" + b"A" * MEGABYTES + b"|AAAA" + KEY,
    "a key": b"z ssh-ed25519 " + b"A" * MEGABYTES + b"\n",
}
READ = {
    "hashed names": lines(49_000, hashed),
    "names": lines(150_000, lambda i: f"node{i},10.0.{i % 250}.1"),
    "many names in a line": lines(400, lambda i: ",".join(f"n{i}-{j}" for j in range(999))),
    "patterns": lines(4000, lambda i: f"*{i}*9*b"),
    "long patterns": lines(60, lambda i: f"{i}*" + "a*" * 500),
    "question marks": lines(60, lambda i: f"*{i}" + "9?" * 500),
}
REFUSED = {
    "hashed names": lines(100_000, hashed),
    "patterns": lines(150_000, lambda i: f"*{i}*9*b"),
    "long patterns": lines(4000, lambda i: "!*9*9*," * 500 + f"{i}"),
    "many names in a line": lines(900, lambda i: "a," * 999 + "a"),
}


@pytest.mark.parametrize("bad", ONE_BAD_LINE.values(), ids=ONE_BAD_LINE)
def test_a_line_of_no_use_costs_nothing_and_hides_nothing(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(bad + GOOD)
    with timed(4):
        store = KnownHosts()
        for index in range(50):
            store.lines_for("9" * 100 + str(index), [str(file)])
        (line,) = store.lines_for("node1", [str(file)])
    assert line.place == f"{file}:2"


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_many_lines_are_read_and_each_host_takes_little(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(text + GOOD)
    with timed(6):
        store = KnownHosts()
        for index in range(8):
            store.lines_for("9" * 100 + str(index), [str(file)])
        assert [line.key for line in store.lines_for("node1", [str(file)])][-1] == ED


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_more_than_can_be_tried_is_refused_once(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(text + GOOD)
    with timed(6):
        store = KnownHosts()
        for index in range(50):
            with pytest.raises(UsageError, match="known_hosts: more than"):
                store.lines_for(f"node{index}", [str(file)])


def test_all_files_together_have_the_limits(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("one", "two")]
    for name in files:
        Path(name).write_bytes(b"\n" * 150_000)
    with pytest.raises(UsageError, match="two: more than 16,777,216 bytes, or 200,000 lines"):
        KnownHosts().lines_for("node1", files)


@pytest.mark.parametrize("names", ["a," * 1000 + "a", "a" * 70_000, "a*" * 3000])
def test_a_key_that_a_long_line_revokes_is_revoked_for_all(tmp_path: Path, names: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(b"@revoked " + names.encode() + b" " + GOOD.split(b" ", 1)[1])
    (line,) = KnownHosts().lines_for("node1", [str(file)])
    assert line.revoked
    assert line.key == ED


def test_nobody_can_hold_us_up_by_a_lock(tmp_path: Path) -> None:
    """Whoever may read a file can take its flock, shared or exclusive, and keep it."""
    file = tmp_path / "known_hosts"
    file.write_bytes(GOOD)
    file.chmod(0o644)
    done = threading.Event()

    def use() -> None:
        store = KnownHosts()
        store.record("node2", RSA, str(file))
        store.forget("node1", store.lines_for("node1", [str(file)]))
        done.set()

    with open(file, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        directory = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        threading.Thread(target=use, daemon=True).start()
        assert done.wait(10)
        os.close(directory)


def test_lines_that_others_append_while_a_key_is_forgotten_stay(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(GOOD)
    over = threading.Event()

    def record(first: int) -> None:
        store = KnownHosts()
        for number in range(first, first + 200):
            store.record(f"other{number}", ED, str(file))

    def forget() -> None:
        number = 0
        while not over.is_set():
            store = KnownHosts()
            number += 1
            store.record(f"mine{number}", RSA, str(file))
            store.forget(f"mine{number}", store.lines_for(f"mine{number}", [str(file)]))

    forgetter = threading.Thread(target=forget)
    forgetter.start()
    threads = [threading.Thread(target=record, args=(1000 * index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    forgetter.join()
    names = {line.names for line in parse(file.read_text(), "")}
    assert {f"other{1000 * index + number}" for index in range(3) for number in range(200)} <= names
    assert all(line.count(" ") == 2 for line in file.read_text().split("\n") if line)


# -- patterns


@given(st.text("ab*?[!", max_size=12), st.text("ab[", max_size=12))
def test_a_pattern_means_what_it_means(pattern: str, name: str) -> None:
    pattern = pattern.lstrip("!")
    regex = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    assert matches([pattern], [name]) is bool(re.fullmatch(regex, name))


@pytest.mark.parametrize(
    "pattern",
    ["a*" * 500, "*a" * 500, "?*" * 500, "*" * 1024, "*a*a*b" * 150, "a*" * 500_000, "*?" * 500_000],
)
def test_hostile_patterns_take_no_time(pattern: str) -> None:
    started = time.process_time()
    for name in ("a" * 253, "a" * 252 + "b", "ab" * 126):
        matches([pattern, "!" + pattern], [name])
    assert time.process_time() - started < 2


def test_case_is_that_of_ascii() -> None:
    assert matches(["NODE*"], ["node1"])
    assert not matches(["\u212aube"], ["kube"])  # the Kelvin sign, whose lower case is k


# -- ssh_config


@given(st.text("ab \t\"'#\\=", max_size=20))
def test_words_are_those_of_shlex(text: str) -> None:
    lexer = shlex.shlex(f"z{text}", posix=True)
    lexer.whitespace_split = True
    lexer.escape = ""
    try:
        expected: tuple[str, ...] | None = tuple(lexer)
    except ValueError:
        expected = None
    try:
        found = sshconfig._split(f"User z{text}", "f:1")[1]
    except UsageError:
        found = None
    assert found == expected


@pytest.mark.parametrize(
    "text",
    [
        "Include {file}\n" * 100,
        "Include {file} {file}\n",
        "Include {directory}/*\nInclude {directory}/*\n",
        "Host " + "a*" * 25 + "b\n User x\n",
        "Host " + "*a" * 500 + "\n User x\n",
        "User " + "a" * 2_000_000 + "\n",
        "User \"" + "a" * 2_000_000 + "\n",
        "User " + "a " * 500_000 + "\n",
        "a" * 2_000_000,
        " " * 2_000_000 + "#",
        "User" + " " * 2_000_000,
        "a b\n" * 200_000,
        "\n" * 3_000_000,
        "Port " + "9" * 5000 + "\n",
        "ProxyJump " + "a@" * 5000 + ":" + "9" * 5000 + "\n",
    ],
)  # fmt: skip
def test_hostile_configs_are_read_or_refused_soon(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text.replace("{file}", str(file)).replace("{directory}", str(tmp_path)))
    started = time.process_time()
    with contextlib.suppress(UsageError):
        SshConfig(str(file)).lookup("a" * 100, "a" * 100)
    assert time.process_time() - started < 3
