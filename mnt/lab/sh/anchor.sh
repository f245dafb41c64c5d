#!/bin/sh
# PID 1 of a lab, in PID, mount and network namespaces of its own: the one process that the whole lab hangs from.
# Its network namespace is the switch, its /run holds all files of the lab; neither is seen by the machine.
#
# Speaks with `mnt lab up` over stdin and stdout. Until it is told `stay`, the end of stdin (mnt was killed) ends
# it, and the kernel takes everything below it away.
#
# Environment: LAB_SOURCE (first column of /proc/mounts), LAB_UID (of the hosts' ordinary user).
set -eu

read -r pid _ </proc/self/stat # as the machine counts: /proc is still the machine's
mount -n -t tmpfs -o mode=755 "$LAB_SOURCE" /run # -n: nothing noted in the machine's own /run
echo "lab $pid"

read -r word # mnt fills /run meanwhile
[ "$word" = start ]

mount -t tmpfs -o "mode=755,uid=$LAB_UID,gid=$LAB_UID" "$LAB_SOURCE" /run/shared
mount --bind /proc/self/ns/net /run/netns/switch
ip -batch /run/net/switch
while IFS= read -r path; do
    mount -o remount,bind,ro "$path" || ! mountpoint -q "$path" # one that a later mount hides cannot be seen
done </run/readonly

for node in $(cat /run/nodes); do
    unshare --net --mount --pid --uts --ipc --fork --kill-child /bin/sh /run/enter.sh "$node" </dev/null &
done

read -r word
[ "$word" = stay ]

exec </dev/null >/dev/null 2>&1
while :; do # `wait` also reaps whoever lost its parent
    sleep 2147483647 &
    wait
done
