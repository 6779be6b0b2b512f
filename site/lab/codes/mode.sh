# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# mode.sh MODE is read by the scripts that make a turn. It goes into a new folder and makes the mode ready: slices (no
# MPS), bare (a control daemon by hand, which ends with the script) or ours (slurm-mps: wrapper is its program).
mode=$1 wrapper='' uuids=''
# Slurm numbers the only GPU of its gres.conf 0, whichever it is. With MPS, the job has a UUID.
[ "$mode" = ours ] || [ -z "${ONLY_GPU:-}" ] || export CUDA_VISIBLE_DEVICES=$ONLY_GPU CUDA_DEVICE_ORDER=PCI_BUS_ID
cd "$(mktemp -d)" || exit 1
case $mode in
ours) wrapper=mpirun-wrap ;;
bare)
    # A daemon that sees one GPU numbers it 0, so the job's number names no GPU to a client. A UUID names it to both.
    for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
        uuids=${uuids:+$uuids,}$(nvidia-smi --query-gpu=index,uuid --format=csv,noheader | awk -v gpu="$gpu," '$1 == gpu {print $2}')
    done
    [ -z "$uuids" ] || export CUDA_VISIBLE_DEVICES=$uuids
    export CUDA_MPS_PIPE_DIRECTORY=$PWD/pipe CUDA_MPS_LOG_DIRECTORY=$PWD/log
    mkdir pipe log && nvidia-cuda-mps-control -d || exit 1
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
    ;;
esac

# divide N: each of N ranks has 100/N percent, as by hand.
divide() { [ "$mode" != bare ] || export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / $1)); }
