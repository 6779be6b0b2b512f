// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
	"github.com/slurm-mps/slurm-mps/site/sim/txtar"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// goldenCase is a node, a launch and flags.
type goldenCase struct {
	node   string // "H200 2 scope=gpu share=even"
	launch string // "srun 8"
	flags  []string
}

// goldens is an archive with a file for each case. Three lines describe the case. A line for each rank has GPU, daemon,
// SMs, percentage and the number of ranks on the GPU.
const goldens = "testdata/golden.txtar"

func TestGoldens(t *testing.T) {
	cases := must.Get(txtar.Read(goldens))(t)
	must.Have(t, len(cases.Files) >= 60, "only %d cases", len(cases.Files))
	for _, name := range cases.Names() {
		t.Run(strings.TrimSuffix(name, ".txt"), func(t *testing.T) {
			c := readGolden(t, cases.Files[name])
			golden.CompareIn(t, goldens, name, c.text(c.placeAll(t)))
		})
	}
}

func readGolden(t *testing.T, content string) goldenCase {
	head, _, ok := strings.Cut(content, "---\n")
	lines := strings.Split(head, "\n")
	must.Have(t, ok && len(lines) >= 3, "not a case: %q", content)
	field := func(i int, name string) string {
		value, found := strings.CutPrefix(lines[i], name)
		if !found {
			t.Fatalf("line %d is no %s: %q", i+1, name, lines[i])
		}
		return strings.TrimSpace(value)
	}
	return goldenCase{field(0, "node"), field(1, "launch"), strings.Fields(field(2, "flags"))}
}

func (c goldenCase) text(ranks []string) string {
	return fmt.Sprintf("node   %s\nlaunch %s\nflags  %s\n---\n%s\n", c.node, c.launch, strings.Join(c.flags, " "), strings.Join(ranks, "\n"))
}

// placeAll places every rank as a wrapper would, each from its own environment.
func (c goldenCase) placeAll(t *testing.T) []string {
	ticket := nodeOf(t, c.node)
	launcher, count, _ := strings.Cut(c.launch, " ")
	ranks := must.Get(strconv.Atoi(count))(t)
	var placements []string
	for rank := range ranks {
		env := append(environmentOf(t, launcher, rank, ranks), "SLURM_JOB_ID=7")
		placement, err := placementOf(ticket, env, c.flags)
		if err != nil {
			placements = append(placements, fmt.Sprintf("%d %v", rank, err))
			continue
		}
		percent, _ := placement.percent().MarshalJSON()
		gpus := fmt.Sprint(placement.GPU)
		for _, part := range placement.OtherGPUs {
			gpus += fmt.Sprintf(",%d", part.GPU)
		}
		line := fmt.Sprintf("%d GPU %s daemon %s %d SMs %s of %d", rank, gpus, filepath.Base(filepath.Dir(placement.Daemon.PipeDir)), placement.Share.SMs, percent, placement.RanksOnGPU)
		if len(placement.Sees) > 1+len(placement.OtherGPUs) {
			line += fmt.Sprintf(" sees %d GPUs", len(placement.Sees))
		}
		for _, v := range placement.variables()[4:] {
			if v.Value != "" {
				line += " " + v.Name + "=" + v.Value
			}
		}
		placements = append(placements, line)
	}
	return placements
}

func placementOf(ticket lease.Ticket, environment, flags []string) (*Placement, error) {
	env := slurm.ParseEnv(environment)
	options, err := ReadOptions(env)
	if err != nil {
		return nil, err
	}
	for _, f := range flags {
		name, value, ok := strings.Cut(strings.TrimPrefix(f, "--"), "=")
		if !ok {
			value = "true"
		}
		if err := options.Set(name, value); err != nil {
			return nil, err
		}
	}
	task, err := launch.ReadTask(env, 4711)
	if err != nil {
		return nil, err
	}
	binding, err := launch.ReadBinding(env)
	if err != nil {
		return nil, err
	}
	return Place(ticket, Rank{
		Task: task, Binding: binding, CanOpen: openOf(env), Options: options,
	})
}

// nodeOf makes a ticket from a model, a number of GPUs, and attributes. The first half of the GPUs is on NUMA node 0.
func nodeOf(t *testing.T, line string) lease.Ticket {
	fields := strings.Fields(line)
	model := must.Get(policy.FindModel(fields[0]))(t)
	n := must.Get(strconv.Atoi(fields[1]))(t)
	texts := map[string]string{"scope": "job", "share": "even", "ceiling": "100", "memory_overlap": "1",
		"max_clients": "48"}
	maps.Copy(texts, slurm.ParseEnv(fields[2:]))
	grant := must.Get(policy.ReadGrant(texts))(t)
	ticket := ticketOf(n, grant.Scope, 1)
	ticket.Grant = grant
	for i := range ticket.Devices {
		d := &ticket.Devices[i]
		d.Device = site.Device{UUID: d.UUID, SMs: model.GPU.SMs, TPC: model.GPU.SMsPerTPC, MemoryMiB: model.MemoryMiB, NUMA: i * 2 / n, Minor: i}
		d.Position = i
	}
	return ticket
}

// environmentOf returns the environment that a launcher gives to rank of ranks. If it was not recorded, it follows
// the launcher's documents.
func environmentOf(t *testing.T, launcher string, rank, ranks int) []string {
	gtids := "0"
	for i := 1; i < ranks; i++ {
		gtids += fmt.Sprintf(",%d", i)
	}
	srun := []string{"SLURM_STEP_ID=0", fmt.Sprintf("SLURM_LOCALID=%d", rank), "SLURM_GTIDS=" + gtids, "SLURM_TASK_PID=4711", "SLURM_NODEID=0"}
	under := []string{"SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_TASK_PID=1", "SLURM_NODEID=0"} // a launcher in a batch script
	pair := func(rankName, sizeName string) []string {
		return append(under, fmt.Sprintf("%s=%d", rankName, rank), fmt.Sprintf("%s=%d", sizeName, ranks))
	}
	if name, ok := strings.CutPrefix(launcher, "recorded/"); ok {
		return recordedOf(t, name, rank, ranks)
	}
	switch launcher {
	case "srun":
		return srun
	case "srun-inside-mpirun": // the outer launcher's variables are stale
		return append(srun, "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2")
	case "openmpi-gpus-per-task-2": // the binding of the batch step, which is all GPUs of the job, and its request
		return append(pair("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"), "SLURM_GPUS_PER_TASK=h200:2")
	case "srun-gpu-bind-single-2": // --gpu-bind=single:2
		return append(srun, fmt.Sprintf("SLURM_STEP_GPUS=%d", rank/2))
	case "srun-ntasks-per-gpu-2":
		return append(srun, fmt.Sprintf("SLURM_STEP_GPUS=%d", rank/2), "SLURM_NTASKS_PER_GPU=2")
	case "openmpi":
		return pair("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
	case "hydra":
		return pair("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
	case "mvapich2":
		return pair("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE")
	case "pals":
		return pair("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE")
	case "jsrun":
		return pair("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE")
	case "torchrun":
		return append(pair("LOCAL_RANK", "LOCAL_WORLD_SIZE"), "TORCHELASTIC_RUN_ID=1")
	}
	t.Fatalf("unknown launcher %q", launcher)
	return nil
}

// recordedOf returns the recorded environment of a rank in a real launch.
func recordedOf(t *testing.T, name string, rank, ranks int) []string {
	blocks := strings.Split(strings.TrimSpace(recorded.Text(t, "launches/"+name)), "\n\n")
	must.Have(t, len(blocks) == ranks, "%s has %d ranks, and the case %d", name, len(blocks), ranks)
	lines := strings.Split(blocks[rank], "\n")
	env := slurm.ParseEnv(lines)
	if env["SLURM_TASK_PID"] == env["RANK_PID"] { // slurmstepd started this process itself
		lines = append([]string{"SLURM_TASK_PID=4711"}, lines...)
	}
	return lines
}

// openOf returns the GPUs that a recorded rank could open.
func openOf(env slurm.Env) func(minor int) bool {
	minors := strings.Fields(env["RANK_OPEN"])
	return func(minor int) bool { return slices.Contains(minors, strconv.Itoa(minor)) }
}
