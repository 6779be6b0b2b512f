#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# build.sh BUILT OUT: makes the .deb and the .rpm in OUT from what make build has put into BUILT/bin. VERSION names another
# version. The same commit, compiled by the same Go and gcc, gives the same bytes: all times are the commit's, and no path
# or host of this machine is in them. nfpm is a tool, run as it is released, and no dependency of the module.
set -euo pipefail
export LC_ALL=C
umask 022

nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0
BUILT=$(realpath "$1")
out=$(realpath -m "$2")
cd "$(dirname "$0")/../.."

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

# The version is the last tag's, or 0.1.0, with the time and the name of the commit behind "~": it is before the release
# that it leads to, and two commits have the order of their times.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
COMMITTED=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
VERSION=${VERSION:-0.1.0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo +dirty)}
ARCH=$(go env GOARCH)

# The newest version of glibc of which a program that is not static names a symbol.
GLIBC=$(for program in prolog epilog gpu-usage mpsctl mps-tune; do objdump -T "$BUILT/bin/$program"; done |
    grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2)
[ -n "$GLIBC" ] || fail "cannot package: $BUILT/bin/prolog names no version of glibc"
export SOURCE_DATE_EPOCH COMMITTED VERSION ARCH GLIBC BUILT

mkdir -p "$out"
rm -f "$out"/slurm-mps[-_]*
site/pkg/parts.sh "$BUILT"
sed "s/^mtime:.*/mtime: $COMMITTED/" site/pkg/nfpm.yaml >"$BUILT/nfpm.yaml" # nfpm takes no variable there
for kind in deb rpm; do
    go run $nfpm package --config "$BUILT/nfpm.yaml" --packager $kind --target "$out/" >/dev/null
done
ls "$out"/slurm-mps[-_]*
