"""Storage checks: healthy, and each way to fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import findings, make_fleet, only_finding
from msgspec import structs

from mnt.facts.fleet import FleetFacts, Visibility
from mnt.facts.host import Mounted, MountPoint, PathFacts, Space
from mnt.inventory.model import Mount, RequiredPath
from mnt.preflight.findings import Severity
from mnt.preflight.mounts import problems
from mnt.preflight.trips import hosts_to_test
from mnt.tasks.visible import Seen

ROOT = Mounted("/", "overlay", "overlay", ("rw",))
SAFE = ("nosuid", "nodev")
NFS = ("rw", *SAFE, "relatime", "hard", "vers=4.2", "addr=10.0.0.9")
GOOD = Mounted("/shared", "head:/export/shared", "nfs4", NFS)
WANTED = Mount("/shared", type="nfs4", source="head:/export/shared", options=("rw", "hard"))
GIB = 2**30
ROOMY = Space(size=100 * GIB, free=50 * GIB, inodes=1000, inodes_free=500)
DIR = PathFacts("dir", "/shared", space=ROOMY, write="ok")


def storage(*stack: Mounted, seen: PathFacts = DIR) -> dict[str, Any]:
    return {
        "mounts": {"/shared": MountPoint(stack, stack[-1] if stack else ROOT)},
        "paths": {"/shared": seen},
    }


def unwell(code: str, error: str) -> PathFacts:
    return PathFacts("unreadable", "/shared", error, code)


# --- storage-mount: one host -----------------------------------------------------------------------------

TMPFS = Mounted("/shared", "tmpfs", "tmpfs", ("rw",))
HUNG = PathFacts("hung", None, "no answer in 5 s")
MOUNT = "sudo mount -t nfs4 -o rw,hard,nosuid,nodev head:/export/shared /shared"
AGAIN = f"sudo umount -f -l /shared && {MOUNT}"


@pytest.mark.parametrize(
    ("facts", "message", "fix"),
    [
        (storage(), "/shared is not mounted", MOUNT),
        (
            storage(replace(GOOD, type="nfs")),
            "/shared differs from the inventory: type nfs",
            f"sudo umount /shared && {MOUNT}",
        ),
        (
            storage(replace(GOOD, source="old:/export/shared")),
            "/shared differs from the inventory: server old instead of head",
            f"sudo umount /shared && {MOUNT}",
        ),
        (
            storage(replace(GOOD, source="head:/export/other")),
            "/shared differs from the inventory: export /export/other instead of /export/shared",
            f"sudo umount /shared && {MOUNT}",
        ),
        (
            storage(TMPFS),
            "/shared differs from the inventory: type tmpfs, source tmpfs, without hard",
            f"sudo umount /shared && {MOUNT}",
        ),
        (
            storage(replace(GOOD, options=("rw", "soft"))),
            "/shared differs from the inventory: without hard",
            f"sudo umount /shared && {MOUNT}",
        ),
        (
            storage(replace(GOOD, options=("ro", "hard")), seen=replace(DIR, write="EROFS")),
            "/shared is mounted read-only",
            "sudo mount -o remount,rw /shared",
        ),
        (
            storage(replace(GOOD, options=("ro", "soft"))),
            "/shared differs from the inventory: mounted read-only, without hard",
            f"sudo umount /shared && {MOUNT}",
        ),
        (
            storage(GOOD, seen=replace(DIR, write="EROFS")),
            "/shared is read-only on the server, but mounted rw",
            "on head, set rw for /export/shared in /etc/exports; then: sudo exportfs -ra",
        ),
        (
            storage(GOOD, TMPFS),
            "/shared is hidden: tmpfs from tmpfs is mounted over it",
            "sudo umount /shared",
        ),
        (
            storage(GOOD, seen=HUNG),
            "/shared hangs: its server, head, does not answer",
            "bring head back (test: nc -vz head 2049), and waiting processes continue; "
            f"if it does not come back: {AGAIN}",
        ),
        (
            storage(GOOD, seen=unwell("ESTALE", "Stale file handle")),
            "/shared is stale: its directory no longer exists on head",
            AGAIN,
        ),
        (
            storage(GOOD, seen=unwell("EIO", "Input/output error")),
            "/shared returns I/O errors: its server, head, does not answer, and the soft mount has timed out",
            f"bring head back (test: nc -vz head 2049); then: {AGAIN}",
        ),
        (
            storage(GOOD, seen=unwell("EACCES", "Permission denied")),
            "/shared is mounted but not usable: Permission denied",
            AGAIN,
        ),
        (
            storage(GOOD, seen=replace(DIR, write="EACCES")),
            "the user cannot write to /shared; on 3 of 4 hosts it can",
            "compare the numeric user ids of the hosts: id; ls -ldn /shared",
        ),
    ],
)
def test_storage_that_is_wrong(facts: dict[str, Any], message: str, fix: str) -> None:
    fleet = make_fleet({"node2": facts}, everywhere=storage(GOOD), storage=(WANTED,))
    finding = only_finding(fleet, "storage-mount", "node2")
    assert (finding.message, finding.fix, finding.severity) == (message, fix, Severity.FAIL)
    assert finding.playbook == ("nfs" if facts == storage() else None)


def test_storage_mounted_twice_is_a_warning() -> None:
    fleet = make_fleet({"node2": storage(TMPFS, GOOD)}, everywhere=storage(GOOD), storage=(WANTED,))
    finding = only_finding(fleet, "storage-mount", "node2")
    assert finding.severity is Severity.WARN
    assert finding.found.startswith("nfs4 from head:/export/shared (rw,nosuid,nodev,relatime,hard,")
    assert finding.found.endswith("over tmpfs from tmpfs (rw)")


def test_not_mounted_tells_what_is_there_instead() -> None:
    fleet = make_fleet({"node2": storage()}, everywhere=storage(GOOD), storage=(WANTED,))
    assert (
        only_finding(fleet, "storage-mount", "node2").found
        == "not mounted; the directory is on / (overlay, overlay)"
    )


@pytest.mark.parametrize(
    ("wanted", "top"),
    [
        (WANTED, GOOD),
        (Mount("/shared"), replace(GOOD, type="ext4", source="/dev/sda1")),
        (structs.replace(WANTED, type="nfs"), GOOD),
        (structs.replace(WANTED, source="head:/export/shared/"), GOOD),
        (structs.replace(WANTED, source="10.0.0.9:/export/shared"), GOOD),
        (structs.replace(WANTED, options=("defaults", "_netdev", "nofail", "x-systemd.automount")), GOOD),
        (structs.replace(WANTED, options=("nfsvers=4", "exec", "async")), GOOD),
        (structs.replace(WANTED, options=("ro",)), replace(GOOD, options=("ro", "hard", *SAFE))),
    ],
)
def test_storage_that_is_right(wanted: Mount, top: Mounted) -> None:
    assert findings(make_fleet(everywhere=storage(top), storage=(wanted,))) == []


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("vers=4.1", "vers=4.2"),
        ("vers=3", "vers=4.2"),
        ("exec", "noexec"),
        ("async", "sync"),
        ("tcp", "rdma"),
    ],
)
def test_an_option_that_is_not_in_force(option: str, shown: str) -> None:
    facts = storage(replace(GOOD, options=("rw", shown)))
    fleet = make_fleet(everywhere=facts, storage=(structs.replace(WANTED, options=(option,)),))
    finding = only_finding(fleet, "storage-mount", "node1", "node2", "node3", "node4")
    assert finding.message == f"/shared differs from the inventory: without {option}"


def test_storage_over_an_automounters_trap() -> None:
    trap = replace(GOOD, type="autofs", source="systemd-1")
    assert findings(make_fleet(everywhere=storage(trap, GOOD), storage=(WANTED,))) == []


def test_an_automounters_trap_alone_is_not_the_mount() -> None:
    trap = replace(GOOD, type="autofs", source="systemd-1")
    fleet = make_fleet({"node2": storage(trap)}, everywhere=storage(GOOD), storage=(WANTED,))
    assert only_finding(fleet, "storage-mount", "node2").message == "/shared is not mounted"


# --- storage-mount: hosts that differ --------------------------------------------------------------------

ANY = Mount("/shared")


def test_another_server_on_one_host_without_a_source_in_the_inventory() -> None:
    other = replace(GOOD, source="old:/export/shared", options=("rw", "addr=10.0.0.8"))
    fleet = make_fleet({"node1": storage(other)}, everywhere=storage(GOOD), storage=(ANY,))
    finding = only_finding(fleet, "storage-mount", "node1")
    assert (
        finding.message
        == "the source of /shared is old:/export/shared; on 3 of 4 hosts it is head:/export/shared"
    )
    assert finding.fix == "sudo umount /shared && sudo mount head:/export/shared /shared"


def test_two_hosts_with_two_servers_are_a_tie() -> None:
    other = replace(GOOD, source="old:/export/shared", options=("rw", "addr=10.0.0.8"))
    fleet = make_fleet({"node1": storage(other)}, count=2, everywhere=storage(GOOD), storage=(ANY,))
    finding = only_finding(fleet, "storage-mount", "node1", "node2")
    assert finding.found == "old:/export/shared on node1; head:/export/shared on node2"
    assert finding.fix.startswith("set the source in the inventory: storage: [{path: /shared, source: ")
    assert "old" not in finding.fix


@pytest.mark.parametrize("liar", ["node1", "node2"])
def test_a_host_that_names_a_server_of_its_own_for_the_same_storage(liar: str) -> None:
    """It looks like the storage of node3, by an address: no other host is told to mount it."""
    evil = replace(GOOD, source="evil:/export/shared")
    odd = replace(GOOD, source="old:/export/shared", options=("rw", "addr=10.0.0.8"))
    changes = {liar: storage(evil), "node4": storage(odd)}
    honest = only_finding(
        make_fleet(changes, everywhere=storage(GOOD), storage=(ANY,)), "storage-mount", "node4"
    )
    assert "evil" not in honest.fix
    alone = {"node1": storage(odd), "node2": storage(evil)}
    fleet = make_fleet(alone, count=3, everywhere=storage(GOOD), storage=(ANY,))
    assert "evil" not in only_finding(fleet, "storage-mount", "node1").fix


@pytest.mark.parametrize(
    "other",
    [
        replace(GOOD, source="10.0.0.9:/export/shared"),  # the same server by its address
        replace(GOOD, options=("rw", *SAFE, "addr=10.0.0.8")),  # one of many addresses of one name
    ],
)
def test_one_server_by_two_names_is_no_difference(other: Mounted) -> None:
    assert findings(make_fleet({"node1": storage(other)}, everywhere=storage(GOOD), storage=(ANY,))) == []


def test_local_disks_need_not_be_called_the_same() -> None:
    disk = replace(GOOD, type="ext4", source="/dev/sda1", options=("rw",))
    other = {"node2": storage(replace(disk, source="/dev/nvme0n1"))}
    assert findings(make_fleet(other, everywhere=storage(disk), storage=(ANY,))) == []


def test_a_local_disk_where_the_others_have_a_server() -> None:
    disk = {"node2": storage(replace(GOOD, type="ext4", source="/dev/sda1", options=("rw",)))}
    only_finding(make_fleet(disk, everywhere=storage(GOOD), storage=(ANY,)), "storage-mount", "node2")


def test_read_only_on_one_host_without_options_in_the_inventory() -> None:
    read_only = storage(replace(GOOD, options=("ro", *SAFE)), seen=replace(DIR, write="EROFS"))
    fleet = make_fleet({"node3": read_only}, everywhere=storage(GOOD), storage=(ANY,))
    assert only_finding(fleet, "storage-mount", "node3").message == "/shared is mounted read-only"
    assert findings(make_fleet(everywhere=read_only, storage=(ANY,))) == []


# --- storage-nosuid --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "top", "missing"),
    [
        (("rw", "hard"), replace(GOOD, options=("rw", "hard")), "nosuid,nodev"),
        (("rw", "suid"), replace(GOOD, options=("rw",)), "nodev"),
        (("rw", "dev"), replace(GOOD, options=("rw",)), "nosuid"),
        ((), Mounted("/shared", "//head/shared", "cifs", ("rw", "nosuid")), "nodev"),
    ],
)
def test_root_of_the_server_is_root_here(options: tuple[str, ...], top: Mounted, missing: str) -> None:
    fleet = make_fleet(everywhere=storage(top), storage=(Mount("/shared", options=options),))
    finding = only_finding(fleet, "storage-nosuid", "node1", "node2", "node3", "node4")
    assert finding.severity is Severity.INFO
    assert finding.message == f"/shared is mounted without {missing}: root of its server can be root here"
    assert finding.fix == (
        f"add {missing} to its line in /etc/fstab; then: sudo mount -o remount,{missing} /shared"
    )


@pytest.mark.parametrize(
    ("options", "top"),
    [
        (("rw", "suid", "dev"), replace(GOOD, options=("rw",))),
        ((), Mounted("/shared", "/dev/sda1", "ext4", ("rw",))),
    ],
)
def test_rights_that_are_wanted_or_of_this_host(options: tuple[str, ...], top: Mounted) -> None:
    fleet = make_fleet(everywhere=storage(top), storage=(Mount("/shared", options=options),))
    assert findings(fleet) == []


# --- storage-space ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "message", "severity"),
    [
        (
            replace(DIR, space=Space(100 * GIB, GIB // 2, 0, 0)),
            "/shared is full: 512 MiB of 100 GiB free",
            Severity.FAIL,
        ),
        (
            replace(DIR, space=Space(100 * GIB, 4 * GIB, 0, 0)),
            "/shared is nearly full: 4 GiB of 100 GiB free",
            Severity.WARN,
        ),
        (replace(DIR, space=replace(ROOMY, inodes_free=0)), "/shared has no inode left", Severity.FAIL),
        (
            replace(DIR, space=replace(ROOMY, inodes_free=49)),
            "/shared has few inodes left: 49 of 1000 inodes free",
            Severity.WARN,
        ),
        (
            replace(DIR, write="EDQUOT"),
            "/shared cannot be written to: the user's quota is exhausted",
            Severity.FAIL,
        ),
        (
            replace(DIR, write="ENOSPC"),
            "/shared cannot be written to: no space is left",
            Severity.FAIL,
        ),
    ],
)
def test_storage_without_room(seen: PathFacts, message: str, severity: Severity) -> None:
    fleet = make_fleet({"node2": storage(GOOD, seen=seen)}, everywhere=storage(GOOD), storage=(WANTED,))
    finding = only_finding(fleet, "storage-space", "node2")
    assert (finding.message, finding.severity) == (message, severity)


def test_room_does_not_matter_on_storage_that_is_wrong_or_read_only() -> None:
    full = replace(DIR, space=Space(100 * GIB, 0, 0, 0))
    fleet = make_fleet({"node2": storage(TMPFS, seen=full)}, everywhere=storage(GOOD), storage=(WANTED,))
    only_finding(fleet, "storage-mount", "node2")
    data = storage(replace(GOOD, options=("ro", *SAFE)), seen=replace(full, write=None))
    assert findings(make_fleet(everywhere=data, storage=(structs.replace(WANTED, options=("ro",)),))) == []


# --- storage-visible -------------------------------------------------------------------------------------

SEEN = Seen(delay=0.002, error=None)
NOT_SEEN = Seen(delay=None, error="No such file or directory: /shared/.mnt-visible-1")


def storage_fleet(test: Visibility) -> FleetFacts:
    return replace(make_fleet(everywhere=storage(GOOD), storage=(WANTED,)), visibility={"/shared": test})


def test_a_file_that_all_others_see() -> None:
    seen = dict.fromkeys(("node2", "node3", "node4"), SEEN)
    assert findings(storage_fleet(Visibility("node1", sightings=seen))) == []


@pytest.mark.parametrize(
    ("seen", "hosts", "severity", "message"),
    [
        (
            {"node2": SEEN, "node3": NOT_SEEN, "node4": SEEN},
            ("node3",),
            Severity.FAIL,
            "the files that node1 writes to /shared are not visible: it is other storage",
        ),
        (
            {"node2": NOT_SEEN, "node3": NOT_SEEN, "node4": NOT_SEEN},
            ("node1",),
            Severity.FAIL,
            "no other host sees the files that it writes to /shared",
        ),
        (
            {"node2": NOT_SEEN},
            ("node1", "node2"),  # either may lie
            Severity.FAIL,
            "the files that node1 writes to /shared are not visible on node2: it is other storage",
        ),
        (
            {"node2": SEEN, "node3": Seen(delay=3.21, error=None)},
            ("node3",),
            Severity.WARN,
            "the files that node1 writes to /shared are visible only after 3.2 s",
        ),
    ],
)
def test_a_file_that_is_not_seen(
    seen: dict[str, Seen], hosts: tuple[str, ...], severity: Severity, message: str
) -> None:
    finding = only_finding(storage_fleet(Visibility("node1", sightings=seen)), "storage-visible", *hosts)
    assert (finding.message, finding.severity) == (message, severity)


def test_a_file_that_could_not_be_written_is_no_verdict() -> None:
    test = Visibility("node1", error="/shared: Permission denied")
    finding = only_finding(storage_fleet(test), "storage-visible", "node1")
    assert (finding.found, finding.severity) == ("/shared: Permission denied", Severity.INFO)


def test_who_writes_and_who_looks() -> None:
    changes = {
        "node1": storage(TMPFS),
        "node2": storage(GOOD, seen=replace(DIR, write="EDQUOT")),
        "node4": storage(GOOD, seen=HUNG),
    }
    fleet = make_fleet(changes, count=5, everywhere=storage(GOOD), storage=(WANTED,))
    assert hosts_to_test(WANTED, fleet) == ["node3", "node2", "node5"]
    assert hosts_to_test(structs.replace(WANTED, options=("ro",)), fleet) == []


# --- path ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "seen", "message"),
    [
        ("any", PathFacts("missing", "/m", "No such file or directory"), "/m does not exist"),
        ("dir", PathFacts("file", "/m"), "/m is not a dir"),
        ("file", PathFacts("dir", "/m"), "/m is not a file"),
        (
            "dir",
            PathFacts("unreadable", "/m", "Permission denied"),
            "ubuntu cannot read /m: Permission denied",
        ),
        ("any", PathFacts("hung", None, "no answer in 5 s"), "/m does not answer: no answer in 5 s"),
    ],
)
def test_a_path_that_is_wrong(kind: str, seen: PathFacts, message: str) -> None:
    fleet = make_fleet(
        {"node4": {"paths": {"/m": seen}}},
        everywhere={"paths": {"/m": PathFacts("dir" if kind == "any" else kind, "/m")}},
        paths=(RequiredPath("/m", kind),),
    )
    assert only_finding(fleet, "path", "node4").message == message


def test_a_path_on_storage_that_is_not_mounted_is_the_storages_matter() -> None:
    path = {"/shared/model": PathFacts("missing", "/shared/model", "No such file or directory")}
    odd = storage()
    fleet = make_fleet(
        {"node2": {**odd, "paths": {**odd["paths"], **path}}},
        everywhere={
            **storage(GOOD),
            "paths": {"/shared": DIR, "/shared/model": PathFacts("dir", "/shared/model")},
        },
        storage=(WANTED,),
        paths=(RequiredPath("/shared/model"),),
    )
    only_finding(fleet, "storage-mount", "node2")


# --- local-space -----------------------------------------------------------------------------------------

MIB = 2**20


@pytest.mark.parametrize(
    ("disk", "space", "message", "severity"),
    [
        ("/tmp", Space(GIB, 63 * MIB, 10, 5), "/tmp is full: 63 MiB of 1 GiB free", Severity.FAIL),
        (
            "~",
            Space(GIB, 999 * MIB, 0, 0),
            "the home directory is small: 999 MiB of 1 GiB free",
            "warn",
        ),
        (
            "~",
            Space(9 * GIB, 8 * GIB, 9, 0),
            "the home directory has no inode left",
            "fail",
        ),
    ],
)
def test_a_local_disk_without_room(disk: str, space: Space, message: str, severity: str) -> None:
    seen = PathFacts("dir", "/tmp" if disk == "/tmp" else "/home/me", space=space)
    finding = only_finding(make_fleet({"node2": {"paths": {disk: seen}}}), "local-space", "node2")
    assert (finding.message, finding.severity.value) == (message, Severity(severity).value)


@pytest.mark.parametrize("space", [None, Space(0, 0, 0, 0), Space(9 * GIB, 8 * GIB, 0, 0)])
def test_a_local_disk_with_room_or_unknown(space: Space | None) -> None:
    assert findings(make_fleet({"node2": {"paths": {"/tmp": PathFacts("dir", "/tmp", space=space)}}})) == []


def test_a_home_on_shared_storage_is_not_a_local_disk() -> None:
    full = PathFacts("dir", "/shared/home/me", space=Space(GIB, 0, 0, 0))
    everywhere = storage(GOOD)
    everywhere["paths"] = {**everywhere["paths"], "~": full}
    assert findings(make_fleet(everywhere=everywhere, storage=(WANTED,))) == []


@pytest.mark.parametrize(("writers", "blamed"), [(1, ()), (2, ("node3", "node4")), (3, ("node4",)), (4, ())])
def test_one_host_that_says_that_it_can_write_accuses_no_majority(
    writers: int, blamed: tuple[str, ...]
) -> None:
    fleet = make_fleet(
        {
            f"node{number}": storage(GOOD, seen=replace(DIR, write="ok" if number <= writers else "EROFS"))
            for number in range(1, 5)
        },
        storage=(Mount("/shared"),),
    )
    assert tuple(problems(Mount("/shared"), fleet)) == blamed
