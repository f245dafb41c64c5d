"""Running the machine's own tools, and whether they and the kernel can make a lab at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence

from mnt.errors import MntError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# tool -> the Debian package that brings it
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

# what -> (how to try it inside fresh namespaces, the kernel option that brings it)
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
    """Raises MntError unless root runs this."""
    if os.geteuid() != 0:
        raise MntError(
            "a lab needs root: it is made of namespaces, mounts and links", fix="run the command with sudo"
        )


def require_lab_support(*, shaping: bool) -> None:
    """Try each thing that a lab is made of; `shaping`: the limit of `--rate` too. Raises MntError."""
    require_root()
    missing = [tool for tool in _PACKAGES if shutil.which(tool, path=PATH) is None]
    if missing:
        packages = sorted({_PACKAGES[tool] for tool in missing})
        raise MntError(
            f"a lab needs {', '.join(missing)}: not found", fix=f"apt-get install {' '.join(packages)}"
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
            f"this machine makes no new namespaces: {reason}",
            fix="use a machine or a virtual machine; a container must be privileged",
        )
    lacking = probe.stdout.strip()
    if lacking:
        option = features[lacking][1]
        raise MntError(f"the kernel makes no {lacking}: {reason}", fix=f"it must be built with {option}")


def run(argv: Sequence[str], *, stdin: str = "") -> str:
    """The output of one of the machine's tools. Raises MntError with its complaint if it fails."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, env={"PATH": PATH})
    if done.returncode != 0:
        complaint = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise MntError(f"{' '.join(argv)}: {complaint}")
    return done.stdout


def networks_in_use() -> list[str]:
    """Every IPv4 network (CIDR) that this machine has an address in or a route to, less the default route."""
    addresses = json.loads(run(["ip", "-j", "-4", "addr"]))
    routes = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]))
    found = [f"{a['local']}/{a['prefixlen']}" for link in addresses for a in link.get("addr_info", ())]
    return found + [route["dst"] for route in routes if route["dst"] != "default"]
