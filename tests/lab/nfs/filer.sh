# shellcheck shell=sh
# The filer: the kernel's NFS server, versions 3 and 4. What it exports lies on a tmpfs, for hostfs cannot be
# exported; a client's `/export/shared` is /srv/export/shared here.
modprobe nfsd
mount -t nfsd nfsd /proc/fs/nfsd
mount -t tmpfs tmpfs /srv
for name in shared other; do
    mkdir -p "/srv/export/$name"
    mount -t tmpfs -o size=8g,mode=1777 tmpfs "/srv/export/$name"
done
: >/var/lib/nfs/etab
: >/var/lib/nfs/rmtab
rpcbind
exportfs -ra
rpc.nfsd 4
echo Y >/proc/fs/nfsd/v4_end_grace # no client of an earlier life has anything to reclaim
rpc.mountd
