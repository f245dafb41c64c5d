"""The key of munge on a host, in a directory of munge's in which root works: slurm.yml runs this there, as root.

    munge_key.py make DIRECTORY USER     makes a key if there is none
    munge_key.py check DIRECTORY USER    changes nothing, and says what `make` would
    munge_key.py read DIRECTORY USER     prints the key, in base64
    munge_key.py write DIRECTORY USER    the key is that of standard input, in base64

Only USER can read the key then. It prints `written` if something has changed, or would. USER may put links there, to
files of root's: none is followed, and no file changes that has another name too. Python 3.8.
"""

import base64
import contextlib
import os
import pwd
import stat
import sys

MOST = 1024  # bytes of a key


def current(path):
    """A descriptor of the key; None: there is none. Ends the program for what is no file of its own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        sys.exit("%s is no key: %s; look at it: sudo ls -l %s" % (path, error.strerror, path))
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        sys.exit("%s is no file, or has another name too; look at it: sudo ls -l %s" % (path, path))
    return descriptor


def read(descriptor):
    return os.pread(descriptor, MOST + 1, 0)


def close(descriptor, owner):
    """Let only the owner read it."""
    os.fchown(descriptor, owner.pw_uid, owner.pw_gid)
    os.fchmod(descriptor, 0o400)


def is_closed(descriptor, owner):
    found = os.fstat(descriptor)
    mode = stat.S_IMODE(found.st_mode)
    return (found.st_uid, found.st_gid, mode) == (owner.pw_uid, owner.pw_gid, 0o400)


def write(path, key, owner):
    new = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    os.write(descriptor, key)
    os.fsync(descriptor)
    close(descriptor, owner)
    os.rename(new, path)


def main(word, directory, user):
    path, owner = os.path.join(directory, "munge.key"), pwd.getpwnam(user)
    found = current(path)
    if word == "read":
        print(base64.b64encode(b"" if found is None else read(found)).decode())
        return
    key = base64.b64decode(sys.stdin.read()) if word == "write" else None
    if found is None:
        key = key or os.urandom(128)
    elif key == read(found):
        key = None
    if key is None and is_closed(found, owner):
        return
    if word != "check" and key is not None:
        write(path, key, owner)
    elif word != "check":
        close(found, owner)
    print("written")


if __name__ == "__main__":
    main(*sys.argv[1:])
