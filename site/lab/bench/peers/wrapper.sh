#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A wrapper for comparison, like CSCS's mps-wrapper.sh. The first rank of the node starts the daemon if necessary.
# Every rank waits for the daemon, takes the GPU that is next to the rank's cores, and starts the program.
#   wrapper.sh FOLDER CONTROL PROGRAM…
export CUDA_MPS_PIPE_DIRECTORY=$1/pipe CUDA_MPS_LOG_DIRECTORY=$1/log
control=$2
shift 2
if [ "${SLURM_LOCALID:-0}" = 0 ] && [ ! -S "$CUDA_MPS_PIPE_DIRECTORY/control" ]; then
    "$control" -d
fi
cores=$(taskset -cp $$)
node=$(lscpu -p=cpu,node | awk -F, -v core="${cores##*[: ,-]}" '!/^#/ && $1 == core { print $2 + 0 }')
export CUDA_VISIBLE_DEVICES=${node:-0}
until [ -S "$CUDA_MPS_PIPE_DIRECTORY/control" ]; do sleep 0.1; done
exec "$@"
