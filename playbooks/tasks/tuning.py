"""What tuning.yml asks of a host, and sets, where no module of Ansible does. Runs there: standard library, Python 3.8.

    tuning.py able MEMLOCK NOFILE SHM            fails, with all of them, if the host cannot have these limits
    tuning.py sshd MEMLOCK NOFILE look|set       raises the limits of the sshd that runs
    tuning.py shm SHM                            JSON: whether /dev/shm is mounted, must grow, and its line in fstab
    tuning.py neighbours DIRECTORY HOSTS         the size that the table of neighbours needs; nothing: it has it
    tuning.py put FILE TEXT [FILE TEXT]..        writes settings of the kernel
    tuning.py session MEMLOCK NOFILE             fails, with all of them, if this session has smaller limits

MEMLOCK is `unlimited` or KiB, SHM a part of the memory (50%) or a size (64G). A message on standard error is one line.
"""

import json
import os
import re
import resource
import sys

KINDS = {"memlock": (resource.RLIMIT_MEMLOCK, 1024, "KiB"), "nofile": (resource.RLIMIT_NOFILE, 1, "files")}
CAP_SYS_ADMIN = 21  # linux/capability.h
NR_OPEN = "/proc/sys/fs/nr_open"  # files that a process may open, for root too
SHM = "/dev/shm"
ENOUGH = 0.99  # of a size: file systems round it


def able(memlock, nofile, shm_size):
    """Nothing is left set: the limits are those of this process."""
    wrong, instead = [], []
    for name, text in (("memlock", memlock), ("nofile", nofile)):
        kind, unit, of = KINDS[name]
        limit = wanted(text, unit)
        if not can_set(kind, limit):
            most, why = allowed(name, limit)
            wrong.append(
                "%s can be at most %d %s (%s), not %s" % (name, most // unit, of, why, named(text, of))
            )
            instead.append("-e %s=%d" % (name, most // unit))
    now, size = shm_now(), shm_bytes(shm_size)
    if (now is None or 0 < now < ENOUGH * size) and not capable(CAP_SYS_ADMIN):
        has = "is not mounted" if now is None else "has %d MiB" % (now >> 20)
        wrong.append(
            "%s %s and must have %s, %d MiB (no CAP_SYS_ADMIN: a container gets its size from outside)"
            % (SHM, has, shm_size, size >> 20)
        )
        if now:
            instead.append("-e shm_size=%dk" % (now >> 10))
    if instead:
        wrong.append("run it with what this host allows: mnt setup tuning %s" % " ".join(instead))
    return "; ".join(wrong) or None


def named(text, of):
    return text if text == "unlimited" else "%s %s" % (text, of)


def wanted(text, unit):
    return resource.RLIM_INFINITY if text == "unlimited" else int(text) * unit


def can_set(kind, limit):
    try:
        resource.setrlimit(kind, (limit, limit))
    except (OSError, ValueError):
        return False
    return True


def allowed(name, limit):
    """The largest limit that this host can have, and what keeps it there."""
    kind = KINDS[name][0]
    if name == "nofile":
        with open(NR_OPEN) as file:
            most = int(file.read())
        if limit > most and can_set(kind, most):
            return most, "fs.nr_open of the kernel"
    return resource.getrlimit(kind)[1], "no CAP_SYS_RESOURCE: a container gets its limits from outside"


def capable(capability):
    with open("/proc/self/status") as file:
        effective = re.search(r"^CapEff:\s*(\w+)", file.read(), re.M)
    return effective is None or bool(int(effective.group(1), 16) & 1 << capability)


def session(memlock, nofile):
    less = []
    for name, text in (("memlock", memlock), ("nofile", nofile)):
        kind, unit, of = KINDS[name]
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and (text == "unlimited" or limit < int(text) * unit):
            less.append((name, "%s is still %d %s, not %s" % (name, limit // unit, of, named(text, of))))
    if less:
        said, names = "; ".join(each for _, each in less), " and ".join(name for name, _ in less)
        return (
            "in a new session %s: something else sets it; look for ulimit in ~/.bashrc, and for %s in /etc/security"
            % (said, names)
        )
    return None


def sshd(memlock, nofile, mode):
    """What listens hands its limits to the sessions, where no PAM sets others. Nothing is lowered."""
    limits = {KINDS["memlock"][0]: wanted(memlock, 1024), KINDS["nofile"][0]: wanted(nofile, 1)}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/status" % pid, errors="replace", newline="\n") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            # Anybody may give a process this name.
            if [status["Name"], status["PPid"], *status["Uid"].split("\t")] != ["sshd", "1"] + ["0"] * 4:
                continue
            for kind, limit in limits.items():
                soft, hard = resource.prlimit(int(pid), kind)
                if whole(soft) < whole(limit):
                    print("sshd, pid", pid, kind)
                    if mode == "set":
                        resource.prlimit(int(pid), kind, (limit, max(limit, hard, key=whole)))
        except (FileNotFoundError, ProcessLookupError):
            continue


def whole(limit):
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def shm(shm_size):
    now = shm_now()
    grow = bool(now) and now < ENOUGH * shm_bytes(shm_size)
    fields = fstab_fields()
    options = fields[3].split(",")
    said = [option[5:] for option in options if option.startswith("size=")]
    try:
        small = bool(said) and shm_bytes(said[-1]) < ENOUGH * shm_bytes(shm_size)
    except AttributeError:  # a size that this does not know
        small = False
    fields[3] = ",".join([each for each in options if not each.startswith("size=")] + ["size=" + shm_size])
    line = " ".join(fields) if grow or small or now is None else ""
    print(json.dumps({"mounted": now is not None, "grow": grow, "line": line}))


def shm_now():
    """Bytes of /dev/shm, 0 if it has no limit; None: nothing is mounted there."""
    if not os.path.ismount(SHM):
        return None
    found = os.statvfs(SHM)
    return found.f_blocks * found.f_frsize


def shm_bytes(text):
    if text.endswith("%"):
        with open("/proc/meminfo") as file:
            memory = re.search(r"^MemTotal:\s*(\d+)", file.read(), re.M)
        return int(memory.group(1)) * 1024 * int(text[:-1]) // 100
    number, unit = re.match(r"(\d+)([kmg]?)$", text.lower()).groups()
    return int(number) << {"": 0, "k": 10, "m": 20, "g": 30}[unit]


def fstab_fields():
    """The six fields of the line for /dev/shm, or of one to be written."""
    lines = []
    if os.path.exists("/etc/fstab"):
        with open("/etc/fstab") as file:
            lines = [line.split() for line in file if not line.lstrip().startswith("#")]
    fields = next((line for line in lines[::-1] if line[1:2] == [SHM]), None)
    fields = fields or ["tmpfs", SHM, "tmpfs", "rw,nosuid,nodev,mode=1777", "0", "0"]
    return fields + (["defaults", "0", "0"][len(fields) - 3 :] if len(fields) < 6 else [])


def neighbours(place, hosts):
    """A network namespace has no settings of its own: there is nothing to be done then."""
    if not os.path.exists(place + "/gc_thresh3"):
        return
    with open(place + "/gc_thresh3") as settings, open("/proc/net/arp") as table:
        limit, entries = int(settings.read()), max(int(hosts), len(table.readlines()) - 1)
    if limit <= entries:
        print(max(4096, 1 << (2 * entries - 1).bit_length()))


def put(*words):
    for place, text in zip(words[::2], words[1::2]):
        with open(place, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    verbs = {each.__name__: each for each in (able, sshd, shm, neighbours, put, session)}
    sys.exit(verbs[sys.argv[1]](*sys.argv[2:]))
