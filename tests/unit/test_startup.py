"""Why a login shell runs no command: what is said, and the way out."""

from __future__ import annotations

import pytest
from fix_style import complaint

from mnt.fleet.startup import FILES, Found, explain, for_people_only, own_file
from mnt.tasks.bootstrap import FrameReader
from mnt.tasks.wrapper import Streams

BASH = "/bin/bash"
GUARD = "case $- in *i*) ;; *) return;; esac"
GUARDED = f"{GUARD}\nexit 1\n"
DEBIAN = "case $- in\n    *i*) ;;\n      *) return;;\nesac\nexec fish\n"
FORCED = (
    "on the host, remove ForceCommand in its sshd_config, and command= in ~/.ssh/authorized_keys, for mnt"
)


def bashrc(text: str, **found: object) -> Found:
    return Found(**{"shell": BASH, "files": {"~/.bashrc": text}, **found})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "output", "message", "fix"),
    [
        (Found("/usr/sbin/nologin"), "Not now.\n", "exit code 1: Not now.", "as root on the host: usermod "),
        (
            Found("/opt/odd/shell"),
            "",
            "the login shell, /opt/odd/shell, runs no",
            "as root on the host: usermod",
        ),
        (bashrc("# exit\nexit 1\n"), "", "may end it: ~/.bashrc:2: exit 1", f"top of ~/.bashrc: {GUARD}"),
        (
            bashrc("[ -z x ] || exec zsh"),
            "",
            "~/.bashrc:1: [ -z x ] || exec zsh",
            f"top of ~/.bashrc: {GUARD}",
        ),
        (bashrc(GUARDED), "", "runs no command, exit code 1", FORCED),
        (bashrc(DEBIAN), "Backups only.", "exit code 1: Backups only.", FORCED),
        (bashrc("exit_code=1\npre-exit\nlib.read\n"), "", "exit code 1", FORCED),
        (Found("/bin/dash"), "Backups only.", "exit code 1: Backups only.", FORCED),
        (
            Found("/bin/zsh"),
            "",
            "/bin/zsh, runs no command",
            "on the host, remove exit, exec and read from ~/.zshenv",
        ),
        (Found(), "Backups only.", "the login shell runs no command", FORCED),
        (Found(), "", "the login shell runs no command", "on the host, remove exit, exec and read"),
        (Found(), "a\nb\n\nc\nd\n", "exit code 1: b / c / d", FORCED),
        (
            bashrc("read x\n", reads=True),
            "mnt-1: not found",
            ": ~/.bashrc:1: read x",
            f"top of ~/.bashrc: {GUARD}",
        ),
        (bashrc("eval $(x)", reads=True), "", "reads the standard input", f"top of ~/.bashrc: {GUARD}"),
        (
            Found("/usr/bin/fish", True, {"~/.config/fish/config.fish": "cat\n"}),
            "",
            "config.fish:1: cat",
            "on the host, let only interactive shells run these lines of ~/.config/fish/config.fish",
        ),
    ],
)
def test_what_is_said(found: Found, output: str, message: str, fix: str) -> None:
    said, way_out = explain(found, "exit code 1", output, "mnt")
    assert message in said
    assert fix in way_out
    assert way_out.startswith("as root on the host: ") or complaint(way_out) is None
    assert "mnt-1" not in said


def test_a_host_that_lets_no_users_in() -> None:
    said, way_out = explain(Found(), "exit code 254", "Maintenance until 5.\n", "mnt")
    assert said == "the login shell runs no command, exit code 254: Maintenance until 5."
    assert way_out == "on the host, once it is ready for users, as root: rm /etc/nologin"
    assert complaint(way_out) is None
    assert "nologin" not in explain(Found(), "exit code 254", "", "mnt")[1]


def test_only_files_of_the_shell_itself_are_suspects() -> None:
    found = Found("/bin/zsh", False, dict.fromkeys(FILES, "exit 1\n"))
    assert explain(found, "exit code 1", "", "mnt")[0].count("exit 1") == 3
    assert "bashrc" not in explain(found, "exit code 1", "", "mnt")[0]


def test_a_host_cannot_say_much() -> None:
    found = bashrc("exit " + "x" * 10_000 + "\nexit" * 100)
    assert len(explain(found, "exit code 1", "y" * 10_000, "mnt")[0]) < 1500


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_what_only_comes_back_is_neither_a_start_nor_shown(size: int) -> None:
    """A shell that sends its input back: it has secrets of the request in it."""
    echo = b"motd\nIFS= read -r mark; echo\nmark\n\nsecret\n" + b"secret " * 2000
    reader, streams = FrameReader("mark"), Streams("mark")
    for start in range(0, len(echo), size):
        assert not list(reader.feed(echo[start : start + size]))
        assert not streams.stdout(echo[start : start + size])
    assert (reader.noise, streams.noise, streams.started) == ("", "", False)


@pytest.mark.parametrize(
    ("shell", "file", "fix"),
    [
        ("/bin/bash", "~/.bashrc", f"at the top of ~/.bashrc: {GUARD}; if it is from /etc/bash.bashrc or "),
        (None, "~/.bashrc", f"at the top of ~/.bashrc: {GUARD}; "),
        ("/usr/bin/zsh", "~/.zshenv", f"at the top of ~/.zshenv: {GUARD}; if it is from /etc/zsh/zshenv or "),
        (
            "/usr/bin/fish",
            "~/.config/fish/config.fish",
            "interactive shells run what does it in ~/.config/fish/",
        ),
        ("/bin/sh", "~/.bashrc", "look for it in ~/.ssh/rc, /etc/ssh/sshrc and the start-up files"),
    ],
)
def test_what_is_for_people_only(shell: str | None, file: str, fix: str) -> None:
    assert own_file(shell) == file
    assert fix in for_people_only(shell)
