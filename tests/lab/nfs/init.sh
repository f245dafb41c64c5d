#!/bin/sh
# Init of a guest. All guests have one root, read-only; what they write lies on file systems of their own. The
# kernel's command line sets the environment: GUEST (its name), ADDRESSES (CIDR, with commas), ROLE (node or
# filer), MARK (see guest.py).
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
{
    mount -t proc proc /proc
    mount -t sysfs sysfs /sys
    mkdir -p /dev/pts /dev/shm
    mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount -t tmpfs -o mode=1777 tmpfs /tmp
    for directory in /run /home /root /var; do
        mount -t tmpfs -o mode=755 tmpfs $directory
    done
    mkdir -p /run/sshd /var/log /var/lib/nfs/sm /var/lib/nfs/v4recovery
    install -d -o mnt -g mnt -m 700 /home/mnt
    echo "$GUEST" >/proc/sys/kernel/hostname

    ip link set lo up
    ip link set vec0 name eth0
    for address in $(echo "$ADDRESSES" | tr , ' '); do
        ip addr add "$address" dev eth0
    done
    ip link set eth0 up

    # shellcheck source=/dev/null
    . "/etc/guest/$ROLE.sh"
    stty -F /dev/ttyS0 raw -echo
} >/dev/console 2>&1

exec </dev/ttyS0 >/dev/ttyS0 2>/dev/console
echo "$MARK 0"
while IFS= read -r line; do
    (eval "$line") </dev/null >/run/answer 2>&1
    code=$?
    cat /run/answer
    echo "$MARK $code"
done
