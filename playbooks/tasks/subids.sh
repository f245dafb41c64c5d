#!/bin/sh
# Gives a user subordinate ids for containers. Runs on a host, for image_podman.yml.
#
#   subids.sh USER [check]      prints `added`, or `needed` in a check and for root, who gets none; nothing: USER has some

! grep -q "^$1:" /etc/subuid || ! grep -q "^$1:" /etc/subgid || exit 0
[ "$1" != root ] && [ -z "$2" ] || {
    echo needed
    exit 0
}
first=$(cat /etc/subuid /etc/subgid 2>/dev/null |
    awk -F: '{ end = $2 + $3; if (end > most) most = end } END { if (most < 100000) most = 100000; print most }')
usermod --add-subuids "$first-$((first + 65535))" --add-subgids "$first-$((first + 65535))" "$1" && echo added
