#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# soaks.sh PACK RESULTS: on a machine with many cores that needs neither Go nor Slurm, as root: SOAK_JOBS random jobs
# with faults on each Slurm of PACK, and OWN_STARTS random ranks of mpirun-wrap --own, all side by side for SOAK_MINUTES.
# PACK is the output of make soaks-pack. SOAK_CORES is the first
# core and the number of cores that each has. Each sees its own processes, because a soak counts those that are left.
. "$(dirname "$0")/gpu-pack.sh"
read -r core each <<<"${SOAK_CORES:-0 $(($(nproc) / 5))}"
export SOAK_JOBS=${SOAK_JOBS:-1000} SOAK_MINUTES=${SOAK_MINUTES:-30} SOAK_WIDE=${SOAK_WIDE:-4}
export OWN_STARTS=${OWN_STARTS:-500} OWN_LOG=$results/soak-own.jsonl NIGHTLY=${NIGHTLY-1} REQUIRE_LAB=1
unset CONFORMANCE_TARGET
pids=()

# begin NAME SLURM TEST: runs a test on the next cores.
begin() {
    [ $((core + each)) -le "$(nproc)" ] || core=0
    local cores=$core-$((core + each - 1))
    core=$((core + each))
    mkdir -p "$work/$1" && cd "$work/$1" || exit 1
    SOAK_NAME=$1 SLURM_BUNDLE=$2 taskset -c "$cores" \
        unshare --pid --fork --kill-child --mount-proc timeout --signal=QUIT --kill-after=20 $((SOAK_MINUTES * 60 + 60)) \
        "$pack/${3%%.*}.test" -test.v -test.timeout 0 -test.run "^${3#*.}\$" >"$results/soak-$1.txt" 2>&1 &
    pids+=($!)
}

# launcher NAME PROGRAM VARIABLE=VALUE...: the Slurms of another Debian have no MPI, so they take that of the first.
launcher() {
    printf '#!/bin/sh\n%s exec %s "$@"\n' "${*:3}" "$SLURM_BUNDLE/$2" >"/usr/local/bin/$1" && chmod 755 "/usr/local/bin/$1" || exit 1
}
trap 'rm -rf "$work" /usr/local/bin/mpirun.openmpi /usr/local/bin/mpiexec.hydra "${slurms[@]}"' EXIT
pmix=$SLURM_BUNDLE/pmix2 slurms=()
launcher mpirun.openmpi ompi/bin/mpirun "LD_LIBRARY_PATH=$SLURM_BUNDLE/mpilib:\$LD_LIBRARY_PATH" OPAL_PREFIX="$SLURM_BUNDLE/ompi" \
    PMIX_PREFIX="$pmix" PMIX_LIBDIR="$pmix/lib" PMIX_PKGLIBDIR="$pmix/lib/pmix" PMIX_DATADIR="$pmix/share" PMIX_PKGDATADIR="$pmix/share/pmix"
launcher mpiexec.hydra mpich/bin/mpiexec.hydra "LD_LIBRARY_PATH=$SLURM_BUNDLE/mpilib:\$LD_LIBRARY_PATH"

[ -d /sys/fs/cgroup/freezer ] || echo "no soak under Slurm: it needs the controllers freezer and devices of cgroup v1" >&2
for slurm in "$pack"/slurms/*; do
    [ -d /sys/fs/cgroup/freezer ] || break
    slurms+=("/tmp/${slurm##*/}")
    mv "$slurm" /tmp/ || exit 1
    begin "${slurm##*-}" "/tmp/${slurm##*/}" soak.TestSoak
done
[ ! -d /sys/fs/cgroup/freezer ] || begin bookworm "$SLURM_BUNDLE" soak.TestSoak
begin own "$SLURM_BUNDLE" "own.TestOwnSoak.*"
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
tail -n 15 "$results"/soak-*.txt
exit $failed
