"""`mnt run`: what is sent for a command, and what is made of the answers of many hosts.

Pure, but for what keeps output and input in files, and for `session`, which has a Fleet do the work.
"""
