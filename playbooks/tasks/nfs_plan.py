"""Which host serves which directory, and what all hosts mount. Runs on the head, for playbooks/nfs.yml. Pure.

Standard input has a JSON document with the variables of the playbook, standard output the plan. A message on standard
error says what is wrong with them.
"""

import ipaddress
import json
import re
import sys

_PATH = r"/[A-Za-z0-9._/+@-]*"
_SOURCE = rf"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):({_PATH})"
_WORD = r"[A-Za-z0-9._=:/+@%-]+"  # an option of mount(8) or exports(5), without quotes
_CLIENT = r"[A-Za-z0-9][A-Za-z0-9.:_-]*"
_SHORTEST_PREFIX = 8  # of the training network, as in mnt.inventory.values
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var")


class Wrong(Exception):
    """What is wrong with the variables, and the way out."""


def plan(given):
    """{"mounts": [{"words", "server", "export", "clients"}, ..]}; `words`: PATH|SOURCE|TYPE|OPTIONS.

    `clients`: networks, addresses and names, with commas; the server looks the names up.
    """
    hosts = {
        name: [word for word in words if word]
        for name, *words in zip(given["names"], given["addresses"], given["training"], given["logins"])
    }
    if given["server"] and given["server"] not in hosts:
        raise Wrong("nfs_server: there is no host %s among these: %s" % (given["server"], ", ".join(hosts)))
    _check_options("nfs_export_options", given["export_options"].split(","))
    mounts = [_mount(each, given, hosts) for each in _wanted(given)]
    for client in filter(None, given["clients"].split(",")):
        _network("nfs_clients", client)
    return {"mounts": mounts}


def _wanted(given):
    if bool(given["path"]) != bool(given["source"]):
        raise Wrong(
            "nfs_path and nfs_source belong together: -e nfs_source=node1:/srv/shared -e nfs_path=/shared"
        )
    if given["path"]:
        return [{"path": given["path"], "source": given["source"]}]
    found = [each for each in given["storage"] if _is_nfs(each)]
    if not found:
        raise Wrong(
            "the inventory has no storage of type nfs or nfs4: add it to `storage`, or give nfs_source and nfs_path"
        )
    return found


def _is_nfs(mount):
    kind, source = mount.get("type"), mount.get("source", "")
    return kind in ("nfs", "nfs4") or (kind is None and re.fullmatch(_SOURCE, source) is not None)


def _mount(each, given, hosts):
    path, source = each["path"].rstrip("/"), each.get("source", "")
    if not re.fullmatch(_PATH, path) or ".." in path.split("/"):
        raise Wrong("%s: a path for NFS has letters, digits and ._/+@-, and is not /" % each["path"])
    if not source:
        server = given["server"] or given["master"]
        if server not in hosts:
            where = "which is not among these hosts: run this on all of them"
            raise Wrong("%s is to come from %s, %s" % (path, server, where))
        source = "%s:%s%s" % ((hosts[server][1:2] or hosts[server][:1] or [server])[0], given["root"], path)
    match = re.fullmatch(_SOURCE, source)
    if match is None or ".." in source.split("/"):
        raise Wrong("%s: the source %r is not SERVER:/DIRECTORY" % (path, source))
    word, export = match[1].strip("[]"), match[2].rstrip("/") or "/"
    server = given["server"] or _server(word, given)
    if server and (export == "/" or (export.split("/")[1] in _SYSTEM and export.count("/") == 1)):
        raise Wrong(
            "%s is a directory of the system, and is not exported: choose one such as /srv/shared" % export
        )
    options = list(each.get("options", ())) or ["rw", "hard"]
    _check_options(path, options)
    # Root of the server makes what is there: else a setuid file or a device makes it root of the clients.
    options += [no for yes, no in (("suid", "nosuid"), ("dev", "nodev")) if not {yes, no} & {*options}]
    known = [word, *hosts.get(server, ())]
    address = next((each for each in known if _address(each)), "") if server else ""
    inside = [
        subnet
        for subnet in filter(None, given["subnet"].split(","))
        if address and _address(address) in _training_network(subnet)
    ]
    # Elsewhere the hosts alone: a machine that may mount it can claim to act for any user.
    alone = dict.fromkeys(
        each for each in _known_as(hosts, address) if server and re.fullmatch(_CLIENT, each)
    )
    return {
        "words": "|".join([path, source, each.get("type") or "nfs4", ",".join(options)]),
        "server": server,
        "export": export,
        "clients": given["clients"] or ",".join(inside or alone),
    }


def _server(word, given):
    """The host that a source names: as the inventory knows it, or else by the training address of only one.

    That address is the host's own word: it takes the place of no other.
    """
    rows = list(zip(given["names"], given["addresses"], given["logins"], given["training"]))
    for name, address, login, _ in rows:
        if word in (name, address, login):
            return name
    named = [name for name, _, _, training in rows if word == training]
    return named[0] if len(named) == 1 else None


def _known_as(hosts, address):
    """From where the hosts may come: the address of the server, and all addresses and names that are known."""
    return [address, *(word for name, words in hosts.items() for word in words or [name])]


def _check_options(where, options):
    for option in options:
        if not re.fullmatch(_WORD, option):
            raise Wrong("%s: %r is no option" % (where, option))


def _address(word):
    try:
        found = ipaddress.ip_address(word)
    except ValueError:
        return None
    return None if found.is_loopback else found


def _network(name, text):
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise Wrong("%s: %s; expected a network such as 10.0.0.0/24" % (name, error)) from None


def _training_network(text):
    found = _network("mnt_training_subnet", text)
    if found.prefixlen < _SHORTEST_PREFIX:
        raise Wrong("mnt_training_subnet: %s is too large: at most a /%d" % (found, _SHORTEST_PREFIX))
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(plan(json.load(sys.stdin))))
    except Wrong as error:
        sys.exit(str(error))
