#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-programs.sh PACK RESULTS: runs programs like those that users write in jobs of a real Slurm
# (cmd/e2e/real/programs_test.go), on a machine with GPUs (see gpu-pack.sh). It needs a python3 with PyTorch, CuPy, JAX,
# joblib, Lightning and mpi4py. PROGRAMS is a pattern for test names.
. "$(dirname "$0")/gpu-pack.sh"
modes | tee "$results/programs-machine.txt"
"$pack/real.test" -test.run "${PROGRAMS:-^TestReal(Programs|Numbers|Ensemble)\$}" -test.v -test.timeout 570s 2>&1 | tee "$results/programs.txt"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
leave "$results/programs-machine.txt" 'programs\.py'
