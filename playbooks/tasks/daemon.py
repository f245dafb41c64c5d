"""Whether a daemon runs, and with the newest of its files. Runs on a host, for daemon.yml: standard library, Python 3.8.

    daemon.py PROCESS FILES USERS       FILES and USERS with commas: whose process it may be, besides root's

It prints `stopped`, `old` (a file is newer than the process) or `current`.
"""

import os
import pwd
import sys
import time


def main(name, files, users):
    started = list(starts(name, {"0", *uids(users.split(","))}))
    there = filter(os.path.exists, files.split(","))  # in a check, they may be still to come
    changed = max(map(os.path.getmtime, there), default=0)
    print("stopped" if not started else "old" if min(started) < changed else "current")


def uids(users):
    for user in users:
        try:
            yield str(pwd.getpwnam(user).pw_uid)
        except KeyError:
            continue


def starts(name, users):
    """When each process of this name was started, in seconds since 1970."""
    with open("/proc/uptime") as file:
        boot = time.time() - float(file.read().split()[0])
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/status" % pid, errors="replace", newline="\n") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            with open("/proc/%s/stat" % pid, errors="replace", newline="\n") as file:
                fields = file.read().rpartition(") ")[2].split()
        except OSError:
            continue
        # Anybody may give a process this name. (The owner of /proc/PID is root for all that cannot be dumped.)
        if status["Name"] == name and set(status["Uid"].split("\t")) <= users:
            yield boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(*sys.argv[1:])
