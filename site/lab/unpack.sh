#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# unpack.sh FOLDER SUITE PACKAGE...: unpacks packages of another release of Debian ("trixie"), with all dependencies,
# into FOLDER. The mirror is that of this machine's apt, or DEBIAN_MIRROR. Nothing is installed. apt sees a machine
# without packages, so it also gets the C library. apt uses only the keys of this machine.
set -euo pipefail
export LC_ALL=C
umask 022

[ $# -gt 2 ] || { echo "unpack.sh: usage: unpack.sh FOLDER SUITE PACKAGE..." >&2; exit 1; }
from=$(realpath -m "$1")
suite=$2
shift 2

fail() {
    echo "unpack.sh: cannot unpack $suite: $*" >&2
    exit 1
}

keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keys" ] || fail "there is no $keys; install debian-archive-keyring"
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' | sed -n 1p)}
[ -n "$mirror" ] || fail "this machine's apt has no mirror of Debian; name one: DEBIAN_MIRROR=URL"

apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/{etc,state/lists/partial,cache/archives/partial} "$from"
: >"$apt/status"
echo "deb [signed-by=$keys] $mirror $suite main" >"$apt/etc/sources.list"
cat >"$apt/conf" <<END
Dir "$apt/";
Dir::Etc "$apt/etc/";
Dir::State "$apt/state/";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache/";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Check-Valid-Until "$([ -n "${DEBIAN_EXPIRED:-}" ] && echo false || echo true)";
pkgCacheGen::Essential "none";
END
for what in update "--download-only install $*"; do
    # shellcheck disable=SC2086 # the list is split on purpose
    APT_CONFIG=$apt/conf apt-get -q -y $what >"$apt/log" 2>&1 </dev/null || {
        tail -n 20 "$apt/log" >&2
        if grep -q 'is expired' "$apt/log"; then
            fail "the mirror's index is past its date; take another by DEBIAN_MIRROR=URL, or accept it by DEBIAN_EXPIRED=1"
        fi
        fail "'apt-get $what' failed, its last lines are above"
    }
done
for deb in "$apt"/cache/archives/*.deb; do dpkg-deb --extract "$deb" "$from"; done
