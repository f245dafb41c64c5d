#!/bin/sh
# The directory of images on a host, and a root file system in it: image_directory.yml and image_charliecloud.yml run
# this.
#
#   image.sh look      who makes the directory: `mnt-owner: root`, or `mnt-owner: user` where another than root could
#                      change what root does there
#   image.sh make      makes it, and says which one it really is: `mnt-directory: PATH`
#   image.sh unpack    makes NAME lead to UNPACKED, which is complete; says `mnt-done`
#
# In variables: MNT_JUDGE, the text of judge.sh; MNT_DIRECTORY; for unpack also MNT_NAME, MNT_UNPACKED, MNT_ARCHIVE,
# MNT_SHA256 of the archive, and MNT_COPY: its size in bytes if others may change it meanwhile, or no. `mnt-changed` is
# said of a change; if something fails, the last line is `mnt-error: REASON`.
set -u
umask 022
export LC_ALL=C
eval "$MNT_JUDGE"
owner='' group=''

fail() {
    echo "mnt-error: $*"
    exit 1
}

# Runs a command; on failure its first line is the reason.
try() {
    said=$("$@" 2>&1) || fail "$(echo "$said" | head -n 1)"
}

# Who but root and a user ($1: uid) could change what is at the directory: see judge.sh. `why`, and `code`: 0 nobody, 3 a
# level does not exist.
judge() {
    why=$(stranger "$MNT_DIRECTORY" "$1")
    code=$?
}

refuse() {
    fail "another user could change what is in $MNT_DIRECTORY: $1: choose an image_directory in directories that only" \
        "root, or the user who logs in, can write to"
}

look() {
    judge 0
    case $code in
    0 | 3) echo "mnt-owner: root" ;;
    *) echo "mnt-owner: user" ;;
    esac
}

# Enters the directory, in which nobody else can change anything.
enter() {
    judge "$(id -u)"
    [ "$code" = 0 ] || refuse "$why"
    cd "$MNT_DIRECTORY" || fail "$MNT_DIRECTORY cannot be entered"
    here=$(pwd -P)
    [ -z "$(find . -maxdepth 0 -perm /022)" ] || refuse "others can write to $here"
}

# Each level is made in one that was judged, so behind no link of another user.
make() {
    said_so=
    judge "$(id -u)"
    while [ "$code" = 3 ]; do
        try mkdir "${why% does not exist}"
        [ "$said_so" ] || echo mnt-changed
        said_so=yes
        judge "$(id -u)"
    done
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
    if [ "$MNT_COPY" != no ]; then # by now it may be a pipe, a link to a device, or without end
        archive=$here/$new/archive
        try dd if="$MNT_ARCHIVE" of="$archive" bs=1M count="$MNT_COPY" status=none \
            iflag=nofollow,nonblock,fullblock,count_bytes
    fi
    sum=$(sha256sum <"$archive" | cut -d ' ' -f 1)
    [ "$sum" = "$MNT_SHA256" ] || fail "$MNT_ARCHIVE is not what it was: somebody writes to it; run this again later"
    try tar --extract --file "$archive" --directory "$new/root" --no-same-owner --no-same-permissions \
        --anchored --exclude='dev/*' --exclude='./dev/*'
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
