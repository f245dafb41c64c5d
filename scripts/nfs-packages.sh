#!/usr/bin/env bash
# Downloads the programs for the tests on real NFS (tests/lab/nfs/), once:
#
#   $MNT_CACHE/uml    a Linux kernel that runs as a process, with NFS client and server, and the programs they need;
#                     xstate.so there lets it run on any processor (tests/lab/nfs/xstate.c)
#
# The default of MNT_CACHE is /var/cache/mnt. The packages are downloaded and unpacked there, but not installed:
# an installed nfs-kernel-server or rpcbind would start services on this machine.

set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"

tree=${MNT_CACHE:-/var/cache/mnt}/uml
stamp=$tree/.complete # written last: an incomplete tree has none

up_to_date() {
    [ "$(cat "$stamp" 2>/dev/null)" = "$NFS_PACKAGES" ]
}

# Downloads the packages and their dependencies, except installed ones: the guests see this machine's /usr.
download() {
    mkdir -p "$1/partial"
    # shellcheck disable=SC2086 # the list is meant to split
    apt-get install -y -qq --no-install-recommends --download-only -o "Dir::Cache::archives=$1" \
        $NFS_PACKAGES >/dev/null
}

# Unpacks packages into a tree where bin, sbin and lib are below usr, as on current Debian.
unpack() {
    local package directory
    mkdir -p "$2/usr/lib"
    for package in "$1"/*.deb; do
        [ ! -e "$package" ] || dpkg -x "$package" "$2" # there may be no package, if all are installed
    done
    for directory in bin sbin lib; do
        if [ -d "$2/$directory" ]; then
            mkdir -p "$2/usr/$directory"
            cp -a "$2/$directory/." "$2/usr/$directory/"
            rm -r "${2:?}/$directory"
        fi
    done
    ln -s uml/modules "$2/usr/lib/modules"
}

if ! up_to_date; then
    need_root "only root can create $tree, for guests that root starts"
    mkdir -p "${tree%/*}"
    hold_lock "$tree.lock" # a second run at the same time waits here, and then finds the work done
fi
if ! up_to_date; then
    say "unpacking into $tree (nothing is installed): $NFS_PACKAGES"
    rm -rf "$tree" "$tree.debs"
    download "$tree.debs" 2>/dev/null || { apt-get update -qq && download "$tree.debs"; } ||
        fail "apt-get cannot download $NFS_PACKAGES"
    unpack "$tree.debs" "$tree"
    rm -r "$tree.debs"
    printf '%s' "$NFS_PACKAGES" >"$stamp"
fi

source=$here/../tests/lab/nfs/xstate.c
if [ ! "$tree/xstate.so" -nt "$source" ]; then
    need_root "$tree is root's"
    apt_install gcc libc6-dev
    cc -O2 -Wall -Werror -shared -fPIC -o "$tree/xstate.so.new" "$source"
    mv "$tree/xstate.so.new" "$tree/xstate.so"
fi
say "$tree is ready"
