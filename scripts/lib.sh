# shellcheck shell=bash
# Functions that the scripts of this directory share. Source it in bash; it runs nothing by itself.

# say TEXT...: prints the current step in one line.
say() {
    printf '==> %s\n' "$*"
}

# fail TEXT...: prints to stderr what is wrong and how to fix it, and ends the script.
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# need_root REASON...: ends the script if the user is not root.
need_root() {
    [ "$(id -u)" -eq 0 ] || fail "root is needed: $*; run it again with sudo"
}

# apt_install PACKAGE...: installs missing Debian packages. If none is missing, apt is not started.
apt_install() {
    local package missing=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0

    need_root "it installs Debian packages (${missing[*]})"
    say "installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # A new machine has no package lists, and an old one has outdated lists. Then update the lists and try again.
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 && return 0
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The most seconds to wait for another run: more than its downloads take.
LOCK_SECONDS=${MNT_LOCK_SECONDS:-3600}

# hold_lock FILE: holds the lock of FILE until the script ends; waits while another run has it. Whoever can open a file
# can hold its lock, so other users cannot open it, not even one that an earlier version of the script made.
hold_lock() {
    if ! { (umask 077 && : >>"$1") && chmod 600 "$1" && exec 9<>"$1"; } 2>/dev/null; then
        fail "$1 cannot be opened: run it as root, or set MNT_CACHE to a directory of yours"
    fi
    flock -n 9 && return 0
    say "waiting for $(lock_holder "$1"), which holds the lock of $1"
    flock -w "$LOCK_SECONDS" 9 || fail "$1 is still locked by $(lock_holder "$1"): end that, and run this again"
}

# lock_holder FILE: prints who holds the lock of FILE, if it is known: only root sees other users' processes.
lock_holder() {
    local inode info pid
    inode=$(stat -c %i "$1")
    # Each process that has the locked file open shows the lock (proc(5)); the first one has started the others.
    info=$(grep -lE "^lock:.* FLOCK .*:$inode 0 EOF" /proc/[0-9]*/fdinfo/* 2>/dev/null | sort -t / -k 3n) || true
    pid=$(printf '%s' "$info" | sed -n '1s,^/proc/\([0-9]*\)/.*,\1,p')
    if [ -z "$pid" ]; then
        printf 'a process that is not known'
        return
    fi
    # The name of a process is its own choice.
    printf 'process %s of %s (%s)' "$pid" "$(stat -c %U "/proc/$pid" 2>/dev/null)" \
        "$(tr -cd '[:alnum:]._-' 2>/dev/null <"/proc/$pid/comm")"
}

# install_lab_packages: the packages that labs need. Installing openssh-server does not change a running sshd.
install_lab_packages() {
    apt_install openssh-server openssh-client iproute2 nftables util-linux procps python3 python3-venv
}

# Further packages for the tests: a browser for the pages, other login shells, a tool that changes a clock.
TEST_PACKAGES="busybox chromium environment-modules fish ksh libfaketime munge openmpi-bin pdsh slurm-client"
TEST_PACKAGES="$TEST_PACKAGES slurmctld slurmd sudo tcsh zsh"

# Packages for the tests on real NFS: scripts/nfs-packages.sh unpacks them without installing them.
NFS_PACKAGES="user-mode-linux nfs-kernel-server nfs-common rpcbind kmod"

# newest_python: prints a Python >= 3.10 that can create virtual environments; mnt needs it.
newest_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
        if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    fail "no Python >= 3.10 with venv: install one (Debian 12, Ubuntu 22.04 and newer have a package)"
}
