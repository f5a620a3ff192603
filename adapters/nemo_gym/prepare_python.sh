#!/bin/sh
# Makes a Debian system with Python 3.13.14 or newer in a folder, for machines whose own Python is older, and
# runs the tests of this adapter there. Needs root, debootstrap, and a reward server outside:
#
#     ideatree rewards http=127.0.0.1:8000 device=cpu &
#     IDEATREE_URL=http://127.0.0.1:8000 sh adapters/nemo_gym/prepare_python.sh /opt/python313
set -eu
root=${1:?usage: prepare_python.sh FOLDER}
clone=$(cd "$(dirname "$0")/../.." && pwd)
if [ ! -e "$root/usr/bin/python3.13" ]; then
    scripts=/usr/share/debootstrap/scripts
    [ -e "$scripts/forky" ] || ln -s sid "$scripts/forky"
    debootstrap --variant=minbase --include=python3.13,python3.13-venv,ca-certificates forky "$root"
fi
mkdir -p "$root/clone"
mountpoint -q "$root/clone" || mount --bind "$clone" "$root/clone"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
[ -e "$root/env" ] || chroot "$root" python3.13 -m venv /env
chroot "$root" /env/bin/pip install --quiet --editable /clone/adapters/client nemo-gym pytest
chroot "$root" sh -c "cd /clone/adapters/nemo_gym && IDEATREE_URL='${IDEATREE_URL:?}' /env/bin/python -m pytest -p no:cacheprovider"
