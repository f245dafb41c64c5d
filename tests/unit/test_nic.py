"""The NIC rule, case by case. Each case is named for the situation it stands for."""

from __future__ import annotations

import pytest

from mnt.facts.host import Interface
from mnt.inventory.model import Host, Inventory, Network
from mnt.network.nic import NicChoice, NicProblem, choose


def nic(name: str, *ipv4: str, up: bool = True, altnames: tuple[str, ...] = ()) -> Interface:
    return Interface(name, up=up, carrier=up, mtu=1500, ipv4=ipv4, altnames=altnames, loopback=name == "lo")


LO = nic("lo", "127.0.0.1/8")
DOCKER = nic("docker0", "172.17.0.1/16")


def pick(
    nics: dict[str, list[Interface]],
    *,
    named: dict[str, str] | None = None,
    addresses: dict[str, str] | None = None,
    **network: str,
) -> dict[str, str]:
    """`name address` of each host's NIC, or `! message [candidates]`."""
    hosts = tuple(
        Host(name, address=(addresses or {}).get(name, name), nic=(named or {}).get(name)) for name in nics
    )
    inventory = Inventory("c", "c.yaml", hosts, network=Network(**network))  # type: ignore[arg-type]
    answers = {}
    for host, choice in choose(inventory, hosts, nics).items():
        if isinstance(choice, NicChoice):
            answers[host] = f"{choice.interface.name} {choice.address}"
        else:
            assert isinstance(choice, NicProblem)
            answers[host] = f"! {choice.message} [{', '.join(choice.candidates)}]"
    return answers


def test_each_host_names_its_own() -> None:
    nics = {"a": [LO, nic("eth0", "10.0.0.1/24")], "b": [LO, nic("ens3", "10.0.0.2/24")]}
    assert pick(nics, named={"a": "eth0", "b": "ens3"}) == {"a": "eth0 10.0.0.1", "b": "ens3 10.0.0.2"}


def test_an_alternative_name_leads_to_the_kernels_name() -> None:
    nics = {"a": [nic("ens4", "10.0.0.1/24", altnames=("enp0s4",))]}
    assert pick(nics, named={"a": "enp0s4"}) == {"a": "ens4 10.0.0.1"}


def test_named_but_absent_lists_what_there_is() -> None:
    nics = {"a": [LO, nic("eth0", "10.0.0.1/24")]}
    assert pick(nics, named={"a": "eth9"}) == {"a": "! there is no NIC eth9 [eth0 10.0.0.1/24]"}


def test_named_without_an_address() -> None:
    assert pick({"a": [nic("eth0")]}, named={"a": "eth0"}) == {"a": "! NIC eth0 has no IPv4 address []"}


def test_the_hosts_own_nic_beats_the_subnet_which_beats_the_clusters_nic() -> None:
    nics = {
        "a": [nic("mgmt0", "192.168.0.1/24"), nic("eth0", "10.0.0.1/24"), nic("eth1", "10.0.1.1/24")],
        "b": [nic("mgmt0", "192.168.0.2/24"), nic("eth0", "10.0.0.2/24")],
    }
    got = pick(nics, named={"a": "eth1"}, subnet="10.0.0.0/16", nic="mgmt0")
    assert got == {"a": "eth1 10.0.1.1", "b": "eth0 10.0.0.2"}


def test_a_nic_outside_the_subnet_is_not_taken_even_if_it_is_named() -> None:
    """Its address is the word of its host alone, which firewalls and servers of others would believe."""
    nics = {"a": [nic("eth0", "10.0.0.1/24")], "b": [nic("eth0", "198.51.100.66/24")]}
    assert pick(nics, named={"a": "eth0", "b": "eth0"}, subnet="10.0.0.0/24") == {
        "a": "eth0 10.0.0.1",
        "b": "! NIC eth0 has no address in network.subnet 10.0.0.0/24 [eth0 198.51.100.66/24]",
    }


UNLIKE = "a's eth0 is in {}, and no more than half of the hosts say that of theirs"


@pytest.mark.parametrize(("lie", "network"), [("/1", "0.0.0.0/1"), ("/8", "10.0.0.0/8")])
@pytest.mark.parametrize("named", [{}, {"a": "eth0"}])
def test_a_master_alone_does_not_say_how_large_the_network_is(
    lie: str, network: str, named: dict[str, str]
) -> None:
    nics = {
        "a": [nic("eth0", f"10.0.0.1{lie}")],
        **{name: [nic("mgmt0", f"10.1.0.{at}/24"), nic("eth0", f"10.0.0.{at}/24")] for at, name in MORE},
    }
    found = pick(nics, named=named)
    if not named:
        assert found["a"] == f"! {UNLIKE.format(network)} [eth0 10.0.0.1{lie}]"
        assert found["b"] == "! several NICs reach every worker [mgmt0 10.1.0.2/24, eth0 10.0.0.2/24]"
    elif lie == "/1":
        assert found["a"].startswith("! NIC eth0 is in 0.0.0.0/1: no training network is larger than a /8")
    else:
        assert found["b"] == f"! {UNLIKE.format(network)} []"
    assert not any(found[name].startswith("eth0") for _, name in MORE)


MORE = ((2, "b"), (3, "c"))


def test_what_more_than_half_of_the_hosts_say_counts() -> None:
    nics = {
        "a": [nic("eth0", "10.0.0.1/24")],
        "b": [nic("eth0", "10.0.0.2/16")],
        "c": [nic("ens3", "10.0.0.3/24")],
    }
    assert pick(nics) == {"a": "eth0 10.0.0.1", "b": "eth0 10.0.0.2", "c": "ens3 10.0.0.3"}
    del nics["c"]
    assert pick(nics)["a"] == f"! {UNLIKE.format('10.0.0.0/24')} [eth0 10.0.0.1/24]"
    # A NIC that only the inventory chooses counts too.
    nics = {"a": [nic("br-train", "10.0.0.1/24")], "b": [nic("eth0", "10.0.0.2/24")]}
    assert pick(nics, named={"a": "br-train"}) == {"a": "br-train 10.0.0.1", "b": "eth0 10.0.0.2"}


@pytest.mark.parametrize("subnet", [None, "10.0.0.0/24"])
def test_a_training_network_is_no_half_of_the_internet(subnet: str | None) -> None:
    """Even if all hosts say so."""
    nics = {"a": [nic("eth0", "10.0.0.1/1")], "b": [nic("eth0", "10.0.0.2/1")]}
    network = {} if subnet is None else {"subnet": subnet}
    assert {choice[0] for choice in pick(nics, **network).values()} == {"!"}


def test_the_clusters_nic_where_nothing_else_is_said() -> None:
    nics = {"a": [nic("eth0", "10.0.0.1/24"), nic("bond0", "10.1.0.1/24")]}
    assert pick(nics, nic="bond0") == {"a": "bond0 10.1.0.1"}


def test_two_nics_in_the_subnet_are_listed_not_guessed_between() -> None:
    nics = {"a": [nic("eth0", "10.0.0.1/24"), nic("eth1", "10.0.0.2/24")]}
    assert pick(nics, subnet="10.0.0.0/24") == {
        "a": "! several NICs have an address in 10.0.0.0/24 [eth0 10.0.0.1/24, eth1 10.0.0.2/24]"
    }


def test_no_nic_in_the_subnet_lists_what_there_is() -> None:
    nics = {"a": [LO, nic("eth0", "10.9.0.1/24")]}
    assert pick(nics, subnet="10.0.0.0/24") == {
        "a": "! no NIC has an address in 10.0.0.0/24 [eth0 10.9.0.1/24]"
    }


def test_a_nic_with_several_addresses_gives_the_one_in_the_subnet() -> None:
    nics = {"a": [nic("eth0", "192.168.7.7/24", "10.0.0.1/24")]}
    assert pick(nics, subnet="10.0.0.0/24") == {"a": "eth0 10.0.0.1"}
    assert pick(nics, subnet="10.0.0.0/24", named={"a": "eth0"}) == {"a": "eth0 10.0.0.1"}


def test_nothing_said_one_nic_each_of_another_name() -> None:
    nics = {"a": [LO, nic("eth0", "10.0.0.1/24")], "b": [LO, nic("enp26s0np0", "10.0.0.2/24")]}
    assert pick(nics) == {"a": "eth0 10.0.0.1", "b": "enp26s0np0 10.0.0.2"}


def test_docker0_is_on_every_host_and_leads_nowhere() -> None:
    nics = {"a": [DOCKER, nic("eth0", "10.0.0.1/24")], "b": [DOCKER, nic("eth0", "10.0.0.2/24")]}
    assert pick(nics) == {"a": "eth0 10.0.0.1", "b": "eth0 10.0.0.2"}


def test_the_same_address_on_two_hosts_leads_nowhere_whatever_its_name() -> None:
    usb = nic("bmc_usb0", "169.254.3.1/24")
    nics = {"a": [usb, nic("eth0", "10.0.0.1/24")], "b": [usb, nic("eth0", "10.0.0.2/24")]}
    assert pick(nics) == {"a": "eth0 10.0.0.1", "b": "eth0 10.0.0.2"}


def test_a_nic_that_is_down_is_no_candidate() -> None:
    nics = {
        "a": [nic("eth0", "10.0.0.1/24"), nic("eth1", "10.1.0.1/24", up=False)],
        "b": [nic("eth0", "10.0.0.2/24"), nic("eth1", "10.1.0.2/24")],
    }
    assert pick(nics) == {"a": "eth0 10.0.0.1", "b": "eth0 10.0.0.2"}


def test_two_subnets_that_join_all_hosts_are_listed_and_the_workers_wait_for_the_master() -> None:
    nics = {
        "a": [nic("mgmt0", "192.168.0.1/24"), nic("eth0", "10.0.0.1/24")],
        "b": [nic("mgmt0", "192.168.0.2/24"), nic("ens3", "10.0.0.2/24")],
    }
    assert pick(nics) == {
        "a": "! several NICs reach every worker [mgmt0 192.168.0.1/24, eth0 10.0.0.1/24]",
        "b": "! not decided until the master a has a training NIC []",
    }


def test_naming_the_masters_nic_is_enough_for_the_workers() -> None:
    nics = {
        "a": [nic("mgmt0", "192.168.0.1/24"), nic("eth0", "10.0.0.1/24")],
        "b": [nic("mgmt0", "192.168.0.2/24"), nic("ens3", "10.0.0.2/24")],
    }
    assert pick(nics, named={"a": "eth0"}) == {"a": "eth0 10.0.0.1", "b": "ens3 10.0.0.2"}


def test_a_worker_outside_the_masters_subnet() -> None:
    nics = {"a": [nic("eth0", "10.0.0.1/24")], "b": [nic("eth0", "10.0.5.2/24")]}
    assert pick(nics) == {
        "a": "! no NIC reaches every worker [eth0 10.0.0.1/24]",
        "b": "! not decided until the master a has a training NIC []",
    }


def test_one_host_alone_takes_the_nic_it_is_logged_in_by() -> None:
    nics = {"a": [LO, nic("eth0", "10.0.0.1/24"), nic("mgmt0", "192.168.0.1/24")]}
    assert pick(nics, addresses={"a": "192.168.0.1"}) == {"a": "mgmt0 192.168.0.1"}
    assert pick(nics) == {"a": "eth0 10.0.0.1"}


def test_hosts_without_facts_are_left_out() -> None:
    hosts = (Host("a", "a"), Host("b", "b"))
    inventory = Inventory("c", "c.yaml", hosts, network=Network(subnet="10.0.0.0/24"))
    assert list(choose(inventory, hosts, {"b": [nic("eth0", "10.0.0.2/24")]})) == ["b"]


def test_no_facts_at_all() -> None:
    assert choose(Inventory("c", "c.yaml", ()), (), {}) == {}


@pytest.mark.parametrize("missing", [{}, {"a": [LO]}])
def test_one_host_without_a_nic(missing: dict[str, list[Interface]]) -> None:
    assert pick(missing) == ({"a": "! no NIC that is up has an IPv4 address []"} if missing else {})


def test_more_hosts_without_a_nic_than_python_allows_calls_within_calls() -> None:
    assert len(pick({f"n{number}": [] for number in range(1100)})) == 1100


def test_an_excluded_nic_is_no_candidate_but_may_be_named() -> None:
    nics = [nic("eth0", "10.0.0.1/24"), nic("usb0", "10.0.0.9/24")]
    host = Host("a", "a", exclude=("usb*",))
    inventory = Inventory("c", "c.yaml", (host,), network=Network(subnet="10.0.0.0/24"))
    chosen = choose(inventory, [host], {"a": nics})["a"]
    assert isinstance(chosen, NicChoice)
    assert chosen.interface.name == "eth0"
    named = choose(inventory, [Host("a", "a", nic="usb0", exclude=("usb*",))], {"a": nics})["a"]
    assert isinstance(named, NicChoice)
    assert named.interface.name == "usb0"
