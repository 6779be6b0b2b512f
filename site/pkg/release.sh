#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# release.sh VERSION BUILT: makes all files of a release in BUILT/release, from a checkout without changes: .deb and
# .rpm for each of ARCHES (amd64 and arm64), a tar of the user's static programs for each, a tar of the source that
# builds without network, recipes for other package managers, an SBOM, a statement of provenance, and SHA256SUMS. RELEASE_KEY is a file with the private
# key of ssh that signs SHA256SUMS. The same commit, compiled by the same Go and gcc, gives the same bytes in any folder.
# docs/RELEASES.md has how to verify the files.
set -euo pipefail
export LC_ALL=C
umask 022

fail() {
    echo "release.sh: $*" >&2
    exit 1
}

native=$(go env GOHOSTARCH)
arches=${ARCHES:-amd64 arm64}
usage="make release VERSION=X.Y.Z, or X.Y.Z~rcN"
number='(0|[1-9][0-9]*)'
[ $# = 2 ] || fail "usage: release.sh VERSION BUILT"
[[ $1 =~ ^$number\.$number\.$number(~rc[1-9][0-9]*)?$ ]] || fail "cannot release \"$1\": that is no version: $usage"
version=$1
mkdir -p "$2"
built=$(realpath "$2")
cd "$(dirname "$0")/../.."
[ -z "$(git status --porcelain)" ] || fail "cannot release $version: this checkout has changes: commit or remove them (git status)"
[ -z "${RELEASE_KEY:-}" ] || [ -r "$RELEASE_KEY" ] || fail "cannot sign $version: cannot read the key $RELEASE_KEY"
key=${RELEASE_KEY:+$(realpath "$RELEASE_KEY")}

# compiler ARCH: prints the C compiler for the architecture.
compiler() {
    case $1 in
    "$native") echo gcc ;;
    amd64) echo x86_64-linux-gnu-gcc ;;
    arm64) echo aarch64-linux-gnu-gcc ;;
    *) echo "$1-gcc" ;;
    esac
}
missing=
for arch in $arches; do
    command -v "$(compiler "$arch")" >/dev/null || missing="$missing $(compiler "$arch")"
done
[ -z "$missing" ] || fail "cannot build for $arches: there is no$missing: install gcc-aarch64-linux-gnu and libc6-dev-arm64-cross (Debian), or build for this machine alone: ARCHES=$native"
case " $arches " in *" $native "*) ;; *) fail "cannot build for $arches without $native, whose programs print the pages: ARCHES='$native $arches'" ;; esac

name=slurm-mps-$version
out=$built/release
work=$built/release-work
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
# Nothing of the releaser's settings gets into the files, or decides what is in them.
export SOURCE_DATE_EPOCH VERSION=$version COMMIT=$version+${commit:0:12} GOFLAGS= GOTOOLCHAIN=local
unset SLURM_INCLUDE CC GOOS GOARCH GOAMD64 GOARM64

began=$SECONDS
step() { echo "release.sh: after $((SECONDS - began)) s: $*"; }

# packed FILE FOLDER NAME...: makes a tar of names in the folder. Only their contents decide its bytes.
packed() {
    tar -C "$2" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        -cf - "${@:3}" | gzip -9n >"$1"
}

# source: a clone of the commit with a tag, from which the SBOM's tool knows the version, and its Go modules.
source_tar() {
    local top=$work/source/$name
    git clone -q --local --no-tags . "$top"
    git -C "$top" -c advice.detachedHead=false checkout -q "$commit"
    git -C "$top" tag "v${version/\~/-}"
    CGO_ENABLED=0 go build -C site/pkg/tools -trimpath -buildvcs=false -o "$work/" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
    (cd "$top" && "$work/cyclonedx-gomod" mod -json -licenses -std -noserial -notimestamp -type application \
        -output "$out/$name.cdx.json" . 2>"$work/sbom.log") || fail "cannot make the SBOM: $(tail -n 3 "$work/sbom.log")"
    (cd "$top" && go mod vendor)
    printf '# make and the scripts of packages read this file, because a tar has no commit.\n' >"$top/.release"
    printf '%s\n' "COMMIT=$COMMIT" "VERSION=$VERSION" "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" >>"$top/.release"
    rm -rf "$top/.git"
    packed "$out/$name.tar.gz" "$work/source" "$name"
}

# recipes: site/pkg/places with this version, and with the sum of the source's tar, which no commit can know. Spack and
# conda have no "~" in a version: 0.1.0rc1 sorts before 0.1.0 there.
recipes() {
    local top=$work/recipes/$name-recipes plain=${version/\~/} tar=$name.tar.gz sum
    sum=$(sha256sum <"$out/$tar")
    mkdir "$work/recipes"
    cp -r "$work/source/$name/site/pkg/places" "$top"
    find "$top" -type f -exec sed -i "s|@VERSION@|$plain|g; s|@SHA256@|${sum%% *}|g; s|@FILE@|$tar|g
        s|@FOLDER@|https://github.com/slurm-mps/slurm-mps/releases/download/v${version/\~/-}|g" {} +
    mv "$top/easybuild/slurm-mps.eb" "$top/easybuild/slurm-mps-$plain.eb"
    packed "$out/$name-recipes.tar.gz" "$work/recipes" "$name-recipes"
}

# programs ARCH: the contents of the packages, in $work/ARCH. The pages are made by this machine's programs.
programs() {
    local cc
    cc=$(compiler "$1")
    if [ "$1" = "$native" ]; then
        make -s parts BUILT="$work/$1.parts" COMMIT="$COMMIT"
        mv "$work/$1.parts/package" "$work/$1"
    else
        GOARCH=$1 CC=$cc make -s build BUILT="$work/$1" COMMIT="$COMMIT" LDEXTRA='-s -w'
        cp -r "$work/$native/"{man,doc,completion,NOTICES,copyright} "$work/$1/"
    fi
}

# user_tar ARCH: what a user needs without root: programs that run on any Linux, also in containers.
user_tar() {
    local top=$work/user-$1/$name-user-$1
    mkdir -p "$top/completion"
    cp "$work/$1/bin/mpirun-wrap" LICENSE "$work/$1/NOTICES" "$work/$1/man/mpirun-wrap.1.gz" "$top/"
    cp site/pkg/completion/mpirun-wrap.* "$top/completion/"
    cp site/pkg/user.txt "$top/README"
    packed "$out/$name-user-$1.tar.gz" "$work/user-$1" "$name-user-$1"
}

# emulated ARCH: runs what qemu can run of another processor's programs: each once, and the unit tests that look at no
# process. qemu answers for /proc with less than a kernel.
tried=$work/tried
emulated() {
    local qemu=qemu-aarch64 program
    [ "$1" = arm64 ] || return 0
    command -v $qemu >/dev/null || { echo "arm64: built, and not run: there is no $qemu (Debian: qemu-user)" >>"$tried"; return 0; }
    export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
    for program in "$work/arm64"/bin/{prolog,epilog,guard,gpu-usage,mpirun-wrap,mps-tune,mpsctl,task-prolog}; do
        $qemu "$program" --version | grep -qF "slurm-mps $COMMIT " || fail "cannot run $(basename "$program") for arm64"
    done
    GOARCH=arm64 CGO_ENABLED=0 go test -vet=off -exec $qemu ./policy ./policy/lint ./policy/plan ./site/slurm/... ./site/usage >"$work/tests.log" ||
        fail "cannot release for arm64: a unit test fails under $qemu: $(tail -n 20 "$work/tests.log")"
    echo "arm64: under $qemu each program says its version, and the unit tests of policy, site/slurm and site/usage pass; not run on such a machine" >>"$tried"
}

rm -rf "$work" "$out"
mkdir -p "$work" "$out"
step "release $version of commit $commit, by $(go env GOVERSION), for $arches"
step "the SBOM and the source with its modules"
source_tar
recipes
for arch in $native ${arches/$native/}; do
    step "the programs for $arch, with $(compiler "$arch")"
    programs "$arch"
    step "the packages for $arch"
    ARCH=$arch site/pkg/build.sh "$work/$arch" "$out"
    ln -sfn "$built/package/headers" "$work/$arch/headers"
    mkdir -p "$built/package/headers"
    ARCH=$arch CC=$(compiler "$arch") site/pkg/spank.sh "$work/$arch" "$out"
    user_tar "$arch"
    if [ "$arch" != "$native" ]; then
        step "the programs for $arch under emulation"
        emulated "$arch"
    fi
done
step "the provenance"
go run ./site/pkg provenance -version "$version" -commit "$commit" -compilers "$(for arch in $arches; do $(compiler "$arch") --version | head -n 1; done)" "$out" >"$work/provenance.json"
mv "$work/provenance.json" "$out/$name.provenance.json"
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
if [ -n "$key" ]; then
    ssh-keygen -q -Y sign -f "$key" -n slurm-mps-release "$out/SHA256SUMS" </dev/null || fail "cannot sign $out/SHA256SUMS with $key"
    step "signed; the line of this key for .github/release-signers: slurm-mps $(ssh-keygen -y -f "$key")"
else
    step "the files are not signed: give the private key of ssh that signs them: RELEASE_KEY=FILE"
fi
case " $arches " in *" arm64 "*) ;; *) step "arm64: nothing is built" ;; esac
[ ! -e "$tried" ] || step "$(cat "$tried")"
rm -rf "$work"
step "done: $out"
(cd "$out" && ls -l -- * | awk '{printf "%10d %s\n", $5, $9}')
