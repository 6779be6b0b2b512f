#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-ends.sh PACK RESULTS: runs the trial of endings (cmd/real_ends_test.go) with what make gpu-pack made, on a machine
# with GPUs, as root. PACK is the folder or a .tar.xz of it. It needs neither Go nor Slurm there; PyTorch, CuPy and JAX are
# used if python3 has them. It lasts ENDS_MINUTES (8) and half a minute more; the test's other ENDS_ variables work as they
# do there. It never changes a compute mode, MIG or a clock.
set -u
unset ALLOW_MODE_CHANGES
mkdir -p "$2" && results=$(cd "$2" && pwd) || exit 2
work=$(mktemp -d /tmp/gpue.XXX) && chmod 755 "$work" || exit 2
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
export ENDS_MINUTES=${ENDS_MINUTES:-8} ENDS_RESULTS=$results
modes() { nvidia-smi --query-gpu=name,uuid,driver_version,compute_mode --format=csv,noheader; }
failed=0
modes | tee "$results/ends-machine.txt"
"$pack/cmd.test" -test.run '^TestRealEnds$' -test.v -test.timeout "$(awk "BEGIN { print int($ENDS_MINUTES * 60 + 150) }")s" >"$results/ends-log.txt" 2>&1 || failed=1
grep -E '^(ENDS_SEED|left out)' "$results/ends-log.txt"
[ -e "$results/ends-summary.txt" ] && cat "$results/ends-summary.txt"
grep -E '^ *(--- |panic|[a-z_]+_test\.go)' "$results/ends-log.txt" | cut -c1-200 | head -60
left=$(pgrep -fa 'nvidia-cuda-mps|slurm(ctl)?d|munged|victim\.py|cuda-client' | grep -v -e pgrep -e '<defunct>')
[ -z "$left" ] || { failed=1; echo "left behind: $left"; }
modes | diff - "$results/ends-machine.txt" || { failed=1; echo "the GPUs are not as they were"; }
exit $failed
