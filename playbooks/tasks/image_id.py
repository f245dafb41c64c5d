"""Prints the ID that podman gives to an image, from its archive (docker save): the SHA-256 of the config."""

import json
import sys
import tarfile


def image_id(path):
    with tarfile.open(path) as archive:

        def read(name):
            return json.load(archive.extractfile(name))

        def blob(digest):
            return "blobs/" + digest.replace(":", "/")

        names = archive.getnames()
        if "manifest.json" in names:
            return read("manifest.json")[0]["Config"].split("/")[-1].split(".")[0]
        return read(blob(read("index.json")["manifests"][0]["digest"]))["config"]["digest"].split(":")[1]


try:
    print(image_id(sys.argv[1]))
except (OSError, tarfile.TarError, KeyError, IndexError, ValueError, AttributeError) as error:
    sys.exit("%s is no archive of an image, as podman save writes it: %s" % (sys.argv[1], error))
