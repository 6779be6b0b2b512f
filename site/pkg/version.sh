# SPDX-License-Identifier: Apache-2.0
# version.sh: the common part of build.sh and spank.sh. They read it in the top folder of the source.

# A tar of a release has this file in place of the commit.
[ ! -e .release ] || . ./.release

# The version is that of the last tag, or 0.1.0, then "~", and the time and the name of the commit. So the version
# sorts before the release that follows it, and two commits sort by their times.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
COMMITTED=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
VERSION=${VERSION:-0.1.0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo +dirty)}
ARCH=${ARCH:-$(go env GOARCH)}
export SOURCE_DATE_EPOCH COMMITTED VERSION ARCH

# glibc_of FILE...: prints the newest version of glibc that one of the files needs for a symbol.
glibc_of() {
    for file; do readelf -W --dyn-syms "$file"; done | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2
}

# package CONFIG COPY OUT: makes the .deb and the .rpm, and prints their names. All times in them are those of the
# commit. nfpm is a tool and no dependency of the module: site/pkg/tools has its version and the sums of its modules.
package() {
    local kind made
    CGO_ENABLED=0 go build -C site/pkg/tools -trimpath -buildvcs=false -o "$BUILT/tools/" github.com/goreleaser/nfpm/v2/cmd/nfpm
    sed "s/^mtime:.*/mtime: $COMMITTED/; s|@HERE@|$(dirname "$2")|" "$1" >"$2" # nfpm expands no variables there
    for kind in deb rpm; do
        made=$("$BUILT/tools/nfpm" package --config "$2" --packager $kind --target "$3/") || {
            echo "$(basename "$0"): cannot package $1: $made" >&2
            exit 1
        }
        sed -n 's/^created package: /    /p' <<<"$made"
    done
}
