#!/bin/sh
# PID 1 of an NfsLab, in PID, mount and network namespaces of its own: all guests, their files (/run) and their
# switch hang from it. It lives until its stdin ends, that is: until the test session closes it, or dies.
#
# Arguments: the tree of unpacked packages.
set -eu

read -r pid _ </proc/self/stat # as the machine counts: /proc is still the machine's
mount -n -t tmpfs -o mode=755 mnt-nfs-lab /run
mount -t proc proc /proc
mkdir -p /run/guests /run/head /run/root
cd /run/root # of all guests; they write on file systems of their own
mkdir dev etc home mnt proc root run srv sys tmp usr var
for directory in bin sbin lib lib64; do
    ln -s usr/$directory $directory
done
mount -t overlay -o "lowerdir=$1/usr:/usr" overlay usr # the machine's programs, and the packages' over them
ip link set lo up
ip link add switch type bridge forward_delay 0 mcast_snooping 0
ip link set switch up
echo "$pid"
exec cat >/dev/null
