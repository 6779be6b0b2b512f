#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh BUILT OUT: makes the .deb and the .rpm in OUT from the programs that make build has put into BUILT/bin.
# VERSION sets another version. The same commit, compiled by the same Go and gcc, gives the same bytes: all times are
# the commit's, and the packages contain no path or host name of this machine.
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
rm -f "$out"/slurm-mps[-_][0-9]*
site/pkg/parts.sh "$BUILT"
package site/pkg/nfpm.yaml "$BUILT/nfpm.yaml" "$out"
ls "$out"/slurm-mps[-_][0-9]*
