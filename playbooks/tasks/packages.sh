#!/bin/sh
# Packages of the system, by apt-get or dnf, on a host that may have no Python yet. See packages.yml, which runs it.
#
#   packages.sh missing          prints `mnt-missing: NAME..`: what is not installed
#   packages.sh install          installs that, and removes nothing; prints `mnt-done`
#   packages.sh pack DIR FILE    on the head: makes FILE, a script that unpacks the .deb files of DIR on a host
#
# The names are in MNT_DEBIAN and MNT_REDHAT. Where from: MNT_DEBS (a directory of this host, which is removed), else
# MNT_MIRROR (a line for sources.list), else what the host has configured. MNT_LOCK: how many seconds to wait for
# another apt-get. If something fails, the last line is `mnt-error: REASON`.
set -u
LC_ALL=C
export LC_ALL

fail() {
    echo "mnt-error: $*"
    exit 1
}

# The lines of a log that say why, as one line.
reason() {
    wanted="^E: |^error: |no space left|read-only|no match for argument|cannot |could not|unable to|Depends:"
    removed=$(sed -n '/^The following packages will be REMOVED:/,/^[^ ]/s/^  *//p' "$1" | paste -s -d ' ')
    said=$(grep -iE "$wanted" "$1" |
        grep -vE "Sub-process .* returned an error|maybe run apt-get update|packages could not be installed" |
        tr -d '\r' | sed 's/[.; ]*$//; s/^ *//; s/  */ /g' | awk '!seen[$0]++' | head -n 4 | paste -s -d ';' |
        sed 's/;/; /g' | cut -c 1-500)
    echo "${said:-$(tail -n 1 "$1")}${removed:+: $removed}" | cut -c 1-1000
}

missing() {
    if command -v apt-get >/dev/null; then
        for name in $MNT_DEBIAN; do
            status=$(dpkg-query --show --showformat '${db:Status-Status}' "$name" 2>/dev/null)
            [ "$status" = installed ] || printf ' %s' "$name"
        done
    elif command -v dnf >/dev/null; then
        for name in $MNT_REDHAT; do
            rpm --query --quiet "$name" || printf ' %s' "$name"
        done
    else
        return 1
    fi
}

# Packages, as dpkg-scanpackages writes it: that one is not on every host.
index() {
    for file in ./*.deb; do
        dpkg-deb --field "$file" || return 1
        echo "Filename: $file"
        echo "Size: $(stat --format %s "$file")"
        echo "SHA256: $(sha256sum "$file" | cut -d ' ' -f 1)"
        echo
    done
}

install_debs() {
    DEBIAN_FRONTEND=noninteractive
    NEEDRESTART_SUSPEND=1 # Ubuntu: no service is restarted
    export DEBIAN_FRONTEND NEEDRESTART_SUSPEND
    source=${MNT_MIRROR:-}
    if [ -n "${MNT_DEBS:-}" ]; then
        (cd "$MNT_DEBS" && index >Packages) || return 1
        source="deb [trusted=yes] file:$MNT_DEBS ./"
    fi
    set -- -q -o "DPkg::Lock::Timeout=$MNT_LOCK" -o Acquire::Retries=2 -o Dpkg::Options::=--force-confold
    if [ -n "$source" ]; then # the only one, with lists of its own
        echo "$source" >"$work/sources.list"
        mkdir -p "$work/lists/partial"
        chmod -R a+rX "$work"
        set -- "$@" -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- \
            -o "Dir::State::lists=$work/lists"
    fi
    [ -z "$(dpkg --audit)" ] || dpkg --force-confold --configure --pending # an earlier run was cut off
    ends=$(($(date +%s) + MNT_LOCK))
    until apt-get "$@" -o APT::Update::Error-Mode=any update >"$work/update" 2>&1; do
        # Only of packages apt-get waits for the lock by itself, not of lists.
        if grep -q "Could not get lock" "$work/update" && [ "$(date +%s)" -lt "$ends" ]; then
            sleep 2
        else
            break # the lists that the host has may do
        fi
    done
    # --yes agrees to all that apt-get proposes: where packages conflict, also to remove openssh-server.
    # shellcheck disable=SC2086
    { apt-get "$@" check >/dev/null 2>&1 || apt-get "$@" --yes --no-remove --fix-broken install; } &&
        apt-get "$@" --yes --no-remove --no-install-recommends install $names || {
        grep -E "^(E|Err|W):" "$work/update"
        return 1
    }
}

install_rpms() {
    case " $names " in
    *" pdsh "* | *" apptainer "* | *" charliecloud "*) # of EPEL
        rpm --query --quiet epel-release || dnf --assumeyes install epel-release || return 1
        ;;
    esac
    # Without --allowerasing, dnf removes only what a signed package says that it replaces (Obsoletes).
    # shellcheck disable=SC2086
    dnf --assumeyes --setopt=install_weak_deps=False install $names
}

case $1 in
missing)
    names=$(missing) || fail "this host has neither apt-get nor dnf: it is no Debian, Ubuntu or Rocky"
    echo "mnt-missing:$names"
    ;;
install)
    names=$(missing)
    [ -n "$names" ] || { echo mnt-done && exit; }
    work=$(mktemp -d /var/tmp/mnt-packages.XXXXXX) || fail "no temporary directory in /var/tmp: is its disk full?"
    trap 'rm -rf "$work" ${MNT_DEBS:+"$MNT_DEBS"}' EXIT
    trap 'exit 1' HUP INT TERM
    how=install_rpms
    ! command -v apt-get >/dev/null || how=install_debs
    $how >"$work/log" 2>&1 || fail "$(reason "$work/log")"
    left=$(missing)
    [ -z "$left" ] || fail "not installed, and no error:$left"
    echo mnt-done
    ;;
pack)
    cat >"$3" <<'END'
#!/bin/sh
# The archive follows the last line of this text. $1: where to unpack it. Nobody but root can change what is there.
umask 022
rm -rf "$1"
unpack() { mkdir -p "${1%/*}" && mkdir -m 700 "$1" && tar -x -f - -C "$1" --no-same-owner --no-same-permissions; }
said=$(tail -n +10 "$0" | unpack "$1" 2>&1) && chmod -R u=rwX,go=rX "$1" && echo mnt-done && exit
rm -rf "$1"
echo "mnt-error: the packages of --debs cannot be unpacked in $1: $(echo "$said" | tail -n 1)"
exit 1
END
    # head_files.py has looked at them; what a link leads to is not sent, also if there is one by now.
    # Owners and modes of the head mean others on a host: a user there may have the same number.
    cd "$2" && tar -c -f - --owner=0 --group=0 --mode=u=rw,go=r -- *.deb >>"$3"
    ;;
esac
