#!/usr/bin/env bash
# Runs the whole test suite through tox: style, types, unit tests on each Python found, lab tests on real hosts.
#
#   bash scripts/test.sh                     all of it
#   bash scripts/test.sh -e unit-py311       one tox environment; arguments are tox's own
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

say "running tox"
started=$SECONDS
if "$tools/bin/tox" run "$@"; then
    say "all tests passed in $((SECONDS - started)) s"
else
    fail "tests failed after $((SECONDS - started)) s; see above"
fi
