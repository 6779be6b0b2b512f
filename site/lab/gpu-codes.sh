#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-codes.sh PACK RESULTS: runs codes on a machine with a GPU (see gpu-pack.sh), in turns: without MPS, by a control
# daemon by hand, and by slurm-mps. With CODES_SCRIPT=python.sh they are programs in PyTorch and JAX (codes/python.py);
# by default, LAMMPS, which codes/build.sh builds. CODES is a folder with a build of an earlier run. A second run adds
# turns. RANKS is the numbers of ranks, CODES_MINUTES the time.
. "$(dirname "$0")/gpu-pack.sh"
modes | tee "$results/codes-machine.txt"
export CODES=${CODES:-/tmp/gpu-codes} RANKS=${RANKS:-1 2 4 8 16} CODES_MINUTES=${CODES_MINUTES:-8}
export CODES_SCRIPT=${CODES_SCRIPT:-turn.sh} PYTHON=${PYTHON:-$(command -v python3)}
export CODES_MODES=${CODES_MODES:-slices bare ours} FIRST_CORE=${FIRST_CORE:-0} CODES_RESULTS=$results/codes.txt
if { [ "$CODES_SCRIPT" = turn.sh ] || [ -d "$pack/lammps/src" ] && [ "$CODES_SCRIPT" = packing.sh ]; } && [ ! -x "$CODES/lmp" ]; then
    "$pack/codes/build.sh" "$pack/lammps" "$pack/mpi" "$CODES" || exit 1
fi
mkdir -p "$CODES" && cp "$pack"/codes/* "$CODES/" && chmod -R go+rX "$CODES" || exit 1
"$pack/real.test" -test.run '^TestRealCodes$' -test.v -test.timeout 590s 2>&1 | tee "$results/codes-log.txt"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
leave "$results/codes-machine.txt" '/lmp -(in|nonbuf) |codes/p(ython|acking)'
