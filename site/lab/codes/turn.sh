#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# turn.sh MODE TURN: runs LAMMPS on each input with 1 to 16 ranks on one GPU, in a job of Slurm, and prints a line for
# each run: LAMMPS' own steps a second. MODE is slices (no MPS), bare (a control daemon by hand, 100/n percent) or ours
# (slurm-mps). CODES is the folder with lmp and its inputs, RANKS the numbers of ranks. Ranks have a core each, so a
# number above that of the cores is skipped.
. "$CODES/mode.sh" "$1"
turn=$2
cp "$CODES"/in.* "$CODES"/data.rhodo "$CODES"/Cu_u3.eam . || exit 1
export OMPI_MCA_plm_rsh_agent=/bin/true
fit=
for n in $RANKS; do
    if [ "$n" -le "$(nproc)" ]; then fit+=" $n"; else echo "$n ranks are skipped: there are $(nproc) cores"; fi
done
RANKS=$fit

# lammps INPUT STEPS NAME [FLAG...]: one run for each number of ranks
lammps() {
    local input=$1 steps=$2 name=$3 n
    shift 3
    sed "s/^run.*/run $steps/" "in.$input" >"run.$name"
    for n in $RANKS; do
        divide "$n"
        timeout 60 mpirun.openmpi -np "$n" --bind-to core --map-by core $wrapper "$CODES/lmp" -in "run.$name" "$@" \
            -sf gpu -pk gpu 1 -log none >out 2>err
        awk -v head="$turn $mode $name $n" '/^Loop time of/ {print head, $(NF-4) / $4; ok=1}
            END {if (!ok) print head, "failed"}' out
        grep -q '^Loop time of' out || tail -3 out err
    done
}

# ensemble STEPS: n separate runs at the same time, each of one rank. The sum of their rates counts.
ensemble() {
    local n
    sed "s/^run.*/run $1/" in.lj >run.members
    for n in $RANKS; do
        divide "$n"
        rm -f member.*
        seq "$n" | OMPI_MCA_ess_singleton_isolated=1 timeout 60 xargs -P "$n" -I{} sh -c \
            "exec taskset -c \$(({} - 1)) ${wrapper:+$wrapper --slots=$n} $CODES/lmp -in run.members -sf gpu -pk gpu 1 -log none >member.{} 2>&1"
        awk -v head="$turn $mode members $n" -v n="$n" '/^Loop time of/ {sum += $(NF-4) / $4; runs++}
            END {if (runs == n) print head, sum; else print head, "failed", runs}' member.*
    done
}

lammps rhodo 150 rhodo-32k
lammps lj 500 lj-256k -v x 2 -v y 2 -v z 2
lammps eam 700 eam-32k
[ -z "${BIG:-}" ] || lammps lj "$BIG" lj-2M -v x 4 -v y 4 -v z 4
ensemble 2000
