"""Who serves what to whom, as playbooks/nfs.yml decides it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "playbooks" / "tasks" / "nfs_plan.py"
SHARED = {"path": "/shared", "type": "nfs4", "source": "node1:/srv/shared", "options": ["rw", "hard"]}

HOSTS = "192.0.2.1,10.0.0.1,192.0.2.2,10.0.0.2"


def run(**changes: Any) -> subprocess.CompletedProcess[str]:
    given = {
        "names": ["node1", "node2"],
        "addresses": ["192.0.2.1", "192.0.2.2"],
        "training": ["10.0.0.1", "10.0.0.2"],
        "logins": ["192.0.2.1", "192.0.2.2"],
        "master": "node1",
        "subnet": "10.0.0.0/24",
        "storage": [SHARED],
        "server": "",
        "source": "",
        "path": "",
        "clients": "",
        "export_options": "rw,sync,no_subtree_check,root_squash",
        "root": "/srv/nfs",
        **changes,
    }
    return subprocess.run(
        [sys.executable, str(SCRIPT)], input=json.dumps(given), capture_output=True, text=True, timeout=60
    )


def mounts(**changes: Any) -> list[dict[str, Any]]:
    done = run(**changes)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["mounts"]
    return found


def shared(**changes: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in (SHARED | changes).items() if value is not None}]


@pytest.mark.parametrize(
    ("storage", "server", "clients", "words"),
    [
        # By name or SSH address: to the hosts alone, wherever they come from.
        (shared(), "node1", HOSTS, "/shared|node1:/srv/shared|nfs4|rw,hard,nosuid,nodev"),
        (
            shared(source="192.0.2.2:/x"),
            "node2",
            HOSTS,
            "/shared|192.0.2.2:/x|nfs4|rw,hard,nosuid,nodev",
        ),
        # By the training address: over the training network.
        (
            shared(source="10.0.0.2:/x"),
            "node2",
            "10.0.0.0/24",
            "/shared|10.0.0.2:/x|nfs4|rw,hard,nosuid,nodev",
        ),
        (
            shared(type="nfs", options=["ro"]),
            "node1",
            HOSTS,
            "/shared|node1:/srv/shared|nfs|ro,nosuid,nodev",
        ),
        (
            shared(type=None, options=None),
            "node1",
            HOSTS,
            "/shared|node1:/srv/shared|nfs4|rw,hard,nosuid,nodev",
        ),
        # Without a source the master serves.
        (
            shared(source=None),
            "node1",
            "10.0.0.0/24",
            "/shared|10.0.0.1:/srv/nfs/shared|nfs4|rw,hard,nosuid,nodev",
        ),
        # A filer that is none of the hosts.
        (shared(source="filer:/vol/x"), None, "", "/shared|filer:/vol/x|nfs4|rw,hard,nosuid,nodev"),
    ],
)
def test_who_serves(storage: list[Any], server: str | None, clients: str, words: str) -> None:
    (mount,) = mounts(storage=storage)
    assert mount["server"] == server
    assert sorted(mount["clients"].split(",")) == sorted(clients.split(","))
    assert mount["words"] == words


@pytest.mark.parametrize(
    ("options", "mounted"),
    [
        ([], "rw,hard,nosuid,nodev"),
        (["ro", "nodev"], "ro,nodev,nosuid"),
        (["rw", "suid"], "rw,suid,nodev"),
        (["suid", "dev"], "suid,dev"),
    ],
)
def test_root_of_the_server_is_not_root_of_the_clients(options: list[str], mounted: str) -> None:
    """Unless the inventory says so."""
    (mount,) = mounts(storage=shared(options=options))
    assert mount["words"] == f"/shared|node1:/srv/shared|nfs4|{mounted}"


def test_only_what_is_nfs_is_mounted() -> None:
    others = [{"path": "/lustre", "type": "lustre", "source": "mgs:/fs"}, {"path": "/scratch"}]
    assert [mount["export"] for mount in mounts(storage=[*others, SHARED])] == ["/srv/shared"]


def test_a_host_that_serves_under_a_name_of_its_own() -> None:
    (mount,) = mounts(server="node2", storage=shared(source="storage.example:/x"))
    assert (mount["server"], mount["clients"].split(",")[0]) == ("node2", "192.0.2.2")


def test_beyond_the_training_network_only_the_hosts_may_mount() -> None:
    """No network of theirs, in which others may be. The server looks names up."""
    names = {"names": ["a", "b"], "training": ["", ""], "logins": ["", "b.example"], "subnet": ""}
    (mount,) = mounts(**names, addresses=["", "b.example"], storage=shared(source="a:/srv/x"), master="a")
    assert mount["clients"] == "a,b.example"
    odd = {**names, "addresses": ["", "-b"], "logins": ["*", "b(rw)"]}
    (mount,) = mounts(**odd, storage=shared(source="a:/srv/x"), master="a")
    assert mount["clients"] == ""
    (mount,) = mounts(addresses=["fd00::1", "fd00::2"], logins=["", ""], subnet="")
    assert mount["clients"] == "fd00::1,10.0.0.1,fd00::2,10.0.0.2"
    (mount,) = mounts(server="node2", storage=shared(source="192.0.2.9:/x"))
    assert mount["clients"] == f"192.0.2.9,{HOSTS}"


@pytest.mark.parametrize("word", ["192.0.2.2", "10.0.0.2"])
def test_a_host_takes_no_others_place_as_the_server(word: str) -> None:
    """By naming the address of another as its own."""
    (mount,) = mounts(storage=shared(source=f"{word}:/x"))
    assert mount["server"] == "node2"
    (mount,) = mounts(storage=shared(source=f"{word}:/x"), training=[word, "10.0.0.2"])
    assert mount["server"] == ("node2" if word == "192.0.2.2" else None)


def test_by_hand() -> None:
    names = {"names": ["a"], "addresses": [""], "training": [""], "logins": [""], "storage": []}
    (mount,) = mounts(**names, source="a:/srv/x", path="/x", clients="10.0.0.0/8,192.0.2.7")
    assert mount["words"] == "/x|a:/srv/x|nfs4|rw,hard,nosuid,nodev"
    assert (mount["server"], mount["clients"]) == ("a", "10.0.0.0/8,192.0.2.7")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"storage": []}, "the inventory has no storage of type nfs or nfs4"),
        ({"server": "node9"}, "nfs_server: there is no host node9 among these: node1, node2"),
        ({"path": "/x"}, "nfs_path and nfs_source belong together"),
        ({"storage": shared(path="/a b")}, "/a b: a path for NFS has letters"),
        ({"storage": shared(path="/a/../etc")}, "/a/../etc: a path for NFS has letters"),
        ({"storage": shared(path="/")}, "/: a path for NFS has letters, digits and ._/+@-, and is not /"),
        ({"storage": shared(source="node1:/x;reboot")}, "is not SERVER:/DIRECTORY"),
        ({"storage": shared(source="node1:/")}, "/ is a directory of the system, and is not exported"),
        ({"storage": shared(source="node1:/etc")}, "/etc is a directory of the system"),
        ({"storage": shared(options=["rw", "a b"])}, "/shared: 'a b' is no option"),
        ({"export_options": "rw,(x)"}, "nfs_export_options: '(x)' is no option"),
        ({"clients": "10.0.0.1/8"}, "nfs_clients: 10.0.0.1/8 has host bits set"),
        (
            {"subnet": "0.0.0.0/1", "storage": shared(source="10.0.0.1:/x")},
            "mnt_training_subnet: 0.0.0.0/1 is too large: at most a /8",
        ),
        ({"clients": "*"}, "expected a network such as 10.0.0.0/24"),
        (
            {"storage": shared(source=None), "master": "node9"},
            "/shared is to come from node9, which is not among these hosts: run this on all of them",
        ),
    ],
)
def test_wrong_variables(changes: dict[str, Any], says: str) -> None:
    done = run(**changes)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stdout == ""
