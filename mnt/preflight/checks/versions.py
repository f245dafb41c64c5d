"""Do all hosts run the same software?

A pin (`require` in the inventory) decides; without a pin, the majority of the selected hosts decides.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.facts.system import Exposed
from mnt.inventory.model import Host
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.parity import Subject, by_majority, parity, pinned
from mnt.preflight.registry import Needs, check
from mnt.remote.common.activation import SAYS

# Keys of `require` that are not Python packages.
NOT_PACKAGES = frozenset({"python", "os-release", "kernel", "cuda", "nccl", "driver"})
# Packages that have their own check.
OWN_CHECK = ("torch", "deepspeed", "transformers")
LOOKED_UP = ("accelerate",)  # which a launch may need, and no check compares unless the inventory pins it

_OWN = "an interpreter that only this user and root can exchange"

# The suffix that distinguishes the builds of one torch release; `cuda-version` judges the CUDA version.
_BUILD = re.compile(r"\+(?:cpu|cu\d+|rocm[\d.]+|xpu)$")

_RELEASE = re.compile(r"\A\d+(\.\d+){1,3}")
_OF_TORCH = ("torch", "torchvision", "torchaudio")  # that have such builds


def packages_to_look_up(require: Mapping[str, str]) -> list[str]:
    """The distributions that the probe must look for, by canonical name."""
    pins = (canonicalize_name(key) for key in require)
    return list(dict.fromkeys([*OWN_CHECK, *LOOKED_UP, *(name for name in pins if name not in NOT_PACKAGES)]))


@check("os-release")
def os_release(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host runs the same release of the same distribution.

    `require: {os-release: "==12"}` pins the release, by os-release(5)'s VERSION_ID.
    """
    releases = fleet.reported(lambda facts: facts.os)
    if pinned(fleet, "os-release"):
        values = {name: release.version for name, release in releases.items()}
    else:
        values = {name: f"{release.id} {release.version or ''}".strip() for name, release in releases.items()}
    subject = Subject(
        "the OS",
        pin="os-release",
        fix=lambda host, _: "install the required release on the host, or leave the host out: -x HOST",
        pin_value=lambda value: f"=={value.split()[-1]}",
    )
    yield from parity(fleet, subject, values)


@check("kernel", severity=Severity.WARN)
def kernel(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host runs the same kernel.

    A different kernel may have a different driver or file system client, or the host needs a reboot.
    `require: {kernel: ">=5.12"}` pins the version: the numbers before the first `-`.
    """
    values = fleet.reported(lambda facts: facts.kernel)
    if pinned(fleet, "kernel"):
        values = {name: version.partition("-")[0] for name, version in values.items()}
    subject = Subject(
        "the kernel",
        pin="kernel",
        fix=lambda host, _: "install the same kernel as on the other hosts, and reboot",
        pin_value=lambda value: f"=={value.partition('-')[0]}",
    )
    yield from parity(fleet, subject, values)


@check("ofed-version", severity=Severity.WARN)
def ofed_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host with RDMA devices has the same RDMA software: libibverbs, and NVIDIA's OFED if installed."""
    values = {
        name: f"libibverbs {ofed.libibverbs or 'missing'}, "
        + (f"OFED {ofed.mlx5_core}" if ofed.mlx5_core else "the kernel's own drivers")
        for name, ofed in fleet.reported(lambda facts: facts.ofed).items()
    }
    subject = Subject(
        "the RDMA software",
        fix=lambda host, _: "install the same rdma-core and DOCA-OFED as on the other hosts",
        tie_fix="install the same rdma-core and DOCA-OFED on every host",
    )
    yield from by_majority(subject, values)


@check("code-parity")
def code_parity(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same release of the code, and it is complete.

    The id of a release contains the hash of its content. If nothing was pushed to any host, there is nothing
    to compare.
    """
    releases = fleet.reported(lambda facts: facts.artifacts.release if facts.artifacts else None)
    broken = {name: release.id for name, release in releases.items() if release.id and not release.whole}
    for name, id in broken.items():
        yield Problem(
            hosts=(name,),
            message=f"the release {id} is not complete",
            found=f"`current` points to {id}, but its tree or manifest is missing",
            expected="a release with its tree and its manifest",
            fix="mnt push",
        )
    values = {name: release.id or "none" for name, release in releases.items() if name not in broken}
    subject = Subject("the release", fix=lambda host, _: "mnt push", tie_fix="mnt push")
    for problem in by_majority(subject, values):
        yield replace(problem, message=f"the hosts have different releases: {problem.message}")


@check("python-version", needs=Needs.ANSWER, playbook="system")
def python_version(fleet: FleetFacts) -> Iterator[Problem]:
    """The interpreter of the inventory runs on every host, and is the same Python version.

    If it does not run, the finding lists what was tried and which Python the host has. A different minor
    version is a failure, a different patch release a warning.

    An interpreter is not run if another user of the host could exchange it, or a directory or a link on the
    way there, by the rule of `file-owner`. `workdir_group` in the inventory allows a group this, and
    `python_owner` a user, which is a warning: that user can run code as this one.
    """
    for host, facts in fleet.answers():
        if facts.python is not None and facts.python.refused:
            yield _refused(host, facts.python.refused)
        elif facts.trains_with is None:
            yield _no_interpreter(host, facts)
        elif facts.trains_with.exposed:
            yield _exposed(host, facts.trains_with.exposed)
    versions = fleet.reported(lambda facts: facts.trains_with.version if facts.trains_with else None)
    subject = Subject(
        "Python",
        pin="python",
        fix=lambda host, specifier: (
            f"install Python {_pasted(specifier)}, or set `python` in the inventory to such an interpreter"
        ),
        normalize=_minor,
    )
    yield from parity(fleet, subject, versions)
    if not pinned(fleet, "python") and len({_minor(version) for version in versions.values()}) == 1:
        yield from parity(fleet, subject._replace(normalize=str), versions, severity=Severity.WARN)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _refused(host: Host, why: str) -> Problem:
    configured = pasteable(host.python)
    return Problem(
        hosts=(host.name,),
        message=f"{configured} is not run: {why}, and so run code as you",
        found=why,
        expected=_OWN,
        fix="set `python` in the inventory to an interpreter of this user or of root; or, if that user is "
        "trusted with this account, set `python_owner` to the name",
        playbook=None,
    )


def _exposed(host: Host, exposed: Exposed) -> Problem:
    configured = pasteable(host.python)
    return Problem(
        hosts=(host.name,),
        message=f"who can exchange {configured} can run code as you: {exposed.message}",
        found=exposed.message,
        expected=_OWN,
        fix="use an interpreter of this user or of root, unless they are trusted with this account",
        severity=Severity.WARN,
        playbook=None,
    )


def _no_interpreter(host: Host, facts: HostFacts) -> Problem:
    configured = pasteable(host.python)
    if facts.python is None:
        found = "no Python 3.8 or newer" + (f"; tried {facts.attempts}" if facts.attempts else "")
        fix = "install Python, or set `python` of the host in the inventory to its interpreter"
    else:
        found = f"{configured} does not run" + (f" ({facts.python.problem})" if facts.python.problem else "")
        if (facts.python.problem or "").startswith(SAYS):
            fix = "correct `activate` of the host in the inventory; to try it: mnt shell"
            found = facts.python.problem or ""
            return Problem(
                f"the environment of jobs: {found}", found, "lines that end with 0", fix, hosts=(host.name,)
            )
        existing = f"{shlex.quote(facts.python.executable)} ({shlex.quote(facts.python.version)})"
        fix = f"create {configured}, or set `python` of the host in the inventory, for example to {existing}"
        if host.in_container:
            fix = "see that the image is on the host, and correct `python` of the host in the inventory"
    return Problem(
        hosts=(host.name,),
        message=f"the interpreter of the inventory is not available: {found}",
        found=found,
        expected=f"{configured} (inventory: python)",
        fix=fix,
        # A Python of the system is there: what is missing is the environment.
        playbook="environment" if facts.python and host.python[0].endswith("/bin/python") else "",
    )


@check("torch-version", needs=Needs.PACKAGES, playbook="environment")
def torch_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host trains with the same torch.

    `require: {torch: ..}` in the inventory decides, else the majority of the hosts. The version comes from
    the metadata of the host's interpreter, and nothing is imported. `cuda-version` judges different builds of
    one release (+cu130, +cpu). If no host has torch, this is a warning.
    """
    yield from _same_package(fleet, "torch", lambda version: _BUILD.sub("", version))
    installed = fleet.reported(lambda facts: facts.packages.get("torch"))
    if fleet.facts and not installed and not pinned(fleet, "torch"):
        yield Problem(
            hosts=tuple(fleet.facts),
            message="no host has torch, so no host can train",
            found="not installed",
            expected="torch in the interpreter of the inventory",
            fix="install torch, or set `python` in the inventory to the interpreter that has it",
            severity=Severity.WARN,
        )


@check("cuda-version", needs=Needs.PACKAGES)
def cuda_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host's torch is built for the same CUDA.

    The version is read from torch's own version file. A CPU build counts as `none`. `require: {cuda:
    "==13.*"}` pins the version.
    """
    values = fleet.reported(lambda facts: facts.torch_cuda)
    subject = Subject(
        "the CUDA version of torch",
        pin="cuda",
        fix=lambda host, specifier: _other_build(fleet, host, specifier),
    )
    yield from parity(fleet, subject, values)


def _other_build(fleet: FleetFacts, host: str, specifier: str | None) -> str:
    """The fix for a torch of another CUDA: its own release, as it is built for that one."""
    installed = _BUILD.sub("", fleet.facts[host].packages.get("torch") or "")
    cuda = re.fullmatch(r"==(none|(\d+)\.(\d+))", specifier or "")
    if cuda is None or not _RELEASE.fullmatch(installed):
        return f"reinstall torch for CUDA {_pasted(specifier)} from the package index of the other hosts"
    build = "cpu" if cuda[1] == "none" else f"cu{cuda[2]}{cuda[3]}"
    python = pasteable(fleet.inventory.host(host).python)
    wanted = f"torch=={installed}+{build}"
    return f"{python} -m pip install {wanted}{_index('torch', wanted)}"


@check("nccl-version", needs=Needs.PACKAGES)
def nccl_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host's torch loads the same NCCL.

    The version comes from the installed library, else from the nvidia-nccl-* package. Two such packages are a
    warning, because each overwrites the library of the other. A CPU build of torch has no NCCL.
    """
    subject = Subject(
        "NCCL",
        pin="nccl",
        fix=lambda host, specifier: f"reinstall torch as on the other hosts, with NCCL {_pasted(specifier)}",
    )
    yield from parity(fleet, subject, fleet.reported(_nccl))
    for host, facts in fleet.answers():
        if len(facts.nccl_packages) > 1:
            yield _two_nccls(host, facts)


def _nccl(facts: HostFacts) -> str | None:
    """The NCCL that torch loads; None if there is nothing to judge."""
    if facts.nccl_library:
        return facts.nccl_library
    if facts.nccl_packages:
        return " or ".join(sorted(set(facts.nccl_packages.values())))
    return "built into torch" if facts.torch_cuda not in (None, "none") else None


def _two_nccls(host: Host, facts: HostFacts) -> Problem:
    packages, python = facts.nccl_packages, pasteable(host.python)
    major = (facts.torch_cuda or "").split(".")[0]
    keep = next((name for name in packages if name.endswith(f"-cu{major}")), max(packages))
    others = shlex.join(name for name in packages if name != keep)
    listed = ", ".join(f"{name} {version}" for name, version in packages.items())
    loaded = f"; the library there is {facts.nccl_library}" if facts.nccl_library else ""
    return Problem(
        hosts=(host.name,),
        message="several NCCL packages share one directory: it is unpredictable which one torch loads",
        found=listed + loaded,
        expected=f"only {keep}",
        fix=f"{python} -m pip uninstall -y {others} && "
        f"{python} -m pip install --force-reinstall --no-deps {shlex.quote(f'{keep}=={packages[keep]}')}",
        severity=Severity.WARN,
    )


@check("deepspeed-version", needs=Needs.PACKAGES, playbook="environment")
def deepspeed_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same version of DeepSpeed, or no host has it."""
    yield from _same_package(fleet, "deepspeed")


@check("transformers-version", needs=Needs.PACKAGES, playbook="environment")
def transformers_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the same version of transformers, or no host has it."""
    yield from _same_package(fleet, "transformers")


@check("package-version", needs=Needs.PACKAGES, playbook="environment")
def package_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host has the other packages that the inventory requires: `require: {peft: ">=0.10"}`."""
    for name in packages_to_look_up(fleet.inventory.require):
        if name not in OWN_CHECK and (name not in LOOKED_UP or pinned(fleet, name)):
            yield from _same_package(fleet, name)


@check("driver-version")
def driver_version(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host with GPUs has the same NVIDIA driver; `require: {driver: ">=550"}` pins it."""
    values = fleet.reported(_driver)
    subject = Subject(
        "the NVIDIA driver",
        pin="driver",
        fix=lambda host, specifier: f"install driver {_pasted(specifier)} and reboot",
    )
    yield from parity(fleet, subject, values)


def _driver(facts: HostFacts) -> str | None:
    """The drivers of the GPUs; None if there is no GPU, or one does not report its driver."""
    versions = {gpu.driver_version or "" for gpu in facts.gpus.usable} if facts.gpus else {""}
    return None if "" in versions else " and ".join(sorted(versions)) or None


def _same_package(fleet: FleetFacts, name: str, normalize: Callable[[str], str] = str) -> Iterator[Problem]:
    def fix(host: str, specifier: str | None) -> str:
        python = pasteable(fleet.inventory.host(host).python)
        if specifier is None:
            return f"{python} -m pip uninstall {name}; or install it on the other hosts too"
        return f"{python} -m pip install {shlex.quote(name + specifier)}{_index(name, specifier)}"

    values = {host.name: facts.packages.get(name) for host, facts in fleet.answers()}
    return parity(fleet, Subject(name, fix, pin=name, normalize=normalize), values)


def _index(name: str, specifier: str) -> str:
    """The option for pip that finds a build of torch which PyPI does not have; empty: any index may."""
    build = _BUILD.search(specifier)
    if name not in _OF_TORCH or build is None:
        return ""
    return f" --extra-index-url https://download.pytorch.org/whl/{build[0][1:]}"


def _pasted(specifier: str | None) -> str:
    """A specifier, of the inventory or of other hosts; if it is none, quoted for a shell."""
    known = re.fullmatch(r"[\w.+*!=<>~, ]*", specifier or "")
    return (specifier or "") if known else shlex.quote(specifier or "")


def pasteable(python: Sequence[str]) -> str:
    """The interpreter, quoted for a shell; a leading `~/` stays unquoted so that the shell expands it."""
    home = "~/" if python[0].startswith("~/") else ""
    return home + shlex.join([python[0][len(home) :], *python[1:]])
