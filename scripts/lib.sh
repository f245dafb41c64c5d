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

# install_lab_packages: the packages that labs need. Installing openssh-server does not change a running sshd.
install_lab_packages() {
    apt_install openssh-server openssh-client iproute2 nftables util-linux procps python3 python3-venv
}

# Further packages for the tests: a browser for the pages, other login shells, a tool that changes a clock.
TEST_PACKAGES="chromium fish libfaketime sudo tcsh zsh"

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
