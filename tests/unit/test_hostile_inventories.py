"""Inventories and hostlists that would fill memory or never end: each is read or refused, soon."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnt.errors import InventoryError, UsageError
from mnt.inventory import hostlist, loader
from mnt.inventory.model import Inventory

pytestmark = pytest.mark.one_python

SECONDS = 6  # of processor time; each takes less than 2 on one idle core
MEMORY = 300 * 1024  # KiB


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - started < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY


def load(tmp_path: Path, text: str) -> Inventory:
    file = tmp_path / "inventory.yaml"
    file.write_text(text)
    return loader.load(file)


def chain(item: str, times: int, link: str) -> str:
    """x0 is the item, and each of x1 to xN has the one before several times."""
    lines = [f"x0: &x0 {item}"]
    lines += [f"x{i}: &x{i} {link.replace('*', f'*x{i - 1}')}" for i in range(1, times)]
    return "\n".join(lines)


def keys(count: int) -> str:
    return ",".join(f"K{i}: v" for i in range(count))


def merges_in_merges(levels: int) -> str:
    """A merge of that many levels, and as many more around its alias."""

    def nested(item: str) -> str:
        return "{<<: " * levels + item + "}" * levels

    return f"hosts:\n  n0: {{<<: &x {nested('{gpus: 1}')}}}\n  n1: {{<<: {nested('{<<: *x}')}}}\n"


def directives(end: str) -> str:
    return "".join(f"%TAG !{i:x}! a{end}" for i in range(100_000))


HOSTS = "hosts: [n1]\n"
ALL = "hosts: ['n[1-5000]']\n"

REFUSED = {
    "aliases": HOSTS + chain("[a, a]", 9, "[*,*,*,*,*,*,*,*,*,*]"),
    "aliases of mappings": HOSTS + chain("{a: b}", 9, "{a: *, b: *, c: *, d: *, e: *, f: *, g: *}"),
    "merges": HOSTS + chain("{k: v}", 30, "{<<: [*, *]}"),
    "merges in each other": HOSTS + chain("{k: v}", 30, "{<<: [{<<: *}, {<<: *}]}"),
    "a merge of many": HOSTS + f"a: &a {{{keys(20_000)}}}\nb: {{<<: [{','.join(['*a'] * 20_000)}]}}",
    "a merge of many empty ones": HOSTS + f"a: &a {{}}\nb: {{<<: [{','.join(['*a'] * 400_000)}]}}",
    "a merge of itself": HOSTS + "a: &a {<<: &b {<<: *b}}",
    "a long text again and again": HOSTS + f"a: &a {'x' * 1_000_000}\nb: [{','.join(['*a'] * 100_000)}]",
    "many keys": HOSTS + f"env: {{{keys(500_000)}}}",
    "many keys, many hosts": ALL + f"env: {{{keys(50_000)}}}",
    "long lists, many hosts": ALL + f"keep: [{','.join(['a'] * 50_000)}]",
    "a deep list": "hosts: " + "[" * 100_000,
    "a deep list, closed": "hosts: " + "[" * 5000 + "]" * 5000,
    "a deep mapping": "".join(" " * i + "a:\n" for i in range(2000)),
    "many values, very deep": HOSTS + "a: " + "[" * 990 + "a," * 190_000 + "]" * 990,
    "many values, very deep, at the left": "[" * 990 + "a,\n" * 190_000 + "]" * 990,
    "directives": directives("\n") + "---\n" + HOSTS,
    "directives, with other ends of lines": directives("\u2028") + "---\n" + HOSTS,
    "directives after a mark": "\ufeff" + directives("\r\ufeff") + "---\n" + HOSTS,
    "directives of a second document": HOSTS + "...\n" + directives("\n") + "---\n" + HOSTS,
    "sixty ranges": "hosts:\n" + "".join(f"  'a{i}n[1-100000]': {{}}\n" for i in range(60)),
    "sixty ranges in a list": "hosts: [" + ",".join(f"'a{i}n[1-100000]'" for i in range(60)) + "]",
    "sixty ranges in one": "hosts: ['" + ",".join(f"a{i}n[1-100000]" for i in range(60)) + "']",
    "one range again and again": "hosts: ['n[" + ",".join(["1-100000"] * 100) + "]']",
    "a product": "hosts: ['" + "n[1-2]" * 100 + "']",
    "big groups": ALL + "groups:\n" + "".join(f"  g{i}: 'n[1-5000]'\n" for i in range(2000)),
    "a group of groups": ALL + "groups:\n  g: 'n[1-5000]'\n  h: '" + ",".join(["@g"] * 1000) + "'",
    "commas": "hosts: ['" + "a," * 500_000 + "']",
    "brackets": "hosts: ['" + "[" * 100_000 + "']",
    "a name like ten thousand others": "hosts: ['n[1-10000]']\ngroups: {g: '" + "n" * 90 + "'}",
    "no YAML at all": HOSTS + "k: v\n" * 150_000 + "x: [\n",
    "a key a hundred thousand times": HOSTS + "k: v\n" * 100_000,
    "ten million bytes": HOSTS + "#" + "x" * 10_000_000,
    "spaces": HOSTS + f"cluster: '{' ' * 1_000_000}'",
    "a port": HOSTS + f"ssh: {{port: {'9' * 5000}}}",
    "a port of an address": f"hosts: {{n1: {{address: 'n:{'9' * 5000}'}}}}",
    "a range of long numbers": f"hosts: ['n[1-{'9' * 5000}]']",
    "a step": f"hosts: ['n[{'9' * 250}-{'9' * 250}/{'9' * 250}]']",
    "a port of a device": HOSTS + f"network: {{rdma: {{devices: ['mlx5_0:{'9' * 5000}']}}}}",
    "a prefix length": HOSTS + f"network: {{subnet: '10.0.0.0/{'9' * 5000}'}}",
    "a version": HOSTS + f"require: {{torch: '=={'9' * 5000}'}}",
    "versions": HOSTS + f"require: {{torch: '{'==1,' * 100_000}'}}",
    "a number of a device": HOSTS + f"gpus: {'9' * 5000}",
    "a long name, many times": "hosts: ['" + "n" * 50_000 + "[1-100000]']",
    "a long number, many times": "hosts: ['n[" + "0" * 249 + "1-" + "0" * 244 + "100000][1][10000]']",
    "many brackets in a name": "hosts: ['n" + "[1]" * 1_000_000 + "']",
    "many ranges in a name": "hosts: ['" + "[1-100000]" * 800_000 + "']",
    "many brackets in many names": "hosts: ['" + ",".join(["n" + "[1]" * 250 + "[1-2]"] * 10_000) + "']",
    "a range again and again": ALL + f"groups: {{g: '{','.join(['n[1-1]'] * 1_000_000)}'}}",
    "the same host in many groups": ALL
    + "groups:\n" + "".join(f"  g{i}: '{','.join(['n1'] * 90_000)}'\n" for i in range(5)),
    "merges in merges": merges_in_merges(900),
    "merges in few merges": merges_in_merges(40),
    "merges in a sequence": HOSTS + "a: " + "{<<: [" * 900 + "{}" + "]}" * 900,
    "an address with a long zone": f"hosts: {{n1: {{address: 'fe80::1%{'a' * 1_000_000}'}}}}",
    "a long gateway": HOSTS + f"ssh: {{gateway: '{'a' * 1_000_000}'}}",
    "a long user of a gateway": HOSTS + f"ssh: {{gateway: '{'a' * 1_000_000}@gate'}}",
    "gateways": HOSTS + f"ssh: {{gateway: '{'a@' * 200_000}'}}",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_it_is_refused(tmp_path: Path, text: str) -> None:
    with bounded(), pytest.raises(InventoryError) as raised:
        load(tmp_path, text)
    assert len(raised.value.message) < 5000
    assert raised.value.message.startswith(str(tmp_path))


READ = {
    "the most hosts": ("hosts: ['n[1-100000]']", 100_000),
    "hosts one by one": ("hosts: ['" + ",".join(f"a{i}" for i in range(90_000)) + "']", 90_000),
    "padding": ("hosts: ['n[" + "0" * 240 + "1-" + "0" * 235 + "100000]']", 100_000),
    "a big group": ("hosts: ['n[1-10000]']\ngroups: {g: {hosts: 'n[1-10000]', gpus: 8}}", 10_000),
    "many groups": (ALL + "groups:\n" + "".join(f"  g{i}: n1\n" for i in range(50_000)), 5000),
    "many hosts with keys": (
        "hosts:\n" + "".join(f"  n{i}: {{address: host{i}, gpus: 8}}\n" for i in range(10_000)),
        10_000,
    ),
    "long names": ("hosts: ['" + "n" * 240 + "[1-100000]']", 100_000),
    "a few directives": ("%YAML 1.1\n" + "".join(f"%TAG !{i}! a\n" for i in range(15)) + "---\n" + HOSTS, 1),
    "no directives": (HOSTS + "env: {K: '" + " %TAG !a! a\n" * 50_000 + "'}\n", 1),
    "comments": ("# x\n" * 500_000 + HOSTS, 1),
}  # fmt: skip


@pytest.mark.parametrize(("text", "hosts"), READ.values(), ids=READ)
def test_it_is_read(tmp_path: Path, text: str, hosts: int) -> None:
    with bounded():
        assert len(load(tmp_path, text).hosts) == hosts


@pytest.mark.parametrize(
    "text",
    ["a," * 60_000, "[" * 120_000, "[1]" * 40_000, "a[1-2]" * 20_000, "]" * 100_000, "@" * 100_000,
     "a[" + "," * 100_000, ",".join(f"a{i}[1-100000]" for i in range(60)), "n[1-" + "9" * 120_000 + "]",
     "[1-100000]" * 2, "n" * 50_000 + "[1-100000]", "n" + "[1]" * 40_000, "[1-100000]" * 10_000,
     ",".join(["n" + "[1]" * 250] * 160)],
)  # fmt: skip
def test_hostlists_of_a_command_line(text: str) -> None:
    with bounded(), pytest.raises(UsageError):
        hostlist.expand(text, known=[f"n{i}" for i in range(10_000)], groups={})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b", ["a", "b"]),
        ("a[1,3],b", ["a1", "a3", "b"]),
        ("a[1-2]b[1,2]", ["a1b1", "a1b2", "a2b1", "a2b2"]),
    ],
)
def test_commas_in_brackets_do_not_count(text: str, parts: list[str]) -> None:
    assert hostlist.names(text) == parts


@pytest.mark.parametrize("text", ["a[1", "a]1[", "a[[1]]", "a[1]]", "[", "]", "a[1,b"])
def test_brackets_that_do_not_match(text: str) -> None:
    with pytest.raises(UsageError, match="bracket"):
        hostlist.names(text)
