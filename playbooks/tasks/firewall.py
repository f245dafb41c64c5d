"""Whether a host is in the training network. Runs there, for firewall.yml: standard library, Python 3.8.

    firewall.py SOURCES ADDRESSES       both with commas: the training network, and the addresses of the host

It prints the networks; a message on standard error says what is wrong with them.
"""

import ipaddress
import sys

EXPECTED = "training_sources must be the training network, such as 10.0.0.0/24: %s"


def main(sources, addresses):
    if not sources:
        return EXPECTED % (
            "no network is one that more than half of the hosts say they are in; set network.subnet"
        )
    try:
        networks = [ipaddress.IPv4Network(word) for word in sources.split(",")]
    except ValueError as error:
        return EXPECTED % error
    for each in networks:
        if each.prefixlen < 8:
            return EXPECTED % ("%s is too large: at most a /8" % each)
    if not any(ipaddress.IPv4Address(own) in each for own in addresses.split(",") for each in networks):
        return "none of this host's addresses (%s) is in training_sources, %s" % (addresses, sources)
    print(*networks)
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
