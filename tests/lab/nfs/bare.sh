# shellcheck shell=sh
# A bare node: it mounts nothing and serves nothing. It has what root of an ordinary machine has and guests else lack:
# an /etc to write in, sudo, and a disk that can be exported. Its sshd takes passwords too, and the keys in ~/.ssh.
mke2fs -q -t ext4 /dev/ubda
mount /dev/ubda /srv
# Guests have another root for what is exported (nfs.conf), as hostfs cannot be. Here the same path leads there.
mkdir /srv/srv
mount --bind /srv /srv/srv

cp -a /etc /run/etc
mount --bind /run/etc /etc
rm /etc/exports
mv /etc/bare/sshd_config /etc/ssh/sshd_config
mkdir /etc/pam.d /etc/alternatives
mv /etc/bare/sudo /etc/pam.d/sudo
mv /etc/bare/sudoers /etc/sudoers
chmod 440 /etc/sudoers
ln -s ../usr/lib/os-release /etc/os-release
for awk in mawk gawk; do
    [ ! -x /usr/bin/$awk ] || ln -sf /usr/bin/$awk /etc/alternatives/awk
done
/usr/sbin/sshd -E /var/log/sshd.log -h "/etc/ssh/keys/$GUEST"
