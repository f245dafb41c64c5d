#!/usr/bin/env python3
"""One Python environment on one host: environment.yml runs this there. Standard library only, Python 3.8.

    environment.py look     what is there, and who has to build
    environment.py build    builds it, unless it is complete
    environment.py ops      compiles DeepSpeed's ops, unless they are there

Arguments are JSON on standard input: all users of the host can see the words of a command. The answer is one
line, `mnt-environment: JSON`; if something fails, it has `error`.

PATH is a symbolic link to PATH.builds/ID, and leads only to what is complete: a job finds all of an environment
or nothing, and one that runs keeps the environment that it has started with. A venv cannot be moved, so each is
made where it stays; its last file is `mnt-environment.json`.
"""

import contextlib
import errno
import grp
import hashlib
import json
import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.parse
import uuid

MARKER = "mnt-environment.json"
UNSIGNED = 60  # seconds after which a lock without an owner is left over
NOT_PACKAGES = ("python", "os-release", "kernel", "cuda", "nccl", "driver")  # keys of `require`
LEAST = 16  # MiB: what fails with less has probably failed for that
KEPT = 2  # builds: the current one, and the one before it, which jobs may use
_CLAUSE = r"(?:~=|===?|!=|<=|>=|<|>)[\w.*+!-]+"
REQUIREMENT = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(\[[\w,-]+\])?(%s(?:,%s)*|)$" % (_CLAUSE, _CLAUSE)
)
# A line of a lock: a name (PEP 503) and one version, in the characters of PEP 440: no option, and no address.
PINNED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?==[0-9][A-Za-z0-9._+!-]{0,99}")
INSTALLED = """
import importlib.metadata, json, re, sys
found = {}
for each in importlib.metadata.distributions():
    name = each.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), each.version)
print(json.dumps(found))
"""
NETRC = """
import json, netrc, sys
file, host = sys.argv[1:]
print(json.dumps(netrc.netrc(file).authenticators(host)))
"""
OPS = """
import importlib, os, sys
from deepspeed.ops.op_builder.all_ops import ALL_OPS
for name in sys.argv[1:]:
    if name not in ALL_OPS:
        sys.exit("DeepSpeed has no op %s; it has %s" % (name, ", ".join(sorted(ALL_OPS))))
for name in sys.argv[1:]:
    ALL_OPS[name].load()
"""


class Failed(Exception):
    """Why nothing was done; for people."""


# --- what is wanted --------------------------------------------------------------------------------------


def requirements(packages, require):
    """The requirements for pip, with the pins of the inventory: `["torch>=2.6,==2.13.0"]`."""
    wanted = {}
    words = packages.split() if isinstance(packages, str) else list(packages)
    for word in words:
        match = REQUIREMENT.match(word)
        if not match:
            raise Failed("environment_packages: %r is no requirement such as torch>=2.6,<3" % word)
        wanted[canonical(match.group(1))] = [match.group(1) + (match.group(2) or ""), match.group(3)]
    for name, specifier in require.items():
        if name not in NOT_PACKAGES:
            entry = wanted.setdefault(canonical(name), [name, ""])
            entry[1] = ",".join(filter(None, [entry[1], specifier.replace(" ", "")]))
    if not wanted:
        raise Failed("environment_packages names no package")
    return ["".join(entry) for _, entry in sorted(wanted.items())]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock):
    """The lines of a lock, as they are. Raises Failed unless each is NAME==VERSION."""
    for line in lock if isinstance(lock, list) else [None]:
        if not isinstance(line, str) or not PINNED.fullmatch(line):
            raise Failed(
                "%.200r is no line of a lock, such as torch==2.7.1; for a new lock: "
                "-e environment_upgrade=true" % (line,)
            )
    return lock


def satisfies(version, specifier):
    """Whether a version of Python, as 3 numbers, is one of `>=3.10,<3.13`, `==3.11.*`."""
    for part in filter(None, specifier.replace(" ", "").split(",")):
        match = re.match(r"(~=|==|!=|<=|>=|<|>)(\d+(?:\.\d+){0,2})(\.\*)?$", part)
        if not match:
            raise Failed("require: python: %r is no specifier that this playbook knows" % specifier)
        sign, number, star = match.groups()
        numbers = tuple(map(int, number.split(".")))
        same = version[: len(numbers)] == numbers
        if not star:
            full = numbers + (0,) * (3 - len(numbers))
            same = version == full
        ok = {
            "==": same,
            "!=": not same,
            "<=": version <= numbers + (0,) * (3 - len(numbers)),
            ">=": version >= numbers,
            "<": version < numbers,
            ">": version > numbers + (0,) * (3 - len(numbers)),
            "~=": version >= numbers and version[: len(numbers) - 1] == numbers[:-1],
        }[sign]
        if not ok:
            return False
    return True


def interpreter(name, specifier):
    """The interpreter to build with, and its version. Raises Failed if the host has none that fits."""
    names = [name] if name else ["python3"] + ["python3.%d" % minor for minor in range(15, 8, -1)]
    tried = []
    for each in names:
        path = shutil.which(os.path.expanduser(each))
        if path is None:
            continue
        try:
            judge(os.path.abspath(path), builders())
        except Failed as why:
            tried.append(str(why))
            continue
        look = "import sys; print(*sys.version_info[:3])"
        done = subprocess.run([path, "-I", "-c", look], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode == 0:
            version = tuple(map(int, done.stdout.split()))
            if satisfies(version, specifier):
                return path, "%d.%d.%d" % version
            tried.append("%s is %d.%d.%d" % ((each,) + version))
    wanted = "Python %s" % specifier if specifier else name or "Python 3.9"
    raise Failed(
        "this host has no %s (%s); install it, or name one by environment_python"
        % (wanted, "; ".join(tried) or "%s not found" % names[0])
    )


def found_uv():
    """uv of this host, in PATH or in ~/.local/bin; None: it has none that no other user could exchange."""
    for name in ("uv", os.path.expanduser("~/.local/bin/uv")):
        path = shutil.which(name)
        if path is not None:
            with contextlib.suppress(Failed):
                judge(os.path.abspath(path), builders())
                return path
    return None


def builders():
    """Who may own what builds, by uid: this user, root, and who has become root by sudo."""
    return {0, os.getuid(), int(os.environ.get("SUDO_UID", "0"))}


# --- what is there ---------------------------------------------------------------------------------------


class Place:
    """Where an environment is, and where its builds are.

    `owner`: a user, besides this one and root, to whom it may belong; "": nobody.
    """

    def __init__(self, path, owner=""):
        self.owner = uid_of(owner)
        self.path = os.path.normpath(os.path.expanduser(path))
        if not os.path.isabs(self.path) or self.path == "/":
            raise Failed("%s: an environment needs a directory of its own, by its whole path" % path)
        self.builds = self.path + ".builds"
        self.python = os.path.join(self.path, "bin", "python")

    def current(self):
        """The marker of what PATH leads to; None: nothing. Raises Failed for what others have made."""
        judge(self.builds, owner=self.owner)
        judge(self.path, owner=self.owner)
        if not os.path.lexists(self.path):
            return None
        judge(self.python, owner=self.owner)
        target = os.path.realpath(self.path)
        if os.path.dirname(target) != os.path.realpath(self.builds):
            raise Failed(
                "%s exists, and was not made by this playbook; set environment_path to a new place, and "
                "`python` in the inventory to its bin/python" % self.path
            )
        return read_marker(target)

    def owner_is_root(self):
        """Whether this user cannot write where it is to be made, so that root must.

        Raises Failed if anybody but root could exchange what root builds there.
        """
        parent = os.path.dirname(self.path)
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        there = [parent] + [self.builds] * os.path.isdir(self.builds)
        if all(os.access(each, os.W_OK | os.X_OK) for each in there):
            return False
        for each in there + [self.path]:
            judge(each, {0}, last=each != parent)
        return True


def read_marker(build):
    try:
        with open(os.path.join(build, MARKER)) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


# --- who could exchange it -------------------------------------------------------------------------------


def judge(path, uids=None, last=True, owner=None):
    """Refuse a path that another user could exchange: the rule of sshd's StrictModes, as in all of mnt.

    Each level belongs to this user or to root, and no other user can write to it; a directory with the sticky
    bit, like /tmp, may be on the way. Links are followed, and are levels too. The levels are judged from / on,
    so that nobody else can exchange one that is judged, each by a descriptor: nobody can exchange it meanwhile,
    nor mount or unmount anything there. It ends at what does not exist.

    Args:
        uids: the users who may own it, in place of this one and root.
        last: whether the path itself may be no such directory.
        owner: one more user who may own it; that user's group may not write to it.

    Raises Failed, naming the level and its owner.
    """
    uids = (uids or {0, os.getuid()}) | nobody()
    owners = uids if owner is None else uids | {owner}
    todo, here, links, mount = ["."] + names(path), "/", 0, None
    with contextlib.ExitStack() as held:
        root = above = entered("/", None, held)
        while todo:
            name = todo.pop(0)
            level = os.path.normpath(os.path.join(here, name))
            try:
                descriptor = entered(name, above, held)
            except (FileNotFoundError, NotADirectoryError):
                return
            own = mount_of(descriptor)
            if own != (mount or own) or not own:
                judge_mount(level, own, owners, mount_of(root))
            mount = own
            found = os.fstat(descriptor)
            judge_level(level, found, descriptor, owners, uids, last and not todo)
            if not stat.S_ISLNK(found.st_mode):
                here, above = level, descriptor
                continue
            links += 1
            if links > 40:
                raise Failed("%s leads nowhere" % level)
            target = os.readlink("", dir_fd=descriptor)
            todo = names(target) + todo
            if target.startswith("/"):
                here, above = "/", root


def names(path):
    return [name for name in path.split("/") if name not in ("", ".")]


def entered(name, above, held):
    """A descriptor (O_PATH) of what has a name in a directory, also of a link, until `held` ends."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    held.callback(os.close, descriptor)
    return descriptor


def judge_level(level, found, descriptor, owners, uids, last):
    """Raises Failed if anybody but these users could exchange what is at this level of a path."""
    hint = "who can write there could run code as you; use another place, or look at it: ls -ld %s" % level
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_uid not in owners:
        raise Failed("%s belongs to %s: %s" % (level, user(found.st_uid), hint))
    if stat.S_ISLNK(found.st_mode) or (sticky and not last):
        return
    if found.st_mode & 0o002:
        raise Failed("all users can write to %s: %s" % (level, hint))
    if found.st_mode & 0o020 and (has_list(descriptor) or not own_group(found.st_gid, uids)):
        raise Failed("the group %d can write to %s: %s" % (found.st_gid, level, hint))


def user(uid):
    try:
        return "%s (uid %d)" % (pwd.getpwuid(uid).pw_name, uid)
    except KeyError:
        return "uid %d" % uid


def uid_of(name):
    """The uid of a user of this host, by name or number; None: there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return int(name) if name.isdigit() else None


def own_group(gid, uids):
    """Whether a group is that of one of these users alone, as useradd makes it."""
    try:
        name = grp.getgrgid(gid).gr_name
        me = pwd.getpwnam(name)
    except KeyError:
        return False
    members = {each for group in grp.getgrall() if group.gr_gid == gid for each in group.gr_mem}
    others = [each for each in pwd.getpwall() if each.pw_gid == gid and each.pw_uid != me.pw_uid]
    return me.pw_uid in uids and me.pw_gid == gid and members <= {name} and not others


def has_list(descriptor):
    """Whether it has an access control list (acl(5)): then the mode of the group is that of others too."""
    try:
        return bool(os.getxattr("/proc/self/fd/%d" % descriptor, "system.posix_acl_access"))
    except OSError:
        return False


def nobody():
    """In a container's user namespace, the id that root's files have there; else none."""
    with open("/proc/self/uid_map") as file:
        if [int(number) for number in file.read().split()] == [0, 0, 4294967295]:
            return set()
    with open("/proc/sys/kernel/overflowuid") as file:
        return {int(file.read())}


def mount_of(descriptor):
    """The mount on which an open file is, None if unknown; nothing of its file system is asked."""
    with open("/proc/self/fdinfo/%d" % descriptor, "rb") as file:
        found = re.search(rb"^mnt_id:\s*(\d+)$", file.read(), re.M)
    return found and found.group(1)


def judge_mount(level, mount, uids, root):
    """Raises Failed if another user has mounted it (FUSE), or it is unknown who has.

    Owners and modes there are that user's word. What was unmounted when it was entered (umount -l) is in no list;
    that of / (`root`) may be in none in a chroot. Before Linux 5.8 an unmount may hide another line: so it is
    looked for twice.
    """
    for _ in range(2):
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().split(b"\n")  # anybody may choose a name with bytes that end a line elsewhere
        for fields in (line.split(b" ") for line in lines):
            if fields[0] == mount:
                kind, _, options = fields[fields.index(b"-") + 1 :][:3]
                owner = re.search(rb"(?:^|,)user_id=(\d+)", options)
                if re.match(rb"fuse(\.|blk|$)", kind) and owner and int(owner.group(1)) not in uids:
                    raise Failed(
                        "another user has mounted a file system (FUSE) on %s; use another place" % level
                    )
                return
    if not mount or mount != root:
        raise Failed("it cannot be found out who has mounted what is on %s; use another place" % level)


def installed(python):
    done = subprocess.run([python, "-I", "-c", INSTALLED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def differs(python, lock):
    """What is not installed as the lock says."""
    found = installed(python)
    pins = [line.split("==") for line in pinned(lock)]
    return ["%s==%s" % (name, version) for name, version in pins if found.get(canonical(name)) != version]


def look(args):
    """What is there. `patience`: for how many seconds to wait for what is not seen: NFS caches that."""
    ends = time.time() + args["patience"]
    while True:
        answer = look_once(args)
        if answer["complete"] or time.time() >= ends:
            return answer
        time.sleep(2)


def look_once(args):
    """What is there. `lock`: the versions that it must have; []: it may have any."""
    wanted = requirements(args["packages"], args["require"])
    place = Place(args["path"], args.get("owner", ""))
    storage = shared_by(args["storage"], place.path)
    if storage and os.path.isdir(storage) and os.stat(storage).st_dev == os.stat("/").st_dev:
        raise Failed(
            "nothing is mounted at %s, which `storage` in the inventory names; mount it first" % storage
        )
    marker = place.current()
    found = []
    if marker and marker["request"] == wanted and not args["upgrade"]:
        found = pinned(marker["lock"])
    complete = bool(found) and args["lock"] in ([], found) and not differs(place.python, found)
    try:
        root = place.owner_is_root()
    except Failed:
        if not complete:
            raise
        root = False  # whoever keeps it has built it
    answer = {
        "path": place.path,
        "python": place.python,
        "root": root,
        "request": wanted,
        "complete": complete,
        "shared": bool(storage),
        "lock": found,
        "ops_shared": bool(shared_by(args["storage"], args["env"].get("TORCH_EXTENSIONS_DIR", ""))),
    }
    if not complete:
        answer["base"] = interpreter(args["base"], args["require"].get("python", ""))[0]
    return answer


def shared_by(storage, path):
    """The storage that a path is on; None: on none that the inventory names."""
    found = [each.rstrip("/") for each in storage if (path + "/").startswith(each.rstrip("/") + "/")]
    return max(found, key=len) if found else None


# --- the build -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(place, seconds):
    """One build at a time, of all hosts that see the place: `mkdir` is atomic on NFS too."""
    os.makedirs(place.builds, exist_ok=True)
    judge(place.builds, owner=place.owner)  # nobody else could exchange it from now on
    lock = os.path.join(place.builds, "lock")
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
    ends = time.time() + seconds
    while True:
        try:
            os.mkdir(lock)
            break
        except FileExistsError:
            owner = lock_owner(lock)
            if is_left(lock, owner):
                break_lock(lock)
            elif time.time() > ends:
                raise Failed(
                    "%s builds there since more than %d s; if it does not any more, remove %s"
                    % (owner["host"] if owner else "another host", seconds, lock)
                )
            else:
                time.sleep(1)
    try:
        with open(os.path.join(lock, "owner"), "w") as file:
            json.dump(mine, file)
        yield
    finally:
        if lock_owner(lock) in (None, mine):
            shutil.rmtree(lock, ignore_errors=True)


def lock_owner(lock):
    """Who has the lock; None: it is not known yet, or was cut off."""
    try:
        with open(os.path.join(lock, "owner")) as file:
            owner = json.load(file)
        return {"host": str(owner["host"]), "pid": int(owner["pid"]), "token": owner.get("token")}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def is_left(lock, owner):
    """Whether the one who made the lock is gone: a process of this host that has ended, or nobody has signed it."""
    if owner is None:
        return time.time() - mtime(lock) > UNSIGNED
    return owner["host"] == socket.gethostname() and not os.path.isdir("/proc/%d" % owner["pid"])


def break_lock(lock):
    """Remove a lock that is left. One process at a time looks and removes, so that a new lock stays."""
    breaking = lock + ".break"
    try:
        os.mkdir(breaking)
    except FileExistsError:
        if time.time() - mtime(breaking) > UNSIGNED:  # it was killed at that
            with contextlib.suppress(OSError):
                os.rmdir(breaking)
        time.sleep(0.1)
        return
    try:
        if is_left(lock, lock_owner(lock)):
            shutil.rmtree(lock, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(breaking)


def mtime(path):
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return time.time()


def build(args):
    """Build what `request` says, with the versions of `lock` if there is one, and switch to it."""
    place = Place(args["path"], args.get("owner", ""))
    pinned(args["lock"])
    python, version = interpreter(args["base"], args["require"].get("python", ""))
    wanted = requirements(args["packages"], args["require"])
    with alone(place, args["wait"]):
        marker = place.current()
        done = marker and marker["request"] == wanted and not args["upgrade"]
        if done and args["lock"] in ([], marker["lock"]) and not differs(place.python, marker["lock"]):
            return {"changed": False, "id": marker["id"]}  # by another host meanwhile
        number = hashlib.sha256(json.dumps([wanted, args["lock"], version]).encode()).hexdigest()[:8]
        name = "%s-%s" % (time.strftime("%Y%m%d%H%M%S", time.gmtime()), number)
        target = os.path.join(place.builds, name)
        for each in builds(place):
            if read_marker(os.path.join(place.builds, each)) is None:
                shutil.rmtree(os.path.join(place.builds, each))  # an earlier run was cut off
        try:
            lock = fill(target, python, wanted, args)
        except BaseException as error:
            free = free_mib(place.builds)
            shutil.rmtree(target, ignore_errors=True)  # a full disk gets its space back
            if isinstance(error, Failed) and free < LEAST:
                raise Failed("no space left on device: %s has %d MiB free. %s" % (place.builds, free, error))
            raise
        write(os.path.join(target, MARKER), {"id": name, "request": wanted, "lock": lock, "python": version})
        link = place.path + ".new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        os.symlink(os.path.join(os.path.basename(place.builds), name), link)
        os.rename(link, place.path)
        for each in builds(place)[:-KEPT]:
            shutil.rmtree(os.path.join(place.builds, each), ignore_errors=True)
    return {"changed": True, "id": name}


def free_mib(path):
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize >> 20


def builds(place):
    """The names of the builds, the oldest first."""
    return sorted(each for each in os.listdir(place.builds) if re.match(r"\d{14}-[0-9a-f]{8}$", each))


def write(path, value):
    with open(path + ".new", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def fill(target, python, wanted, args):
    """Make the environment; returns its lock: each distribution with its version.

    A lock only says which version: what is installed is what `wanted` needs, as the index knows it. So whoever
    chose the lock, which may be another host, cannot bring a package of its own here.
    """
    run([python, "-I", "-m", "venv", target], "the environment cannot be made; mnt setup system brings venv")
    own = os.path.join(target, "bin", "python")
    brought = installed(own)  # pip, and with older Pythons setuptools
    source = ["--no-index", "--find-links", args["wheels"]] if args["wheels"] else []
    trusted = re.match(r"http://([^/@]*@)?([^/:]+)", args["index"])
    pip = [
        own,
        "-I",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
    ]
    pip += source + (["--trusted-host", trusted.group(2)] if trusted and not args["wheels"] else [])
    listed = ["-r", write_lines(os.path.join(target, "mnt-requirements.txt"), wanted)]
    if args["lock"]:
        listed += ["-c", write_lines(os.path.join(target, "mnt-constraints.txt"), args["lock"])]
    install = pip
    uv = found_uv()
    with index_variables("" if args["wheels"] else args["index"], own) as variables:
        if args["uv"] == "true" and uv is None:
            run(pip + ["uv"], "uv cannot be installed", variables)
            uv = os.path.join(target, "bin", "uv")
        if uv and args["uv"] != "false":
            install = [uv, "pip", "install", "--python", own, "--no-progress", *source]
        run(install + listed, "the packages cannot be installed", variables)
    new = [
        "%s==%s" % item
        for item in sorted(installed(own).items())
        if item[0] != "uv" and brought.get(item[0]) != item[1]
    ]
    if args["lock"]:
        check_lock(args["lock"], differs(own, args["lock"]), new, brought)
    return args["lock"] or new


@contextlib.contextmanager
def index_variables(index, python):
    """The index, as variables for pip and uv: all users of the host can see the words of a command.

    pip gives the URL to its children as such a word (BuildEnvironment, pip 20 to 26), so it gets the user and the
    password by a file of netrc(5), which only this user can read.

    Args:
        python: that runs pip.

    Raises Failed if that Python reads another user or password in the file.
    """
    if not index:
        yield {}
        return
    parts = urllib.parse.urlsplit(index)
    account, _, place = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=place).geturl()
    variables = {"PIP_INDEX_URL": bare, "UV_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
    if not account:
        yield variables
        return
    user, _, password = account.partition(":")
    wanted = [urllib.parse.unquote(user), urllib.parse.unquote(password)]
    host = place.split(":")[0]
    with tempfile.NamedTemporaryFile("w", prefix="mnt-netrc-", encoding="utf-8") as file:
        file.write("machine %s login %s password %s\n" % (host, wanted[0], wanted[1] or '""'))
        file.flush()
        argv = [python, "-I", "-c", NETRC, file.name, host]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        found = done.returncode == 0 and json.loads(done.stdout)
        if not found or [found[0], found[2]] != wanted:
            raise Failed(
                "pip_index: pip cannot get this user and password by a netrc file: they need ASCII without spaces, "
                "quotes and backslashes; before Python 3.11 no password may be empty"
            )
        yield {**variables, "NETRC": file.name}


def write_lines(path, lines):
    with open(path, "w") as file:
        file.write("".join(line + "\n" for line in lines))
    return path


def check_lock(lock, missing, new, brought):
    """Raises Failed if a lock has what nothing needs here (`missing`), or lacks what was installed (`new`)."""
    known = {canonical(line.split("==")[0]) for line in lock}.union(brought)
    lacking = [line for line in new if line.split("==")[0] not in known]
    if missing or lacking:
        raise Failed(
            "the versions that are kept are not those of this host%s%s: all hosts need the same Python and "
            "processor; for other versions: -e environment_upgrade=true"
            % (
                "; nothing here needs " + " ".join(missing)[:200] if missing else "",
                "; they lack " + " ".join(lacking)[:200] if lacking else "",
            )
        )


def run(argv, what, env=None):
    """Run a command. Raises Failed with what it says of its failure, without the user and password of a URL."""
    environment = {**os.environ, "PYTHONNOUSERSITE": "1", **(env or {})}
    for name in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = [line for line in lines if re.search("error|no space left|quota|not available", line, re.I)]
        # pip's first error names the reason, its last the package
        chosen = list(dict.fromkeys(said[:1] + said[-2:])) or lines[-2:]
        raise Failed("%s: %s" % (what, re.sub(r"//[^/\s]*@", "//***@", "; ".join(chosen))[:500]))
    return text


# --- DeepSpeed's ops -------------------------------------------------------------------------------------


def ops(args):
    """Compile the ops that were not compiled yet for these versions of torch and DeepSpeed."""
    place = Place(args["path"], args.get("owner", ""))
    place.current()
    found = installed(place.python)
    if "deepspeed" not in found:
        raise Failed("deepspeed_ops: the environment %s has no deepspeed" % place.path)
    where = args["env"].get("TORCH_EXTENSIONS_DIR")
    stamps = os.path.expanduser(where or "~/.cache/mnt-deepspeed-ops")
    os.makedirs(stamps, exist_ok=True)
    judge(stamps)  # a compiled op is code that is loaded
    judge(os.path.expanduser(where or "~/.cache/torch_extensions"))
    versions = "-".join([found.get("torch", "none"), found["deepspeed"], place.path.replace("/", "_")])
    left = [name for name in args["ops"] if not os.path.exists(os.path.join(stamps, stamp(name, versions)))]
    if left and not args["check"]:
        environment = {name: str(value) for name, value in args["env"].items()}
        environment["PATH"] = (
            os.path.join(place.path, "bin") + os.pathsep + os.environ.get("PATH", os.defpath)
        )
        run([place.python, "-I", "-c", OPS, *left], "DeepSpeed's ops cannot be compiled", environment)
        for name in left:
            write(os.path.join(stamps, stamp(name, versions)), {"time": time.time()})
    return {"changed": bool(left), "ops": left}


def stamp(name, versions):
    return "mnt-op-%s-%s" % (name, versions)


def main():
    (word,) = sys.argv[1:]
    try:
        answer = {"look": look, "build": build, "ops": ops}[word](json.load(sys.stdin))
    except Failed as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": "%s: %s" % (error.filename, error.strerror)}
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            answer["error"] += "; what was built there is removed"
    print("mnt-environment: " + json.dumps(answer))


if __name__ == "__main__":
    os.umask(0o022)
    os.chdir("/")  # what is run looks for modules and settings there, not in a home
    main()
