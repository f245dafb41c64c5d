"""Run the machine's tools, and check that the tools and the kernel support labs."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from mnt.errors import MntError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# tool -> its Debian package
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "mount": "mount",
    "umount": "mount",
    "nsenter": "util-linux",
    "pivot_root": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "unshare": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
}

# feature -> (a command that tests it in new namespaces, the kernel option that enables it)
_FEATURES = {
    "tmpfs": ("mount -n -t tmpfs tmpfs /run && mkdir /run/upper /run/work /run/root", "CONFIG_TMPFS"),
    "overlayfs": (
        "mount -t overlay overlay -o lowerdir=/,upperdir=/run/upper,workdir=/run/work /run/root",
        "CONFIG_OVERLAY_FS",
    ),
    "bridges": ("ip link add bridge0 type bridge", "CONFIG_BRIDGE"),
    "veth links": ("ip link add veth0 type veth peer name veth1", "CONFIG_VETH"),
}
_SHAPING = (
    "tc qdisc add dev veth0 root tbf rate 1mbit burst 64kb latency 50ms",
    "CONFIG_NET_SCH_TBF",
)
_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")


def require_root() -> None:
    """Raises MntError if the user is not root."""
    if os.geteuid() != 0:
        raise MntError(
            "a lab needs root, to create namespaces, mounts and links", fix="run the command with sudo"
        )


def require_lab_support(*, shaping: bool) -> None:
    """Test all features that a lab needs. Raises MntError if one is missing.

    Args:
        shaping: also test what `--rate` needs.
    """
    require_root()
    missing = [tool for tool in _PACKAGES if shutil.which(tool, path=PATH) is None]
    if missing:
        packages = sorted({_PACKAGES[tool] for tool in missing})
        raise MntError(
            f"programs that a lab needs are missing: {', '.join(missing)}",
            fix=f"apt-get install {' '.join(packages)}",
        )
    features = dict(_FEATURES)
    if shaping:
        features["token buckets (for --rate)"] = _SHAPING
    script = "".join(
        f"({command}) || {{ echo '{name}'; exit 0; }}\n" for name, (command, _) in features.items()
    )
    probe = subprocess.run(
        [*_NAMESPACES, "/bin/sh", "-c", script], capture_output=True, text=True, env={"PATH": PATH}
    )
    reason = (probe.stderr.strip().splitlines() or ["no reason given"])[0]
    if probe.returncode != 0:
        raise MntError(
            f"this machine cannot create namespaces: {reason}",
            fix="use a physical or virtual machine, or a privileged container",
        )
    lacking = probe.stdout.strip()
    if lacking:
        option = features[lacking][1]
        raise MntError(
            f"the kernel does not support {lacking}: {reason}",
            fix=f"use a kernel that is built with {option}",
        )


def run(argv: Sequence[str], *, stdin: str = "") -> str:
    """Run one of the machine's tools and return its output. Raises MntError with its error message."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, env={"PATH": PATH})
    if done.returncode != 0:
        error = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise MntError(f"{' '.join(argv)}: {error}")
    return done.stdout


def count_gpus() -> int:
    """The number of this machine's NVIDIA GPUs, as nvidia-smi lists them; 0 without it. Raises MntError."""
    if shutil.which("nvidia-smi", path=PATH) is None:
        return 0
    return len(run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]).split())


def knows_id(number: int) -> bool:
    """Whether a user or a group of this machine has that id.

    A directory (LDAP, SSSD) is asked too: it finds a user by id, also if it lists none.
    """
    for look in (pwd.getpwuid, grp.getgrgid):
        with suppress(KeyError):
            look(number)
            return True
    return False


def networks_in_use() -> list[str]:
    """The IPv4 networks (CIDR) of this machine's addresses and routes, without the default route."""
    addresses = json.loads(run(["ip", "-j", "-4", "addr"]))
    routes = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]))
    found = [f"{a['local']}/{a['prefixlen']}" for link in addresses for a in link.get("addr_info", ())]
    return found + [route["dst"] for route in routes if route["dst"] != "default"]
