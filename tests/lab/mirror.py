"""Mirrors for lab hosts, which reach no network but the lab's: Debian packages and wheels, from the head.

    with serving(lab, debs=["pdsh"], wheels=["six==1.17.0"]) as mirror:
        mirror.apt                  # a line for sources.list
        mirror.pip                  # the URL of an index for pip
        mirror.debs, mirror.wheels  # the same files, in directories of the head
    make_bare(host, ["pdsh"])       # such a host lacks the package, as `serving` assumes

Packages come from this machine's apt and pip, and are kept in $MNT_CACHE/mirror.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from nfs import NfsLab
from packaging.utils import canonicalize_name

from mnt.lab.lab import Lab, LabHost

STATUS = Path("/var/lib/dpkg/status")
DOWNLOAD_SECONDS = 600.0  # for all packages of a mirror, the first time
_NEEDED = {
    "openssh-client",
    "openssh-server",
    "openssh-sftp-server",
    "sudo",
}  # a lab host without these is none


@dataclass(frozen=True)
class Mirror:
    """What is served, and where the files are."""

    apt: str  # a line for sources.list
    pip: str  # the URL of a simple index (PEP 503)
    debs: Path
    wheels: Path
    requests: list[str]  # the paths asked for, as they come


@contextmanager
def serving(
    lab: Lab | NfsLab, debs: Sequence[str] = (), wheels: Sequence[str | Path] = (), account: str = ""
) -> Iterator[Mirror]:
    """Serve packages to the hosts of a lab, on the head's address in their management network.

    Args:
        debs: names of Debian packages; those that they depend on come too, unless this machine has them.
        wheels: paths of wheels, and requirements for pip (`six==1.17.0`), which come without dependencies.
        account: `user:password` that is asked for.
    """
    with tempfile.TemporaryDirectory(prefix="mnt-mirror-") as name:
        root = Path(name)
        root.chmod(0o755)
        for part in ("debs", "wheels", "simple"):
            (root / part).mkdir()
        for file in _debs(debs) if debs else ():
            shutil.copyfile(file, root / "debs" / unquote(file.name))
        _index_debs(root / "debs")
        for wheel in _wheels(wheels):
            shutil.copyfile(wheel, root / "wheels" / wheel.name)
            place = root / "simple" / canonicalize_name(wheel.name.split("-")[0])
            place.mkdir(exist_ok=True)
            (place / wheel.name).symlink_to(root / "wheels" / wheel.name)
        requests: list[str] = []

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, format: str, *words: object) -> None:
                requests.append(self.path)

            def do_GET(self) -> None:
                given = self.headers["Authorization"]
                if account and given != f"Basic {b64encode(account.encode()).decode()}":
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", "Basic")
                    self.end_headers()
                    return
                super().do_GET()

        address = (lab.head_address if isinstance(lab, NfsLab) else lab.spec.head_address, 0)
        with ThreadingHTTPServer(address, partial(Handler, directory=name)) as server:
            url = f"http://{address[0]}:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield Mirror(
                    apt=f"deb [trusted=yes] {url}/debs ./",
                    pip=f"{url.replace('//', f'//{account}@') if account else url}/simple/",
                    debs=root / "debs",
                    wheels=root / "wheels",
                    requests=requests,
                )
            finally:
                server.shutdown()
                thread.join()


def make_bare(host: LabHost, packages: Sequence[str]) -> list[str]:
    """Remove packages from a host, with what depends on them, and dpkg's records of them.

    What the lab itself needs (OpenSSH, sudo) stays. Their own scripts are not run, which saves half a
    minute for Python. Returns the names of what was removed.
    """
    status = _in(host, ["cat", str(STATUS)])
    gone = _lost(status, packages)
    if not gone:
        return []
    info = STATUS.with_name("info")
    records = _in(host, ["ls", str(info)]).split()
    owned, kept = set(), set()
    for line in _in(host, ["sh", "-c", f"cd {info} && grep -H '' *.list"]).splitlines():
        record, path = line.split(".list:", 1)
        (owned if _bare_name(record) in gone else kept).add(path)
    remove = owned - kept | {
        f"{info}/{each}" for each in records if _bare_name(each.rsplit(".", 1)[0]) in gone
    }
    # Directories after their contents; those that hold something else stay.
    unlink = "chomp; unlink $_ or rmdir $_"
    _in(host, ["perl", "-0", "-ne", unlink], input="\0".join(sorted(remove, reverse=True)))
    _in(host, ["sh", "-c", 'cat > "$1"', "sh", str(STATUS)], input=_without(status, gone))
    _in(host, ["ldconfig"])
    return sorted(gone)


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
) -> Path:
    """A pure wheel: `files` by path, else a module of that name with its `__version__`."""
    module = name.replace("-", "_")
    contents = dict(files or {f"{module}.py": f"__version__ = {version!r}\n"})
    info = f"{module}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    contents[f"{info}/METADATA"] = "".join(f"{line}\n" for line in lines)
    contents[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: mnt tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(
        f"{path},sha256={_record_hash(text)},{len(text.encode())}\n" for path, text in contents.items()
    )
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    return wheel


def _record_hash(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


# --- Debian packages -------------------------------------------------------------------------------------


def _debs(names: Sequence[str]) -> list[Path]:
    """Files of the packages, and of what a host lacks of their dependencies; downloaded if need be."""
    with _cache() as cache, tempfile.TemporaryDirectory(prefix="mnt-mirror-") as directory:
        archives = cache / "archives"
        (archives / "partial").mkdir(parents=True, exist_ok=True)
        status = Path(directory, "status")
        machine = STATUS.read_text()
        status.write_text(_without(machine, _lost(machine, names)))
        options = {
            "Dir::State::status": status,
            "Dir::State::extended_states": Path(directory, "extended_states"),
            "Dir::Cache::archives": archives,
            "Debug::NoLocking": "true",  # `_cache` is locked
            "APT::Sandbox::User": "root",
        }
        apt = [
            "apt-get",
            "--yes",
            *(word for key, value in options.items() for word in ("-o", f"{key}={value}")),
        ]
        install = [*apt, "--no-install-recommends", "install", *names]
        done = _run([*install, "--download-only"])
        if done.returncode != 0:  # the lists of packages are missing, or old
            _run(["apt-get", "update"])
            done = _run([*install, "--download-only"])
        assert done.returncode == 0, f"apt-get install {' '.join(names)}: {done.stderr}"
        wanted = re.findall(r"(?m)^Inst (\S+)(?: \[\S+\])? \((\S+)", _checked([*install, "--simulate"]))
        found = []
        for name, version in wanted:
            pattern = f"{name.split(':')[0]}_{version.replace(':', '%3a')}_*.deb"
            (file,) = archives.glob(pattern)
            found.append(file)
        return found


def _paragraphs(status: str) -> dict[str, dict[str, str]]:
    """dpkg's database, by name; of the fields only those of one line."""
    found = {}
    for text in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", text))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields
    return found


def _lost(status: str, names: Sequence[str]) -> set[str]:
    """The installed packages of these names, and what cannot work without them; not what a lab needs."""
    installed = _paragraphs(status)
    gone = set(names) & installed.keys() - _NEEDED
    while True:
        there = installed.keys() - gone
        there |= {each for name in there for each in _words(installed[name].get("Provides", ""))}
        broken = {
            name
            for name in installed.keys() - gone - _NEEDED
            for field in ("Depends", "Pre-Depends")
            for group in filter(None, installed[name].get(field, "").split(","))
            if not there & set(_words(group.replace("|", ",")))
        }
        if not broken:
            return gone
        gone |= broken


def _words(field: str) -> list[str]:
    """The names in `a (>= 1), b:any`."""
    return [_bare_name(each.split()[0]) for each in field.split(",") if each.strip()]


def _bare_name(name: str) -> str:
    return name.partition(":")[0]  # without the architecture


def _without(status: str, gone: set[str]) -> str:
    paragraphs = status.rstrip("\n").split("\n\n")
    kept = [text for text in paragraphs if text.split("\n", 1)[0].removeprefix("Package: ") not in gone]
    return "\n\n".join(kept) + "\n"


def _index_debs(directory: Path) -> None:
    """Packages and Release, as apt reads them in a flat repository."""
    entries = []
    for file in sorted(directory.glob("*.deb")):
        control = _checked(["dpkg-deb", "--field", str(file)]).rstrip("\n")
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        entries.append(f"{control}\nFilename: ./{file.name}\nSize: {len(content)}\nSHA256: {digest}\n")
    packages = "\n".join(entries).encode()
    (directory / "Packages").write_bytes(packages)
    digest = hashlib.sha256(packages).hexdigest()
    (directory / "Release").write_text(f"Origin: mnt\nSHA256:\n {digest} {len(packages)} Packages\n")


# --- wheels ----------------------------------------------------------------------------------------------


def _wheels(wanted: Sequence[str | Path]) -> list[Path]:
    """Files of the wheels, or of source packages; what is no path is a requirement."""
    files = [Path(each) for each in wanted if str(each).endswith((".whl", ".tar.gz"))]
    requirements = [str(each) for each in wanted if not str(each).endswith((".whl", ".tar.gz"))]
    if requirements:
        with _cache() as cache, tempfile.TemporaryDirectory(prefix="mnt-mirror-") as directory:
            kept = cache / "wheels"
            kept.mkdir(parents=True, exist_ok=True)
            links = ["--find-links", str(kept)]
            only = ["--only-binary=:all:", "--no-deps", "--quiet", "--dest", directory]
            _checked([sys.executable, "-m", "pip", "download", *only, *links, *requirements])
            for file in Path(directory).iterdir():
                shutil.copyfile(file, kept / file.name)
                files.append(kept / file.name)
    return files


# --- both ------------------------------------------------------------------------------------------------


@contextmanager
def _cache() -> Iterator[Path]:
    """The cache, for this process alone."""
    cache = Path(os.environ.get("MNT_CACHE", "/var/cache/mnt"), "mirror")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)


def _checked(argv: Sequence[str]) -> str:
    done = _run(argv)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


def _in(host: LabHost, argv: Sequence[str], input: str = "") -> str:
    done = host.exec(["env", "LC_ALL=C", *argv], input=input)
    assert done.returncode == 0, f"{host.name}: {' '.join(argv)}: {done.stderr}"
    return done.stdout
