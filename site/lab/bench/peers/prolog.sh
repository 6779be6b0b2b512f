#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A prolog for comparison, like that of DeepOps and NVIDIA's sample for Torque. It counts the node's GPUs, sets each
# one's mode, and starts a daemon and a server for each GPU as the job's user. This prolog only reads the mode, and
# the others set it. Both need one call of the same cost.
#   prolog.sh FOLDER CONTROL NVIDIA-SMI
dir=$1 control=$2 smi=$3
as_user() { setpriv --reuid "$SLURM_JOB_UID" --regid "$SLURM_JOB_GID" --clear-groups "$@"; }
gpus=$("$smi" -L | wc -l)
for ((i = 0; i < gpus; i++)); do
    "$smi" -i "$i" --query-gpu=compute_mode --format=csv,noheader >/dev/null || exit 1
    mkdir -p "$dir/$i/pipe" "$dir/$i/log"
    chown -R "$SLURM_JOB_UID:$SLURM_JOB_GID" "$dir/$i"
    export CUDA_VISIBLE_DEVICES=$i CUDA_MPS_PIPE_DIRECTORY=$dir/$i/pipe CUDA_MPS_LOG_DIRECTORY=$dir/$i/log
    as_user "$control" -d || exit 1
    echo "start_server -uid $SLURM_JOB_UID" | as_user "$control" >/dev/null || exit 1
done
exit 0
