#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh INCLUDE OUTPUT.so: builds the SPANK plugin for the release of Slurm whose headers are in INCLUDE/slurm. A
# plugin works only with that release (22.05, 24.11). Build it again when you upgrade Slurm.
set -eu

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

[ $# = 2 ] || fail "usage: build.sh INCLUDE OUTPUT.so"
[ -r "$1/slurm/spank.h" ] ||
    fail "cannot build the SPANK plugin: there is no $1/slurm/spank.h: install Slurm's headers (Debian: libslurm-dev) or name their folder: make spank SLURM_INCLUDE=..."
here=$(dirname "$0")
# The plugin links no library of Slurm, because the program that loads it has all functions that it calls.
exec "${CC:-cc}" -O2 -Wall -Wextra -Werror -fPIC -shared -Wl,-z,relro,-z,now -I"$1" -o "$2" "$here/slurm_mps.c"
