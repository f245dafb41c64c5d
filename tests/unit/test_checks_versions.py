"""Parity: by the majority, by pins, and where neither decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import PYTHON, findings, make_fleet, only_finding, python, texts

from mnt.facts.host import Interpreter, OsRelease
from mnt.facts.system import Artifacts, Exposed, GpuRow, Gpus, Ofed, Release
from mnt.preflight.checks.versions import LOOKED_UP, OWN_CHECK, packages_to_look_up
from mnt.preflight.findings import Severity
from mnt.preflight.parity import satisfies
from mnt.remote.common.forms import EXPOSED

CUDA = {"packages": {"torch": "2.13.0+cu130", "nvidia-nccl-cu13": "2.28.9"}, "torch_cuda": "13.0"}

INDEX = "--extra-index-url https://download.pytorch.org/whl"


def test_a_healthy_fleet_has_no_findings() -> None:
    assert findings(make_fleet(everywhere=CUDA)) == []
    assert findings(make_fleet()) == []
    assert findings(make_fleet(count=1)) == []


# --- by the majority -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "odd", "found", "expected"),
    [
        ("os-release", {"os": OsRelease("ubuntu", "24.04")}, "ubuntu 24.04", "debian 12"),
        ("os-release", {"os": OsRelease("debian", "13")}, "debian 13", "debian 12"),
        ("python-version", {"python": python("3.12.1")}, "3.12.1", "3.11.2"),
        ("torch-version", {"packages": {"torch": "2.12.0", "transformers": "5.1.0"}}, "2.12.0", "2.13.0+cpu"),
        ("torch-version", {"packages": {"transformers": "5.1.0"}}, "not installed", "2.13.0+cpu"),
        ("cuda-version", {"torch_cuda": "13.0"}, "13.0", "none"),
        ("transformers-version", {"packages": {"torch": "2.13.0+cpu"}}, "not installed", "5.1.0"),
    ],
)
def test_the_odd_host_is_named(check: str, odd: dict[str, Any], found: str, expected: str) -> None:
    everywhere = {"nccl_library": "2.28.9"} if check == "cuda-version" else {}
    finding = only_finding(make_fleet({"node3": odd}, everywhere=everywhere), check, "node3")
    assert finding.severity is Severity.FAIL
    assert finding.found == found
    assert finding.expected == f"{expected}, as on node[1-2,4]"
    assert "3 of 4 hosts" in finding.message


def test_several_odd_hosts_with_the_same_version_are_one_finding() -> None:
    odd = {"packages": {"torch": "2.12.0", "transformers": "5.1.0"}}
    only_finding(make_fleet({"node2": odd, "node5": odd}, count=5), "torch-version", "node2", "node5")


def test_two_odd_hosts_with_different_versions_are_two_findings() -> None:
    changes = {
        name: {"packages": {"torch": version, "transformers": "5.1.0"}}
        for name, version in (("node1", "2.11.0"), ("node4", "2.12.0"))
    }
    assert texts(findings(make_fleet(changes))) == ["torch-version node1 fail", "torch-version node4 fail"]


def test_the_fix_is_a_command_for_the_hosts_own_interpreter() -> None:
    fleet = make_fleet({"node3": {"packages": {"torch": "2.12.0", "transformers": "5.1.0"}}})
    fix = only_finding(fleet, "torch-version", "node3").fix
    assert fix == f"{PYTHON} -m pip install torch==2.13.0+cpu {INDEX}/cpu"


def test_only_a_build_that_pypi_lacks_needs_another_index() -> None:
    for name, usual, index in (
        ("torch", "2.13.0+cu130", f" {INDEX}/cu130"),
        ("torch", "2.13.0+rocm6.4", f" {INDEX}/rocm6.4"),
        ("torch", "2.13.0", ""),
        ("torch", "2.13.0+git1234", ""),
        ("deepspeed", "0.19.8+cpu", ""),
    ):
        packages = {"torch": "2.13.0", "transformers": "5.1.0", name: usual}
        odd = {"packages": {**packages, name: "2.12.0"}}
        fix = only_finding(
            make_fleet({"node3": odd}, everywhere={"packages": packages}), f"{name}-version", "node3"
        ).fix
        assert fix == f"{PYTHON} -m pip install {name}=={usual}{index}"


@pytest.mark.parametrize(
    ("cuda", "torch", "fix"),
    [
        ("13.0", "2.13.0+cpu", f"{PYTHON} -m pip install torch==2.13.0+cu130 {INDEX}/cu130"),
        ("none", "2.13.0", f"{PYTHON} -m pip install torch==2.13.0+cpu {INDEX}/cpu"),
        (
            "13.0",
            "2.13.0; rm -rf ~",
            "reinstall torch for CUDA ==13.0 from the package index of the other hosts",
        ),
    ],
)
def test_a_torch_for_another_cuda_keeps_its_release(cuda: str, torch: str, fix: str) -> None:
    usual = {"torch_cuda": cuda, "nccl_library": "2.28.9"}
    odd = {"torch_cuda": "12.6", "packages": {"torch": torch, "transformers": "5.1.0"}}
    found = findings(make_fleet({"node3": odd}, everywhere=usual))
    assert [each.fix for each in found if each.check == "cuda-version"] == [fix]


def test_hosts_with_the_same_other_release_are_one_finding() -> None:
    odd = {"os": OsRelease("ubuntu", "24.04")}
    fix = only_finding(make_fleet({"node2": odd, "node5": odd}, count=5), "os-release", "node2", "node5").fix
    assert fix.endswith("-x HOST")


def test_a_tie_names_both_camps() -> None:
    odd = {"packages": {"torch": "2.12.0", "transformers": "5.1.0"}}
    finding = only_finding(
        make_fleet({"node3": odd, "node4": odd}), "torch-version", "node1", "node2", "node3", "node4"
    )
    assert finding.message.startswith("there is no majority")
    assert finding.found == "2.13.0+cpu on node[1-2]; 2.12.0 on node[3-4]"
    assert finding.fix.endswith('require: {torch: "==2.13.0+cpu"}')


def test_of_three_camps_the_two_largest_may_tie() -> None:
    os = {name: {"os": OsRelease("ubuntu", v)} for name, v in (("node3", "22.04"), ("node4", "22.04"))}
    finding = only_finding(
        make_fleet({**os, "node5": {"os": OsRelease("ubuntu", "24.04")}}, count=5),
        "os-release",
        *(f"node{n}" for n in range(1, 6)),
    )
    assert finding.found == "debian 12 on node[1-2]; ubuntu 22.04 on node[3-4]; ubuntu 24.04 on node5"
    assert finding.fix.endswith('require: {os-release: "==12"}')


def test_deepspeed_nowhere_is_well_and_missing_on_one_is_not() -> None:
    packages = {"torch": "2.13.0+cpu", "transformers": "5.1.0"}
    fleet = make_fleet(
        {"node2": {"packages": packages}}, everywhere={"packages": {**packages, "deepspeed": "0.19.8"}}
    )
    finding = only_finding(fleet, "deepspeed-version", "node2")
    assert finding.fix == f"{PYTHON} -m pip install deepspeed==0.19.8"


def test_a_package_that_only_one_host_has() -> None:
    packages = {"torch": "2.13.0+cpu", "transformers": "5.1.0", "deepspeed": "0.19.8"}
    finding = only_finding(make_fleet({"node2": {"packages": packages}}), "deepspeed-version", "node2")
    assert finding.expected == "not installed, as on node[1,3-4]"


def test_builds_of_one_release_are_told_apart_by_cuda_version_only() -> None:
    packages = {"torch": "2.13.0", "transformers": "5.1.0"}  # as PyPI's metadata has it
    assert findings(make_fleet({"node1": {"packages": packages}})) == []


def test_a_local_version_that_names_no_build_counts() -> None:
    packages = {"torch": "2.13.0+git1234", "transformers": "5.1.0"}
    only_finding(make_fleet({"node1": {"packages": packages}}), "torch-version", "node1")


def test_torch_nowhere_is_a_warning() -> None:
    fleet = make_fleet(everywhere={"packages": {}, "torch_cuda": None}, count=2)
    finding = only_finding(fleet, "torch-version", "node1", "node2")
    assert finding.severity is Severity.WARN


def test_a_broken_upgrade_is_an_odd_version() -> None:
    packages = {"torch": "2.12.0 and 2.13.0", "transformers": "5.1.0"}
    only_finding(make_fleet({"node1": {"packages": packages}}), "torch-version", "node1")


# --- Python ----------------------------------------------------------------------------------------------


def test_another_patch_release_of_python_is_a_warning() -> None:
    finding = only_finding(make_fleet({"node2": {"python": python("3.11.9")}}), "python-version", "node2")
    assert finding.severity is Severity.WARN


def test_an_interpreter_that_is_missing_says_what_there_is() -> None:
    fallback = python("3.11.2")
    fallback = type(fallback)(
        ("python3",), False, "3.11.2", "/usr/bin/python3", problem=f"not found: {PYTHON}"
    )
    # Its packages are another interpreter's: nobody may be blamed for them.
    change = {"python": fallback, "packages": {}, "torch_cuda": None}
    finding = only_finding(make_fleet({"node2": change}), "python-version", "node2")
    assert f"not found: {PYTHON}" in finding.message
    assert finding.expected == f"{PYTHON} (inventory: python)"
    assert "for example to /usr/bin/python3 (3.11.2)" in finding.fix


def test_an_interpreter_that_another_user_could_exchange() -> None:
    why = f"{EXPOSED}: /shared/env belongs to eve (uid 1001)"
    fallback = Interpreter(("python3",), False, "3.11.2", "/usr/bin/python3", problem=why)
    change = {"python": fallback, "packages": {}, "torch_cuda": None}
    finding = only_finding(make_fleet({"node2": change}), "python-version", "node2")
    assert (finding.severity, finding.playbook) == (Severity.FAIL, None)
    assert finding.message == f"{PYTHON} is not run: {why}, and so run code as you"
    assert "python_owner" in finding.fix


def test_an_interpreter_of_a_user_whom_the_inventory_names() -> None:
    exposed = Exposed("/shared/env belongs to eve (uid 1001), not to me (uid 1000) or root", "rm")
    change = {"python": replace(python(), exposed=exposed)}
    finding = only_finding(make_fleet({"node2": change}), "python-version", "node2")
    assert (finding.severity, finding.playbook) == (Severity.WARN, None)
    assert finding.message == f"who can exchange {PYTHON} can run code as you: {exposed.message}"


def test_no_python_at_all_names_what_was_tried() -> None:
    change = {
        "python": None,
        "attempts": f"{PYTHON} (not found), python3 (too old)",
        "packages": {},
        "interfaces": (),
    }
    finding = only_finding(make_fleet({"node2": change}), "python-version", "node2")
    assert f"tried {PYTHON} (not found), python3 (too old)" in finding.found


# --- NCCL ------------------------------------------------------------------------------------------------


def nccl(library: str | None = None, cuda: str | None = "13.0", **packages: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    return {
        "packages": {"torch": "2.13.0", "transformers": "5.1.0", **named},
        "torch_cuda": cuda,
        "nccl_library": library,
    }


@pytest.mark.parametrize(
    ("usual", "odd", "found"),
    [
        (nccl(nvidia_nccl_cu13="2.28.9"), nccl(nvidia_nccl_cu13="2.27.5"), "2.27.5"),
        (nccl("2.28.9", nvidia_nccl_cu13="2.28.9"), nccl("2.21.5", nvidia_nccl_cu13="2.28.9"), "2.21.5"),
        (nccl(nvidia_nccl_cu13="2.28.9"), nccl(), "built into torch"),
    ],
)
def test_another_nccl(usual: dict[str, Any], odd: dict[str, Any], found: str) -> None:
    assert only_finding(make_fleet({"node4": odd}, everywhere=usual), "nccl-version", "node4").found == found


def test_two_nccl_packages_side_by_side() -> None:
    both = nccl("2.27.5", nvidia_nccl_cu12="2.27.5", nvidia_nccl_cu13="2.27.5")
    fleet = make_fleet({"node4": both}, everywhere=nccl("2.27.5", nvidia_nccl_cu13="2.27.5"))
    finding = only_finding(fleet, "nccl-version", "node4")
    assert finding.severity is Severity.WARN
    assert finding.found == "nvidia-nccl-cu12 2.27.5, nvidia-nccl-cu13 2.27.5; the library there is 2.27.5"
    assert f"{PYTHON} -m pip uninstall -y nvidia-nccl-cu12 &&" in finding.fix
    assert finding.fix.endswith("nvidia-nccl-cu13==2.27.5")


def test_a_host_without_nccl_among_cpu_builds_is_well() -> None:
    assert findings(make_fleet({"node1": nccl("2.28.9", cuda="none")})) == []


# --- pins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("require", "check"),
    [
        ({"torch": "==2.12.*"}, "torch-version"),
        ({"Torch": "<2.13"}, "torch-version"),
        ({"cuda": "==13.*"}, "cuda-version"),
        ({"python": ">=3.12"}, "python-version"),
        ({"os-release": ">=13"}, "os-release"),
        ({"transformers": ">=6"}, "transformers-version"),
        ({"deepspeed": ">=0.19"}, "deepspeed-version"),
        ({"peft": ">=0.10"}, "package-version"),
    ],
)
def test_a_pin_wins_over_hosts_that_agree(require: dict[str, str], check: str) -> None:
    finding = only_finding(make_fleet(require=require), check, "node1", "node2", "node3", "node4")
    (specifier,) = require.values()
    assert finding.expected == f"{specifier} (inventory: require)"


def test_a_pin_names_the_hosts_that_miss_it_whatever_the_majority() -> None:
    good = {"packages": {"torch": "2.12.1", "transformers": "5.1.0"}}
    fleet = make_fleet({"node2": good}, require={"torch": "==2.12.*"})
    assert only_finding(fleet, "torch-version", "node1", "node3", "node4").found == "2.13.0+cpu"


def test_hosts_that_meet_a_pin_may_differ() -> None:
    other = {"packages": {"torch": "2.12.1", "transformers": "5.1.0"}, "python": python("3.11.9")}
    require = {"torch": ">=2.12", "python": ">=3.11"}
    assert findings(make_fleet({"node2": other}, require=require)) == []


def test_any_package_can_be_pinned() -> None:
    packages = {"torch": "2.13.0", "transformers": "5.1.0"}
    fleet = make_fleet(
        {"node3": {"packages": {**packages, "peft": "0.9.0"}}},
        everywhere={"packages": {**packages, "peft": "0.11.0"}},
        require={"PEFT": ">=0.10"},
    )
    finding = only_finding(fleet, "package-version", "node3")
    assert finding.message == "peft is 0.9.0, but the inventory requires >=0.10"
    assert finding.fix == f"{PYTHON} -m pip install 'peft>=0.10'"


@pytest.mark.parametrize(
    ("version", "specifier", "answer"),
    [
        ("2.13.0+cu130", "==2.13.0", True),
        ("2.13.0+cu130", "==2.13.*", True),
        ("2.13.0+cu130", "==2.13.0+cpu", False),
        ("2.14.0a0+git1234", ">=2.13", True),
        ("2.12.0 and 2.13.0", ">=2", False),
        ("built into torch", ">=2.21", False),
    ],
)
def test_specifiers(version: str, specifier: str, answer: bool) -> None:
    assert satisfies(version, specifier) is answer


def test_what_the_probe_has_to_look_up() -> None:
    require = {"Torch": ">=2", "driver": ">=550", "python": ">=3.10", "Flash_Attn": ">=2"}
    assert packages_to_look_up(require) == [*OWN_CHECK, *LOOKED_UP, "flash-attn"]


# --- drivers ---------------------------------------------------------------------------------------------


def gpus(*drivers: str) -> dict[str, Any]:
    return {
        "gpus": Gpus(
            "/usr/bin/nvidia-smi",
            tuple(GpuRow(str(i), driver_version=driver) for i, driver in enumerate(drivers)),
        )
    }


def test_another_driver() -> None:
    fleet = make_fleet(
        {"node2": gpus("570.86.15", "570.86.15")},
        everywhere=gpus("580.159.04", "580.159.04"),
        host={"gpus": 2},
    )
    assert only_finding(fleet, "driver-version", "node2").found == "570.86.15"


def test_hosts_without_gpus_have_no_driver_to_compare() -> None:
    fleet = make_fleet(
        {"node1": {**gpus("580.159.04")}, "node2": {"gpus": Gpus()}}, require={"driver": ">=550"}
    )
    assert texts(findings(fleet)) == ["gpu-count node1 warn"]


# --- kernel, RDMA software, code -------------------------------------------------------------------------


def test_another_kernel_is_a_warning() -> None:
    finding = only_finding(make_fleet({"node2": {"kernel": "6.1.0-21-amd64"}}), "kernel", "node2")
    assert (finding.severity, finding.found) == (Severity.WARN, "6.1.0-21-amd64")


def test_a_pinned_kernel() -> None:
    fleet = make_fleet({"node2": {"kernel": "5.4.0-200-generic"}}, require={"kernel": ">=5.12"})
    assert only_finding(fleet, "kernel", "node2").found == "5.4.0"


def test_other_rdma_software_is_a_warning() -> None:
    usual = {"ofed": Ofed("1.14.50.0")}
    fleet = make_fleet(
        {"node2": {"ofed": Ofed("1.14.50.0", "24.10-0.7.0")}, "node3": {"ofed": None}}, everywhere=usual
    )
    finding = only_finding(fleet, "ofed-version", "node2")
    assert (finding.severity, finding.found) == (Severity.WARN, "libibverbs 1.14.50.0, OFED 24.10-0.7.0")


def release(id: str | None, whole: bool = True) -> dict[str, Any]:
    return {"artifacts": Artifacts(Release(id, whole))}


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (
            release("20260101-110000-00c0ffee"),
            "the hosts have different releases: the release is 20260101-110000-00c0ffee; "
            "on 3 of 4 hosts it is 20260101-120000-0badcafe",
        ),
        (
            release(None),
            "the hosts have different releases: the release is none; "
            "on 3 of 4 hosts it is 20260101-120000-0badcafe",
        ),
        (
            release("20260101-120000-0badcafe", whole=False),
            "the release 20260101-120000-0badcafe is not complete",
        ),
    ],
)
def test_other_code(odd: dict[str, Any], message: str) -> None:
    finding = only_finding(make_fleet({"node2": odd}), "code-parity", "node2")
    assert (finding.severity, finding.message, finding.fix) == (Severity.FAIL, message, "mnt push")


def test_no_code_anywhere_is_well() -> None:
    assert findings(make_fleet(everywhere=release(None))) == []


@pytest.mark.parametrize(
    ("torch", "bound"),
    [
        ("2.13.0+cpu", True),
        ("2.5.0", True),
        ("10.0", True),
        ("2.5.0.dev20240901", True),
        ("2.4.1", False),
        ("1.13", False),
        ("nightly", False),
    ],
)
def test_the_address_of_the_store(torch: str, bound: bool) -> None:
    fleet = make_fleet(everywhere={"packages": {"torch": torch}})
    found = [finding for finding in findings(fleet) if finding.check == "store-address"]
    assert [finding.found.partition(",")[0] for finding in found] == ([] if bound else [f"torch {torch}"])


@pytest.mark.parametrize(("word", "bound"), [("-I", False), ("-sE", False), ("-u", True), ("--nv", True)])
def test_the_address_of_the_store_without_pythonpath(word: str, bound: bool) -> None:
    python = replace(make_fleet(count=1).facts["node1"].python, argv=("python3", word))
    fleet = make_fleet(everywhere={"packages": {"torch": "2.13.0"}, "python": python})
    assert bound != any(finding.check == "store-address" for finding in findings(fleet))
