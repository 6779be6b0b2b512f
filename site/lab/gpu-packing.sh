#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-packing.sh PACK RESULTS: measures what 1, 2, 4 and 8 equal ranks do on a GPU, beside GPM's figures and the
# recorder's (codes/packing.py), as the test TestLeaveOneOut of site/usage/judge reads it. PACK is the output of make
# gpu-codes-pack. PACKING_PART has the quarters of the programs, which the GPUs take in turn: a quarter takes 5 minutes,
# and the build of LAMMPS 2. Each adds to the file RESULTS/packing.txt. Name it testdata/packing-GPU.txt.
. "$(dirname "$0")/gpu-pack.sh"
here=$(cd "$(dirname "$0")" && pwd)
modes | tee "$results/packing-machine.txt"
built=${CODES:-/tmp/gpu-packing}
if [ -d "$pack/lammps/src" ] && [ ! -x "$built/lmp" ]; then
    "$pack/codes/build.sh" "$pack/lammps" "$pack/mpi" "$built" || exit 1
    echo "LAMMPS is built after $SECONDS s"
fi
rm -rf "$pack/lammps"

# quarter PART GPU: no second turn begins after a minute.
quarter() {
    local folder=$work/part-$1
    mkdir -p "$built" && cp -r "$built" "$folder-codes" || return 1
    CODES_SCRIPT=packing.sh CODES_MODES=ours CODES_MINUTES=1 PACKING_PART=$1 CODES=$folder-codes ONLY_GPU=$2 \
        FIRST_CORE=$((16 * $2)) "$here/gpu-codes.sh" "$pack" "$folder" >"$folder.log" 2>&1
    local failed=$?
    grep -hE '^(# share|pack) ' "$folder/codes.txt" >>"$results/packing.txt"
    grep -hvE '^ *(# share|pack) ' "$folder.log" >>"$results/packing-log.txt"
    grep -hE '^ *python.py:|FAIL|has no result' "$folder.log"
    return $failed
}

read -ra parts <<<"${PACKING_PART:-1}"
gpus=$(modes | wc -l)

# lane GPU: the quarters of a GPU, one after the other.
lane() {
    local i failed=0
    for ((i = $1; i < ${#parts[@]}; i += gpus)); do quarter "${parts[i]}" "$1" || failed=1; done
    return $failed
}

lanes=()
for ((i = 0; i < gpus; i++)); do
    lane "$i" &
    lanes+=($!)
done
for lane in "${lanes[@]}"; do wait "$lane" || failed=1; done
leave "$results/packing-machine.txt" '/lmp -(in|nonbuf) |codes/packing'
