#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-programs.sh PACK RESULTS: runs programs as users write them in jobs of a real Slurm (cmd/real_programs_test.go), with
# what make gpu-pack made, on a machine with GPUs, as root. PACK is the folder or a .tar.xz of it. It needs neither Go nor
# Slurm there, but a python3 with PyTorch, CuPy, JAX, joblib, Lightning and mpi4py. PROGRAMS is a pattern of tests. It never
# changes a compute mode, MIG or a clock.
set -u
unset ALLOW_MODE_CHANGES
mkdir -p "$2" && results=$(cd "$2" && pwd) || exit 2
work=$(mktemp -d /tmp/gpup.XXX) && chmod 755 "$work" || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/pack" "$work/slurm" || exit 2
if [ -d "$1" ]; then # the jobs' user must reach it
    cp -r "$1/." "$work/pack" || exit 2
else
    tar -xJf "$1" --strip-components=1 -C "$work/pack" || exit 2
fi
pack=$work/pack
tar -xJf "$pack/slurm-bundle.tar.xz" -C "$work/slurm" || exit 2
export SLURM_MPS_BUILT=$pack SLURM_BUNDLE=$(echo "$work"/slurm/*) CONFORMANCE_TARGET=real
modes() { nvidia-smi --query-gpu=name,uuid,driver_version,compute_mode --format=csv,noheader; }
failed=0
modes | tee "$results/programs-machine.txt"
"$pack/cmd.test" -test.run "${PROGRAMS:-^TestReal(Programs|Ensemble)\$}" -test.v -test.timeout 570s 2>&1 | tee "$results/programs.txt"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
left=$(pgrep -fa 'nvidia-cuda-mps|slurm(ctl)?d|munged|programs\.py' | grep -v -e pgrep -e '<defunct>')
[ -z "$left" ] || { failed=1; echo "left behind: $left"; }
modes | diff - "$results/programs-machine.txt" || { failed=1; echo "the GPUs are not as they were"; }
exit $failed
