#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# python.sh MODE TURN: runs the programs of python.py with 1 to 16 processes on one GPU, in a job of Slurm, and prints a
# line for each: the steps a second of all processes. MODE is slices (no MPS), bare (a control daemon by hand, 100/n
# percent) or ours (slurm-mps). CODES is the folder with python.py, RANKS the numbers of processes, which have a core
# each.
. "$CODES/mode.sh" "$1"
turn=$2
export OMP_NUM_THREADS=1
for n in $RANKS; do
    divide "$n"
    rm -rf meet member.* && mkdir meet
    seq "$n" | timeout 100 xargs -P "$n" -I{} sh -c \
        "taskset -c \$(({} - 1 + ${FIRST_CORE:-0})) ${wrapper:+$wrapper --slots=$n} ${PYTHON:-python3} $CODES/python.py $PWD/meet $n >member.{} 2>error.{} || echo \"{}: \$?\" >>failed"
    awk -v head="$turn $mode" -v n="$n" '{sum[$1] += $2; runs[$1]++}
        END {for (p in sum) print head, p, n, runs[p] == n ? sum[p] : "failed"}' member.*
    if [ -e failed ]; then cat failed && tail -n 3 error.* && rm failed; fi
done
