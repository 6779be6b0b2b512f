#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-packing.sh PACK RESULTS: measures what 1, 2, 4 and 8 equal ranks do on a GPU, beside GPM's figures and the
# recorder's (codes/packing.py), as the test TestLeaveOneOut of site/usage/judge reads it. PACK is the output of make
# gpu-codes-pack. PACKING_PART has the quarters of the programs, "1" or with two GPUs "1 2", because a quarter takes 8
# minutes with the build of LAMMPS, and 7 later. Each adds to the file RESULTS/packing.txt. Name it
# testdata/packing-GPU.txt.
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

gpu=0 quarters=()
for part in ${PACKING_PART:-1}; do
    quarter "$part" $((gpu++)) &
    quarters+=($!)
done
for quarter in "${quarters[@]}"; do wait "$quarter" || failed=1; done
leave "$results/packing-machine.txt" '/lmp -(in|nonbuf) |codes/packing'
