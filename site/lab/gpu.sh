#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu.sh PART PACK RESULTS: runs a part on a machine with GPUs, as root, and writes the results. PACK is the folder of
# make gpu, or a .tar.xz of it. The machine needs neither Go nor Slurm. The parts:
#
#   trials    ends of clients beside neighbours, of every kind (site-check -trials), for MINUTES (8); TRIALS is a pattern.
#             A machine without nvidia-smi gets a simulated GPU. A second run with the same RESULTS continues
#   acts      the tests of cmd/e2e/real without programs, and the conformance suite
#   programs  programs like those that users write, under a real Slurm. It needs a python3 with PyTorch, CuPy, JAX,
#             joblib, Lightning and mpi4py. PROGRAMS is a pattern for test names
#   soaks     on a machine with many cores: SOAK_JOBS random jobs with faults on each Slurm of PACK, OWN_STARTS random
#             ranks of mpirun-wrap --own, and a month of 500 jobs, side by side for SOAK_MINUTES. SOAK_CORES is the first
#             core and the number of cores that each has
#
# The script never changes MIG or a clock. It changes compute modes only in the part acts, and only if ALLOW_MODE_CHANGES
# is exactly 1: then the prolog sets only a job's GPUs to EXCLUSIVE_PROCESS, and the epilog restores the former modes,
# which nvidia-smi checks. Set it only on your own machine, and only if no one else uses its GPUs. Any other program that
# starts on these GPUs during the run fails with error 46.
set -u
part=${1:?the part} && [ "$part" = acts ] || unset ALLOW_MODE_CHANGES
mkdir -p "$3" && results=$(cd "$3" && pwd) || exit 2
work=$(mktemp -d /tmp/gpup.XXX) && chmod 755 "$work" || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/pack" "$work/slurm" || exit 2
if [ -d "$2" ]; then # the jobs' user must be able to read it
    cp -r "$2/." "$work/pack" || exit 2
else
    tar -xJf "$2" --strip-components=1 -C "$work/pack" || exit 2
fi
pack=$work/pack
export BUILT_FOLDER=$pack CONFORMANCE_TARGET=real CONFORMANCE_CLIENT=$pack/sim/bin/cuda-client
if [ -e "$pack/slurm-bundle.tar.xz" ] && [ "$part" != trials ]; then
    tar -xJf "$pack/slurm-bundle.tar.xz" -C "$work/slurm" || exit 2
    export SLURM_BUNDLE=$(echo "$work"/slurm/*)
fi
failed=0

modes() { command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,uuid,driver_version,compute_mode --format=csv,noheader; }
each_mode() { nvidia-smi --query-gpu=uuid,compute_mode --format=csv,noheader; }

# put_back restores, for each GPU, the mode that a test left if its epilog did not run. Then this run has already failed.
put_back() {
    local now uuid mode
    now=$(each_mode) || { echo "the compute modes cannot be read; they were:"; cat "$work/before"; return; }
    while IFS=', ' read -r uuid mode; do
        grep -qxF "$uuid, $mode" <<<"$now" && continue
        echo "putting the compute mode of $uuid back to $mode"
        nvidia-smi -i "$uuid" -c "${mode^^}" || echo "to repair: nvidia-smi -i $uuid -c ${mode^^}"
    done <"$work/before"
}

# shown NAME COMMAND...: runs a command, keeps its output, prints the end of it, and records a failure.
shown() {
    local name=$1
    shift
    echo "== $name: $*"
    "$@" >"$results/$name.txt" 2>&1 || { failed=1; echo "FAILED with $?"; }
    tail -n 80 "$results/$name.txt"
}

trials() {
    local simulate=()
    command -v nvidia-smi >/dev/null || simulate=(-simulate)
    "$pack/site-check" "${simulate[@]}" -trials "${TRIALS:-}" -minutes "${MINUTES:-8}" -results "$results" \
        -ends "${ENDS:-1000}" -seed "${SEED:-1}" -user "${JOBS_USER:-nobody}" || failed=1
}

acts() {
    if [ "${ALLOW_MODE_CHANGES:-}" = 1 ]; then
        each_mode >"$work/before" || exit 2
        trap 'put_back; rm -rf "$work"' EXIT
        echo "ALLOW_MODE_CHANGES=1: jobs set the compute modes of their GPUs and put them back"
    fi
    shown acts "$pack/real.test" -test.run Real -test.skip '^TestReal(Programs|Numbers|Ensemble)$' -test.v -test.timeout 9m
    shown conformance "$pack/conformance.test" -test.v -test.timeout 5m
    # A skip is a failure, unless the test needs a simulation or two GPUs. A test prints its reason while it runs, and its
    # verdict when its parent ends. Both are joined by the test's name.
    awk '$1 == "===" { test = $3 } /_test\.go:[0-9]+: / { why[test] = $0 }
        $2 == "SKIP:" && why[$3] !~ /simulation only|needs (two|2) GPUs/ { print "skipped without need: " $3 ":" why[$3]; bad = 1 } END { exit bad }' \
        "$results/acts.txt" "$results/conformance.txt" || failed=1
}

programs() {
    "$pack/real.test" -test.run "${PROGRAMS:-^TestReal(Programs|Numbers|Ensemble)\$}" -test.v -test.timeout 570s 2>&1 | tee "$results/programs.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || failed=1
}

# begin NAME SLURM TEST: runs a test on the next cores. It sees its own processes, because a soak counts those that are left.
begin() {
    [ $((core + each)) -le "$(nproc)" ] || core=0
    local cores=$core-$((core + each - 1))
    core=$((core + each))
    mkdir -p "$work/$1" && cd "$work/$1" || exit 1
    SOAK_NAME=$1 SOAK_LOG=$results/soak-$1.tsv SLURM_BUNDLE=$2 taskset -c "$cores" \
        unshare --pid --fork --kill-child --mount-proc timeout --signal=QUIT --kill-after=20 $((SOAK_MINUTES * 60 + 60)) \
        "$pack/${3%%.*}.test" -test.v -test.timeout 0 -test.run "^${3#*.}\$" >"$results/soak-$1.txt" 2>&1 &
    pids+=($!)
}

# launcher NAME PROGRAM VARIABLE=VALUE...: the Slurms of another Debian have no MPI, so they take that of the first.
launcher() {
    printf '#!/bin/sh\n%s exec %s "$@"\n' "${*:3}" "$SLURM_BUNDLE/$2" >"/usr/local/bin/$1" && chmod 755 "/usr/local/bin/$1" || exit 1
}

soaks() {
    read -r core each <<<"${SOAK_CORES:-0 $(($(nproc) / 5))}"
    export SOAK_JOBS=${SOAK_JOBS:-1000} SOAK_MINUTES=${SOAK_MINUTES:-30} SOAK_WIDE=${SOAK_WIDE:-4}
    export OWN_STARTS=${OWN_STARTS:-500} OWN_LOG=$results/soak-own.jsonl NIGHTLY=${NIGHTLY-1} REQUIRE_LAB=1
    unset CONFORMANCE_TARGET
    pids=() slurms=()
    trap 'rm -rf "$work" /usr/local/bin/mpirun.openmpi /usr/local/bin/mpiexec.hydra "${slurms[@]}"' EXIT
    local pmix=$SLURM_BUNDLE/pmix2
    launcher mpirun.openmpi ompi/bin/mpirun "LD_LIBRARY_PATH=$SLURM_BUNDLE/mpilib:\$LD_LIBRARY_PATH" OPAL_PREFIX="$SLURM_BUNDLE/ompi" \
        PMIX_PREFIX="$pmix" PMIX_LIBDIR="$pmix/lib" PMIX_PKGLIBDIR="$pmix/lib/pmix" PMIX_DATADIR="$pmix/share" PMIX_PKGDATADIR="$pmix/share/pmix"
    launcher mpiexec.hydra mpich/bin/mpiexec.hydra "LD_LIBRARY_PATH=$SLURM_BUNDLE/mpilib:\$LD_LIBRARY_PATH"
    begin month "" program.TestAPlayedMonth
    begin own "$SLURM_BUNDLE" "own.TestOwnSoak.*"
    if [ -d /sys/fs/cgroup/freezer ]; then
        for slurm in "$pack"/slurms/*; do
            slurms+=("/tmp/${slurm##*/}")
            mv "$slurm" /tmp/ || exit 1
            begin "${slurm##*-}" "/tmp/${slurm##*/}" soak.TestSoak
        done
        begin bookworm "$SLURM_BUNDLE" soak.TestSoak
    else
        echo "no soak under Slurm: it needs the controllers freezer and devices of cgroup v1" >&2
    fi
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    tail -n 15 "$results"/soak-*.txt
}

case $part in trials | acts | programs | soaks) ;; *) echo "gpu.sh: no part $part" >&2; exit 2 ;; esac
modes | tee "$results/$part-machine.txt"
"$part"
left=$(pgrep -fa 'nvidia-cuda-mps|slurm(ctl)?d|munged|victim\.py|programs\.py|cuda-client' | grep -v -e pgrep -e '<defunct>')
if [ "$part" != soaks ] && [ -n "$left" ]; then
    failed=1
    echo "left behind: $left"
fi
modes | diff - "$results/$part-machine.txt" || { failed=1; echo "the GPUs are not as they were"; }
exit $failed
