"""What Ansible tells `mnt setup`: a line of JSON for each event, in a file of their own. Ansible loads it.

ansible-runner has a plugin of this name, which writes events between the texts that Ansible prints, and reads
them there: so a host could write some too. This one takes its place (AWX_LIB_DIRECTORY). Texts of hosts are
values here, cut, whatever types their answers have. What Ansible prints is as by its plugin `default`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.plugins.callback.default import CallbackModule as Default

DOCUMENTATION = """
name: awx_display
type: stdout
short_description: events for mnt setup, and the output of the plugin default
description: [events for mnt setup, and the output of the plugin default]
extends_documentation_fragment: [default_callback, result_format_callback]
"""

_LONGEST = 2000  # characters of a text; `Told` in mnt/setup/play.py allows as many
_MOST = 16  # messages of an event, and lines of a report
_REPORTS = ("ansible.builtin.debug", "debug")  # the module by which a playbook says something to people
_MOST_LINES = 1000  # of a text that is compared; difflib takes the longer, the more lines are alike
_MOST_BYTES = 64 << 10  # of such texts, in an answer
_MOST_SECONDS = 60.0  # in which texts are compared, in a playbook
_DIED = 4  # the exit code of ansible-playbook then, which it uses for nothing else that ends it


class CallbackModule(Default):  # type: ignore[misc, unused-ignore] # Ansible has no types
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "awx_display"

    def __init__(self) -> None:
        super().__init__()
        self._events = open(os.environ["MNT_SETUP_EVENTS"], "ab", buffering=0)  # noqa: SIM115 - until the end
        self._at_end = False
        self._seconds = _MOST_SECONDS
        end_with_a_thread()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._at_end = play.get_name() == os.environ["MNT_SETUP_END"]
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self._tell("task", task=task.get_name())
        super().v2_playbook_on_task_start(task, is_conditional)

    def v2_runner_on_ok(self, result: Any) -> None:
        self._tell_of("end" if self._at_end else "ok", result)
        super().v2_runner_on_ok(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._tell_of("skipped", result)
        super().v2_runner_on_skipped(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._tell_of("unreachable", result)
        super().v2_runner_on_unreachable(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self._tell_of("failed", result)
        super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._tell("item")
        super().v2_runner_item_on_ok(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        self._tell("item")
        super().v2_runner_item_on_failed(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        self._tell("item")
        super().v2_runner_item_on_skipped(result)

    def v2_runner_retry(self, result: Any) -> None:
        self._tell("item")
        super().v2_runner_retry(result)

    def _get_diff(self, difflist: Any) -> str:
        """Texts of a host, which are compared in Ansible's main process: nothing else goes on meanwhile."""
        diffs = difflist if isinstance(difflist, list) else [difflist]
        if self._seconds <= 0 or not all(isinstance(each, Mapping) for each in diffs) or _is_long(diffs):
            return "the difference is not shown: it is long\n"
        began = time.monotonic()
        try:
            return str(super()._get_diff(diffs))
        finally:
            self._seconds -= time.monotonic() - began

    def _tell_of(self, event: str, result: Any) -> None:
        """Names without an underscore are new in Ansible 2.19, and those with one go with 2.23."""
        host, task = (getattr(result, name, None) or getattr(result, f"_{name}") for name in ("host", "task"))
        answer: Mapping[str, Any] = {}
        with contextlib.suppress(Exception):  # a deep one: Ansible reads it by recursion
            answer = result.result if hasattr(result, "result") else result._result
        self._tell(
            event,
            host=host.get_name(),
            task=task.get_name(),
            changed=answer.get("changed") is True,
            report=report_of(answer) if event == "ok" and task.action in _REPORTS else [],
            **words_of(answer),
        )

    def _tell(self, event: str, **more: Any) -> None:
        told = {"host": "", "task": "", "changed": False, "messages": [], "report": [], "stderr": "", **more}
        line = json.dumps({"event": event, **told, "task": _text(told["task"])})
        self._events.write(line.encode("ascii") + b"\n")


def end_with_a_thread() -> None:
    """End this process if one of its threads dies: Ansible would wait for ever for its thread of results."""
    own = os.getpid()

    def end(args: threading.ExceptHookArgs) -> None:
        if os.getpid() == own:  # and no worker
            name = args.exc_type.__name__ if args.exc_type is not None else "an error"
            with contextlib.suppress(OSError):
                os.write(2, f"ERROR! a thread of Ansible has died: {name}\n".encode())
            os._exit(_DIED)

    threading.excepthook = end


def _is_long(diffs: list[Mapping[str, Any]]) -> bool:
    size = lines = 0
    for text in _texts(diffs):
        size += len(text)
        lines += len(text[:_MOST_BYTES].splitlines())
        if size > _MOST_BYTES or lines > _MOST_LINES:
            return True
    return False


def _texts(value: object) -> Iterator[str]:
    """All texts in it; of another value, what Ansible would write."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    else:
        yield value if isinstance(value, str) else str(value)


def words_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The words of an answer, of which each value may be anything."""
    stderr = answer.get("stderr") or answer.get("module_stderr")
    return {"messages": _messages(answer), "stderr": _text(stderr, end=True)}


def report_of(answer: Mapping[str, Any]) -> list[str]:
    """What a playbook says to people of a host: a text, or several lines. The words may be the host's."""
    said = answer.get("msg")
    lines = said.splitlines() if isinstance(said, str) else said if isinstance(said, list) else []
    texts = [text for text in map(_text, lines) if text.strip()]
    more = len(texts) - _MOST
    return [*texts[:_MOST], f"and {more} more, in Ansible's output"] if more > 0 else texts


def _messages(answer: Mapping[str, Any]) -> list[str]:
    """What a module says of its failure, or, in a loop, of each item's."""
    items = answer.get("results")
    failed = [each for each in items if _is_failure(each)] if isinstance(items, list) else []
    said = [_text(each.get("msg")) for each in failed[:_MOST]]
    return [text for text in dict.fromkeys(said) if text] or [_text(answer.get("msg"))]


def _is_failure(item: object) -> bool:
    return isinstance(item, Mapping) and bool(item.get("failed"))


def _text(value: object, *, end: bool = False) -> str:
    """The beginning of a text, or its end, in Unicode; empty if it is none."""
    if not isinstance(value, str):
        return ""
    return str(value[-_LONGEST:] if end else value[:_LONGEST]).encode("utf-8", "replace").decode("utf-8")
