#!/bin/sh
# What playbooks/rdma.yml does on a host besides packages: no Python is needed there.
#
#   rdma.sh load      MNT_MODULES: loads those that the kernel has, now and at boot; MNT_CHECK=yes: change nothing
#   rdma.sh report    a line for each port, by ibv_devinfo
#
# It prints `mnt-changed: ..` for each change, `mnt-error: ..` for the reason of a failure, and `mnt-done` at the end.
set -u
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C

AT_BOOT=/etc/modules-load.d/mnt-rdma.conf

fail() {
    echo "mnt-error: $*"
    exit 1
}

# Says what changes, and whether it may be done.
change() {
    echo "mnt-changed: $*"
    [ "$MNT_CHECK" != yes ]
}

load() {
    modules=$MNT_MODULES
    if [ -d /sys/module/nvidia ] && [ -n "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
        modules="$modules nvidia_peermem"
    fi
    wanted="# Written by playbooks/rdma.yml of mnt."
    some=''
    for module in $modules; do
        modprobe --dry-run --quiet "$module" 2>/dev/null || continue # this kernel has no such module
        some=yes
        wanted="$wanted
$module"
        [ ! -d "/sys/module/$(echo "$module" | tr - _)" ] || continue
        change "$module is loaded" || continue
        said=$(modprobe "$module" 2>&1) || fail "modprobe $module: $(echo "$said" | tr -s '\n' ' ')"
    done
    if [ -n "$some" ] && [ "$(cat $AT_BOOT 2>/dev/null)" != "$wanted" ] && change "$AT_BOOT is written"; then
        mkdir -p "${AT_BOOT%/*}"
        if ! { echo "$wanted" >"$AT_BOOT.new" && mv "$AT_BOOT.new" "$AT_BOOT"; }; then
            rm -f "$AT_BOOT.new"
            fail "$AT_BOOT cannot be written"
        fi
    fi
    echo mnt-done
}

report() {
    if ! command -v ibv_devinfo >/dev/null; then
        echo "ibv_devinfo is not installed"
    elif [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
        echo "the kernel shows no RDMA device"
    else
        ibv_devinfo 2>&1 | awk '
            $1 == "hca_id:" { device = $2 }
            device == "" && NF { print; next } # what it says if it fails
            $1 == "port:" { port = $2 }
            $1 == "state:" { state = $2 }
            $1 == "active_mtu:" { mtu = $2 }
            $1 == "link_layer:" { print device " port " port ": " state ", " $2 ", MTU " mtu; next }
        '
    fi
    return 0
}

case $1 in
load) load ;;
report) report ;;
esac
