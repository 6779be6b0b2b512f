# SPDX-License-Identifier: Apache-2.0
# version.sh: what build.sh and spank.sh share. They read it at the top of the source.

# nfpm is a tool, run as it is released, and no dependency of the module.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0

# The version is the last tag's, or 0.1.0, with the time and the name of the commit behind "~": it is before the release
# that it leads to, and two commits have the order of their times.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
COMMITTED=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
VERSION=${VERSION:-0.1.0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo +dirty)}
ARCH=$(go env GOARCH)
export SOURCE_DATE_EPOCH COMMITTED VERSION ARCH

# glibc_of FILE...: the newest version of glibc of which one of the files names a symbol.
glibc_of() {
    for file; do objdump -T "$file"; done | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2
}

# package CONFIG COPY OUT: makes the .deb and the .rpm. All times in them are the commit's.
package() {
    sed "s/^mtime:.*/mtime: $COMMITTED/; s|@HERE@|$(dirname "$2")|" "$1" >"$2" # nfpm takes no variables there
    for kind in deb rpm; do
        go run $nfpm package --config "$2" --packager $kind --target "$3/" >/dev/null
    done
}
