"""Prints the ID that podman gives to an image, from its archive (docker save): the SHA-256 of the config.

The archive is anybody's: what is read of it is bounded, and an ID has 64 hex digits, or there is none.
"""

import json
import re
import resource
import sys
import tarfile

WRONG = (OSError, tarfile.TarError, LookupError, TypeError, ValueError, RecursionError, MemoryError)
MEMORY = 512 << 20  # bytes of this process; a header of a tar file may say that it is of any size
LARGEST = 1 << 20  # bytes of a manifest, hundreds of times what podman writes
CONFIG = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?")
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def image_id(path):
    """The 64 hex digits. Raises WRONG for anything else than an archive of an image."""
    with tarfile.open(path, "r:") as archive:

        def read(name):
            member = archive.getmember(name)
            if not member.isreg() or member.size > LARGEST:
                raise ValueError("its %s is no file of at most %d bytes" % (name, LARGEST))
            return json.load(archive.extractfile(member))

        def blob(descriptor):
            return read("blobs/sha256/" + digits(DIGEST, descriptor["digest"]))

        if "manifest.json" in archive.getnames():
            return digits(CONFIG, read("manifest.json")[0]["Config"])
        return digits(DIGEST, blob(read("index.json")["manifests"][0])["config"]["digest"])


def digits(form, text):
    match = form.fullmatch(text)
    if match is None:
        raise ValueError("%.100r is no ID of an image" % text)
    return match.group(1)


def main(path):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        print(image_id(path))
    except WRONG as error:
        why = str(error) or type(error).__name__
        sys.exit("%s is no archive of an image, as podman save writes it: %.300s" % (path, why))


if __name__ == "__main__":
    main(sys.argv[1])
