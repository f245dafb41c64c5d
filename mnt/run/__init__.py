"""`mnt run`: the command that is sent to the hosts, and the answers of many hosts.

All modules are pure, except those that keep input or output in files, and `session`, which uses a Fleet.
"""
