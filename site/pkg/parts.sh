#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# parts.sh BUILT: makes the other files of a node in BUILT: man pages, documents, completions and NOTICES. The
# programs are already in BUILT/bin. The same commit gives the same bytes: the date of the man pages is the commit's.
set -euo pipefail
export LC_ALL=C
umask 022

BUILT=$(realpath "$1")
cd "$(dirname "$0")/../.."
[ ! -e .release ] || . ./.release
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

echo "parts.sh: man pages, documents, licenses of modules, completions"
mkdir -p "$BUILT"/{man,completion}
go run ./site/pkg man -bin "$BUILT/bin" -docs docs -date "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)" -out "$BUILT/man"
go run ./site/pkg docs -out "$BUILT/doc"
mapfile -t programs < <(sed -n 's|.*{BUILT}/bin/\([a-z-]*\)".*|./cmd/\1|p' site/pkg/nfpm.yaml)
go run ./site/pkg notices "${programs[@]}" >"$BUILT/NOTICES"
cat site/pkg/copyright "$BUILT/NOTICES" >"$BUILT/copyright"
for shell in bash zsh fish; do
    "$BUILT/bin/mpsctl" completion $shell >"$BUILT/completion/mpsctl.$shell"
    "$BUILT/bin/mpsctl" completion $shell mps-tune >"$BUILT/completion/mps-tune.$shell"
done
