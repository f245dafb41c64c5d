"""Whether a host is in the training network. Runs there, for firewall.yml: standard library, Python 3.8.

    firewall.py SOURCES ADDRESSES       both with commas: the training network, and the addresses of the host

It prints the networks; a message on standard error says what is wrong with them.
"""

import ipaddress
import sys

EXPECTED = "training_sources must be the training network, such as 10.0.0.0/24: %s"


def main(sources, addresses):
    try:
        networks = [ipaddress.IPv4Network(word) for word in sources.split(",")]
    except ValueError as error:
        return EXPECTED % error
    if any(each.prefixlen == 0 for each in networks):
        return EXPECTED % "0.0.0.0/0 is everybody"
    if not any(ipaddress.IPv4Address(own) in each for own in addresses.split(",") for each in networks):
        return "none of this host's addresses (%s) is in training_sources, %s" % (addresses, sources)
    print(*networks)
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
