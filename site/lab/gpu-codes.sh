#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-codes.sh PACK RESULTS: builds LAMMPS (site/lab/codes/build.sh) on a machine with a GPU (see
# gpu-pack.sh), and runs it in turns: without MPS, by a control daemon by hand, and by slurm-mps. CODES is a folder with a
# build of an earlier run. A second run adds turns. RANKS is the numbers of ranks, CODES_MINUTES the time.
. "$(dirname "$0")/gpu-pack.sh"
modes | tee "$results/codes-machine.txt"
export CODES=${CODES:-/tmp/gpu-codes} RANKS=${RANKS:-1 2 4 8 16} CODES_MINUTES=${CODES_MINUTES:-8} CODES_RESULTS=$results/codes.txt
if [ ! -x "$CODES/lmp" ]; then
    "$pack/codes/build.sh" "$pack/lammps" "$pack/mpi" "$CODES" || exit 1
fi
cp "$pack/codes/turn.sh" "$CODES/" && chmod -R go+rX "$CODES" || exit 1
"$pack/real.test" -test.run '^TestRealCodes$' -test.v -test.timeout 590s 2>&1 | tee "$results/codes-log.txt"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
leave "$results/codes-machine.txt" '/lmp -in '
