// SPDX-License-Identifier: Apache-2.0

package main

// programs are the files in the user's folder, by name. Each program prints lines that people read and the acts
// check.
var programs = map[string]string{
	"app": `#!/bin/bash
# app [SECONDS]: a program that computes on its GPU, and prints what CUDA gave it.
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} # of Open MPI or MPICH
[ -z "$rank" ] && [ -n "$SLURM_STEP_ID" ] && [ "$SLURM_NTASKS" != 1 ] && rank=$SLURM_PROCID
who="rank $rank"
[ -z "$rank" ] && who="process $$"
had=$(cuda-client info -v) && did=$(cuda-client spin -ms 5 -for "${1:-0.5}") ||
    { echo "$who: CUDA fails: $had $did"; exit 1; }
gpu=${had#*uuid=} # the first GPU, the one that CUDA computes on
[[ "$had $did" =~ sm=([0-9]+).*kernels=([0-9]+) ]]
echo "$who: ${BASH_REMATCH[1]} SMs of ${gpu:0:12}, ${BASH_REMATCH[2]} kernels"
`,
	"killed": `#!/bin/bash
# killed [SECONDS]: every rank computes. Then the last one is killed with SIGKILL while its kernel runs, and the others
# go on. srun numbers the ranks.
[ -n "$SLURM_STEP_ID" ] ||
    { echo "killed: cannot number the ranks: srun has not started it: srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed" >&2; exit 2; }
last=$((SLURM_NTASKS - 1)) file=.killed.$SLURM_JOB_ID.$SLURM_STEP_ID
ready() { ls $file.* 2>/dev/null | wc -l; } # the number of neighbours that compute, and do not know of the end
compute() { # from now on, in the background; the lines of the client are on descriptor 3, from the second on
    exec 3< <(exec cuda-client spin -for 60 "$@") && client=$!
    read -r -u 3
}
if [ "$SLURM_PROCID" = $last ]; then
    trap 'rm -f $file $file.*' EXIT
    compute -ms 400 -queue 3
    until [ "$(ready)" = $last ]; do sleep 0.05; done
    sleep ${1:-1}
    kill -9 $client
    touch $file
    echo "rank $SLURM_PROCID: killed with SIGKILL while its kernel ran"
    until [ "$(ready)" = 0 ]; do sleep 0.05; done
    exit 137
fi
compute -ms 5 -exit-idle
touch $file.$SLURM_PROCID
until [ -e $file ]; do sleep 0.05; done
rm $file.$SLURM_PROCID
sleep ${1:-1.5}
kill $client 2>/dev/null
result=$(cat <&3)
if [[ $result =~ done\ kernels=([0-9]+) ]]; then
    echo "rank $SLURM_PROCID: finished, ${BASH_REMATCH[1]} kernels"
else
    [[ $result =~ err=([0-9]+\ [A-Za-z_]+) ]]
    echo "rank $SLURM_PROCID: died of CUDA error ${BASH_REMATCH[1]}"
    exit 1
fi
`,
	"bare-mps": `#!/bin/bash
# bare-mps COMMAND...: runs a command beside an MPS daemon that the job starts itself, without slurm-mps.
export CUDA_MPS_PIPE_DIRECTORY=$PWD/bare.$SLURM_JOB_ID CUDA_MPS_LOG_DIRECTORY=$PWD/bare.$SLURM_JOB_ID
mkdir "$CUDA_MPS_PIPE_DIRECTORY" && nvidia-cuda-mps-control -d || exit 1
"$@"
code=$?
echo quit | nvidia-cuda-mps-control
rm -r "$CUDA_MPS_PIPE_DIRECTORY"
exit $code
`,
	"job.sh": `#!/bin/bash
#SBATCH --gres=gpu:2 --constraint=mps --ntasks=8 --output=job.out
srun mpirun-wrap --share=even ./app
`,
	"long.sh": `#!/bin/bash
#SBATCH --gres=gpu:1 --constraint=mps --ntasks=4 --output=long.out
srun mpirun-wrap ./app 6
`,
	"ranks": `#!/bin/bash
# ranks N COMMAND...: N ranks by Open MPI on the first GPU, without Slurm.
export CUDA_VISIBLE_DEVICES=0
exec mpirun.openmpi -np "$1" --oversubscribe "${@:2}"
`,
	"ensemble": `#!/bin/bash
# ensemble: eight programs, four at a time. No launcher gives them a rank, so each takes a free slot.
seq 8 | xargs -P4 -I% mpirun-wrap --slots=4 ./app
`,
}
