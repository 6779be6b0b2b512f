// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

func taskPID(t *testing.T, env slurm.Env) int {
	t.Helper()
	return must.Get(strconv.Atoi(env["SLURM_TASK_PID"]))(t)
}

// Ranks of srun and of the batch script. The file's name contains the rank, and the table contains the size.
func TestReadTaskRecordedSlurm(t *testing.T) {
	sizes := map[string]int{"a-gres2-n4": 4, "b-gpt1": 4, "c-gpubind": 4, "cg-a": 1, "d-comment": 2, "e-array": 1, "f-srun": 2, "g-salloc": 2, "i-nogpu": 1}
	name := regexp.MustCompile(`^([0-9]+)\.task[a-z]*\.n1(\.s([0-9]+))?\.p([0-9]+)$`)
	for _, path := range recordings(t, "slurm-env/*/*.task*", 50) {
		folder := filepath.Base(filepath.Dir(path))
		t.Run(folder+"/"+filepath.Base(path), func(t *testing.T) {
			m := name.FindStringSubmatch(filepath.Base(path))
			must.Have(t, m != nil, "the name of the recording is not understood")
			job, _ := strconv.Atoi(m[1])
			rank, _ := strconv.Atoi(m[4])
			size := sizes[folder]
			if m[3] == "" {
				size = 1 // the batch script
			}
			env := recording(t, path)
			want := Task{JobID: uint32(job), JobIDs: []uint32{uint32(job)}, StepID: m[3], LocalRank: rank, LocalSize: size, Source: SourceStepd}
			checkTask(t, env, taskPID(t, env), want)
			want.Source = SourceInherited
			checkTask(t, env, taskPID(t, env)+1, want)
		})
	}
}

func checkTask(t *testing.T, env slurm.Env, pid int, want Task) {
	t.Helper()
	got := must.Get(ReadTask(env, pid))(t)
	must.Hold(t, reflect.DeepEqual(got, want), "got  %+v\nwant %+v", got, want)
}

func TestReadTaskRecordedLaunchers(t *testing.T) {
	tests := map[string]struct {
		job    uint32
		step   string
		size   int
		source string
		stepd  bool // slurmstepd started the rank itself
	}{
		"hydra":           {9, "1", 4, "hydra", false},
		"hydra-fork":      {9, "", 2, "hydra", false},
		"mpirun-ompi":     {9, "0", 4, "Open MPI", false},
		"srun-pmi2-mpich": {5, "0", 2, SourceStepd, true},
		"srun-pmix-mpich": {8, "0", 2, SourceStepd, true},
		"srun-pmix-ompi":  {7, "0", 2, SourceStepd, true},
	}
	for _, path := range recordings(t, "launcher-env/*.[0-9]", 15) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			launcher, suffix, _ := strings.Cut(filepath.Base(path), ".")
			tt, ok := tests[launcher]
			must.Have(t, ok, "the test has no entry for %s", launcher)
			rank := must.Get(strconv.Atoi(suffix))(t)
			env := recording(t, path)
			pid := taskPID(t, env)
			if !tt.stepd {
				pid++
			}
			checkTask(t, env, pid, Task{JobID: tt.job, JobIDs: []uint32{tt.job}, StepID: tt.step, LocalRank: rank, LocalSize: tt.size, Source: tt.source})
		})
	}
}

func TestReadTask(t *testing.T) {
	stepTwoOfFour := slurm.Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_LOCALID": "2", "SLURM_GTIDS": "4,5,6,7", "SLURM_TASK_PID": "100"}
	ompi := slurm.Env{"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
	batch := slurm.Env{"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "SLURM_TASK_PID": "100"}
	slurmPMIx := slurm.Env{"PMIX_RANK": "6", "PMIX_NAMESPACE": "slurm.pmix.7.3"}
	slurmPMI2 := slurm.Env{"PMI_RANK": "6", "PMI_SIZE": "8", "PMI_JOBID": "7.3"}
	bare := slurm.Env{"PMI_RANK": "6", "PMI_SIZE": "8", "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "8"}
	prun := slurm.Env{"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-n1-7@1"}
	tests := []struct {
		name   string
		env    slurm.Env
		pid    int
		rank   int
		size   int
		source string
	}{
		{"srun within an mpirun", recorded.With(stepTwoOfFour, ompi), 100, 2, 4, SourceStepd},
		{"mpirun within an srun", recorded.With(stepTwoOfFour, ompi), 101, 0, 1, "Open MPI"},
		{"srun with a shell between", stepTwoOfFour, 101, 2, 4, SourceInherited},
		{"no launcher", slurm.Env{"PATH": "/bin"}, 100, 0, 1, SourceSingle},
		{"Intel MPI", slurm.Env{"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, 1, 1, 2, "hydra"},
		{"MVAPICH2", slurm.Env{"MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2"}, 1, 1, 2, "MVAPICH2"},
		{"PALS", slurm.Env{"PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}, 1, 1, 2, "PALS"},
		{"PALS without its size", slurm.Env{"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PMI_RANK": "1", "PMI_LOCAL_RANK": "1",
			"PMI_LOCAL_SIZE": "2"}, 1, 1, 2, "PALS"},
		{"jsrun", slurm.Env{"JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_LOCAL_SIZE": "2"}, 1, 1, 2, "jsrun"},
		{"Flux on one node", slurm.Env{"FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "1"}, 1, 1, 4, "Flux"},
		{"Flux, told the size", slurm.Env{"FLUX_TASK_LOCAL_ID": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 1, 1, 2, "LOCAL_RANK"},
		{"PMIx beside Open MPI", slurm.Env{"PMIX_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1, 1, 2, "Open MPI"},
		{"srun --mpi=pmix in a pid namespace", recorded.With(stepTwoOfFour, slurmPMIx), 2, 2, 4, SourceInherited},
		{"srun --mpi=pmi2 in a pid namespace", recorded.With(stepTwoOfFour, slurmPMI2), 2, 2, 4, SourceInherited},
		{"srun --mpi=pmi2 without PMI_JOBID", recorded.With(stepTwoOfFour, bare), 2, 2, 4, SourceInherited},
		{"a batch script that an srun --mpi=pmix submitted", recorded.With(batch, slurmPMIx), 2, 0, 1, SourceInherited},
		{"a batch script that an srun --mpi=pmi2 submitted", recorded.With(batch, slurmPMI2), 2, 0, 1, SourceInherited},
		{"srun within a prun", recorded.With(stepTwoOfFour, prun), 100, 2, 4, SourceStepd},
		{"torchrun in a rank of srun", recorded.With(stepTwoOfFour, slurm.Env{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"}), 101, 0, 8, "torchrun"},
		{"torchrun in a rank of mpirun", recorded.With(ompi, slurm.Env{"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x"}), 101, 3, 8, "torchrun"},
		{"a script's LOCAL_RANK under mpirun", recorded.With(ompi, slurm.Env{"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}), 101, 0, 1, "Open MPI"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := must.Get(ReadTask(tt.env, tt.pid))(t)
			must.Hold(t, got.LocalRank == tt.rank && got.LocalSize == tt.size && got.Source == tt.source,
				"got %+v, want rank %d of %d by %s", got, tt.rank, tt.size, tt.source)
		})
	}
}

// A rank of prterun inherits the place of the batch script. Without --personality ompi it has no other.
func TestReadTaskOfPRRTE(t *testing.T) {
	for name, want := range map[string]string{"own": "--personality ompi", "ompi": ""} {
		ranks := recordedRanks(t, "prterun/"+name)
		must.Have(t, len(ranks) == 3, "%d ranks of %s", len(ranks), name)
		for i, env := range ranks {
			got, err := ReadTask(env, taskPID(t, env)+1)
			must.Hold(t, want != "" || err == nil && got.LocalRank == i && got.LocalSize == 3 && got.Source == "Open MPI",
				"%s, rank %d: %+v, %v", name, i, got, err)
			must.Hold(t, want == "" || strings.Contains(recorded.Message(err), want), "%s, rank %d: %+v, %v", name, i, got, err)
		}
	}
}

func TestReadTaskJobs(t *testing.T) {
	tests := []struct {
		name string
		env  slurm.Env
		job  uint32
		jobs []uint32
	}{
		{"plain", slurm.Env{"SLURM_JOB_ID": "7"}, 7, []uint32{7}},
		{"outside", slurm.Env{}, 0, nil},
		{"heterogeneous", slurm.Env{"SLURM_JOB_ID": "7", "SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_ID_HET_GROUP_10": "17",
			"SLURM_JOB_ID_HET_GROUP_2": "9", "SLURM_JOB_ID_HET_GROUP_1": "8"}, 7, []uint32{7, 8, 9, 17}},
		{"a leader elsewhere", slurm.Env{"SLURM_JOB_ID": "8", "SLURM_HET_JOB_ID": "7"}, 8, []uint32{8, 7}},
		{"a name that is none", slurm.Env{"SLURM_JOB_ID": "7", "SLURM_JOB_ID_HET_GROUP_x": "x", "SLURM_JOB_ID_HET_GROUP_01": "x"}, 7, []uint32{7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadTask(recorded.With(tt.env, slurm.Env{"SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}), 1)
			must.Hold(t, err == nil && got.JobID == tt.job && reflect.DeepEqual(got.JobIDs, tt.jobs),
				"got %d %v, %v, want %d %v", got.JobID, got.JobIDs, err, tt.job, tt.jobs)
		})
	}
}

// Steps that srun did not make have no number, in every release of Slurm.
func TestReadTaskStep(t *testing.T) {
	for _, c := range []struct{ step, want string }{
		{"-", ""}, {"0", "0"}, {"17", "17"},
		{"-4", ""}, {"-5", ""}, {"-6", ""}, {"4294967292", ""}, {"4294967291", ""}, {"4294967290", ""},
	} {
		env := recorded.With(slurm.Env{"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}, slurm.Env{"SLURM_STEP_ID": c.step})
		if got, err := ReadTask(env, 1); err != nil || got.StepID != c.want {
			t.Errorf("SLURM_STEP_ID %s: step %q, %v; want %q", c.step, got.StepID, err, c.want)
		}
	}
}

func TestReadTaskRefuses(t *testing.T) {
	const export = ": export LOCAL_RANK and LOCAL_WORLD_SIZE, or unset "
	const personality = ": give prun or prterun --personality ompi, or export LOCAL_RANK and LOCAL_WORLD_SIZE, or unset "
	const unset = " if no launcher has set it"
	half := func(name, value string) string {
		return "cannot read task: " + name + ` is "` + value + `", but no variable has the number of ranks on this node` +
			export + name + unset
	}
	foreign := func(world, repair string) string {
		return "cannot read task: " + world + " is set, so a launcher started this rank, " +
			"but no variable has its place on this node" + repair + world + unset
	}
	tests := []struct {
		env  slurm.Env
		want string
	}{
		{slurm.Env{"SLURM_JOB_ID": "../x"}, `cannot read task: SLURM_JOB_ID is "../x", want a job's number from 1 to 4294967293`},
		{slurm.Env{"SLURM_JOB_ID": "0"}, `cannot read task: SLURM_JOB_ID is "0", want a job's number from 1 to 4294967293`},
		{slurm.Env{"SLURM_JOB_ID_HET_GROUP_1": "x"}, `cannot read task: SLURM_JOB_ID_HET_GROUP_1 is "x", want a job's number from 1 to 4294967293`},
		{slurm.Env{"SLURM_STEP_ID": "1/2"}, `cannot read task: SLURM_STEP_ID is "1/2", want a step's number`},
		{slurm.Env{"SLURM_STEP_ID": "-17"}, `cannot read task: SLURM_STEP_ID is "-17", want a step's number`},
		{slurm.Env{"SLURM_STEP_ID": ""}, `cannot read task: SLURM_STEP_ID is "", want a step's number`},
		{slurm.Env{"SLURM_JOB_ID": "7"}, "cannot read task: " + errCleaned.Error()},
		{slurm.Env{"SLURM_JOB_ID": "7", "SLURM_GTIDS": "0,1", "SLURM_STEP_ID": "0"}, "cannot read task: " + errCleaned.Error()},
		{slurm.Env{"FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "2"}, half("FLUX_TASK_LOCAL_ID", "1")},
		{slurm.Env{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0"},
			half("OMPI_COMM_WORLD_LOCAL_RANK", "1")},
		{slurm.Env{"OMPI_COMM_WORLD_LOCAL_RANK": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
			`cannot read task: OMPI_COMM_WORLD_LOCAL_RANK is 4, want a rank below 4 (OMPI_COMM_WORLD_LOCAL_SIZE)`},
		{slurm.Env{"MPI_LOCALRANKID": "-1", "MPI_LOCALNRANKS": "4"}, `cannot read task: MPI_LOCALRANKID is "-1", want a number from 0`},
		{slurm.Env{"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "0"}, `cannot read task: MPI_LOCALNRANKS is "0", want a number from 1 to 65536`},
		{slurm.Env{"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1000000"}, `cannot read task: MPI_LOCALNRANKS is "1000000", want a number from 1 to 65536`},
		{slurm.Env{"SLURM_LOCALID": "0"}, `cannot read task: SLURM_LOCALID is set and SLURM_GTIDS is not: do not unset Slurm's variables before the wrapper`},
		{slurm.Env{"SLURM_LOCALID": "0", "SLURM_GTIDS": "0,"}, `cannot read task: SLURM_GTIDS is "0,", want the numbers of this node's ranks`},
		{slurm.Env{"SLURM_LOCALID": "2", "SLURM_GTIDS": "0,1"}, `cannot read task: SLURM_LOCALID is 2, want a rank below 2 (the items of SLURM_GTIDS)`},
		{slurm.Env{"SLURM_LOCALID": "x\n", "SLURM_GTIDS": "0,1", "SLURM_TASK_PID": "1"}, `cannot read task: SLURM_LOCALID is "x\n", want a number from 0`},
		{slurm.Env{"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, foreign("PMI_RANK", export)},
		{slurm.Env{"RANK": "0", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, foreign("RANK", export)},
	}
	type refusal = struct {
		env  slurm.Env
		want string
	}
	for _, l := range launchers { // each launcher that tells a half of a place, or none
		if l.rank != "" {
			tests = append(tests, refusal{slurm.Env{l.rank: "1", cmp.Or(l.marker, l.rank): "1"}, half(l.rank, "1")})
		}
		repair := map[bool]string{true: personality, false: export}[l.world == "PMIX_RANK"]
		if l.world != "" {
			tests = append(tests, refusal{slurm.Env{l.world: "3", cmp.Or(l.total, l.world): "4"}, foreign(l.world, repair)})
		}
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			if _, err := ReadTask(tt.env, 1); recorded.Message(err) != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if !strings.Contains(tt.want, "so a launcher started this rank") {
				return
			}
			// The same rank, with the variables that it inherits from a batch script.
			if _, err := ReadTask(recorded.With(tt.env, slurm.Env{"SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}), 1); recorded.Message(err) != tt.want {
				t.Errorf("in a batch script: got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func FuzzReadTask(f *testing.F) {
	f.Add("7", "1", "0,1,2", "1", "2", 1)
	f.Add("x", "9999999999999999999999", ",", "-1", "0", 0)
	f.Fuzz(func(t *testing.T, job, rank, ids, ompiRank, ompiSize string, pid int) {
		task, err := ReadTask(slurm.Env{"SLURM_JOB_ID": job, "SLURM_LOCALID": rank, "SLURM_GTIDS": ids, "SLURM_TASK_PID": "1",
			"OMPI_COMM_WORLD_LOCAL_RANK": ompiRank, "OMPI_COMM_WORLD_LOCAL_SIZE": ompiSize}, pid)
		must.Hold(t, err != nil || task.LocalRank >= 0 && task.LocalRank < task.LocalSize && task.JobID != 0,
			"accepted %+v", task)
		must.Hold(t, err == nil || !strings.ContainsAny(err.Error(), "\n\x00"), "an error that breaks a log: %q", err)
	})
}

// A process alone, and srun's task with a copy of its own numbers, are no launcher's ranks.
func TestNumbersOfNoLauncher(t *testing.T) {
	inStep := slurm.Env{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1", "SLURM_GTIDS": "2,3", "SLURM_TASK_PID": "9",
		"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}
	for _, set := range []slurm.Env{{"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "3"}, {"RANK": "3", "WORLD_SIZE": "4"}, {"WORLD_SIZE": "8"}} {
		task, err := ReadTask(recorded.With(inStep, set), 10)
		must.Hold(t, err == nil && task.LocalRank == 1 && task.LocalSize == 2 && task.Source == SourceInherited,
			"%v: %+v, %v", set, task, err)
	}
	if task, err := ReadTask(recorded.With(inStep, slurm.Env{"RANK": "1", "WORLD_SIZE": "2"}), 9); err != nil || task.Source != SourceStepd {
		t.Errorf("slurmstepd's own process: %+v, %v", task, err)
	}
}

// Each variable of a launcher is a row of the table of variables, whose origin is asked.
func TestLaunchersVariablesHaveAWitness(t *testing.T) {
	known := slurm.Names(slurm.ByOrigin)
	for _, name := range launcherVariables() {
		must.Hold(t, slices.Contains(known, name), "%s has no row", name)
	}
}

// slurm.RankOf knows the rank in the world of each launcher, and of no other.
func TestWorldRanks(t *testing.T) {
	want := []string{"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_TASK_PID", "TORCHELASTIC_RUN_ID", "RANK"}
	for _, l := range launchers {
		if l.world != "" && l.total == "" { // scripts set these, with any number
			want = append(want, l.world)
		}
	}
	if got := slurm.RankVariables(); !slices.Equal(got, want) {
		t.Errorf("slurm.RankVariables: %q, want %q", got, want)
	}
}

var update = flag.Bool("update", false, "write the table of launchers into docs/reference.md")

// The table of launchers in docs/reference.md is that of the code, row by row.
func TestTheReferenceHasTheLaunchers(t *testing.T) {
	const page, begin, end = "../../../docs/reference.md", "| launcher | rank on the node | ranks on the node |\n|---|---|---|\n", "\n\n"
	code := func(name string) string {
		if name == "" {
			return "–"
		}
		return "`" + name + "`"
	}
	table := ""
	for _, l := range launchers {
		if l.rank == "" { // refused
			continue
		}
		name := l.name
		if l.marker != "" {
			name += " (with " + code(l.marker) + ")"
		}
		size := code(l.size)
		if l.name == "Flux" {
			size = "`FLUX_JOB_SIZE`, if `FLUX_JOB_NNODES` is 1"
		}
		table += fmt.Sprintf("| %s | %s | %s |\n", name, code(l.rank), size)
	}
	content := must.Get(os.ReadFile(page))(t)
	before, rest, found := strings.Cut(string(content), begin)
	shown, after, closed := strings.Cut(rest, end)
	must.Have(t, found && closed, "%s has no table of launchers", page)
	if *update {
		must.OK(t, os.WriteFile(page, []byte(before+begin+strings.TrimSuffix(table, "\n")+end+after), 0o644))
		return
	}
	must.Equal(t, fmt.Sprintf("%s has\n%s\nthe code has", page, shown), shown+"\n", table)
}

// recording reads an environment that Slurm passed to one of its scripts.
func recording(t *testing.T, path string) slurm.Env { return slurm.NewEnv(recorded.Lines(t, path)) }

// recordings lists the recordings that match.
func recordings(t *testing.T, pattern string, atLeast int) []string {
	return recorded.Paths(t, pattern, atLeast)
}
