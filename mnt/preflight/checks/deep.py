"""Does a job really run? These checks need `--deep`."""

from __future__ import annotations

from collections.abc import Iterator

from mnt.errors import counted
from mnt.facts.fleet import FleetFacts
from mnt.facts.trial import Trial, TrialCulprit
from mnt.inventory.hostlist import fold
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import Needs, check


@check("import-torch", needs=Needs.TRIAL)
def import_torch(fleet: FleetFacts) -> Iterator[Problem]:
    """Every host's interpreter can import torch.

    The metadata of a package can be present although a library that torch loads is missing.
    """
    trial = fleet.trial
    if trial is None:
        return
    if trial.without_torch:
        yield Problem(
            hosts=trial.without_torch,
            message="torch is not installed for the configured interpreter",
            found="no torch among its packages",
            expected="import torch",
            fix="install torch, or set `python` of this host to the interpreter that has it",
        )
    if trial.culprit is not None and not _imported(trial, trial.culprit):
        yield Problem(
            hosts=trial.culprit.hosts,
            message=f"the trial run failed before torch was imported: {trial.culprit.message}",
            found=trial.culprit.message,
            expected="import torch",
            fix="on the host, run: python -c 'import torch; print(torch.__version__)'",
        )


def _imported(trial: Trial, culprit: TrialCulprit) -> bool:
    return all(host in trial.import_seconds for host in culprit.hosts)


@check("all-reduce", needs=Needs.TRIAL)
def all_reduce(fleet: FleetFacts) -> Iterator[Problem]:
    """A sum of ones over all ranks of all hosts is correct.

    A short job is launched over the chosen NICs, with NCCL if the hosts have GPUs, else with gloo. Sizes are
    4 KiB to 16 MiB with gloo, and to 256 MiB with NCCL. Nothing is launched if another check fails, except
    `ssh-mesh` and `storage-visible`: the job does not use what they check.
    """
    trial = fleet.trial
    if trial is None:
        return
    expected = (
        f"all-reduce on {counted(len(trial.hosts), 'host')}, with every sum equal to the number of ranks"
    )
    if trial.obstacle is not None:
        yield Problem(
            hosts=trial.hosts,
            message=f"not tried: {trial.obstacle}",
            found="no launch",
            expected=expected,
            fix="fix that first",
            severity=Severity.INFO,
        )
    if trial.culprit is not None and _imported(trial, trial.culprit):
        yield Problem(
            hosts=trial.culprit.hosts,
            message=f"the trial run failed: {trial.culprit.message}",
            found=trial.culprit.message,
            expected=expected,
            fix="compare the nodes' variables: mnt net; for details set NCCL_DEBUG: INFO in `env`",
        )
    if trial.wrong_sums:
        first = next(iter(trial.wrong_sums.values()))
        yield Problem(
            hosts=trial.hosts,  # any of them may have added a wrong number
            message=f"a sum over all ranks is wrong: {first}, as measured by {fold(list(trial.wrong_sums))}",
            found=first,
            expected=expected,
            fix="find the host that adds a wrong number, by fewer hosts (-n, -x); check its memory "
            "(gpu-ecc, dmesg) and its NIC firmware",
        )
