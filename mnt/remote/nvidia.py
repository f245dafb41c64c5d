"""GPUs, as nvidia-smi tells. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import re

# One that a driver does not know is left out of the answer, see `gpus`.
FIELDS = ("index", "name", "uuid", "driver_version", "memory.total")


def gpus(deadline: float) -> dict[str, object]:
    """{"tool": path of nvidia-smi or None, "found": [{field: text}, ..], "error": text or None}.

    An unknown field makes nvidia-smi refuse the whole query; it names the field, which is then left out.
    """
    tool = _find("nvidia-smi")
    if tool is None:
        return {"tool": None, "found": [], "error": None}
    fields = list(FIELDS)
    while True:
        code, output = _run([tool, "--query-gpu=" + ",".join(fields), "--format=csv"], deadline)
        unknown = re.search(r'Field "([^"]+)" is not a valid field', output)
        if code and unknown and unknown.group(1) in fields:
            fields.remove(unknown.group(1))
        elif code:
            return {"tool": tool, "found": [], "error": " ".join(output.split()) or f"exit status {code}"}
        else:
            return {"tool": tool, "found": parse_csv(output), "error": None}


def parse_csv(text: str) -> list[dict[str, str]]:
    """Rows by column name, less the unit in the header: `memory.total [MiB]`. Other lines are left out."""
    lines = [line.split(", ") for line in text.splitlines()]
    header = next((line for line in lines if line[0] == "index"), [])
    names = [name.split(" [")[0] for name in header]
    return [dict(zip(names, line)) for line in lines if len(line) == len(names) and line[0].isdigit()]


def _find(program: str) -> str | None:
    """The program's path; a non-interactive PATH may lack some of these directories."""
    directories = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin", "/usr/sbin"]
    for directory in filter(None, directories):
        path = os.path.join(directory, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _run(argv: list[str], deadline: float) -> tuple[int, str]:
    """(exit code, output) of a command; one that does not end in time is killed, and not waited for."""
    import subprocess  # 10 ms: only hosts that have something to run pay for it

    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
        )
        output, _ = process.communicate(timeout=deadline)
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        process.kill()
        return 124, f"no answer in {deadline:g} s"
    return process.returncode, output
