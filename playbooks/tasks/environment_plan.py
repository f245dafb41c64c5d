"""What playbooks/environment.yml wants, and what a host says of itself. Runs on the head. Pure, but for the lock file.

    environment_plan.py wanted    {"packages", "require", "file", "upgrade"}: prints {"request", "lock", "file"}: the
                                  requirements, and the versions that the lock file has for them. These are [] if
                                  it has none, for an upgrade, and without a lock file: `file` is "" then
    environment_plan.py judge     {"request", "said"}: prints what a host has said of itself, with checked types

Standard input has the JSON document. A message on standard error says what is wrong: with the variables, or with
what that host has said.
"""

import json
import os
import re
import sys

from environment import Failed, pinned, requirements

_SAID = re.compile(r"mnt-environment: ([^\r\n]*)")
_LONGEST = 65536  # characters of an answer, and lines of a lock file: many times what is ever needed
_TYPES = {
    "path": str,
    "python": str,
    "root": bool,
    "complete": bool,
    "shared": bool,
    "ops_shared": bool,
    "lock": list,
}


def wanted(given):
    """{"request": [..], "lock": [..], "file": ..}. Raises Failed."""
    request, file = requirements(given["packages"], given["require"]), given["file"]
    lock = []
    if file and os.path.exists(file) and not given["upgrade"]:
        try:
            with open(file, encoding="utf-8") as opened:
                kept = json.load(opened)
            lock = kept["lock"] if kept["request"] == request else []
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise Failed(
                "%s is no lock file (%s); for a new one: -e environment_upgrade=true" % (file, error)
            ) from None
        try:
            pinned(lock)
        except Failed as error:
            raise Failed("%s: %s" % (file, error)) from None
    return {"request": request, "lock": lock, "file": file}


def judge(given):
    """What a host says of itself. It says it to nobody else before it is judged. Raises Failed."""
    match = _SAID.search(given["said"][:_LONGEST])
    if match is None:
        said = " ".join(given["said"][-500:].split())
        raise Failed("this host runs no python3: mnt setup system. It said: %s" % said)
    try:
        answer = json.loads(match.group(1))
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Failed("its answer is no JSON object")
    if "error" in answer:
        raise Failed(" ".join(str(answer["error"]).split())[:500])
    for key, kind in _TYPES.items():
        if not isinstance(answer.get(key), kind):
            raise Failed("its answer has no %s of type %s" % (key, kind.__name__))
    for key in ("path", "python"):
        if not answer[key].isprintable() or len(answer[key]) > 4096:
            raise Failed("its answer has a %s that is none" % key)
    if answer.get("request") != given["request"]:
        raise Failed("its answer is for other packages than were asked for")
    if answer["complete"] and not answer["lock"]:
        raise Failed("its answer has a complete environment without versions")
    pinned(answer["lock"])
    return {key: answer[key] for key in _TYPES}


if __name__ == "__main__":
    try:
        print(json.dumps({"wanted": wanted, "judge": judge}[sys.argv[1]](json.load(sys.stdin))))
    except Failed as failed:
        sys.exit(str(failed))
