"""`ulimit`: soft limits are raised for a job, and a hard limit that is too low is refused."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from job_host import JobHost

from mnt.errors import InventoryError
from mnt.inventory.loader import load
from mnt.remote.common.refusal import Refused
from mnt.remote.job import limits
from mnt.remote.job.limits import check_limits, of_jobs, raise_limits

SHOW = """
import json, pathlib, resource
kinds = {"nofile": resource.RLIMIT_NOFILE, "core": resource.RLIMIT_CORE}
pathlib.Path("limits").write_text(json.dumps({name: resource.getrlimit(kinds[name]) for name in kinds}))
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int]]:
    """This process's limits, as a table that a test may change."""
    table = {resource.RLIMIT_NOFILE: (1024, 4096), resource.RLIMIT_MEMLOCK: (8192, limits.UNLIMITED)}
    monkeypatch.setattr(resource, "getrlimit", table.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", table.__setitem__)
    monkeypatch.setattr(limits.os, "geteuid", lambda: 1000)
    return table


@pytest.mark.parametrize(
    ("wanted", "raised", "refused"),
    [
        ({"nofile": 2048}, (2048, 4096), None),
        ({"nofile": 4096}, (4096, 4096), None),
        ({"nofile": 512}, (1024, 4096), None),  # it is not lowered
        ({"nofile": 4097}, None, "ulimit: nofile is to be 4097, but the hard limit here is 4096"),
        ({"nofile": -1}, None, "ulimit: nofile is to be unlimited, but the hard limit here is 4096"),
        ({}, (1024, 4096), None),
    ],
)
def test_soft_limits_are_raised_up_to_the_hard_ones(
    fake: dict[int, tuple[int, int]],
    wanted: dict[str, int],
    raised: tuple[int, int] | None,
    refused: str | None,
) -> None:
    told = of_jobs("nofile", wanted)
    if refused is not None:
        with pytest.raises(Refused) as refusal:
            check_limits(wanted)
        assert refusal.value.message == refused
        assert "mnt setup tuning" in (refusal.value.fix or "")
        assert told == 4096
        return
    check_limits(wanted)
    raise_limits(wanted)
    assert fake[resource.RLIMIT_NOFILE] == raised
    assert told == raised[0] if raised else None


def test_unlimited(fake: dict[int, tuple[int, int]]) -> None:
    check_limits({"memlock": -1})
    raise_limits({"memlock": -1})
    assert fake[resource.RLIMIT_MEMLOCK] == (limits.UNLIMITED, limits.UNLIMITED)
    raise_limits({"memlock": 100})  # it is more already
    assert fake[resource.RLIMIT_MEMLOCK] == (limits.UNLIMITED, limits.UNLIMITED)


def test_a_job_gets_them(host: JobHost) -> None:
    host.script(SHOW)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(soft + 1, hard)
    spec = host.spec(ulimit={"nofile": wanted, "core": 0})
    host.start(spec)
    host.ended(spec["job"])
    found = json.loads((host.directory / "limits").read_text())
    assert found["nofile"][0] == max(soft, wanted)
    answer = host.call("stage", spec=host.spec(ulimit={"nofile": 2**40}))
    assert answer["refused"]["message"].startswith(
        f"ulimit: nofile is to be {2**40}, but the hard limit here"
    )


def test_the_key(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "hosts: {a: {ulimit: {nofile: null, stack: 1024}}, b: }\n"
        "defaults: {ulimit: {memlock: unlimited, nofile: 65536}}\n"
    )
    first, second = load(file).hosts
    assert first.ulimit.numbers == {"memlock": -1, "stack": 1024}
    assert second.ulimit.numbers == {"memlock": -1, "nofile": 65536}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{memlock: infinite}", "expected unlimited, a whole number or nothing"),
        ("{nofile: -1}", "expected unlimited"),
        ("{files: 1}", "unknown key 'files' in defaults.ulimit"),
        ("{memlock: 64M}", "defaults.ulimit.memlock"),
        ("unlimited", "expected a mapping"),
    ],
)
def test_what_the_key_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"hosts: [a]\ndefaults:\n  ulimit: {text}\n")
    with pytest.raises(InventoryError) as error:
        load(file)
    assert "c.yaml:3" in str(error.value)
    assert says.split(",")[0] in error.value.message
