#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-shared.sh PACK RESULTS: jobs of one and two users share a GPU by gres/mps, in turns and together, and one job ends in
# every bad way (site/lab/shared/trial.py). PACK is the output of make gpu-room-pack. The machine needs python3 with PyTorch,
# and neither Go nor Slurm. A machine without nvidia-smi gets a simulated GPU. It takes 8 minutes. SHARED_TRIALS is a
# pattern for the names of the trials.
. "$(dirname "$0")/gpu-pack.sh"
command -v nvidia-smi >/dev/null || modes() { echo "no GPU"; }
modes | tee "$results/shared-machine.txt"
"$pack/shared" -results "$results" -trials "${SHARED_TRIALS:-}" || failed=1
leave "$results/shared-machine.txt" 'trial\.py|cuda-client'
