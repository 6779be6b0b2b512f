#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-profilers.sh PACK RESULTS: runs each of NVIDIA's profilers and debuggers on one client of a plain MPS daemon,
# beside another client, on a machine with GPUs (see gpu-pack.sh). A tool that the machine lacks is named. Each tool has
# 40 s. PACK is the output of make gpu-room-pack.
. "$(dirname "$0")/gpu-pack.sh"
modes | tee "$results/profilers-machine.txt"
export PATH=$PATH:/usr/local/cuda/bin:/opt/nvidia/nsight-compute
export CUDA_MPS_PIPE_DIRECTORY=$work/pipe CUDA_MPS_LOG_DIRECTORY=$work/log
mkdir "$work/pipe" "$work/log"
nvidia-cuda-mps-control -d
client=$pack/sim/bin/cuda-client

# try NAME COMMAND...: runs a tool beside a neighbour, and prints how both ended.
try() {
    local name=$1 neighbour status
    shift
    echo "== $name: $*"
    command -v "$1" >/dev/null || { echo "== $name: not on this machine"; return; }
    "$client" spin -ms 5 -for 60 >"$work/neighbour" 2>&1 &
    neighbour=$!
    sleep 2
    timeout -k 5 40 "$@" 2>&1 | tail -n 25
    status=${PIPESTATUS[0]}
    sleep 1
    kill -0 "$neighbour" && echo "== $name: status $status, the neighbour lives" || { echo "== $name: status $status, THE NEIGHBOUR ENDED"; cat "$work/neighbour"; }
    kill "$neighbour"
    wait "$neighbour"
}

{
    try compute-sanitizer compute-sanitizer "$client" spin -ms 5 -for 1
    try nsys nsys profile --trace=cuda --force-overwrite=true -o "$work/nsys" "$client" spin -ms 5 -for 1
    try 'ncu --mps control' ncu --mps control --launch-count 2 --metrics sm__cycles_active.avg "$client" spin -ms 5 -for 1
    try ncu ncu --launch-count 2 --metrics sm__cycles_active.avg "$client" spin -ms 5 -for 1
    try cuda-gdb cuda-gdb -batch -ex run -ex 'info cuda devices' --args "$client" spin -ms 5 -for 1
} 2>&1 | tee "$results/profilers.txt"
echo quit | timeout 20 nvidia-cuda-mps-control
leave "$results/profilers-machine.txt" 'cuda-client|nsys|ncu|cuda-gdb|compute-sanitizer'
