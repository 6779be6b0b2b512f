#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh PACK RESULTS: runs what make gpu-pack made on a machine with a GPU, as root, and writes what it saw. Needs
# neither Go nor Slurm there. It never changes MIG or a clock, nor a compute mode unless told ALLOW_MODE_CHANGES=1: 1 and
# nothing else. Then the jobs and the acts run the shipped way: the prolog sets a job's GPUs to EXCLUSIVE_PROCESS, and no
# other GPU, and the epilog puts back what they were before, which is held by nvidia-smi's word. The timings and
# the conformance suite leave the modes alone even so. Give it only on a machine of your own whose GPUs nobody uses:
# what else starts on them meanwhile fails with error 46. That way has been run on simulated GPUs only, never on a real one.
set -u
pack=$(cd "$1" && pwd) || exit 2
mkdir -p "$2" && results=$(cd "$2" && pwd) || exit 2
work=$(mktemp -d /tmp/gpu.XXXX) && chmod 755 "$work" || exit 2
trap 'rm -rf "$work"' EXIT
cp -r "$pack" "$work/pack" && pack=$work/pack || exit 2 # the jobs' user must reach it
mkdir "$work/slurm" && tar -xJf "$pack/slurm-bundle.tar.xz" -C "$work/slurm" || exit 2
export SLURM_MPS_BUILT=$pack SLURM_BUNDLE=$(echo "$work"/slurm/*) CONFORMANCE_TARGET=real CONFORMANCE_CLIENT=$pack/sim/bin/cuda-client
failed=0

# say NAME COMMAND...: runs it, shows it, keeps its output, remembers a failure.
say() {
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

# put_back undoes, GPU by GPU, what an act left that did not come to its epilog: where it finds something, this run has
# failed already or is interrupted.
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
LINES_SHOWN=45 say job-srun "$pack/job" -ranks 4 -launcher srun -ps
LINES_SHOWN=45 say job-mpirun "$pack/job" -ranks 4 -launcher mpirun -ps
LINES_SHOWN=80 say acts "$pack/cmd.test" -test.run Real -test.skip '^TestReal(Ends|Programs|Ensemble)$' -test.v -test.timeout 15m
# Every ending of every client: some minutes of it; site/lab/gpu-ends.sh runs it alone.
ENDS_MINUTES=${ENDS_MINUTES:-3} ENDS_RESULTS=$results LINES_SHOWN=120 say ends "$pack/cmd.test" -test.run '^TestRealEnds$' -test.v -test.timeout 15m
say bench "$pack/bench" -trials "${TRIALS:-20}" -json "$results/bench.json"
say conformance "$pack/conformance.test" -test.v -test.timeout 5m
grep -cE -- '^ *--- PASS' "$results/conformance.txt"
grep -E -- '^ *--- (FAIL|SKIP)' "$results/conformance.txt"
# A skip is a failure, but where only a simulation can do it, or only two GPUs can. A test's reason comes while it runs,
# its verdict when its parent ends: they are joined by the test's name.
awk '$1 == "===" { test = $3 } /_test\.go:[0-9]+: / { why[test] = $0 }
    $2 == "SKIP:" && why[$3] !~ /simulation only|needs (two|2) GPUs/ { print "skipped without need: " $3 ":" why[$3]; bad = 1 } END { exit bad }' \
    "$results/acts.txt" "$results/conformance.txt" || failed=1
left=$(pgrep -fa 'nvidia-cuda-mps|slurm(ctl)?d|munged' | grep -v -e pgrep -e '<defunct>')
[ -z "$left" ] || { failed=1; echo "left behind: $left"; }
modes | diff - "$results/machine.txt" || { failed=1; echo "the GPUs are not as they were"; }
[ $failed = 0 ] && echo "all passed"
exit $failed
