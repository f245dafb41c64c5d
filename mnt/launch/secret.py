"""Values that are not shown: those of the inventory's `secrets`, and those of `--env-file`.

They are read on the head, when a job is really launched, and go nowhere but to the job's hosts
(`mnt.launch.staging`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mnt.errors import InventoryError, UsageError
from mnt.inventory.model import SecretSource
from mnt.inventory.values import is_variable_name
from mnt.paths import expanded
from mnt.remote.common.files import open_regular, read_bytes, strerror
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused

HIDDEN = "***"

_MOST = 131_072  # bytes of NAME=VALUE and its NUL that Linux passes to a process (MAX_ARG_STRLEN, execve(2))
_MOST_OF_A_FILE = 1 << 20  # bytes
_MOST_SHOWN = 2_000  # bytes of what a command says about its failure
_PATIENCE = 60.0  # seconds for a command: a person may have to touch a key


class Secret:
    """A text that is not shown by accident: as text it is `***`, and it cannot be copied into a document."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text. In a launch, only `mnt.launch.staging` asks for it."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not copied")


def read_secrets(file: str, sources: Mapping[str, SecretSource]) -> dict[str, Secret]:
    """The secrets of an inventory, by variable.

    Args:
        file: of the inventory; commands run in its directory.

    Raises InventoryError, without a value.
    """
    return {name: Secret(_read(file, name, source)) for name, source in sources.items()}


def read_env_file(
    file: str | os.PathLike[str],
    caller: Mapping[str, str],
    *,
    own: bool = False,
    lent: Collection[str] | None = None,
) -> dict[str, Secret]:
    """The variables of a file as Docker reads it (`docker run --env-file`).

    A line is `NAME=VALUE`, with the value as written: quotes, `$`, `#` and blanks are part of it. Or it is
    `NAME`, for the caller's value. Empty lines and those that begin with `#` are skipped. The last line of a
    name counts.

    Args:
        own: refuse a file that another user made or can replace, and one that is no regular file.
        lent: the only variables of which the file may have the caller's value; None: any.

    Raises UsageError, which names file and line, and no text of it.
    """
    try:
        if own:
            check_owners(os.path.abspath(file))
        data = read_bytes(file, _MOST_OF_A_FILE, any_kind=not own)
    except Refused as refusal:
        raise UsageError(
            f"{file} may be another user's: {refusal.message}",
            fix=f"{refusal.fix}; or start it in a directory of your own",
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read: {strerror(error)}", fix="--env-file FILE") from None
    variables = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            name, value = _variable(line.removesuffix(b"\r").lstrip(), caller, lent)
        except UsageError as error:
            raise UsageError(f"{file}:{number}: {error.message}", fix=error.fix) from None
        if name:
            variables[name] = Secret(value)
    return variables


def check_private(file: str | os.PathLike[str], found: os.stat_result) -> None:
    """Raises UsageError if other users may read or change a regular file."""
    if not stat.S_ISREG(found.st_mode):
        return
    if found.st_uid not in (os.getuid(), 0):
        owner = f"belongs to uid {found.st_uid}, not to you or root"
        raise UsageError(f"{file} {owner}", fix="use a file of your own")
    if found.st_mode & 0o077:
        mode = f"is open to other users (mode {stat.S_IMODE(found.st_mode):04o})"
        raise UsageError(f"{file} {mode}", fix=f"chmod 600 {shlex.quote(os.path.realpath(file))}")


def _variable(line: bytes, caller: Mapping[str, str], lent: Collection[str] | None) -> tuple[str, str]:
    """Name and value in a line of an environment file; no name: there is none. Raises UsageError."""
    if not line or line.startswith(b"#"):
        return "", ""
    left, equals, right = line.partition(b"=")
    name = left.decode("ascii", "replace")
    if not is_variable_name(name):
        raise UsageError("not a variable", fix="write NAME=VALUE, or # before a comment")
    if equals:
        return name, _text(name, right)
    if lent is not None and name not in lent:
        raise UsageError(
            "not NAME=VALUE: it would take the value from your environment, for whoever wrote the file",
            fix="write NAME=VALUE; or, if its author may have yours, name the file: --env-file FILE",
        )
    if name not in caller:  # the line may be the rest of a value, so it is not shown
        raise UsageError("not NAME=VALUE, nor a variable of your environment", fix="write NAME=VALUE")
    return name, _text(name, os.fsencode(caller[name]))


def _read(file: str, name: str, source: SecretSource) -> str:
    """The value of a secret of an inventory. Raises InventoryError."""
    try:
        if source.file is not None:
            data = _without_newline(_of_file(source.file))
        elif source.env is not None:
            data = _of_environment(source.env)
        else:
            data = _without_newline(_of_command(source.command, Path(file).absolute().parent))
        if not data:
            raise UsageError("the value is empty", fix="put the value there")
        return _text(name, data)
    except UsageError as error:
        message = f"secrets.{name}: {error.message}"
        raise InventoryError(message, file=file, line=source.line, fix=error.fix) from None


def _without_newline(data: bytes) -> bytes:
    """Without one newline at the end: that of Unix, or of Windows."""
    line = data.removesuffix(b"\n")
    return line.removesuffix(b"\r") if line != data else data


def _text(name: str, data: bytes) -> str:
    """A value as text. Raises UsageError, without the value, if no process can have it."""
    if b"\0" in data:
        raise UsageError("the value contains a NUL byte", fix="remove it")
    if len(name) + len(data) + 2 > _MOST:
        raise UsageError(f"the value is longer than {_MOST} bytes", fix="pass the name of a file instead")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError("the value is not UTF-8", fix="encode it, as by base64") from None


def _of_file(file: str) -> bytes:
    """The content of a file that is closed to other users. Raises UsageError."""
    try:
        path = expanded(file)
        with open_regular(path) as opened:
            check_private(path, os.fstat(opened.fileno()))
            check_owners(path)
            return opened.read(_MOST + 1)
    except Refused as refusal:
        raise UsageError(refusal.message, fix=refusal.fix) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {strerror(error)}", fix="create it, mode 0600") from None


def _of_environment(name: str) -> bytes:
    try:
        return os.environb[name.encode()]
    except KeyError:
        raise UsageError(f"{name} is not set in your environment", fix=f"export {name}") from None


def _of_command(argv: Sequence[str], directory: Path) -> bytes:
    """What a command prints. It gets no terminal and no input. Raises UsageError."""
    program = argv[0]
    try:
        process = subprocess.Popen(
            argv,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"{program} cannot be run: {strerror(error)}", fix="correct `command`") from None
    end = time.monotonic() + _PATIENCE
    with process:
        try:
            output, errors = _outputs(process, end)
            code = process.wait(max(0.0, end - time.monotonic()))
        except BaseException as error:  # an interrupt, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UsageError(f"{program}: no end within {_PATIENCE:g} s", fix="run it by hand") from None
            raise
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
        says = errors.decode("utf-8", "replace").strip() or "it does not say why"
        raise UsageError(f"{program}: {how}: {says}", fix="run it by hand")
    return output


def _outputs(process: subprocess.Popen[bytes], end: float) -> tuple[bytes, bytes]:
    """What it prints to stdout, and the end of what it prints to stderr; no more of stdout than a value has.

    Args:
        end: on time.monotonic()'s clock.

    Raises TimeoutExpired, UsageError.
    """
    out, err = (pipe.fileno() for pipe in (process.stdout, process.stderr) if pipe is not None)
    printed = {out: b"", err: b""}
    with selectors.DefaultSelector() as selector:
        for pipe in printed:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, _PATIENCE)
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                printed[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            printed[err] = printed[err][-_MOST_SHOWN:]
            if len(printed[out]) > _MOST:
                raise UsageError(f"it prints more than {_MOST} bytes", fix="run it by hand")
    return printed[out], printed[err]
