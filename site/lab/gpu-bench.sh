#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-bench.sh PACK RESULTS: measures with the files of make gpu-pack on a machine with a GPU, as root. The machine
# needs nvcc, but neither Go nor Slurm. PyTorch is used if PYTHON (python3) has it. A second run continues RESULTS and
# does not measure results again.
#
# There are PIECES pieces of MINUTES minutes each, or fewer if all results are measured earlier. Several GPUs share
# the work if they are alike. The script never changes a compute mode, MIG or a clock, and ignores ALLOW_MODE_CHANGES,
# which is only for gpu.sh.
set -u
unset ALLOW_MODE_CHANGES
pack=$(cd "$1" && pwd) || exit 2
mkdir -p "$2" && results=$(cd "$2" && pwd) || exit 2
work=$(mktemp -d /tmp/gpub.XXX) && chmod 755 "$work" || exit 2
trap 'rm -rf "$work"' EXIT
cp -r "$pack" "$work/pack" && pack=$work/pack || exit 2 # the jobs' user must be able to read it
mkdir "$work/slurm" && tar -xJf "$pack/slurm-bundle.tar.xz" -C "$work/slurm" || exit 2
export BUILT_FOLDER=$pack SLURM_BUNDLE=$(echo "$work"/slurm/*)
modes() { nvidia-smi --query-gpu=name,uuid,driver_version,compute_mode,mig.mode.current --format=csv,noheader; }

# The kernels. cuFFT comes from the toolkit or, if the toolkit has none, from PyTorch's packages.
cufft=$(find -L /usr/local/cuda*/ -name libcufft.so 2>/dev/null | head -1)
[ -n "$cufft" ] || cufft=$(find -L /usr/local /opt -name 'libcufft.so.1*' 2>/dev/null | head -1)
fft=-DNO_FFT
if [ -n "$cufft" ]; then
    ln -s "$cufft" "$work/libcufft.so"
    fft="-L$work -lcufft -Xlinker -rpath -Xlinker $(dirname "$cufft")"
fi
# shellcheck disable=SC2086 # several words
nvcc -O3 -arch=native -shared -Xcompiler -fPIC -o "$work/kernels.so" "$pack/kernels.cu" $fft || exit 2

python=$(command -v "${PYTHON:-python3}") && "$python" -c 'import torch' 2>/dev/null || python=''
measure() { "$pack/gpu" -ranks "$pack/ranks" -library "$work/kernels.so" -python "$python" "$@"; }
failed=0
modes | tee "$results/machine.txt"
[ -e "$results/hooks.json" ] || "$pack/bench" -only acts -trials 20 -json "$results/hooks.json" || failed=1
measure -results "$results/moments.jsonl" -only first-call,sweep,first-kernel -minutes "${MINUTES:-8}" || failed=1
for ((piece = 0; piece < ${PIECES:-12}; piece++)); do
    measure -results "$results/throughput.jsonl" -only throughput -windows 2 -minutes "${MINUTES:-8}" | tee "$work/printed"
    [ "${PIPESTATUS[0]}" = 0 ] || failed=1
    grep -qE '^([0-9]+) of \1 cells' "$work/printed" && break
done
measure -results "$results/tune.jsonl" -only tune -minutes "${MINUTES:-8}" || failed=1
modes | diff - "$results/machine.txt" || { failed=1; echo "the GPUs are not as they were"; }
exit $failed
