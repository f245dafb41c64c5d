#!/bin/sh
# PID 1 of a lab, in its own PID, mount and network namespaces. The whole lab depends on this process. Its network
# namespace is the switch, and its /run contains all files of the lab. The machine sees neither.
#
# It talks to `mnt lab up` over stdin and stdout. Until it reads `stay`, the end of stdin (mnt was killed) ends it,
# and the kernel removes the lab.
#
# Environment: LAB_SOURCE (first column of /proc/mounts), LAB_UID (of the hosts' ordinary user).
set -eu

read -r pid _ </proc/self/stat # the pid outside of the namespaces: /proc is still the machine's
mount -n -t tmpfs -o mode=755 "$LAB_SOURCE" /run # -n: write nothing to the machine's own /run
echo "lab $pid"

read -r word # mnt fills /run meanwhile
[ "$word" = start ]

mount -t tmpfs -o "mode=755,uid=$LAB_UID,gid=$LAB_UID" "$LAB_SOURCE" /run/shared
mount --bind /proc/self/ns/net /run/netns/switch
ip -batch /run/net/switch
while IFS= read -r path; do
    mount -o remount,bind,ro "$path" || ! mountpoint -q "$path" # a mount that a later one hides is not visible
done </run/readonly

for node in $(cat /run/nodes); do
    unshare --net --mount --pid --uts --ipc --fork --kill-child /bin/sh /run/enter.sh "$node" </dev/null &
done

read -r word
[ "$word" = stay ]

exec </dev/null >/dev/null 2>&1
while :; do # `wait` also reaps orphans
    sleep 2147483647 &
    wait
done
