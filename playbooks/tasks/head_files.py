"""Names the packages in a directory of the head that a playbook may send to hosts, as JSON. Runs on the head.

    head_files.py DIRECTORY ENDING..      .deb, .whl, .tar.gz or .zip

Other files of the directory are not sent. A file of such a name that is none of that kind, or a link, ends it: a
link, or a copy that was given the name, could bring any file of yours to the hosts, such as a private key.
A message on standard error says what is wrong.
"""

import json
import os
import stat
import sys

KINDS = {".deb": b"!<arch>\ndebian-binary", ".whl": b"PK\3\4", ".zip": b"PK\3\4", ".tar.gz": b"\x1f\x8b\x08"}


def names(directory, endings):
    """Raises OSError, and ValueError for what must not be sent."""
    found = sorted(name for name in os.listdir(directory) if name.endswith(tuple(endings)))
    for name in found:
        check(os.path.join(directory, name), next(each for each in endings if name.endswith(each)))
    return found


def check(path, ending):
    """Raises ValueError unless the file is regular, and begins as one of its kind: no private key does."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise ValueError("%s is a link, and no link is sent to hosts; copy there what it leads to" % path)
    if not stat.S_ISREG(mode) or not begin(path).startswith(KINDS[ending]):
        raise ValueError("%s is no %s file, so it is not sent to hosts; remove it" % (path, ending))


def begin(path):
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(32)


if __name__ == "__main__":
    try:
        print(json.dumps(names(os.path.expanduser(sys.argv[1]), sys.argv[2:])))
    except OSError as error:
        sys.exit("%s: %s" % (error.filename, error.strerror))
    except ValueError as error:
        sys.exit(str(error))
