"""playbooks/nfs.yml, by `mnt setup` on hosts whose kernels have NFS: node1 serves, both mount it."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import setups
import yaml
from nfs import NfsLab

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

pytestmark = pytest.mark.matrix  # tox -e playbooks
Mnt = Callable[..., subprocess.CompletedProcess[str]]
Setup = Callable[..., dict[str, Any]]

SOURCE, PATH = "node1:/srv/shared", "/shared"
ESCAPE = Path(__file__).parent / "nfs" / "escape.py"
EXPORTS = "/etc/exports.d/mnt.exports"


@pytest.fixture(scope="module")
def nfs_lab(nfs_support: None) -> Iterator[NfsLab]:
    """Two nodes that mount nothing and serve nothing, on which the ordinary user may become root."""
    with NfsLab(2, bare=True) as lab:
        for node in lab.nodes.values():
            node.guest.run("echo 'mnt ALL=(ALL) NOPASSWD: ALL' >>/etc/sudoers")
        yield lab


@pytest.fixture(scope="module")
def inventory(nfs_lab: NfsLab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = yaml.safe_load(nfs_lab.inventory_path.read_text())
    document["storage"][0] |= {"source": SOURCE, "path": PATH}
    place = tmp_path_factory.mktemp("nfs") / "inventory.yaml"
    place.write_text(yaml.safe_dump(document))
    return place


@pytest.fixture(scope="module")
def setup(inventory: Path) -> Setup:
    def run(*words: str, ok: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = setups.setup(inventory, "nfs", *words, ok=ok)["hosts"]
        return found

    return run


def findings(run_mnt: Mnt, inventory: Path) -> list[dict[str, Any]]:
    done = run_mnt("preflight", "-i", str(inventory), "--only", "storage-mount,storage-visible", "--json")
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


def test_a_server_and_its_clients(nfs_lab: NfsLab, inventory: Path, setup: Setup, run_mnt: Mnt) -> None:
    one, two = (node.guest for node in nfs_lab.nodes.values())
    network = yaml.safe_load(inventory.read_text())["network"]["subnet"]
    (finding,) = findings(run_mnt, inventory)
    assert (finding["check"], finding["hosts"], finding["playbook"]) == (
        "storage-mount",
        ["node1", "node2"],
        "nfs",
    )

    shown = setup("--check")
    assert all(host["changed"] > 0 for host in shown.values()), shown
    assert (
        one.run("ls -d /etc/exports.d /srv/shared /etc/fstab /proc/fs/nfsd/threads 2>/dev/null || true") == ""
    )

    setup()
    exported = f"/srv/shared {network}(rw,sync,root_squash,subtree_check)\n"
    assert one.run(f"tail -n 1 {EXPORTS}") == exported
    options = "rw,hard,nosuid,nodev,_netdev,nofail"
    for guest in (one, two):
        assert guest.run("cat /etc/fstab") == f"{SOURCE} {PATH} nfs4 {options} 0 0\n"
        assert guest.run(f"findmnt -n -o SOURCE,FSTYPE {PATH}").split() == [SOURCE, "nfs4"]
    assert findings(run_mnt, inventory) == []
    two.run(f"setpriv --reuid=mnt --regid=mnt --clear-groups touch {PATH}/of-mnt")
    assert one.run("stat -c %U /srv/shared/of-mnt") == "mnt\n"
    assert two.run(f"touch {PATH}/of-root 2>&1 || true").endswith("Permission denied\n")  # root_squash

    two.run(f"umount {PATH}; sed -i '/shared/d' /etc/fstab")
    again = setup()
    assert [host["changed"] for host in again.values()] == [0, 1]


def test_root_of_the_server_is_not_root_of_its_clients(nfs_lab: NfsLab, setup: Setup) -> None:
    """By a setuid program, or a device, that it makes in what it exports."""
    one, two = (node.guest for node in nfs_lab.nodes.values())
    setup()
    one.run("cd /srv/shared; cp /bin/dash sh; chmod 4755 sh; mknod -m 666 zero c 1 5")
    as_user = "setpriv --reuid=mnt --regid=mnt --clear-groups"
    assert two.run(f"stat -c '%u %a' {PATH}/sh") == "0 4755\n"
    assert "uid=0" not in two.run(f"{as_user} {PATH}/sh -p -c id")
    assert "Permission denied" in two.run(f"{as_user} head -c 1 {PATH}/zero 2>&1 || true")
    one.run("cd /srv/shared; rm sh zero")


def test_what_is_not_exported_is_not_given_away(nfs_lab: NfsLab, setup: Setup) -> None:
    """By a handle that root of a client makes up, unless an option says so."""
    one, two = (node.guest for node in nfs_lab.nodes.values())
    one.run("mkdir -m 700 -p /srv/hers; echo precious >/srv/hers/key; chown -R 1234:1234 /srv/hers")
    text = base64.b64encode(ESCAPE.read_bytes()).decode()
    two.run(f"echo {text} | base64 -d >/tmp/escape.py")
    escape = f"python3 /tmp/escape.py {nfs_lab.nodes['node1'].address} /srv/shared 1234 hers key"
    setup("-e", "nfs_export_options=rw,sync,no_subtree_check,root_squash")
    assert "precious" in two.run(escape)
    changed = [host["changed"] for host in setup().values()]
    assert changed[0] > 0
    assert two.run(f"{escape} || true") == "read: 70\n"  # NFS4ERR_STALE
    assert [host["changed"] for host in setup().values()] == [0, 0]
    one.run("rm -r /srv/hers")


def test_beyond_the_training_network_only_the_hosts_may_mount(nfs_lab: NfsLab, setup: Setup) -> None:
    one = nfs_lab.nodes["node1"].guest
    addresses = [node.address for node in nfs_lab.nodes.values()]
    elsewhere = ("-e", "mnt_training_subnet=203.0.113.0/24")
    clients = [f"{address}(rw,sync,root_squash,subtree_check)" for address in addresses]
    for words in ((), ("-n", "node1")):  # a host that is not in the run stays
        setup(*elsewhere, *words)
        assert one.run(f"tail -n 1 {EXPORTS}").split() == ["/srv/shared", *clients]
    setup("-e", "nfs_clients=192.0.2.7,198.51.100.0/24", "-n", "node1")
    assert one.run(f"tail -n 1 {EXPORTS}").count("(") == 2
    setup()


def test_what_is_mounted_there_stays(nfs_lab: NfsLab, setup: Setup) -> None:
    """One host alone, whose server is not in the run."""
    two = nfs_lab.nodes["node2"].guest
    two.run(f"umount {PATH}; mount -t tmpfs other {PATH}")
    shown = setup("-n", "node2", ok=False)
    assert f"{PATH} has other (tmpfs) on it instead of {SOURCE}" in shown["node2"]["problem"]
