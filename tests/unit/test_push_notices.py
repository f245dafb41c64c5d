"""What a push names before it sends anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import cpu_at_most

from mnt.cli.push import push_tree, read_tree
from mnt.errors import UsageError
from mnt.inventory.model import Host, Ssh
from mnt.keys import generate
from mnt.push.keys import SEARCHED, is_private_key
from mnt.push.manifest import build
from mnt.push.notices import Notice, check_keys, notices
from mnt.push.tree import Entry, ignore_file, walk

MB = 1_000_000


def files(*paths: str, size: int = 10) -> list[Entry]:
    return [Entry("", "dir", 0o755), *(Entry(path, "file", 0o644, size) for path in paths)]


def found(entries: list[Entry]) -> dict[str, tuple[str, ...]]:
    return {notice.kind: notice.paths for notice in notices(entries)}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (files("train.py", "README.md", "data/x.bin", "environment.yaml"), {}),
        (files(".env", "app/.env.local", "x.env"), {"env-file": (".env", "app/.env.local")}),
        (files(".env.example", ".env.sample", "deploy/.env.template", ".env.prod.example", ".envrc"), {}),
        (
            files(".venv/pyvenv.cfg", ".venv/lib/a.py", ".venv/.env", ".venv/lib/x.pt"),
            {"virtual-environment": (".venv/",)},
        ),
        (files("py/env/conda-meta/history", "py/env/bin/python"), {"virtual-environment": ("py/env/",)}),
        (files("pyvenv.cfg", "lib/a.py"), {"virtual-environment": ("/",)}),
        (files("a/pyvenv.cfg", "a/b/pyvenv.cfg", "c/x.py"), {"virtual-environment": ("a/",)}),
        (files("venv/readme", "env/x.py"), {}),
        (
            files(
                "m.pt", "a/b.pth", "w.safetensors", "x.ckpt", "pytorch_model-00001-of-00002.bin", "data.bin"
            ),
            {
                "checkpoint": (
                    "a/b.pth",
                    "m.pt",
                    "pytorch_model-00001-of-00002.bin",
                    "w.safetensors",
                    "x.ckpt",
                )
            },
        ),
        (
            files("out/checkpoint-500/optimizer.bin", "out/global_step10/zero_0", "checkpoints/a.json"),
            {"checkpoint": ("checkpoints/", "out/checkpoint-500/", "out/global_step10/")},
        ),
        (files("checkpoints/__init__.py", "checkpoints/save.py", "ckpt.py"), {}),  # code
        (files("data.tar", size=100 * MB), {}),
        (files("data.tar", size=100 * MB + 1), {"large-file": ("data.tar",)}),
        (files("m.pt", size=200 * MB), {"checkpoint": ("m.pt",)}),  # each file once
        (files(*(f"d/x/{n}" for n in range(10_001))), {"many-files": ("d/x/",)}),
        (files(*(f"d/x/{n}" for n in range(10_000))), {}),
        (files(*(f"{n}" for n in range(10_001))), {"many-files": ("",)}),
        (files(*(f"{'abc'[n % 3]}/{n}" for n in range(10_001))), {"many-files": ("a/",)}),
    ],
)
def test_what_is_worth_a_look(entries: list[Entry], expected: dict[str, tuple[str, ...]]) -> None:
    assert found(entries) == expected


LONG = "/".join("d" * 255 for _ in range(15))


@pytest.mark.parametrize(
    ("entries", "kind", "place"),
    [
        (files(*(f"{LONG}/{n}" for n in range(16_000))), "many-files", f"{LONG}/"),
        (files(*(f"{LONG}/{n}.pt" for n in range(8000))), "checkpoint", f"{LONG}/0.pt"),
        (files(*(f"{LONG}/{n}.py" for n in range(8000)), f"{LONG}/ckpt/x"), "checkpoint", f"{LONG}/ckpt/"),
        (files("a/" * 190 + "pyvenv.cfg", *("a/" * 190 + str(n) for n in range(9000))), None, "a/" * 190),
        (files(*(f"{LONG}/{n}/x" for n in range(16_000))), "many-files", f"{LONG}/"),
    ],
    ids=["files", "checkpoints", "code", "deep", "directories"],
)
def test_long_paths_take_little_time(entries: list[Entry], kind: str | None, place: str) -> None:
    with cpu_at_most(10):  # 0.1 to 1 s on an idle machine; it was more than a minute
        assert found(entries)[kind or "virtual-environment"][0] == place


def test_a_notice_counts() -> None:
    assert notices(files("v/pyvenv.cfg", "v/a", "v/b", "x", size=7)) == [
        Notice("virtual-environment", ("v/",), 3, 21, ("/v/",))
    ]


NAMES = [
    b".env",
    b"sub/.env",
    b"#odd/.env",
    b"!odd/.env",
    b" a b /.env.x ",
    b"st*r/[x]?/.env",
    b"back\\slash/.env",
    b"new\nline/.env",
    b"caf\xe9/.env",
    "日本/.env".encode(),
    b"it's/.env",
]


def test_the_lines_leave_it_out(tmp_path: Path) -> None:
    """Whatever the names are: the lines are put into .mntignore, and nothing is left to be said."""
    for name in (*NAMES, b"v env/pyvenv.cfg", b"run/checkpoint-1/x", b"w[1].pt"):
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "kept.py").write_text("x")
    lines = [line for notice in notices(build(walk(tmp_path)).entries) for line in notice.ignore]
    (tmp_path / ".mntignore").write_bytes(os.fsencode("".join(f"{line}\n" for line in lines)))
    left = build(walk(tmp_path)).entries
    assert notices(left) == []
    assert [entry.path for entry in left if entry.kind == "file"] == [".mntignore", "kept.py"]


# --- private keys ------------------------------------------------------------------------------------------

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"


@pytest.mark.parametrize(
    "text",
    [
        generate().private,
        *(
            f"-----BEGIN {kind}PRIVATE KEY-----\n{BODY}\n"
            for kind in ("", "RSA ", "EC ", "DSA ", "ENCRYPTED ")
        ),
        f"-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: AES,00\r\n\r\n{BODY}\r\n",
        f"-----BEGIN CERTIFICATE-----\n{BODY}\n\n-----BEGIN PRIVATE KEY-----\n{BODY}\n",
        f'{{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\n{BODY}\\n"}}',
        f'KEY = """-----BEGIN PRIVATE KEY-----\n{BODY}\n"""',
        f"tls:\n  key: |\n    -----BEGIN PRIVATE KEY-----\n    {BODY}\n",
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n{BODY}\n",
        f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\n{BODY}\n",
        "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n",
        "PuTTY-User-Key-File-2: ssh-rsa\n",
        "\ufeff-----BEGIN OPENSSH PRIVATE KEY-----\n",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n",
    ],
    ids=lambda text: text.partition("\n")[0][:30],
)
def test_private_keys(text: str) -> None:
    assert is_private_key(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        generate().public,
        f"-----BEGIN PUBLIC KEY-----\n{BODY}\n",
        f"-----BEGIN CERTIFICATE-----\n{BODY}\n",
        'if text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----"):\n    pass\n',
        "grep -rl 'BEGIN RSA PRIVATE KEY' .\n",
        'pem = f"-----BEGIN PRIVATE KEY-----\\n{body}\\n"\n',
        "# It begins with -----BEGIN RSA PRIVATE KEY-----\n\n## The next chapter\n",
        'MARK = b"PuTTY-User-Key-File-"\n',
    ],
    ids=lambda text: text[:10],
)
def test_texts_about_keys(text: str) -> None:
    assert not is_private_key(text.encode())


def test_no_text_takes_long_to_search() -> None:
    """Nor one of 1 KiB: with two ways to read a blank, "A: " 400 times took for ever."""
    header = "-----BEGIN RSA PRIVATE KEY-----"
    for text in (
        header + "\n" + "A: " * 400,
        (header + "\n" + "A: " * 400 + "!") * 900,
        header * 30_000,
        (header + "\n" + (f"A: {header * 6}\n") * 8) * 600,
        (header + ("\\n" * 8 + "A: ") * 8) * 6000,
        (header + " " * 16) * 20_000,
        header + "\n" + "A: b\n" * 200_000,
        (header + "\n" * 16 + "A: \n" * 8 + "!") * 12_000,
        header + "\n" + "A" * 1_000_000,
        "---- BEGIN " * 90_000,
        "-" * 1_000_000,
    ):
        data = f"x\n{text[:SEARCHED]}{header}\n!".encode()
        with cpu_at_most(10):  # 0.4 on an idle machine
            assert not is_private_key(data)


def test_keys_in_a_tree(tmp_path: Path) -> None:
    """Whatever they are called, and at whatever place; links are not followed, as in a push."""
    key = generate().private
    (tmp_path / "it's a dir").mkdir()
    for name in (".ssh-key", "it's a dir/notes.txt"):
        (tmp_path / name).write_text(key)
    (tmp_path / "late").write_text("x" * (1 << 20) + key)
    (tmp_path / "pub").write_text(generate().public)
    (tmp_path / "link").symlink_to(".ssh-key")
    keys = list(build(walk(tmp_path)).keys)
    assert keys == [".ssh-key", "it's a dir/notes.txt"]
    with pytest.raises(UsageError, match="2 private keys") as refused:
        check_keys(ignore_file(tmp_path), keys)
    assert list(refused.value.details) == keys
    command, _, rest = str(refused.value.fix).partition("; or ")
    assert "--allow-secrets" in rest
    subprocess.run(command, shell=True, check=True, cwd="/")  # noqa: S602 - the fix, taken literally
    assert build(walk(tmp_path)).keys == ()


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory"])
def test_the_fix_writes_to_no_ignore_file_that_leads_elsewhere(tmp_path: Path, kind: str) -> None:
    """Whoever made the tree could have a line of his added to ~/.bashrc: the name of a key."""
    elsewhere, tree = tmp_path / "bashrc", tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "sh").write_text(generate().private)
    (tree / "weights").touch()
    os.truncate(tree / "weights", 150 * MB)
    if kind == "pipe":
        os.mkfifo(tree / ".mntignore")
    elif kind == "directory":
        (tree / ".mntignore").mkdir()
    else:
        (tree / ".mntignore").symlink_to(elsewhere)
        elsewhere.write_text("") if kind == "link" else None
    said = dry_run(tree).stderr
    assert ">" not in said
    assert "  fix: make .mntignore a regular file, which it is not, with: /bin/sh; or send" in said
    assert "  to leave it out, make .mntignore a regular file, which it is not, with: /weights" in said
    (tree / ".mntignore").rmdir() if kind == "directory" else (tree / ".mntignore").unlink()
    assert ">> " in dry_run(tree).stderr


# --- the command -------------------------------------------------------------------------------------------


def dry_run(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`mnt push --dry-run`, which reaches no host."""
    inventory = tree.parent / "inventory.yaml"
    inventory.write_text("cluster: x\nhosts: {node1: {address: 192.0.2.1}, node2: {address: 192.0.2.2}}\n")
    argv = [sys.executable, "-m", "mnt", "push", "--dry-run", "-i", str(inventory), *options, str(tree)]
    return subprocess.run(argv, capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    top.mkdir()
    (top / "train.py").write_text("print(1)\n")
    (top / ".env").write_text("TOKEN=1\n")
    (top / "weights").write_bytes(b"")
    os.truncate(top / "weights", 150 * MB)
    return top


def test_a_dry_run_shows_what_is_worth_a_look(tree: Path) -> None:
    shown = dry_run(tree)
    assert shown.returncode == 0
    assert shown.stdout.splitlines() == [".env", "train.py", "weights"]
    for text in (
        "3 files, 150.0 MB, to 2 hosts",
        "150.0 MB  weights",
        "(1 file, 8 bytes): .env",
        ": /weights",
    ):
        assert text in shown.stderr
    document = json.loads(dry_run(tree, "--json").stdout)
    assert (document["ok"], document["refused"], document["private_keys"]) == (True, None, [])
    assert (document["files"], document["bytes"]) == (3, 150 * MB + 17)
    assert document["largest"][0] == {"path": "weights", "size": 150 * MB}
    assert [notice["kind"] for notice in document["notices"]] == ["env-file", "large-file"]
    assert document["notices"][1] == {
        "kind": "large-file",
        "paths": ["weights"],
        "files": 1,
        "bytes": 150 * MB,
        "ignore": ["/weights"],
    }


def test_a_dry_run_of_a_push_that_would_be_refused(tree: Path) -> None:
    (tree / "id").write_text(generate().private)
    for options in ((), ("--json",)):
        refused = dry_run(tree, *options)
        assert refused.returncode == 2
    document = json.loads(refused.stdout)
    assert (document["ok"], document["private_keys"]) == (False, ["id"])
    assert document["refused"]["details"] == ["id"]
    assert "--allow-secrets" in document["refused"]["fix"]
    assert dry_run(tree, "--allow-secrets").returncode == 0
    (tree / "id").unlink()
    (tree / "outputs").mkdir()
    (tree / "outputs" / "x").touch()
    shown = dry_run(tree)  # as the push, which exits with 1
    assert (shown.returncode, "train.py" in shown.stdout) == (1, True)
    assert "outputs/x" in shown.stderr


def test_a_push_of_a_part_of_the_tree_that_has_the_inventory(tmp_path: Path) -> None:
    """It is what the user says, and seldom what the user means."""
    part = tmp_path / "my project" / "train"
    (part.parent / "inventories").mkdir(parents=True)
    (part.parent / "inventories" / "default.yaml").write_text("hosts: [node1]\n")
    part.mkdir()
    (part / "train.py").touch()
    env = {key: value for key, value in os.environ.items() if key != "MNT_INVENTORY"}

    def pushed(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "mnt", "push", "--dry-run", *words]
        return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True)

    shown = pushed(part)
    assert (shown.returncode, shown.stdout) == (0, "train.py\n")
    assert f"a push of train only, not of all of {part.parent}, which has the inventory" in shown.stderr
    assert f"to push all: cd '{part.parent}' && mnt push" in shown.stderr
    for other in (pushed(part.parent), pushed(part, str(part))):  # all of it; and what the user names
        assert other.returncode == 0
        assert "only" not in other.stderr


def test_a_push_without_a_dry_run_refuses_the_same(tree: Path) -> None:
    (tree / "id").write_text(generate().private)
    nobody = Host("node1", "127.0.0.1", Ssh(port=1, config=None))
    with pytest.raises(UsageError, match="a private key"):
        push_tree(read_tree(str(tree)), [nobody])
    sent = push_tree(read_tree(str(tree)), [nobody], allow_secrets=True)
    assert str(sent.hosts["node1"].error).startswith("connect: ")  # it gets as far as that


def test_large_files_are_named_before_they_are_read(tree: Path) -> None:
    """A sparse one takes days, and needs no space on the disk of whoever made it."""
    (tree / "it's").write_bytes(b"")
    os.truncate(tree / "it's", 1 << 42)
    inventory = tree.parent / "inventory.yaml"
    inventory.write_text("hosts: [node1]\n")
    argv = [sys.executable, "-m", "mnt", "push", "--dry-run", "-i", str(inventory), "."]
    with subprocess.Popen(argv, cwd=tree, stderr=subprocess.PIPE, text=True) as reading:
        assert reading.stderr is not None
        said = reading.stderr.readline()
        reading.kill()
    assert said == "reading 2 large files: it's (4.4 TB)  weights (150.0 MB)\n"


def test_this_project_has_no_key_of_its_own() -> None:
    """scripts/demo.sh pushes it: the words of a key in a test must be no key."""
    root = Path(__file__).parents[2]
    places = ("mnt", "tests", "train", "docs", "playbooks", "scripts", "benchmarks", "inventories")
    texts = (file for place in places for file in (root / place).rglob("*") if file.suffix != ".pyc")
    assert [
        str(file) for file in texts if file.is_file() and is_private_key(file.read_bytes()[:SEARCHED])
    ] == []
