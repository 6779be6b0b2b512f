#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# python.sh MODE TURN: runs the programs of python.py on one GPU, in a job of Slurm, and prints a line for each program
# and number of processes: the steps a second of all processes. MODE is slices (no MPS), bare (a control daemon by hand,
# 100/n percent) or ours (slurm-mps). CODES is the folder with python.py, RANKS the numbers of processes, which have a
# core each, from FIRST_CORE on. It skips a number for which the machine has too few cores or the GPU too little memory.
. "$CODES/mode.sh" "$1"
export OMP_NUM_THREADS=1
"${PYTHON:-python3}" "$CODES/python.py" "$2" "$mode" "$RANKS" $wrapper
