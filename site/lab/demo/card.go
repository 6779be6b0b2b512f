// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// thing is a command line to try in the shell.
type thing struct {
	what, line string
	code       int    // the exit code of the line
	want       string // a part of the output, for the test
}

var card = []thing{
	{"Eight ranks share two GPUs, with an equal share each",
		"srun --gres=gpu:2 --constraint=mps -n8 mpirun-wrap --share=even ./app", 0, "rank 7: 32 SMs of GPU-"},
	{"A rank is killed during its kernel, and its neighbours finish",
		"srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed", 137, "rank 2: finished"},
	{"The same without slurm-mps, on an MPS that the job starts itself",
		"salloc --quiet --gres=gpu:1 -n4 ./bare-mps srun ./killed", 137, "rank 2: died of CUDA error 700"},
	{"The placement of each rank, with the reasons",
		"srun --gres=gpu:1 --constraint=mps -n2 mpirun-wrap -v --share=25% ./app", 0, "32 of 132 SMs"},
	{"A batch job, and the node while the job runs",
		"sbatch long.sh && sleep 3 && mpsctl status", 0, "1 job"},
	{"A mistake, and what is printed",
		"srun --constraint=mps mpirun-wrap ./app", 125, "submit it with --gres=gpu:N"},
	{"What the site's policy gives a job, and why",
		"mpsctl policy explain --partition edu --gpus 2 --constraint mps", 0, "MPS on the edu partition"},
	{"How seven ranks would share two GPUs, without a job",
		"mpsctl policy explain --gpu H200 --gpus 2 --ranks 7 --constraint mps", 0, "264 of 132 SMs"},
	{"Eight programs that no launcher numbers, in four slots (cat ensemble)",
		"srun --gres=gpu:1 --constraint=mps ./ensemble", 0, "66 SMs of GPU-"},
	{"Which share is the fastest for a program",
		"salloc -Q -n4 --gres=gpu:1 -Cmps mps-tune --repeats 1 -- srun ./app", 0, "overlap:2"},
}

// cardText returns the card as the user sees it.
func cardText() string {
	var b strings.Builder
	for i, t := range card {
		fmt.Fprintf(&b, "%2d. %s\n    %s\n", i+1, t.what, t.line)
	}
	return b.String()
}
