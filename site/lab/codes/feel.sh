#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# feel.sh MODE TURN: what a server feels beside a trainer, in each mode; and with slurm-mps, what a server, an allreduce
# of four ranks and LAMMPS of four ranks feel before, during and after a neighbour's bad end. Six neighbours end by
# SIGKILL with 2 s of work in flight. After an end of the kind "room" there is memory enough. After one of the kind
# "pause", a program needs the dead one's half of the GPU's memory. It prints the lines of "feel.py table".
. "$CODES/mode.sh" "$1"
head="$2 $mode"
export OMP_NUM_THREADS=1 OMPI_MCA_plm_rsh_agent=/bin/true
first=${FIRST_CORE:-0}

# at CORE ARGUMENTS...: a role of feel.py on a core, as a rank
at() {
    local core=$((first + $1))
    shift
    taskset -c "$core" ${wrapper:+$wrapper --slots=${slots:-2}} "${PYTHON:-python3}" "$CODES/feel.py" "$@"
}

# ready FILE...: waits for the files, for a minute
ready() {
    local name tries
    for name in "$@"; do
        for ((tries = 600; tries > 0; tries--)); do
            [ ! -e "$name.ready" ] || break
            sleep 0.1
        done
        [ "$tries" -gt 0 ] || { echo "$name does not start" && tail -n 5 ./*.err && return 1; }
    done
}

# end: ends the programs that run until the file stop exists
end() { touch stop && wait && rm stop; }

# beside: a server alone, and beside a trainer
beside() {
    divide 2
    at 0 serve alone 2>alone.err &
    ready alone && sleep 4
    end
    at 0 serve server 2>server.err &
    at 1 train trainer 2>trainer.err &
    ready server trainer && sleep 6
    end
    "${PYTHON:-python3}" "$CODES/feel.py" table "$head" alone server trainer
}

# ending KIND MIB: a neighbour ends
ending() {
    at 9 victim "$1" "$2" 2 2>>victim.err &
    wait $!
    if [ "$1" = pause ]; then
        at 10 next "next-$1" "$2" 2>>next.err &
        wait $!
    fi
    sleep 7.5
}

endings() {
    rm -f ./*.steps ./*.ready
    slots=12
    at 0 serve server 2>server.err &
    for i in 0 1 2 3; do
        at $((i + 1)) reduce allreduce $i 4 2>reduce.$i.err &
    done
    if [ -x "$CODES/lmp" ]; then
        cp "$CODES"/in.lj .
        sed 's/^run.*/thermo 10\nrun 1000000/' in.lj >run.feel
        taskset -c $((first + 5))-$((first + 8)) mpirun.openmpi -np 4 --bind-to none $wrapper --slots=12 \
            "$CODES/lmp" -nonbuf -in run.feel -v x 2 -v y 2 -v z 2 -sf gpu -pk gpu 1 -log none 2>lmp.err \
            > >("${PYTHON:-python3}" "$CODES/feel.py" lines lammps) &
        lammps=$!
        ready lammps
    fi
    ready server allreduce-0 && sleep 3
    for ((i = 0; i < 3; i++)); do
        ending room 1024
        ending pause $(($(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1) / 2))
    done
    [ -z "${lammps:-}" ] || kill "$lammps"
    end
    "${PYTHON:-python3}" "$CODES/feel.py" table "$head" server allreduce lammps
    tail -n 3 victim.err next.err
}

beside
[ "$mode" != ours ] || [ "${FEEL:-}" = beside ] || endings
