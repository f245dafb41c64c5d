#!/usr/bin/env bash
# Builds the Python environment that the lab's hosts train with, once:
#
#   $MNT_CACHE/train-venv         torch, DeepSpeed and transformers, as train/requirements.txt pins them
#   $MNT_CACHE/torch_extensions   the C++ op that DeepSpeed compiles on a CPU host (over a minute: done here, not there)
#
# MNT_CACHE is /var/cache/mnt unless the environment says otherwise. Lab hosts see both directories and use them
# as an ordinary user. Nothing is done when what is there was made from the same requirements.
#
# On a machine without a GPU, offer pip the CPU build of torch (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL): the usual
# build works too, and is some gigabytes larger.

set -euo pipefail
umask 022 # root builds, others read

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"

system_python=/usr/bin/python3 # the one that every user of every lab host can run
requirements=$here/../train/requirements.txt
cache=${MNT_CACHE:-/var/cache/mnt}
venv=$cache/train-venv
extensions=$cache/torch_extensions
op=$extensions/deepspeed_shm_comm
stamp=$venv/.complete # written last: a build killed half way has none

fingerprint() {
    { "$system_python" -V && cat "$requirements"; } | sha256sum
}

up_to_date() {
    [ "$(cat "$stamp" 2>/dev/null)" = "$(fingerprint)" ]
}

install_packages() {
    say "making $venv with $system_python"
    rm -rf "$venv"
    "$system_python" -m venv "$venv"

    local build_time pip
    mapfile -t build_time < <(grep -E '^(torch|numpy|ninja|packaging|setuptools|wheel)==' "$requirements")
    pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)
    say "installing torch and what DeepSpeed is built with (the large download)"
    "${pip[@]}" "${build_time[@]}"
    say "installing DeepSpeed (built from source, no ops yet), transformers and the rest"
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" --no-build-isolation -r "$requirements"
}

# Loads the op with the settings that a job on a lab host has: ninja compiles it if it must.
load_op() {
    env -i HOME=/nonexistent PATH="$venv/bin:/usr/bin:/bin" DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$extensions" \
        "$venv/bin/python" -c 'from deepspeed.comm.torch import build_shm_op; build_shm_op()'
}

build_op() {
    say "compiling DeepSpeed's CPU communication op, so that no host has to (about a minute)"
    rm -rf "$extensions"
    mkdir -p "$extensions"
    local output
    output=$(load_op 2>&1) || fail "DeepSpeed's op does not compile:"$'\n'"$output"
    # Whoever loads an op takes a lock file beside it. The sticky bit keeps the op itself from being replaced.
    chmod 1777 "$op"
    "$venv/bin/ninja" -C "$op" -n | grep -q 'no work to do' || fail "ninja would compile $op again on each host"
}

apt_install python3 python3-venv python3-dev g++
if ! up_to_date; then
    mkdir -p "$cache" || fail "$cache cannot be made: run as root, or set MNT_CACHE to a directory of yours"
    exec 9>"$cache/.train-venv.lock"
    flock 9 # of two runs at once the second waits, and finds the work done
fi
if ! up_to_date; then
    install_packages
    build_op
    fingerprint >"$stamp"
fi
say "$venv is ready"
