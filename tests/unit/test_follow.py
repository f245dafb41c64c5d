"""A node is followed through lost connections: no byte of its output comes twice, and none is lost."""

from __future__ import annotations

from typing import IO, Any

import pytest
from job_host import JobHost
from lying_hosts import WatchedFleet
from test_jobctl import data, logs
from test_watch import HOSTS, JOB, Frames, plain

from mnt.errors import HostError
from mnt.fleet import HostConnection
from mnt.launch import follow as following
from mnt.launch.follow import follow

LOST = HostError("node1", "channel", "connection lost")


def followed(calls: list[list[Any]], **options: Any) -> tuple[Any, list[dict[str, Any]], list[str]]:
    """What came of it, if the host sends these frames, or raises one of these errors, one list for a call.

    Returns the node's state or the error, the arguments of each call, and the text of all frames.
    """
    asked: list[dict[str, Any]] = []
    text: list[str] = []

    def speak(host: str, name: str, args: dict[str, Any], stdin: IO[bytes]) -> Frames:
        asked.append({key: args[key] for key in ("offsets", "tail", "rank")})
        for said in calls[len(asked) - 1]:
            if isinstance(said, HostError):
                raise said
            yield said

    with WatchedFleet(HOSTS[:1], {"node1": speak}) as fleet:
        connection = fleet.connection("node1")
        try:
            entry = follow(connection, "/x", JOB, lambda frame: text.append(frame.get("data", "")), **options)
        except HostError as error:
            return str(error), asked, text
    return entry["state"], asked, text


def sent(stream: str, data: str, offset: int) -> tuple[str, Any]:
    return "frame", {"data": data, "offset": offset, "stream": stream}


END = ("answer", {"node": plain("node1", "finished")})


def no_retry(connection: HostConnection, error: HostError) -> None:
    raise error


def test_it_goes_on_where_it_ended() -> None:
    calls = [
        [LOST],
        [
            ("frame", {"state": plain("node1", "running")}),
            sent("stdout", "a", 1),
            sent("stdout", "b", 2),
            LOST,
        ],
        [sent("stderr", "x", 7), LOST],
        [sent("stdout", "c", 3), END],
    ]
    errors: list[HostError] = []
    end, asked, text = followed(calls, retry=lambda connection, error: errors.append(error), rank=3, tail=5)
    assert (end, "".join(text), errors) == ("finished", "abxc", [LOST] * 3)
    assert [each["offsets"] for each in asked] == [{}, {}, {"stdout": 2}, {"stdout": 2, "stderr": 7}]
    assert {(each["rank"], each["tail"]) for each in asked} == {(3, 5)}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (LOST, "node1: channel: connection lost"),
        (HostError("node1", "command", "no such rank"), "node1: command: no such rank"),
        (("answer", {"node": plain("node1", "running")}), "its log ends, but its part is running"),
    ],
)
def test_what_ends_it(said: Any, error: str) -> None:
    end, asked, _ = followed([[said]], retry=no_retry)
    assert error in end
    assert len(asked) == 1


def test_a_host_is_reached_again_or_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_EVERY", 0.0)
    monkeypatch.setattr(following, "_GIVE_UP_AFTER", 0.2)
    told: list[str] = []
    opened: list[bool] = []

    class Connection(HostConnection):
        """It can be opened at the third time."""

        def open(self) -> None:
            opened.append(True)
            if len(opened) < 3:
                raise HostError("node1", "connect", "refused")

    following.reach_again(Connection(HOSTS[0]), LOST, told.append)
    assert len(opened) == 3
    assert told == [
        "node1: channel: connection lost; the job goes on there, reconnecting",
        "node1: connected again",
    ]

    class Gone(HostConnection):
        def open(self) -> None:
            raise HostError("node1", "connect", "refused")

    with pytest.raises(HostError, match="refused"):
        following.reach_again(Gone(HOSTS[0]), LOST, told.append)


def test_the_last_lines_are_not_chosen_again(host: JobHost) -> None:
    """Of a stream of which some has been sent, all that follows comes; of another one, its last lines."""
    host.script("print('a\\nb\\nc', flush=True)")
    spec = host.spec()
    host.start(spec)
    host.ended(spec["job"])
    assert data(logs(host, spec["job"], tail=1)["frames"]) == "c\n"
    assert data(logs(host, spec["job"], tail=1, offsets={"output": 2})["frames"]) == "b\nc\n"
    assert data(logs(host, spec["job"], tail=1, offsets={"stdout": 2})["frames"]) == "c\n"
