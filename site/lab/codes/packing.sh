#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# packing.sh MODE TURN: measures what 1, 2, 4 and 8 equal ranks do on one GPU, in a job of Slurm with slurm-mps, and
# prints the lines of packing.py, with the figures that the job's recorder had at the same time. MODE is ours, or slices
# to try the script without MPS. PACKING_PART is the quarter of the programs, 1 to 4. What is not measured after
# PACKING_SECONDS is left out. PACKING_ONLY is a pattern of what is measured.
. "$CODES/mode.sh" "$1"
export OMP_NUM_THREADS=1 PACKING_ONLY="${PACKING_ONLY:-.*}"
[ ! -x "$CODES/lmp" ] || cp "$CODES"/data.rhodo "$CODES"/Cu_u3.eam . || exit 1
seconds=${PACKING_SECONDS:-440}
timeout "$seconds" "${PYTHON:-python3}" "$CODES/packing.py" run "${PACKING_PART:-1}" "${PACKING_WINDOW:-3}" $((seconds * 3 / 4)) \
    $wrapper >lines
[ "$mode" = ours ] || { cat lines && exit; }
mpsctl report --json >report.json && "${PYTHON:-python3}" "$CODES/packing.py" join report.json <lines || cat lines
