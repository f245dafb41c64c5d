#!/bin/sh
# What playbooks/nfs.yml does on a host: no Python is needed there. Words are plain, nfs_plan.py has checked them.
#
#   nfs.sh look     what is missing: client, server
#   nfs.sh serve    MNT_EXPORTS: directories; MNT_CLIENTS: networks, addresses and names, with commas, to which those
#                   come that are in the file already, unless MNT_ONLY=yes;
#                   MNT_OPTIONS of exports(5), to which subtree_check or no_subtree_check comes if neither is there;
#                   MNT_OWNER of a directory that is made
#   nfs.sh mount    MNT_MOUNTS: PATH|SOURCE|TYPE|OPTIONS, with spaces between them
#
# MNT_JUDGE: the text of judge.sh, for serve and mount. MNT_CHECK=yes: change nothing. It prints `mnt-changed: ..` for each change, `mnt-error: ..` for the reason of a
# failure, and `mnt-done` at the end.
set -u
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C

fail() {
    echo "mnt-error: $*"
    exit 1
}

# Says what changes, and whether it may be done.
change() {
    echo "mnt-changed: $*"
    [ "$MNT_CHECK" != yes ]
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Runs a command; on failure its words are the reason.
try() {
    said=$("$@" 2>&1) || fail "$(echo "$said" | tr -s '\n' ' ')"
}

# Replaces a file ($1) by standard input, in one step.
replace() {
    # Its name ends neither with .conf nor with .exports: nobody reads it.
    new=$1.mnt-new
    if [ -e "$1" ]; then cp -p "$1" "$new"; fi
    if ! { cat >"$new" && mv "$new" "$1"; }; then
        rm -f "$new"
        fail "$1 cannot be written: $(df -P "${1%/*}" | awk 'NR == 2 { print $4 " KiB are free" }')"
    fi
}

# Who could lead root elsewhere by a directory ($1) that it makes, exports or mounts on: `why`, and `code`: 0 nobody, 3
# a level does not exist. The directory itself may be anybody's, but not where all may make files of their own (/tmp),
# and so exchange it; and not if it is a link.
judge() {
    above=$(dirname "$1")
    why=$(stranger "$above" 0)
    code=$?
    [ "$code" = 0 ] || return 0
    if [ -L "$1" ] || common "$above"; then
        why=$(stranger "$1" 0)
        code=$?
    elif [ ! -e "$1" ]; then
        why="$1 does not exist" code=3
    fi
}

# Whether others than the owner may make files in a directory.
common() {
    [ -n "$(find "$1/." -maxdepth 0 -perm /022)" ]
}

refuse() {
    fail "another user of this host could exchange $1: $2: choose one in directories that only root can write to"
}

# Makes a directory, each level in one that was judged: so behind no link of another user.
make() {
    while [ "$code" = 3 ]; do
        try mkdir "${why% does not exist}"
        judge "$1"
    done
    [ "$code" = 0 ] || refuse "$1" "$why"
}

look() {
    echo "mnt-missing:$(has mount.nfs || echo ' client')$(has exportfs || echo ' server')"
}

# --- the server --------------------------------------------------------------------------------------------------

EXPORTS=/etc/exports.d/mnt.exports

# Networks and addresses. A name is looked up here; what this host does not know is left out.
clients() {
    for client in $(echo "$MNT_CLIENTS" | tr , ' '); do
        case $client in
            */*) echo "$client" ;;
            *) getent ahosts "$client" | awk '$1 !~ /^(127\.|::1$|fe80:)/ { print $1 }' ;;
        esac
    done
}

# The addresses that may mount a directory ($1) by what is in the file: hosts of earlier runs.
earlier_clients() {
    [ "$MNT_ONLY" = yes ] || awk -v path="$1" '$1 == path {
        for (i = 2; i <= NF; i++) { sub(/\(.*/, "", $i); if ($i !~ /\//) print $i }
    }' "$EXPORTS" 2>/dev/null
}

runs() {
    [ "$(cat /proc/fs/nfsd/threads 2>/dev/null || echo 0)" -gt 0 ]
}

start() {
    if [ -d /run/systemd/system ]; then
        try systemctl enable --now nfs-server.service
    elif [ -x /etc/init.d/nfs-kernel-server ]; then
        try service nfs-kernel-server start
    else
        grep -q nfsd /proc/filesystems || try modprobe nfsd
        [ -e /proc/fs/nfsd/threads ] || try mount -t nfsd nfsd /proc/fs/nfsd
        mkdir -p /var/lib/nfs/v4recovery
        touch /var/lib/nfs/etab /var/lib/nfs/rmtab
        old=''
        [ -e /run/rpcbind.sock ] || old='-N 3' # version 3 needs rpcbind
        # shellcheck disable=SC2086 # it is two words, or none
        try rpc.nfsd $old 8
        [ -z "$first" ] || echo Y >/proc/fs/nfsd/v4_end_grace # no client has anything to reclaim
        # shellcheck disable=SC2086
        try rpc.mountd $old
    fi
    runs || fail "the NFS server does not run: this kernel may have none (modprobe nfsd)"
}

# Whether lines have this first word.
names() {
    awk -v path="$1" '$1 == path { found = 1 } END { exit !found }'
}

# Whether another file exports a directory: what it says stays in force.
exported_elsewhere() {
    for file in /etc/exports /etc/exports.d/*.exports; do
        if [ "$file" != "$EXPORTS" ] && [ -e "$file" ] && names "$1" <"$file"; then
            return 0
        fi
    done
    return 1
}

# Whether a directory ($1) is all of a file system. Where it is not, a client can make up the handle of any other file
# there, which only subtree_check refuses.
whole() {
    real=$(cd "$1" 2>/dev/null && pwd -P) || return 1
    awk -v path="$real" '$5 == path { root = $4 } END { exit root != "/" }' /proc/self/mountinfo
}

# The options with which a directory ($1) is exported.
options_of() {
    case ,$MNT_OPTIONS, in
        *,subtree_check,* | *,no_subtree_check,*) echo "$MNT_OPTIONS" ;;
        *) if whole "$1"; then echo "$MNT_OPTIONS,no_subtree_check"; else echo "$MNT_OPTIONS,subtree_check"; fi ;;
    esac
}

serve() {
    clients=$(clients)
    [ -n "$clients" ] || fail "the names $MNT_CLIENTS have no address here: say who may mount what this host exports," \
        "such as -e nfs_clients=10.0.0.0/24"
    for path in $MNT_EXPORTS; do
        judge "$path"
        case $code in
            0) [ -d "$path" ] || fail "$path is no directory" ;;
            3)
                above=$(dirname "$path")
                if common "$above" 2>/dev/null; then refuse "$path" "others can write to $above"; fi
                if change "$path is made, for $MNT_OWNER"; then
                    make "$path"
                    try chown -h "$MNT_OWNER:" "$path"
                fi
                ;;
            *) refuse "$path" "$why" ;;
        esac
    done
    wanted="# Written by playbooks/nfs.yml of mnt."
    # Other directories of earlier runs stay.
    others=$(awk -v ours=" $MNT_EXPORTS " '$1 !~ /^#/ && NF && !index(ours, " " $1 " ")' "$EXPORTS" 2>/dev/null)
    [ -z "$others" ] || wanted="$wanted
$others"
    for path in $MNT_EXPORTS; do
        exported_elsewhere "$path" && continue
        options=$(options_of "$path")
        wanted="$wanted
$path"
        for client in $({ earlier_clients "$path"; echo "$clients"; } | awk '!seen[$0]++'); do
            wanted="$wanted $client($options)"
        done
    done
    first='' before=''
    if [ -e "$EXPORTS" ]; then before=$(cat "$EXPORTS"); else first=yes; fi
    written=''
    if [ "$wanted" != "$before" ] && change "$EXPORTS is written"; then
        mkdir -p "${EXPORTS%/*}"
        [ -e /etc/exports ] || : >/etc/exports # exportfs insists on it
        echo "$wanted" | replace "$EXPORTS"
        written=yes
    fi
    if ! runs && change "the NFS server is started"; then
        start
    elif [ -d /run/systemd/system ] && ! systemctl is-enabled -q nfs-server.service; then
        change "the NFS server is enabled" && try systemctl enable nfs-server.service
    fi
    active=yes
    for path in $MNT_EXPORTS; do
        exportfs -s 2>/dev/null | names "$path" || active=''
    done
    if [ -n "$written" ] || { [ -z "$active" ] && change "the directories are exported"; }; then
        said=$(exportfs -ra 2>&1) || {
            # Nothing half done: what was exported before is exported again.
            if [ -n "$written" ] && [ -n "$first" ]; then rm -f "$EXPORTS"; fi
            if [ -n "$written" ] && [ -z "$first" ]; then echo "$before" | replace "$EXPORTS"; fi
            exportfs -ra >/dev/null 2>&1
            fail "exportfs: $(echo "$said" | tr -s '\n' ' ')"
        }
    fi
}

# --- the clients -------------------------------------------------------------------------------------------------

mount_one() {
    # What is on top counts. Nothing is asked of a file system: it may hang.
    found=$(awk -v path="$path" '$2 == path && $3 != "autofs" { top = $3 " " $1 } END { print top }' /proc/self/mounts)
    case $found in
        "nfs ${source%/}" | "nfs4 ${source%/}" | "nfs $source" | "nfs4 $source") ;;
        '')
            judge "$path"
            case $code in 0 | 3) ;; *) refuse "$path" "$why" ;; esac
            if change "$path is mounted"; then
                make "$path"
                said=$(timeout 60 mount -t "$type" -o "$options,retry=0" "$source" "$path" 2>&1)
                code=$?
                way="the server must be among the hosts of this run, or export it already, to this host's address"
                case $code,$said in
                    0,*) ;;
                    124,*) fail "$source does not answer" ;;
                    *"No such device"*) fail "$(echo "$said" | tail -n 1): this kernel has no NFS (modprobe $type)" ;;
                    *) fail "$(echo "$said" | tr -s '\n' ' ' | sed 's/ *$//'); $way" ;;
                esac
            fi
            ;;
        *)
            fail "$path has ${found#* } (${found%% *}) on it instead of $source: end what uses it," \
                "then: sudo umount $path"
            ;;
    esac
    # An entry for this mount with options of its own stays.
    entry=$(awk -v path="$path" '$1 !~ /^#/ && $2 == path { print $1 }' /etc/fstab 2>/dev/null)
    if [ "${entry%/}" != "${source%/}" ] && change "/etc/fstab has $path"; then
        {
            [ ! -e /etc/fstab ] || awk -v path="$path" '$1 ~ /^#/ || $2 != path' /etc/fstab
            echo "$source $path $type $options,_netdev,nofail 0 0"
        } | replace /etc/fstab
    fi
}

mount_all() {
    for mount in $MNT_MOUNTS; do
        IFS='|' read -r path source type options <<END
$mount
END
        mount_one
    done
}

owner='' group='' # of judge.sh: nobody besides root
case $1 in
    look) look ;;
    serve)
        eval "$MNT_JUDGE"
        serve
        ;;
    mount)
        eval "$MNT_JUDGE"
        mount_all
        ;;
esac
echo mnt-done
