"""`--mode` overrides `network.mode` of the inventory, and the reasons say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from fleets import make_fleet
from network_facts import infiniband

from mnt.cli import cli
from mnt.cli.options import Selection
from mnt.facts.rdma import RdmaFacts
from mnt.inventory.model import Network
from mnt.network.decision import decide

IB = {"rdma": RdmaFacts((infiniband("mlx5_0"),))}


@pytest.mark.parametrize(
    ("mode", "mode_found", "reason"),
    [
        ("tcp", "tcp", "--mode tcp"),
        ("rdma", "rdma", "--mode rdma"),
        ("auto", "rdma", "--mode auto: every node has an active RDMA port"),
    ],
)
def test_the_reason(mode: str, mode_found: str, reason: str) -> None:
    network = Network(mode=mode, mode_by_option=True, subnet="10.0.0.0/24")
    decision = decide(make_fleet(everywhere=IB, network=network))
    assert (decision.mode, decision.reason) == (mode_found, reason)
    if mode == "tcp":
        (disabled,) = [v for v in decision.nodes["node1"].variables if v.name == "NCCL_IB_DISABLE"]
        assert disabled.reason == "--mode tcp: sockets only"


@pytest.mark.parametrize("mode", ["tcp", "rdma", "auto", None])
def test_the_inventory_that_a_command_gets(tmp_path: Path, mode: str | None) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("hosts: [a]\nnetwork: {mode: rdma, master_port: 29600}\n")
    selection = Selection(str(file), None, None)
    selection.mode = mode
    network = selection.inventory.network
    assert (network.mode, network.mode_by_option) == (mode or "rdma", mode is not None)
    assert network.master_port == 29600


@pytest.mark.parametrize("command", ["preflight", "net", "launch"])
def test_the_commands_have_it(command: str) -> None:
    assert "--mode [tcp|rdma|auto]" in CliRunner().invoke(cli, [command, "--help"]).output
    assert CliRunner().invoke(cli, [command, "--mode", "ib"]).exit_code == 2
