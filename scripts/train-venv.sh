#!/usr/bin/env bash
# Builds the Python environment for training on the lab's hosts, once:
#
#   $MNT_CACHE/train-venv         torch, DeepSpeed and transformers, as train/requirements.txt pins them
#   $MNT_CACHE/torch_extensions   the C++ op that DeepSpeed compiles on a CPU host (takes over a minute)
#
# The default of MNT_CACHE is /var/cache/mnt. Lab hosts see the first directory and have copies of the second. Every
# process that loads an op creates a lock file beside it, so only who built the op, and root, can use it where it is. If
# the environment was built from the same requirements, nothing is done.
#
# On a machine without a GPU, point pip to the CPU build of torch (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL). The default
# build also works, but is some gigabytes larger.

set -euo pipefail
umask 022 # root builds the files, and other users read them

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"

system_python=/usr/bin/python3 # every user of every lab host can run this one
requirements=$here/../train/requirements.txt
cache=${MNT_CACHE:-/var/cache/mnt}
venv=$cache/train-venv
extensions=$cache/torch_extensions
op=$extensions/deepspeed_shm_comm
stamp=$venv/.complete # written last: an incomplete build has none

fingerprint() {
    { "$system_python" -V && cat "$requirements"; } | sha256sum
}

up_to_date() {
    [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint)" ]
}

install_packages() {
    say "creating $venv with $system_python"
    rm -rf "$venv"
    "$system_python" -m venv "$venv"

    local build_time pip
    mapfile -t build_time < <(grep -E '^(torch|numpy|ninja|packaging|setuptools|wheel)==' "$requirements")
    pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)
    say "installing torch and the build requirements of DeepSpeed (a large download)"
    "${pip[@]}" "${build_time[@]}"
    say "installing DeepSpeed (built from source, no ops yet), transformers and the rest"
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" --no-build-isolation -r "$requirements"
}

# Loads the op with the settings of a job on a lab host; ninja compiles it if necessary.
load_op() {
    env -i HOME=/nonexistent PATH="$venv/bin:/usr/bin:/bin" DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$extensions" \
        "$venv/bin/python" -c 'from deepspeed.comm.torch import build_shm_op; build_shm_op()'
}

build_op() {
    say "compiling DeepSpeed's CPU communication op for all hosts (about a minute)"
    rm -rf "$extensions"
    mkdir -p "$extensions"
    local output
    output=$(load_op 2>&1) || fail "DeepSpeed's op does not compile:"$'\n'"$output"
    "$venv/bin/ninja" -C "$op" -n | grep -q 'no work to do' || fail "ninja would compile $op again on each host"
}

apt_install python3 python3-venv python3-dev g++
if ! up_to_date; then
    mkdir -p "$cache" || fail "$cache cannot be created: run it as root, or set MNT_CACHE to a directory of yours"
    hold_lock "$cache/.train-venv.lock" # a second run at the same time waits here, and then finds the work done
fi
if ! up_to_date; then
    install_packages
    build_op
    fingerprint >"$stamp"
fi
if [ -k "$op" ] && [ -O "$op" ]; then
    # Earlier versions let all users write there. A `lock` of theirs would make every load of the op wait for ever.
    chmod 755 "$op"
    if [ -L "$op/lock" ] || [ ! -O "$op/lock" ]; then
        rm -rf --one-file-system "$op/lock"
    fi
fi
say "$venv is ready"
