"""What a node says that was promised GPUs which torch does not see."""

from __future__ import annotations

import pytest

from mnt.remote.job.gpus import Seen, parse, refusal

CPU = '{"gpus": 0, "torch": "2.13.0+cpu", "cpu_build": true}'
WARNING = (
    "/opt/torch/cuda/__init__.py:180: UserWarning: CUDA initialization: the NVIDIA driver is too old\n"
    "  return torch._C._cuda_getDeviceCount() > 0\n"
)


@pytest.mark.parametrize(
    ("output", "warnings", "seen"),
    [
        (CPU, "", Seen(0, "2.13.0+cpu", cpu_build=True)),
        (f"a greeting of sitecustomize\n{CPU}\n", "", Seen(0, "2.13.0+cpu", cpu_build=True)),
        (
            '{"gpus": 0, "torch": "2.13.0", "cpu_build": false}',
            WARNING,
            Seen(0, "2.13.0", False, "CUDA initialization: the NVIDIA driver is too old"),
        ),
        ("", "ModuleNotFoundError: No module named 'torch'", None),
        ("{}", "", None),
        ("[]", "", None),
        ('{"gpus": "2", "torch": "2.13.0", "cpu_build": false}', "", None),
        ("[" * 100_000, "", None),
    ],
)
def test_what_the_interpreter_answers(output: str, warnings: str, seen: Seen | None) -> None:
    assert parse(output, warnings) == seen


@pytest.mark.parametrize(
    ("seen", "devices", "message", "fix"),
    [
        (
            Seen(0, "2.13.0+cpu", cpu_build=True),
            "",
            "torch sees 0 of the 2 GPUs that this node was promised: torch 2.13.0+cpu is a build for CPUs",
            "install a build of torch for GPUs; or set `gpus` of this host in the inventory to 0",
        ),
        (
            Seen(0, "2.13.0", cpu_build=False),
            "",
            "torch sees 0 of the 2 GPUs that this node was promised: CUDA_VISIBLE_DEVICES is ''",
            "correct CUDA_VISIBLE_DEVICES; or set `gpus` of this host in the inventory to 0",
        ),
        (
            Seen(1, "2.13.0", cpu_build=False, says="an old driver"),
            None,
            "torch sees 1 of the 2 GPUs that this node was promised: an old driver",
            "sudo dmesg | grep -i nvrm; or set `gpus` of this host in the inventory to 1",
        ),
    ],
)
def test_the_refusal_says_why_and_the_way_out(
    seen: Seen, devices: str | None, message: str, fix: str
) -> None:
    refused = refusal(2, seen, devices)
    assert (refused.message, refused.fix) == (message, fix)
