#!/usr/bin/env bash
# Runs the whole test suite through tox: style, types, unit tests on the oldest and the newest Python that there is,
# short trainings, lab tests on real hosts.
#
#   bash scripts/test.sh                     all of it
#   bash scripts/test.sh -m pythons          the unit tests on every Python that there is
#   bash scripts/test.sh -e lab              one tox environment; arguments are tox's own
#
# It needs root for lab hosts (namespaces, mounts and links, which are removed again) and to install what is missing.
# It installs the Debian packages named below, and puts Python environments and a Linux kernel for NFS guests into
# .tox/ and $MNT_CACHE (default: /var/cache/mnt). It can be run again at any time.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/lib.sh
. "$here/lib.sh"
cd "$here/.."

need_root "lab hosts consist of namespaces, mounts and links"
install_lab_packages
# shellcheck disable=SC2086 # the list is meant to split
apt_install $TEST_PACKAGES
bash "$here/train-venv.sh"
bash "$here/nfs-packages.sh"

tools=${MNT_CACHE:-/var/cache/mnt}/tox
python=$(newest_python)
if [ ! -x "$tools/bin/tox" ]; then
    say "installing tox into $tools"
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip --disable-pip-version-check install --quiet 'tox>=4.20'
fi

if command -v pyenv >/dev/null; then
    # Make all Python versions of pyenv available to tox and to the tests of host programs; `python3` stays the same.
    PYENV_VERSION=$(pyenv version-name):$(pyenv versions --bare | paste -sd:)
    export PYENV_VERSION
fi

if [ $# -eq 0 ]; then
    found=()
    for version in 3.10 3.11 3.12 3.13; do
        "python$version" -c 'import ensurepip' 2>/dev/null && found+=("unit-py${version/./}")
    done
    # Of several Pythons, the oldest runs most of the unit tests, and the newest the long rest.
    [ "${#found[@]}" -le 1 ] || found=("${found[0]}-most" "${found[-1]}-rest")
    set -- -e "$(IFS=,; echo "lint,types${found[*]:+,${found[*]}},train,lab,timing")"
fi

say "running tox"
started=$SECONDS
if "$tools/bin/tox" run "$@"; then
    say "all tests passed in $((SECONDS - started)) s"
else
    fail "tests failed after $((SECONDS - started)) s; see above"
fi
