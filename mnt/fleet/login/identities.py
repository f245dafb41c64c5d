"""The private keys to try on a host, in order: those in files, and those of an agent."""

from __future__ import annotations

import base64
import contextlib
import errno
import getpass
import io
import os
import pwd
import shlex
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from paramiko.agent import AgentKey, AgentSSH

from mnt import ui
from mnt.fleet.login import keyfiles
from mnt.fleet.login.destination import DEFAULT_IDENTITIES, Destination
from mnt.fleet.login.terminal import ask_secret, has_terminal
from mnt.paths import expanded
from mnt.remote.common.files import read_bytes, strerror
from mnt.remote.common.owners import status
from mnt.remote.common.refusal import Refused

_AGENT_LISTS = 2.0  # seconds for an agent to list its keys
_AGENT_SIGNS = 10.0  # seconds for each signature: it may ask its user
_MOST_BYTES = 64 * 1024  # of a key file
_MISSING = "missing"
AGENT = "agent: "  # begins the label of a key that only an agent has
_CERTIFICATE = "-cert.pub"  # the end of the name of the file beside a key that paramiko reads too
_TRIES = 3  # at a passphrase
_MOST_SECONDS = 10.0  # of the processor, after which no further key file is opened
_CURVES = ("secp256r1", "secp384r1", "secp521r1")  # RFC 5656


@dataclass(frozen=True)
class Identity:
    """A key that can be tried. `label` is its name in messages."""

    label: str
    key: paramiko.PKey


@dataclass(frozen=True)
class Unusable:
    """A key file that cannot be tried, and why."""

    label: str
    reason: str  # "missing", "needs a passphrase", ...
    locked: bool = False  # a passphrase would open it
    fix: str | None = None  # on this machine; None: name another file

    @property
    def missing(self) -> bool:
        return self.reason == _MISSING

    @property
    def quoted(self) -> str:
        """Its path, for a shell."""
        with contextlib.suppress(OSError):
            return shlex.quote(expanded(self.label))
        return shlex.quote(self.label)


class Identities:
    """Loads each key file, and asks each agent, only once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, paramiko.PKey | Unusable] = {}
        self._agents: dict[str, list[AgentKey]] = {}
        self._silent: set[str] = set()  # agents that cannot be reached, or do not answer
        self._sockets: list[socket.socket] = []
        self._spent = 0.0  # seconds of the processor, for opening key files

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()

    def unlock(self, destinations: Iterable[Destination]) -> None:
        """Ask at the terminal, once each, for the passphrases of files that `destinations` will need.

        A file whose key an agent holds needs none. Nor do the default files if there is an agent with any
        key: the user can add them with `ssh-add`. To be called in the main thread, before the logins.
        """
        for destination in destinations:
            paths = destination.identities
            if not (paths or destination.only_identities or self._agent_keys(destination.agent)):
                paths = DEFAULT_IDENTITIES
            for path in paths:
                found = self._file(path, destination.agent)
                if isinstance(found, Unusable) and found.locked:
                    self._files[path] = _unlock(path)

    def candidates(self, destination: Destination) -> Iterator[Identity | Unusable]:
        """The keys to try on a destination, each once: its files, the agent's keys, the default files.

        With `only_identities` just its files; an agent is then used for those that need a passphrase. Default
        files that do not exist are left out.
        """
        seen: set[bytes] = set()
        for found in self._all(destination):
            if isinstance(found, Identity):
                blob = found.key.asbytes()
                if blob in seen:
                    continue
                seen.add(blob)
            yield found

    def _all(self, destination: Destination) -> Iterator[Identity | Unusable]:
        for path in destination.identities:
            yield self._file(path, destination.agent)
        if destination.only_identities:
            return
        for key in self._agent_keys(destination.agent):
            yield Identity(f"{AGENT}{key.comment or key.get_name()}", key)
        if not destination.identities:
            for path in DEFAULT_IDENTITIES:
                if os.path.exists(os.path.expanduser(path)):
                    yield self._file(path, destination.agent)

    def _file(self, path: str, agent: str | None) -> Identity | Unusable:
        """The key in a file; an agent is asked only for one that cannot be used as it is."""
        with self._lock:
            if path not in self._files:
                self._files[path] = self._load(path)
            loaded = self._files[path]
        if isinstance(loaded, Unusable):
            public = _public_part(path)
            held = public and next((key for key in self._agent_keys(agent) if key.asbytes() == public), None)
            return Identity(path, held) if held else loaded
        return Identity(path, loaded)

    def _load(self, path: str) -> paramiko.PKey | Unusable:
        """The key in a file, unless those before it have taken long: a large RSA key takes seconds."""
        if self._spent > _MOST_SECONDS:
            return Unusable(path, f"not opened: the keys before it have taken {self._spent:.0f} s")
        began = time.thread_time()
        try:
            return _load(path)
        finally:
            self._spent += time.thread_time() - began

    def _agent_keys(self, path: str | None) -> list[AgentKey]:
        """The keys of an agent; none if it cannot be reached."""
        path = _agent_path(path)
        if path is None:
            return []
        with self._lock:
            if path not in self._agents:
                self._agents[path] = self._ask(path)
            return self._agents[path]

    def silent_agent(self, destination: Destination) -> str | None:
        """The agent of a destination, if it was asked for its keys and has not answered."""
        path = _agent_path(destination.agent)
        return path if path in self._silent else None

    def _ask(self, path: str) -> list[AgentKey]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_AGENT_LISTS)
        try:
            connection.connect(expanded(path))
            agent = _SharedAgent(connection)
        except TimeoutError:
            connection.close()
            self._silent.add(path)
            ui.warn(
                f"the SSH agent at {path} gives no answer within {_AGENT_LISTS:g} s: its keys are not tried"
            )
            return []
        except Exception:  # noqa: BLE001 - OSError, and whatever paramiko raises for an answer that is none
            connection.close()
            self._silent.add(path)
            return []
        connection.settimeout(_AGENT_SIGNS)
        self._sockets.append(connection)
        return list(agent.get_keys())


def _agent_path(path: str | None) -> str | None:
    """Where the agent of a destination is; None: it has none."""
    if path is None or path == "SSH_AUTH_SOCK":
        path = os.environ.get("SSH_AUTH_SOCK", "")
    return path if path and path != "none" else None


class _SharedAgent(AgentSSH):
    """An agent for several threads: one question at a time, because paramiko's agent mixes up the answers."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._one_at_a_time = threading.Lock()
        self._connect(connection)  # type: ignore[attr-defined]  # missing in the stubs, as the next

    def _send_message(self, msg: object) -> tuple[int, paramiko.Message]:
        with self._one_at_a_time:
            answer: tuple[int, paramiko.Message] = super()._send_message(msg)  # type: ignore[misc]
            return answer


@cache  # each passphrase is asked for only once per process
def _unlock(path: str) -> paramiko.PKey | Unusable:
    """The key in a file, opened with a passphrase from the terminal; three tries, as with ssh."""
    if not has_terminal():
        reason = "needs a passphrase; no agent holds it, and there is no terminal to ask at"
        return Unusable(path, reason, locked=True)
    for _ in range(_TRIES):
        passphrase = ask_secret(f"Passphrase of {path}: ")
        if passphrase is None:
            break
        found = _load(path, passphrase.encode())
        if not (isinstance(found, Unusable) and found.locked):
            return found
    return Unusable(path, "needs a passphrase, and the right one was not given", locked=True)


def _load(path: str, passphrase: bytes | None = None) -> paramiko.PKey | Unusable:
    """The key in a file. `locked`: not without a passphrase, or not with this one."""
    locked = Unusable(path, "needs a passphrase, and no agent holds it", locked=True)
    try:
        file = expanded(path.removesuffix(_CERTIFICATE))
        key = keyfiles.read(_read(file))
        if key.encrypted and passphrase is None:
            return locked
        loaded = _opened(key, passphrase)
        if loaded is None and key.encrypted:
            return locked
        if loaded is not None:
            return _with_certificate(loaded, f"{file}{_CERTIFICATE}")
    except FileNotFoundError:
        return Unusable(path, _MISSING)
    except PermissionError as error:
        return _unreadable(path, strerror(error))
    except OSError as error:
        return Unusable(path, strerror(error))
    except keyfiles.NotOpened as refusal:
        return Unusable(path, str(refusal))
    except Exception:  # noqa: BLE001 - whatever somebody has put there, only this key cannot be used
        return _not_private(path)
    return _not_private(path)


def _read(file: str) -> bytes:
    """All of a key file. Raises OSError, also for what another user has mounted: it might never answer."""
    try:
        status(os.path.abspath(file))
    except Refused as refusal:
        raise OSError(errno.EIO, refusal.message, file) from None
    return read_bytes(file, _MOST_BYTES)


def _not_private(path: str) -> Unusable:
    """A file that is no private key: perhaps a public one."""
    if _public_key(path) is not None:
        private = Unusable(path.removesuffix(".pub"), "")
        fix = f"ssh-add {private.quoted}"
        return Unusable(path, "a public key, and no agent holds its private key", fix=fix)
    return Unusable(path, "not a private key that can be read")


def _opened(file: keyfiles.KeyFile, passphrase: bytes | None) -> paramiko.PKey | None:
    """The key; None if it cannot be read, or not with this passphrase. Raises NotOpened: it cannot be used.

    With a wrong passphrase, what comes out is noise: so the libraries may raise anything.
    """
    load = serialization.load_ssh_private_key if file.openssh else serialization.load_pem_private_key
    try:  # the numbers of an RSA key are looked at before they are checked, which may take hours
        loaded = load(file.text, passphrase, unsafe_skip_rsa_key_validation=True)
    except UnsupportedAlgorithm as error:
        raise keyfiles.NotOpened(f"cannot be used: {error}") from None
    except Exception:  # noqa: BLE001 - InvalidTag, ValueError, ..
        return None
    try:
        return _for_paramiko(loaded)
    except keyfiles.NotOpened:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        raise keyfiles.NotOpened(f"cannot be used: {strerror(error)}") from None


def _for_paramiko(loaded: object) -> paramiko.PKey:
    """Raises NotOpened, ValueError."""
    if isinstance(loaded, rsa.RSAPrivateKey):
        numbers = loaded.private_numbers()
        keyfiles.check_rsa(numbers.public_numbers.n, numbers.d, (numbers.p, numbers.q))
        return paramiko.RSAKey(key=numbers.private_key())  # this checks that the primes are some
    if isinstance(loaded, ec.EllipticCurvePrivateKey):
        if loaded.curve.name not in _CURVES:
            raise keyfiles.NotOpened(f"cannot be used: SSH has no keys on the curve {loaded.curve.name}")
        return paramiko.ECDSAKey(vals=(loaded, loaded.public_key()))
    if isinstance(loaded, ed25519.Ed25519PrivateKey):
        form, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        text = loaded.private_bytes(serialization.Encoding.PEM, form, plain).decode()
        return paramiko.Ed25519Key(file_obj=io.StringIO(text))
    raise keyfiles.NotOpened(f"cannot be used: {type(loaded).__name__} is no type of key that SSH has")


def _with_certificate(key: paramiko.PKey, path: str) -> paramiko.PKey:
    """The key with the certificate in a file, if that exists. Raises OSError, NotOpened."""
    try:
        blob = _read(path).split()[1]
        key.load_certificate(paramiko.Message(base64.b64decode(blob)))
    except FileNotFoundError:
        pass
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever paramiko raises
        raise keyfiles.NotOpened(f"{path} is no certificate of it: {strerror(error)}") from None
    return key


def public_from_private(path: str) -> bytes | None:
    """The wire form of the public key that belongs to the private key in a file.

    None: only its passphrase would show it, or it cannot be read.
    """
    loaded = _load(path)
    if isinstance(loaded, paramiko.PKey):
        return loaded.asbytes()
    with contextlib.suppress(OSError):
        return keyfiles.public_part(_read(expanded(path)))
    return None


def _unreadable(path: str, reason: str) -> Unusable:
    """A file that this user may not read, with its mode and owner, as far as they can be seen."""
    me = getpass.getuser()
    file = Unusable(path, reason)
    try:
        found = os.stat(expanded(path))
    except OSError:
        return replace(file, fix=f"give {me} access to the directory of {file.quoted}, or name another key")
    owner = str(found.st_uid)
    with contextlib.suppress(KeyError):
        owner = pwd.getpwuid(found.st_uid).pw_name
    reason = f"{reason}, mode {found.st_mode & 0o7777:04o}, owner {owner}"
    real = shlex.quote(os.path.realpath(expanded(path)))  # whoever wrote the inventory may have made links
    if found.st_uid == os.geteuid():
        return replace(file, reason=reason, fix=f"chmod 600 {real}")
    fix = f"copy it to a file of {me} with mode 0600, and name that one; or: sudo chown {me} {real}"
    return replace(file, reason=reason, fix=fix)


def _public_part(path: str) -> bytes | None:
    """The public key of a key file: what it has itself (IdentityFile of ssh_config(5)), or its .pub file."""
    return _public_key(path) or _public_key(f"{path}.pub")


def _public_key(path: str) -> bytes | None:
    """The wire form of the public key in a file, as `ssh-keygen` writes it; None: there is none."""
    try:
        kind, blob = _read(expanded(path)).split()[:2]
        wire = base64.b64decode(blob, validate=True)
    except (OSError, ValueError):
        return None
    return wire if wire[4:].startswith(kind) else None
