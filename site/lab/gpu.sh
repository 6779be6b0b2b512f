#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh PACK RESULTS: runs the files of make gpu-pack on a machine with a GPU, as root, and writes the results. The
# machine needs neither Go nor Slurm. The script never changes MIG or a clock.
#
# It changes compute modes only if ALLOW_MODE_CHANGES is exactly 1. Then the jobs and the acts run as shipped: the
# prolog sets only a job's GPUs to EXCLUSIVE_PROCESS, and the epilog restores the former modes. nvidia-smi checks
# this. The timings and the conformance suite never change the modes.
#
# Set ALLOW_MODE_CHANGES=1 only on your own machine, and only if no one else uses its GPUs. Any other program that
# starts on these GPUs during the run fails with error 46. This way has run only on simulated GPUs, never on real
# ones.
set -u
pack=$(cd "$1" && pwd) || exit 2
mkdir -p "$2" && results=$(cd "$2" && pwd) || exit 2
work=$(mktemp -d /tmp/gpu.XXXX) && chmod 755 "$work" || exit 2
trap 'rm -rf "$work"' EXIT
cp -r "$pack" "$work/pack" && pack=$work/pack || exit 2 # the jobs' user must be able to read it
mkdir "$work/slurm" && tar -xJf "$pack/slurm-bundle.tar.xz" -C "$work/slurm" || exit 2
export BUILT_FOLDER=$pack SLURM_BUNDLE=$(echo "$work"/slurm/*) CONFORMANCE_TARGET=real CONFORMANCE_CLIENT=$pack/sim/bin/cuda-client
failed=0

# run_part NAME COMMAND...: runs a command, keeps and prints its output, and records a failure.
run_part() {
    local name=$1
    shift
    echo "== $name: $*"
    "$@" >"$results/$name.txt" 2>&1
    local code=$?
    [ $code = 0 ] || { failed=1; echo "FAILED with $code"; }
    tail -n "${LINES_SHOWN:-30}" "$results/$name.txt"
}

modes() { nvidia-smi --query-gpu=name,uuid,driver_version,compute_mode --format=csv,noheader; }

each_mode() { nvidia-smi --query-gpu=uuid,compute_mode --format=csv,noheader; }

# put_back restores, for each GPU, the mode that an act left if its epilog did not run. If put_back finds such a mode,
# this run has already failed or was interrupted.
put_back() {
    local now uuid mode
    now=$(each_mode) || { echo "the compute modes cannot be read; they were:"; cat "$work/before"; return; }
    while IFS=', ' read -r uuid mode; do
        grep -qxF "$uuid, $mode" <<<"$now" && continue
        echo "putting the compute mode of $uuid back to $mode"
        nvidia-smi -i "$uuid" -c "${mode^^}" || echo "to repair: nvidia-smi -i $uuid -c ${mode^^}"
    done <"$work/before"
}

modes | tee "$results/machine.txt"
if [ "${ALLOW_MODE_CHANGES:-}" = 1 ]; then
    each_mode >"$work/before" || exit 2
    trap 'put_back; rm -rf "$work"' EXIT
    echo "ALLOW_MODE_CHANGES=1: jobs set the compute modes of their GPUs and put them back"
fi
LINES_SHOWN=45 run_part job-srun "$pack/job" -ranks 4 -launcher srun -ps
LINES_SHOWN=45 run_part job-mpirun "$pack/job" -ranks 4 -launcher mpirun -ps
LINES_SHOWN=80 run_part acts "$pack/real.test" -test.run Real -test.skip '^TestReal(Ends|Programs|Ensemble)$' -test.v -test.timeout 15m
# Every ending of every client, for some minutes. site/lab/gpu-ends.sh runs only this test.
ENDS_MINUTES=${ENDS_MINUTES:-3} ENDS_RESULTS=$results LINES_SHOWN=120 run_part ends "$pack/real.test" -test.run '^TestRealEnds$' -test.v -test.timeout 15m
run_part bench "$pack/bench" -trials "${TRIALS:-20}" -json "$results/bench.json"
run_part conformance "$pack/conformance.test" -test.v -test.timeout 5m
grep -cE -- '^ *--- PASS' "$results/conformance.txt"
grep -E -- '^ *--- (FAIL|SKIP)' "$results/conformance.txt"
# A skip is a failure, unless the test needs a simulation or two GPUs. A test prints its reason while it runs, and its
# verdict when its parent ends. Both are joined by the test's name.
awk '$1 == "===" { test = $3 } /_test\.go:[0-9]+: / { why[test] = $0 }
    $2 == "SKIP:" && why[$3] !~ /simulation only|needs (two|2) GPUs/ { print "skipped without need: " $3 ":" why[$3]; bad = 1 } END { exit bad }' \
    "$results/acts.txt" "$results/conformance.txt" || failed=1
left=$(pgrep -fa 'nvidia-cuda-mps|slurm(ctl)?d|munged' | grep -v -e pgrep -e '<defunct>')
[ -z "$left" ] || { failed=1; echo "left behind: $left"; }
modes | diff - "$results/machine.txt" || { failed=1; echo "the GPUs are not as they were"; }
[ $failed = 0 ] && echo "all passed"
exit $failed
