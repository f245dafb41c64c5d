# shellcheck shell=bash
# Functions that the scripts of this directory share. To be sourced by bash; it runs nothing by itself.

# say TEXT...: one line that tells the person at the keyboard what happens now.
say() {
    printf '==> %s\n' "$*"
}

# fail TEXT...: one line on stderr that says what is wrong and how to mend it; ends the script.
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# need_root WHY...: ends the script unless root runs it.
need_root() {
    [ "$(id -u)" -eq 0 ] || fail "root is needed: $*. Run it again with sudo."
}

# apt_install PACKAGE...: installs the Debian packages that are missing. Where none is, apt is not even started.
apt_install() {
    local package missing=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0

    need_root "it installs Debian packages (${missing[*]})"
    say "installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # A fresh machine has no package lists, an old one has lists of versions that are gone: refresh them, once.
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 && return 0
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# install_lab_packages: what lab hosts are made of. Installing openssh-server does not change a running sshd.
install_lab_packages() {
    apt_install openssh-server openssh-client iproute2 nftables util-linux procps python3 python3-venv
}

# What the tests need beyond that: a browser for the pages, other login shells, another time for a clock.
TEST_PACKAGES="busybox chromium fish ksh libfaketime sudo tcsh zsh"

# What real NFS needs, for the tests: scripts/nfs-packages.sh unpacks these, nobody installs them.
NFS_PACKAGES="user-mode-linux nfs-kernel-server nfs-common rpcbind kmod"

# newest_python: prints a Python >= 3.10 that can make virtual environments; mnt itself needs one.
newest_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
        if "$candidate" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    fail "no Python >= 3.10 with venv: install python3.10 or newer (Debian 12, Ubuntu 22.04 and newer have one)"
}
