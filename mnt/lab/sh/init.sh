#!/bin/sh
# Init of a lab host: mounts the file systems in /etc/fstab, starts sshd, reaps orphans.
set -eu
node=$1
trap 'cat /run/sshd.log >&2; echo "failed $node"' EXIT

umount -l /etc/mnt-lab/old-root
mount -a
mkdir -m 755 /run/sshd
mkdir -m 1777 /run/lock
echo "$node" >/proc/sys/kernel/hostname
# A NIC answers ARP for its own addresses only, as if the two networks were separate cables.
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce

"$(command -v sshd)" -D -E /run/sshd.log >/dev/null &
until [ -s /run/sshd.pid ]; do
    kill -0 $! 2>/dev/null # the error of sshd is in its log
    sleep 0.02
done
trap - EXIT
echo "ready $node"

exec </dev/null >/dev/null 2>&1
while :; do # `wait` also reaps orphans
    sleep 2147483647 &
    wait
done
