#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gpu-left.sh PACK RESULTS: runs what the pages still call "not run on a GPU", on a machine with one or two GPUs, as
# root. PACK is the output of make gpu-left-pack. A call takes LEFT_MINUTES (9.5):
#
#   LEFT=node   context switches of an idle guard; a recorder's cost; ends of jobs; site-check; what a run of the metrics
#               costs a tightly coupled job; and beside these, on the cores from 8 on, pairs of
#               hooks on simulated nodes, two cores each
#   LEFT=codes  a trainer beside a server, in three turns; then PyTorch and JAX in turns. Two GPUs have a lane each:
#               the first begins with PyTorch and JAX, the second with trainer and server
#
# Each part has a time of its own and leaves a raw file, also if another part fails. A second call with the same RESULTS
# adds turns and pairs: 20,000 pairs need two calls on 32 cores. No mode of a GPU changes. With LEFT_SIMULATED, or without
# nvidia-smi, it is a rehearsal: LEFT=node has simulated GPUs, and LEFT=codes makes one turn without MPS and without Slurm.
. "$(dirname "$0")/gpu-pack.sh"
here=$(cd "$(dirname "$0")" && pwd)
gpus=1 simulated=''
if [ -z "${LEFT_SIMULATED:-}" ] && command -v nvidia-smi >/dev/null; then
    gpus=$(modes | wc -l)
else
    simulated=-simulated
    modes() { echo "no GPU"; }
fi
modes | tee "$results/left-machine.txt"
end=$(awk -v m="${LEFT_MINUTES:-9.5}" -v s="$SECONDS" 'BEGIN {print int(s + 60 * m)}')
left() { echo $((end - SECONDS)); }

# part NAME SECONDS COMMAND...: runs a command, for what is left of the call at most, and adds its output to NAME.txt.
part() {
    local name=$1 time=$2 code
    shift 2
    [ "$(left)" -ge "$time" ] || time=$(left)
    if [ "$time" -lt 5 ]; then
        echo "== $name: no time is left" | tee -a "$results/$name.txt"
        return
    fi
    timeout --kill-after=10 "$time" "$@" >>"$results/$name.txt" 2>&1
    code=$?
    [ $code = 0 ] || failed=1
    echo "== $name: code $code, $(left) s are left"
    tail -n 12 "$results/$name.txt"
}

# pairs STREAM FILE: pairs of hooks alone and beside load, in pieces of PAIRS, until no further piece fits. No piece is
# cut off, so that none leaves a simulated node behind.
pairs() {
    local core=$((first + 2 * $1)) slowest=1 began i
    for ((i = 0; $(left) > slowest + 10; i++)); do
        began=$SECONDS
        taskset -c "$core,$((core + 1))" "$pack/bench" -only tail -simulated -pairs "${PAIRS:-40}" -json "$work/$1.jsonl" || return 1
        cat "$work/$1.jsonl" >>"$2"
        [ $((SECONDS - began)) -le "$slowest" ] || slowest=$((SECONDS - began))
    done
}

node() {
    local cores first=8 i streams=()
    cores=$(nproc)
    [ "$cores" -ge 10 ] || first=$((cores > 2 ? cores - 2 : 0))
    mkdir -p "$work/pairs"
    for ((i = 0; first + 2 * i + 1 < cores; i++)); do
        pairs "$i" "$work/pairs/$i" >"$work/pairs-$i.txt" 2>&1 &
        streams+=($!)
    done
    part idle 90 "$pack/bench" -only idle -trials 4 $simulated -json "$results/idle.json"
    part recorder 80 "$pack/bench" -only recorder -trials 2 $simulated -json "$results/recorder.json"
    part closes 150 "$pack/bench" -only closes -trials "${TRIALS:-5}" $simulated -json "$results/closes.json"
    part site-check 310 "$pack/site-check" -ends "${CHECK_ENDS:-30}" ${simulated:+-simulate}
    part metrics 75 "${PYTHON:-python3}" "$pack/codes/coupled.py" $((cores < 8 ? cores : 8)) 10 "$pack/bin/mpsctl" metrics
    for i in "${streams[@]}"; do
        wait "$i" || { failed=1; echo "a stream of hooks has failed"; cat "$work"/pairs-*.txt; }
    done
    cat "$work"/pairs/* >>"$results/tail.jsonl"
    part tail 600 "$pack/bench" tails "$results/tail.jsonl"
}

# turns LANE SCRIPT MINUTES: turns of a script of codes/, on one GPU with 16 cores. A turn's lines go to SCRIPT-LANE.txt.
turns() {
    local folder="$work/$2-$1" out="$results/${2%.sh}-$1.txt"
    if [ -n "${simulated:-}" ]; then
        (cd "$work" && CODES=$pack/codes FIRST_CORE=0 RANKS=${RANKS:-1 2} timeout "$(left)" "$pack/codes/$2" slices 1) >"$folder.log" 2>&1
        grep '^1 slices ' "$folder.log" >>"$out"
    else
        CODES_SCRIPT=$2 CODES_MINUTES=$3 CODES=/tmp/gpu-left-$1 ONLY_GPU=$1 FIRST_CORE=$((16 * $1)) RANKS=${RANKS:-1 16} \
            CODES_MODES=$( ((turn[$1]++ % 2)) && echo "bare ours slices" || echo "slices bare ours") \
            timeout --kill-after=10 "$(left)" "$here/gpu-codes.sh" "$pack" "$folder" >"$folder.log" 2>&1
        cat "$folder/codes.txt" >>"$out"
    fi
    grep -h -e '^python.py:' -e FAIL -e 'has no result' "$folder.log" >>"$results/codes-times.txt"
    [ -s "$out" ] || { echo "$2 has no result"; tail -n 20 "$folder.log"; return 1; }
}

# lane GPU: half of the first lane's time, or all of the second's first half, is for trainer and server.
lane() {
    local minutes turn=(0 1)
    minutes() { awk -v s="$(left)" -v part="$1" 'BEGIN {printf "%.1f", (s - 40) * part / 60}'; }
    if [ "$gpus" = 1 ] || [ "$1" = 1 ]; then
        FEEL=beside turns "$1" feel.sh "$(minutes 0.5)" || return 1
    fi
    turns "$1" python.sh "$(minutes 1)"
}

codes() {
    local i lanes=()
    for ((i = 0; i < (gpus < 2 ? 1 : 2); i++)); do
        lane "$i" >"$work/lane-$i.txt" 2>&1 &
        lanes+=($!)
    done
    for i in "${lanes[@]}"; do wait "$i" || failed=1; done
    cat "$work"/lane-*.txt
    tail -n 12 "$results"/feel-*.txt "$results"/python-*.txt "$results/codes-times.txt"
}

case ${LEFT:-} in
node | codes) "$LEFT" ;;
*) echo "set LEFT to node or codes" && exit 2 ;;
esac
[ -z "${simulated:-}" ] || ONLY_GPU=0 # a rehearsal shares the machine with other tests
leave "$results/left-machine.txt" 'codes/|cuda-client'
