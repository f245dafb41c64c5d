"""The probe's document, as it comes and as it should not come."""

from __future__ import annotations

from typing import Any

import pytest

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, Interface
from mnt.inventory.model import Host, Inventory


def interface(**changes: Any) -> dict[str, Any]:
    return {"name": "eth0", "up": True, "carrier": True, "mtu": 1500, "ipv4": ["10.0.0.1/24"], **changes}


def test_lists_become_typed_and_frozen() -> None:
    facts = HostFacts.parse("node1", {"hostname": "a", "interfaces": [interface()], "from_the_future": 1})
    assert facts.interfaces == (Interface("eth0", True, True, 1500, ("10.0.0.1/24",)),)


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({}, "answer is not valid: Object missing required field `hostname`"),
        (
            {"hostname": "a", "gpus": {"processes": [{"pid": "1"}]}},
            r"gpus.processes\[0\] is not valid: Object missing required field `gpu_uuid`",
        ),
        (
            {"hostname": "a", "gpus": {"found": [{"name": "x", "memory.used": "9999 MiB"}]}},
            r"gpus.found\[0\] is not valid: Object missing required field `index`",
        ),
        (
            {"hostname": "a", "gpus": {"found": [{"index": "0; reboot"}]}},
            r"gpus.found\[0\].index is not valid: Expected `str` matching regex",
        ),
        (
            {"hostname": "a", "gpus": {"rows": [{"remapped_rows.pending": "Yes"}]}},
            r"gpus.rows\[0\] is not valid: Object missing required field `gpu_uuid`",
        ),
        ({"hostname": 7}, "hostname"),
        ({"hostname": "a", "interfaces": "none"}, "interfaces"),
        ({"hostname": "a", "interfaces": [interface(mtu="big")]}, r"interfaces\[0\]\.mtu"),
        ({"hostname": "a", "python": {"version": "3.11"}}, "python"),
        ({"hostname": "a", "packages": {"torch": None}}, "packages.torch"),
    ],
)
def test_nonsense_names_the_host_and_the_place(document: dict[str, Any], place: str) -> None:
    with pytest.raises(HostError, match=rf"^node1: answer: the probe's {place}") as caught:
        HostFacts.parse("node1", document)
    assert caught.value.phase == "answer"
    assert caught.value.fix


def test_the_home_directory() -> None:
    login = {"uid": 1000, "user": "ubuntu", "home": "/home/ubuntu", "shell": "/bin/dash"}
    assert HostFacts.parse("node1", {"hostname": "a", "login": login}).home == "/home/ubuntu"
    assert HostFacts("a").home == "~"


def test_interfaces_of_hosts_that_told_them() -> None:
    hosts = (Host("b", "b"), Host("a", "a"), Host("c", "c"))
    facts = {"a": HostFacts("a"), "b": HostFacts("b", interfaces=(Interface("lo", True, None, 65536),))}
    fleet = FleetFacts(Inventory("c", "c.yaml", hosts), hosts, facts)
    assert list(fleet.interfaces()) == ["b"]
    assert [host.name for host, _ in fleet.answers()] == ["b", "a"]
