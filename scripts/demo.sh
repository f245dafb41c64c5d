#!/usr/bin/env bash
# A complete demonstration on four throw-away hosts of this machine: preflight, push, FSDP and DeepSpeed training
# over NICs with four different names, status, logs, stop.
#
# It needs root for the lab's hosts (network, mount and PID namespaces, each with its own sshd) and to install what
# is missing. It changes nothing else, and removes the hosts at the end. It can be run again at any time.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"
cd "$here/.."

need_root "lab hosts consist of namespaces, mounts and links"
install_lab_packages
bash "$here/train-venv.sh"

cache=${MNT_CACHE:-/var/cache/mnt}
venv=$cache/mnt-venv
# Isolated (-I), so that Python does not import mnt from the working directory: the venv may have another clone's.
if ! "$venv/bin/python" -I -c 'import mnt.cli, os, sys; sys.exit(os.path.dirname(mnt.__file__) != sys.argv[1])' \
    "$PWD/mnt" 2>/dev/null || [ setup.cfg -nt "$venv/.complete" ]; then
    say "installing mnt into $venv"
    "$(newest_python)" -m venv "$venv"
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --editable .
    touch "$venv/.complete"
fi

lab=demo
export MNT_INVENTORY=lab:$lab

# run COMMAND...: shows the command, then runs it.
run() {
    if [ -t 1 ]; then printf '\n\033[1m$ %s\033[0m\n' "$*"; else printf '\n$ %s\n' "$*"; fi
    "$venv/bin/$1" "${@:2}"
}

done_with=""
tidy() {
    code=$?
    trap - EXIT
    "$venv/bin/mnt" lab down --name $lab || code=1
    echo
    if [ "$code" -eq 0 ]; then
        say "demo done in $SECONDS s:$done_with; the hosts are removed"
    else
        fail "the demo stopped after:$done_with"
    fi
}

"$venv/bin/mnt" lab down --name $lab 2>/dev/null || true # left by a killed demo
trap tidy EXIT
run mnt lab up 4 --name $lab
run mnt preflight
done_with+=" preflight"
run mnt push .
done_with+=", push"
run mnt hostfile
run mnt launch --nodes 'node[1-4]' --engine fsdp train/train_fsdp.py --steps 40
done_with+=", FSDP on 4 hosts"
run mnt launch --nodes 'node[1-4]' --engine deepspeed train/train_deepspeed.py --steps 40
done_with+=", DeepSpeed on 4 hosts"
run mnt launch --detach --nodes 'node[1-2]' train/train_fsdp.py --steps 100000
run mnt status
run mnt stop
done_with+=", detach and stop"
