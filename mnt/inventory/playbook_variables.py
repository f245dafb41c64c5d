"""The variables that the playbooks of `mnt setup` take, for `setup` in an inventory and for `-e`. Pure.

The playbooks are the source of what is valid; a test compares this table with them and with docs/setup.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mnt.inventory.spelling import closest


@dataclass(frozen=True)
class Form:
    """A form that a text must have, as a whole. `says`: it completes `expected ..`."""

    pattern: str
    says: str
    separator: str | None = None  # the text is a list, of which each item must have the form; it may be empty

    def fits(self, text: str) -> bool:
        items = [text] if self.separator is None else filter(None, map(str.strip, text.split(self.separator)))
        return all(re.fullmatch(self.pattern, item) for item in items)


_PATH = r"/[A-Za-z0-9._/+@-]*"
_NUMBER = Form("[0-9]{1,9}", "a number")
_PORTS = Form("[0-9]+(-[0-9]+)?", "ports or ranges, with commas, such as 50051,40000-40010", ",")
_OWN_PATH = Form(r"([/~].*)?", "a whole path")
_ANY = None  # of such a form, the playbook itself says what is wrong
_SWITCH = Form("(?i:true|false|yes|no|on|off|1|0)", "true or false")

_MIRROR: Mapping[str, Form | None] = {"apt_mirror": _ANY, "debs": _ANY}

# By playbook, by variable.
VARIABLES: Mapping[str, Mapping[str, Form | None]] = {
    "system": {
        "system_packages": Form(
            "[A-Za-z0-9][A-Za-z0-9+._:-]*", "names of packages, with commas, such as htop,numactl", ","
        ),
        **_MIRROR,
        "apt_lock_seconds": _NUMBER,
    },
    "ssh": {"mnt_inventory": _ANY, "mnt": _ANY},
    "tuning": {
        "memlock": Form("(unlimited|[1-9][0-9]{0,14})", "unlimited, or a number of KiB"),
        "nofile": Form("[1-9][0-9]{0,9}", "a number of files"),
        "shm_size": Form(
            "(([1-9][0-9]?|100)%|[1-9][0-9]{0,14}[kKmMgG]?)",
            "a part of the memory such as 50%, or a size such as 64G",
        ),
        "login_user": Form("([A-Za-z0-9_][A-Za-z0-9_.@-]*)?", "the name of a user"),
        "cluster_size": Form("[1-9][0-9]{0,5}", "a number of hosts"),
        "neighbour_settings": Form("/.+", "a whole path"),
    },
    "nfs": {
        "nfs_server": _ANY,
        "nfs_source": Form(
            rf"(([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):{_PATH})?",
            "SERVER:/DIRECTORY, as in node1:/srv/shared",
        ),
        "nfs_path": Form(f"({_PATH})?", "a whole path, of letters, digits and ._/+@-"),
        "nfs_clients": Form(
            "[0-9A-Fa-f:.]+(/[0-9]{1,3})?", "networks, with commas, such as 10.0.0.0/24", ","
        ),
        "nfs_export_options": Form("[A-Za-z0-9._=:/+@%-]+", "options of exports(5), with commas", ","),
        "nfs_export_root": Form(_PATH, "a whole path, of letters, digits and ._/+@-"),
        "nfs_owner": _ANY,
        **_MIRROR,
    },
    "rdma": {
        "rdma_packages": Form("(?i:true|false)", "true or false"),
        "rdma_modules": Form(
            "([A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*)?", "names of modules, with commas, such as ib_uverbs,rdma_ucm"
        ),
        **_MIRROR,
    },
    "environment": {
        "environment_path": _OWN_PATH,
        "environment_packages": _ANY,
        "environment_python": _ANY,
        "environment_upgrade": _SWITCH,
        "environment_lock": _OWN_PATH,
        "environment_wait": _NUMBER,
        "use_uv": Form("(?i:auto|true|false)", "auto, true or false"),
        "pip_index": _ANY,
        "wheelhouse": _ANY,
        "deepspeed_ops": Form("[a-z0-9_]+", "names of ops, with commas, such as cpu_adam,async_io", ","),
    },
    "container": {
        "image": Form(
            "[A-Za-z0-9~/._:@+-]+",
            "the whole path of a file of the head, or a reference such as docker.io/library/debian:12",
        ),
        "runtime": Form("apptainer|podman|charliecloud", "apptainer, podman or charliecloud"),
        "image_directory": Form("/.*[^/]", "a whole path, such as /opt/mnt/images"),
        **_MIRROR,
    },
    "firewall": {
        "training_sources": Form(
            "[0-9.]+(/[0-9]{1,2})?", "IPv4 addresses and networks, with commas, such as 10.0.0.0/24", ","
        ),
        "master_port": Form("[0-9]+", "a port"),
        "ssh_ports": _PORTS,
        "open_ports": _PORTS,
        "training_firewall": Form("present|absent", "present or absent"),
    },
    "slurm": {
        "slurm_partition": Form("[A-Za-z][A-Za-z0-9_]*", "a word"),
        "slurm_proctrack": Form("proctrack/[a-z]+", "a plugin, such as proctrack/linuxproc"),
        "slurm_task_plugin": Form("task/[a-z]+(,task/[a-z]+)*", "plugins, such as task/none"),
        "slurm_cgroup_plugin": Form("(autodetect|cgroup/v[12]|disabled)", "autodetect, or as in cgroup/v2"),
        "slurm_srun_ports": Form("[0-9]+-[0-9]+", "a range of ports, such as 61000-63999"),
        "slurm_memory_percent": Form("[1-9][0-9]?", "a number below 100"),
        "slurm_wait": _NUMBER,
        **_MIRROR,
    },
}
# What `mnt setup` tells the playbooks of the inventory (mnt/setup/hosts.py).
GIVEN = (
    "mnt_address", "mnt_cluster", "mnt_env", "mnt_gpus", "mnt_host_count", "mnt_inventory", "mnt_master",
    "mnt_master_port", "mnt_python", "mnt_python_owner", "mnt_require", "mnt_storage", "mnt_training_address",
    "mnt_training_subnet", "mnt_user",
)  # fmt: skip
_FORMS = {name: form for variables in VARIABLES.values() for name, form in variables.items()}
_OF_ANSIBLE = "ansible_"
_TEMPLATE = re.compile(r"\{[{%]")  # of Ansible, which only it can judge


def unknown(name: str) -> str | None:
    """What is wrong with a name that neither a playbook nor Ansible takes for a variable, as `no .. this`."""
    if name in _FORMS or name in GIVEN or name.startswith(_OF_ANSIBLE):
        return None
    near = closest(name, _FORMS)
    hint = f"; did you mean {near!r}, of {' and '.join(playbooks_of(near))}?" if near else ""
    return f"no playbook has a variable of this name{hint}"


def misfit(name: str, value: str) -> str | None:
    """What is wrong with a value, if the form of the variable is known."""
    form = _FORMS.get(name)
    if form is None or form.fits(value) or _TEMPLATE.search(value):
        return None
    return f"{value!r} is not valid for {' and '.join(playbooks_of(name))}: expected {form.says}"


def playbooks_of(name: str) -> list[str]:
    return [playbook for playbook, variables in VARIABLES.items() if name in variables]
