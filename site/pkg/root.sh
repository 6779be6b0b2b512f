#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# root.sh FOLDER [SUITE]: makes a clean root of Debian (bookworm) in FOLDER, with only the packages of debootstrap's
# variant minbase. debootstrap is a script and runs from its unpacked package, so nothing is installed on this
# machine. The folder is complete or absent.
set -euo pipefail
export LC_ALL=C
umask 022

fail() {
    echo "root.sh: $*" >&2
    exit 1
}

[ $# = 1 ] || [ $# = 2 ] || fail "usage: root.sh FOLDER [SUITE]"
root=$(realpath -m "$1")
suite=${2:-bookworm}
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' | sed -n 1p)} # the mirror of this machine's apt
[ -n "$mirror" ] || fail "cannot make $root: this machine's apt has no mirror of Debian; name one: DEBIAN_MIRROR=URL"
[ "$(id -u)" = 0 ] || fail "cannot make $root: run this as root"
[ ! -e "$root" ] || exit 0
case $mirror in
http*) timeout 60 wget -q -T 20 -t 2 -O /dev/null "${mirror%/}/dists/$suite/InRelease" ||
    fail "cannot make $root: ${mirror%/}/dists/$suite does not answer: this needs a network; name another mirror: DEBIAN_MIRROR=URL" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
scripts=/usr/share/debootstrap/scripts
if ! command -v debootstrap >/dev/null; then
    (cd "$work" && apt-get -q download debootstrap >log 2>&1 && dpkg-deb --extract debootstrap_*.deb debootstrap) ||
        fail "cannot get debootstrap: $(tail -n 3 "$work/log")"
    export DEBOOTSTRAP_DIR=$work/debootstrap/usr/share/debootstrap
    scripts=$DEBOOTSTRAP_DIR/scripts
    PATH=$work/debootstrap/usr/sbin:$PATH
fi
rm -rf "$root.part"
mkdir -p "$(dirname "$root")"
script=$scripts/$suite
[ -e "$script" ] || script=$scripts/sid # the suite is newer than this debootstrap
debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$suite" "$root.part" "$mirror" "$script" >"$work/log" 2>&1 ||
    fail "cannot make $root: debootstrap failed: $(tail -n 5 "$work/log" "$root.part/debootstrap/debootstrap.log" 2>/dev/null)"
rm -rf "$root.part"/var/cache/apt/archives/*.deb
mv "$root.part" "$root"
