# SPDX-License-Identifier: Apache-2.0
# version.sh: the common part of build.sh and spank.sh. They read it in the top folder of the source.

# nfpm is a tool and not a dependency of the module. It runs in a released version.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0

# The version is that of the last tag, or 0.1.0, then "~", and the time and the name of the commit. So the version
# sorts before the release that follows it, and two commits sort by their times.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
COMMITTED=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
VERSION=${VERSION:-0.1.0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo +dirty)}
ARCH=$(go env GOARCH)
export SOURCE_DATE_EPOCH COMMITTED VERSION ARCH

# glibc_of FILE...: prints the newest version of glibc that one of the files needs for a symbol.
glibc_of() {
    for file; do objdump -T "$file"; done | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2
}

# quietly COMMAND...: runs a command, and prints its output only if it fails.
quietly() {
    local printed
    printed=$("$@" 2>&1) || {
        printf '%s: cannot run %s: %s\n' "$(basename "$0")" "$*" "$printed" >&2
        exit 1
    }
}

# package CONFIG COPY OUT: makes the .deb and the .rpm. All times in them are those of the commit.
package() {
    local tools=$BUILT/tools-${nfpm##*@}
    [ -x "$tools/nfpm" ] || quietly env GOBIN="$tools" go install $nfpm
    sed "s/^mtime:.*/mtime: $COMMITTED/; s|@HERE@|$(dirname "$2")|" "$1" >"$2" # nfpm expands no variables there
    for kind in deb rpm; do
        "$tools/nfpm" package --config "$2" --packager $kind --target "$3/" >/dev/null
    done
}
