#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh BUILT OUT: makes the .deb and the .rpm in OUT from what make parts has put into BUILT. VERSION sets another
# version, ARCH another architecture. The same commit, compiled by the same Go and gcc, gives the same bytes: all times
# are the commit's, and the packages contain no path or host name of this machine.
set -euo pipefail
export LC_ALL=C
umask 022

BUILT=$(realpath "$1")
out=$(realpath -m "$2")
cd "$(dirname "$0")/../.."

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

. site/pkg/version.sh

# The newest version of glibc that a program which is not static needs for one of its symbols.
GLIBC=$(glibc_of "$BUILT"/bin/{prolog,epilog,mpsctl})
[ -n "$GLIBC" ] || fail "cannot package: $BUILT/bin/prolog names no version of glibc"
export GLIBC BUILT

mkdir -p "$out"
echo "build.sh: the .deb and the .rpm of slurm-mps $VERSION for $ARCH, with glibc $GLIBC or newer"
package site/pkg/nfpm.yaml "$BUILT/nfpm.yaml" "$out"
