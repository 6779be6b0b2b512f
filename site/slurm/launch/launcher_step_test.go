// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Steps with one task on each node, as a TaskProlog sees them, are a launcher's daemons or ranks.
func TestLaunchesRanks(t *testing.T) {
	for name, want := range map[string]bool{
		"mpirun": true, "mpirun-by-python": true, "hydra": true,
		"srun": false, "srun-in-mpirun": false,
		"hydra-by-python": false, // not recognisable: documented
	} {
		env := recording(t, "task-prologs/"+name)
		must.Equal(t, name, IsLauncherStep(env), want)
		if !want {
			continue
		}
		for why, change := range map[string]slurm.Env{
			"two tasks on this node":     {"SLURM_GTIDS": "0,1", "SLURM_STEP_TASKS_PER_NODE": "2(x3)"},
			"two tasks on another":       {"SLURM_STEP_TASKS_PER_NODE": "1(x2),2"},
			"no step":                    {"SLURM_GTIDS": "-", "SLURM_STEP_TASKS_PER_NODE": "-"},
			"a rank of Open MPI":         {"OMPI_COMM_WORLD_LOCAL_RANK": "0"},
			"a rank of MPICH":            {"MPI_LOCALRANKID": "0"},
			"an srun of the shell's own": {"_": "/usr/bin/srun", "IPATH_NO_BACKTRACE": "-"},
			"a script with such a name":  {"_": "./mpirun_all.py", "SLURM_CPU_BIND_TYPE": "-"},
		} {
			must.Hold(t, !IsLauncherStep(recorded.With(env, change)), "%s, but %s: taken for a daemon", name, why)
		}
	}
}

// The daemons of Open MPI 5 and 6 have other variables, and no "_" if a program started mpirun.
func TestIsLauncherStepOfNewerOpenMPI(t *testing.T) {
	old := recording(t, "task-prologs/mpirun-by-python")
	env := recorded.With(old, slurm.Env{"IPATH_NO_BACKTRACE": "-", "HFI_NO_BACKTRACE": "-", "PMIX_MCA_mca_base_component_show_load_errors": "-",
		"OMPI_TOOL_NAME": "mpirun", "OMPI_VERSION": "5.0.7", "OMPI_MCA_PREFIXES": "opal,orte"})
	for _, c := range []struct {
		name   string
		change slurm.Env
		want   bool
	}{
		{"a daemon", nil, true},
		{"a rank of its own", slurm.Env{"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, false},
		{"an srun that binds", slurm.Env{"SLURM_CPU_BIND_TYPE": "mask_cpu:"}, false},
		{"a user's variable alone", slurm.Env{"OMPI_TOOL_NAME": "-"}, false},
	} {
		must.Equal(t, c.name, IsLauncherStep(recorded.With(env, c.change)), c.want)
	}
}

// launchRecordings returns the environments of every recorded launch's ranks on a node, in order.
func launchRecordings(t *testing.T) map[string][]slurm.Env {
	t.Helper()
	found := map[string][]slurm.Env{}
	for _, path := range slices.Concat(recordings(t, "launches/*.n[1-3]", 50), recordings(t, "launches/2*/*.n[1-3]", 20)) {
		name := strings.TrimPrefix(path, "launches/")
		found[name] = recordedRanks(t, path)
	}
	return found
}

// recordedRanks returns the environments of the ranks in a recording, in order.
func recordedRanks(t *testing.T, path string) (ranks []slurm.Env) {
	t.Helper()
	for block := range strings.SplitSeq(strings.TrimSpace(recorded.Text(t, path)), "\n\n") {
		ranks = append(ranks, slurm.ParseEnv(strings.Split(block, "\n")))
	}
	return ranks
}

// Each recorded rank has this source and rank. The ranks are in order, and each file is named after its launcher.
func TestReadTaskRecordedLaunches(t *testing.T) {
	for name, ranks := range launchRecordings(t) {
		for i, env := range ranks {
			pid := must.Get(strconv.Atoi(env["RANK_PID"]))(t)
			got, err := ReadTask(env, pid)
			must.Have(t, err == nil, "%s: %v", name, err)
			must.Hold(t, !strings.Contains(name, "interactive.") || sourceOf(name) == SourceStepd || got.StepID == "",
				"%s: step %s, want none", name, got.StepID)
			want := Task{JobID: got.JobID, JobIDs: got.JobIDs, StepID: got.StepID, LocalRank: i, LocalSize: len(ranks), Source: sourceOf(name)}
			if strings.HasSuffix(name, "one.two-steps.n1") {
				want.LocalRank, want.LocalSize = i/2, 2
			}
			must.Hold(t, reflect.DeepEqual(got, want), "%s, rank %d: got %+v, want %+v", name, i, got, want)
		}
	}
}

func sourceOf(name string) string {
	_, launch, _ := strings.Cut(filepath.Base(name), ".")
	switch {
	case strings.HasPrefix(launch, "srun-a-shell"), strings.HasPrefix(launch, "a-program"):
		return SourceInherited
	case strings.HasPrefix(launch, "mpirun"), strings.Contains(launch, "-mpirun.") && !strings.HasPrefix(launch, "srun"):
		return "Open MPI"
	case strings.HasPrefix(launch, "hydra"), strings.Contains(launch, "-hydra.") && !strings.HasPrefix(launch, "srun"):
		return "hydra"
	}
	return SourceStepd
}
