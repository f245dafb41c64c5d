# shellcheck shell=sh
# A node: sshd, and the NFS client.
modprobe -a nfsv3 nfsv4
mount -t tmpfs tmpfs /mnt
install -d -o mnt -g mnt /mnt/shared # as on most machines: where nothing is mounted, writing works, into nowhere
/usr/sbin/sshd -E /var/log/sshd.log -h "/etc/ssh/keys/$GUEST"
