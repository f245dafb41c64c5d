#!/bin/sh
# The directory of images on a host, and a root file system in it: image_directory.yml and image_charliecloud.yml run
# this.
#
#   image.sh look      who makes the directory: `mnt-owner: root`, or `mnt-owner: user` where another than root could
#                      change what root does there
#   image.sh make      makes it, and says which one it really is: `mnt-directory: PATH`
#   image.sh unpack    makes NAME lead to UNPACKED, which is complete; says `mnt-done`
#
# In variables: MNT_DIRECTORY; for unpack also MNT_NAME, MNT_UNPACKED, MNT_ARCHIVE, MNT_SHA256 of the archive, and
# MNT_COPY: yes if others may change the archive meanwhile. `mnt-changed` is said of a change; if something fails, the
# last line is `mnt-error: REASON`.
set -u
umask 022
export LC_ALL=C

fail() {
    echo "mnt-error: $*"
    exit 1
}

# Runs a command; on failure its first line is the reason.
try() {
    said=$("$@" 2>&1) || fail "$(echo "$said" | head -n 1)"
}

# Of a directory ($1, without links) and those above it the first that belongs neither to root nor to a user ($2: uid),
# or that others can write to; but in one on the way, all may make files of their own (the sticky bit).
open_level() {
    level=$1
    while :; do
        find "$level" -maxdepth 0 \( ! -uid 0 ! -uid "$2" -o -perm /022 ! -perm -1000 \)
        [ "$level" != / ] || break
        level=$(dirname "$level")
    done | tail -n 1
}

# What exists of the directory, without links: `there`.
find_existing() {
    there=$MNT_DIRECTORY
    until [ -d "$there" ]; do there=$(dirname "$there"); done
    there=$(cd "$there" && pwd -P) || fail "$there cannot be entered"
}

look() {
    find_existing
    if [ -z "$(open_level "$there" 0)" ]; then echo "mnt-owner: root"; else echo "mnt-owner: user"; fi
}

refuse_others() {
    [ -z "$1" ] || fail "another user has made $1, or can write to it (ls -ld $1): choose an image_directory in" \
        "directories that only root, or the user who logs in, can write to"
}

# Enters the directory, in which nobody else can change anything.
enter() {
    cd "$MNT_DIRECTORY" || fail "$MNT_DIRECTORY cannot be entered"
    here=$(pwd -P)
    refuse_others "$(open_level "$here" "$(id -u)")"
    refuse_others "$(find "$here" -maxdepth 0 -perm /022)"
}

make() {
    if [ ! -d "$MNT_DIRECTORY" ]; then
        find_existing
        refuse_others "$(open_level "$there" "$(id -u)")"
        try mkdir -p "$MNT_DIRECTORY"
        echo mnt-changed
    fi
    enter
    echo "mnt-directory: $here"
}

# Whether no level of a path in this directory is a link: what that leads to is not the image's, but the host's.
plain() {
    level=$1
    while [ "$level" != . ]; do
        [ ! -L "$level" ] || return 1
        level=$(dirname "$level")
    done
}

# What ch-run mounts something on; the image is read-only for its users.
make_mount_points() {
    for place in dev proc sys tmp etc home mnt/0; do
        if plain "$place"; then try mkdir -p "$place"; fi
    done
    for place in etc/passwd etc/group etc/hosts etc/resolv.conf; do
        if plain "$place" && [ ! -e "$place" ]; then try touch "$place"; fi
    done
}

unpack() {
    enter
    new=$MNT_UNPACKED.new link=./$MNT_NAME.new
    trap 'cd "$here" && rm -rf "$new" "$link"' EXIT
    trap 'exit 1' HUP INT TERM
    try rm -rf "$MNT_UNPACKED" "$new" "$link"
    try mkdir -m 700 "$new" # nobody else can enter it, whatever modes are in it
    try mkdir "$new/root"
    archive=$MNT_ARCHIVE
    if [ "$MNT_COPY" = yes ]; then
        archive=$here/$new/archive
        try cp -- "$MNT_ARCHIVE" "$archive"
    fi
    sum=$(sha256sum <"$archive" | cut -d ' ' -f 1)
    [ "$sum" = "$MNT_SHA256" ] || fail "$MNT_ARCHIVE is not what it was: somebody writes to it; run this again later"
    try tar --extract --file "$archive" --directory "$new/root" --no-same-owner --no-same-permissions \
        --exclude='dev/*' --exclude='./dev/*'
    cd "$new/root" || fail "$new/root cannot be entered"
    [ -e bin ] || [ -e usr/bin ] || fail "$MNT_ARCHIVE has no root file system: neither bin nor usr/bin"
    # A container is started without rights: what would give some outside of it is not kept.
    try find . ! -type d ! -type f ! -type l -delete
    try chmod -R u-s,g-s,go-w .
    make_mount_points
    try chmod 755 .
    cd "$here" || fail "$here cannot be entered"
    try mv "$new/root" "$MNT_UNPACKED"
    try ln -s "$MNT_UNPACKED" "$link"
    try mv -T "$link" "./$MNT_NAME"
}

case $1 in
look) look ;;
make) make ;;
unpack) unpack ;;
esac
echo mnt-done
