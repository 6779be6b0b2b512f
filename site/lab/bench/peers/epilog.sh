#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The epilog for prolog.sh. It reads each GPU's mode (a real epilog resets the mode), and tells each daemon to quit.
# Then it waits a second, as NVIDIA's sample does, and searches for processes that are left.
#   epilog.sh FOLDER CONTROL NVIDIA-SMI
dir=$1 control=$2 smi=$3
for gpu in "$dir"/*; do
    "$smi" -i "${gpu##*/}" --query-gpu=compute_mode --format=csv,noheader >/dev/null || exit 1
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$gpu/pipe setpriv --reuid "$SLURM_JOB_UID" --regid "$SLURM_JOB_GID" --clear-groups "$control" >/dev/null
done
sleep 1
pgrep -U "$SLURM_JOB_UID" -f "^$control" >/dev/null && exit 1
rm -rf "$dir"
exit 0
