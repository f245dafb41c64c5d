"""`mnt setup` with hosts that lie to Ansible: each harms itself, and none the head or the others."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from ansible_hosts import AnsibleHosts, make
from waiting import wait_for

from mnt.setup.play import HostResult, Played

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
