#!/bin/sh
# Creates a host's network and root file system, then becomes its init. Runs as PID 1 of the host's namespaces,
# while the lab's files are still at /run.
set -eu
node=$1
trap 'echo "failed $node"' EXIT

read -r pid _ </proc/self/stat # the pid outside of the namespaces: /proc is still the machine's

ip -batch "/run/net/$node"
[ ! -e "/run/net/$node.tc" ] || tc -batch "/run/net/$node.tc"

files=/run/hosts/$node
root=$files/root
mount -t overlay overlay -o "lowerdir=/run/layer:/,upperdir=$files/upper,workdir=$files/work" "$root"
while IFS= read -r line; do # `rbind /srv`
    path=${line#* }
    mount "--${line%% *}" "$path" "$root$path" || ! mountpoint -q "$path" # see anchor.sh
done </run/binds
number=0
while IFS= read -r path; do # a directory of the host's own, in one of these
    [ -d "$root$path" ] || continue
    number=$((number + 1))
    own=$files/own/$number
    mkdir -p "$own/upper" "$own/work"
    cd "/run/layer$path"
    chown --reference=. "$own/upper"
    mount -t overlay overlay -o "lowerdir=.,upperdir=$own/upper,workdir=$own/work" "$root$path"
done </run/own
mount --bind /run/shared "$root/shared"
[ ! -d /run/home ] || mount --bind /run/home "$root/home/mnt"
mount -t proc proc "$root/proc"

cd "$root"
pivot_root . etc/mnt-lab/old-root
echo "host $node $pid"
exec /bin/sh /etc/mnt-lab/init.sh "$node"
