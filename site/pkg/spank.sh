#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# spank.sh BUILT OUT: makes a .deb and an .rpm of the SPANK plugin in OUT for each release of Slurm whose headers it
# can get. It uses the headers in SLURM_INCLUDE (/usr/include), and those of the Debian releases in SUITES, which it
# keeps in BUILT. If a release has no headers, the script prints a sentence and skips the release. A plugin fits all
# patch levels of its release, and no other release.
set -euo pipefail
export LC_ALL=C
umask 022

BUILT=$(realpath -m "$1")
mkdir -p "$BUILT"
out=$(realpath -m "$2")
cd "$(dirname "$0")/../.."
. site/pkg/version.sh

suites=${SUITES:-bookworm trixie forky}
made=' '

# headers_of SUITE: prints the folder with the headers of a Debian's Slurm. The folder is complete or absent.
headers_of() {
    local kept=$BUILT/headers/$1 from
    if [ ! -d "$kept" ]; then
        echo "spank.sh: fetching the headers of the Slurm of Debian $1" >&3
        from=$(mktemp -d)
        site/lab/unpack.sh "$from" "$1" libslurm-dev || { rm -rf "$from"; return 1; }
        mkdir -p "$kept.part"
        cp -r "$from/usr/include/slurm" "$kept.part/"
        mv "$kept.part" "$kept"
        rm -rf "$from"
    fi
    echo "$kept"
}

# release_of INCLUDE: prints the release of Slurm, for example "22.05"
release_of() {
    local version
    version=$(sed -n 's/^#define SLURM_VERSION_NUMBER 0x\(..\)\(..\)..$/0x\1 0x\2/p' "$1/slurm/slurm_version.h")
    # shellcheck disable=SC2086 # two numbers
    [ -n "$version" ] && printf '%02d.%02d' $version
}

# plugin INCLUDE: makes the packages for the release of these headers, once.
plugin() {
    RELEASE=$(release_of "$1") || {
        echo "spank.sh: no package of the SPANK plugin: $1/slurm/slurm_version.h has no version"
        return
    }
    case $made in *" $RELEASE "*) return ;; esac
    PLUGIN=$BUILT/spank-$RELEASE
    mkdir -p "$PLUGIN"
    site/spank/build.sh "$1" "$PLUGIN/slurm_mps.so"
    sed "s/@RELEASE@/$RELEASE/" site/pkg/scripts/spank-preinstall >"$PLUGIN/preinstall"
    GLIBC=$(glibc_of "$PLUGIN/slurm_mps.so")
    export RELEASE PLUGIN GLIBC
    echo "spank.sh: the SPANK plugin for Slurm $RELEASE on $ARCH"
    package site/pkg/spank.yaml "$PLUGIN/nfpm.yaml" "$out"
    made="$made$RELEASE "
}

mkdir -p "$out"
include=${SLURM_INCLUDE:-/usr/include}
if [ -e "$include/slurm/spank.h" ]; then
    plugin "$include"
else
    echo "spank.sh: no package of the SPANK plugin for the Slurm of this machine: there is no $include/slurm/spank.h (Debian: libslurm-dev; elsewhere: SLURM_INCLUDE=FOLDER)"
fi
exec 3>&1
for suite in $suites; do
    if headers=$(headers_of "$suite" 2>"$BUILT/headers.log"); then
        plugin "$headers"
    else
        echo "spank.sh: skipped the SPANK plugin for the Slurm of Debian $suite: $(tail -n 1 "$BUILT/headers.log")"
    fi
done
[ "$made" = ' ' ] || echo "spank.sh: the SPANK plugin is packaged for Slurm$made"
