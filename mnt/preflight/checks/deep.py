"""Does a job really run? Only with `--deep`."""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import Needs, check


@check("import-torch", needs=Needs.TRIAL)
def import_torch(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host's interpreter imports torch.

    Metadata can be there while a library that torch loads is not.
    """
    trial = fleet.trial
    if trial is None:
        return
    for host in trial.without_torch:
        yield Problem(
            hosts=(host,),
            message="torch is not installed for the configured interpreter",
            found="no torch among its packages",
            expected="import torch",
            fix="install it, or set `python` of this host to the interpreter that has it",
        )
    if trial.failed is not None and trial.failed.host not in trial.imports:
        yield Problem(
            hosts=(trial.failed.host,),
            message=f"it did not get as far as importing torch: {trial.failed.message}",
            found=trial.failed.message,
            expected="import torch",
            fix="run it there by hand: python -c 'import torch; print(torch.__version__)'",
        )


@check("all-reduce", needs=Needs.TRIAL)
def all_reduce(fleet: FleetFacts) -> Iterator[Problem]:
    """A sum of ones over all ranks of all hosts is right.

    A short real launch, over the chosen NICs, with NCCL where there are GPUs and gloo where there are none:
    4 KiB to 16 MiB with gloo, to 256 MiB with NCCL. Nothing is launched where another check fails already.
    """
    trial = fleet.trial
    if trial is None:
        return
    expected = f"all-reduce on {len(trial.hosts)} hosts, each sum the number of ranks"
    if trial.untried is not None:
        yield Problem(
            hosts=trial.hosts,
            message=f"not tried: {trial.untried}",
            found="no launch",
            expected=expected,
            fix="mend that first",
            severity=Severity.INFO,
        )
    if trial.failed is not None and trial.failed.host in trial.imports:
        yield Problem(
            hosts=(trial.failed.host,),
            message=f"the trial run failed: {trial.failed.message}",
            found=trial.failed.message,
            expected=expected,
            fix="mnt net shows what each node was told; NCCL_DEBUG=INFO in the inventory's env says more",
        )
    for host, what in trial.wrong.items():
        yield Problem(
            hosts=(host,),
            message=f"a sum over all ranks is wrong: {what}",
            found=what,
            expected=expected,
            fix="look for memory errors (gpu-ecc, dmesg) and NIC firmware; leave this host out until then",
        )
