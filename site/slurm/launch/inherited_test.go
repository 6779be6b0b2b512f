// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"maps"
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

// launch is what a launcher sets in each of its two ranks.
type launch struct {
	name   string
	source string // of the place; "" if the launcher gives none
	sets   string // RANK is the rank, and LAUNCH differs between two launches
	pmi    bool   // PMI_FD is an open socket in each rank
}

// launches has the variables of every row of the table, and of other programs that start processes. Those of Open MPI
// and MPICH are recorded (site/sim/recorded), the others are from documents.
var launches = []launch{
	{"torchrun", "torchrun", "TORCHELASTIC_RUN_ID=none TORCHELASTIC_ERROR_FILE=/tmp/te_LAUNCH/RANK LOCAL_RANK=RANK " +
		"LOCAL_WORLD_SIZE=2 RANK=RANK MASTER_PORT=29500", false},
	{"Open MPI 4", "Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK=RANK OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=RANK " +
		"OMPI_MCA_ess_base_jobid=86490LAUNCH PMIX_NAMESPACE=86490LAUNCH PMIX_RANK=RANK", false},
	{"Open MPI 5", "Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK=RANK OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=RANK " +
		"PMIX_NAMESPACE=prterun-n1-90LAUNCH@1 PMIX_RANK=RANK", false},
	// Each launch of hydra has the same values.
	{"hydra", "hydra", "MPI_LOCALRANKID=RANK MPI_LOCALNRANKS=2 PMI_RANK=RANK PMI_SIZE=2 PMI_FD=6", true},
	{"Intel MPI by port", "hydra", "MPI_LOCALRANKID=RANK MPI_LOCALNRANKS=2 PMI_RANK=RANK PMI_SIZE=2 " +
		"PMI_PORT=n1:400LAUNCH I_MPI_MPIRUN=mpirun", false},
	{"MVAPICH2 by mpirun_rsh", "MVAPICH2", "MV2_COMM_WORLD_LOCAL_RANK=RANK MV2_COMM_WORLD_LOCAL_SIZE=2 " +
		"MV2_COMM_WORLD_RANK=RANK PMI_PORT=n1:500LAUNCH", false},
	{"Horovod", "Horovod", "HOROVOD_LOCAL_RANK=RANK HOROVOD_LOCAL_SIZE=2 HOROVOD_RANK=RANK HOROVOD_GLOO_RENDEZVOUS_PORT=LAUNCH", false},
	{"PALS", "PALS", "PALS_LOCAL_RANKID=RANK PALS_LOCAL_SIZE=2 PALS_RANKID=RANK PALS_APID=a-LAUNCH", false},
	{"PALS without its size", "PALS", "PALS_LOCAL_RANKID=RANK PMI_LOCAL_SIZE=2 PALS_RANKID=RANK PALS_APID=a-LAUNCH", false},
	{"jsrun", "jsrun", "JSM_NAMESPACE_LOCAL_RANK=RANK JSM_NAMESPACE_LOCAL_SIZE=2 JSM_NAMESPACE_RANK=RANK " +
		"PMIX_NAMESPACE=LAUNCH", false},
	{"Flux", "Flux", "FLUX_TASK_LOCAL_ID=RANK FLUX_TASK_RANK=RANK FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 " +
		"FLUX_JOB_ID=fLAUNCH", false},
	{"prun", "", "PMIX_RANK=RANK PMIX_NAMESPACE=prterun-n1-LAUNCH@1", false},
	{"Ray Train", "LOCAL_RANK", "LOCAL_RANK=RANK LOCAL_WORLD_SIZE=2 RANK=RANK WORLD_SIZE=2 RAY_JOB_ID=01000000", false},
	{"Lightning", "", "LOCAL_RANK=RANK NODE_RANK=0 WORLD_SIZE=2", false},
	{"Dask", "", "DASK_PARENT=tcp://n1:8786 DASK_WORKER_NAME=RANK", false},
	{"joblib", "", "LOKY_WORKER_NUMBER=RANK JOBLIB_SPAWNED_PROCESS=1", false},
}

// Each launcher that gives places is in launches with all of its variables.
func TestEachLauncherHasALaunch(t *testing.T) {
	for _, l := range launchers {
		plays := func(played launch) bool {
			env := played.of(0, 1)
			missing := func(name string) bool { return name != "" && env[name] == "" }
			return !slices.ContainsFunc([]string{l.marker, l.rank, l.size, l.world}, missing)
		}
		must.Hold(t, l.rank == "" || l.size == "" || slices.ContainsFunc(launches, plays),
			"launches has no launch with the variables of %s (%s, %s)", l.name, l.rank, l.size)
	}
}

// of returns the variables of a rank of a launch.
func (l launch) of(launch, rank int) slurm.Env {
	env := slurm.Env{}
	for entry := range strings.FieldsSeq(l.sets) {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = strings.NewReplacer("RANK", strconv.Itoa(rank), "LAUNCH", strconv.Itoa(launch)).Replace(value)
	}
	return env
}

// start is a way in which a process comes to run in a job.
type start struct {
	name   string
	env    slurm.Env // what Slurm has set, as far as the process still has it
	pid    int
	origin func(slurm.Env) Origin // of the process's task, which has the given variables besides Slurm's
	rank   int
	size   int
	source string
	err    string // in place of a place
}

func seen(own slurm.Env) func(slurm.Env) Origin {
	return func(inherited slurm.Env) Origin { return Origin{Env: recorded.With(own, inherited)} }
}

func unseen(hidden bool) func(slurm.Env) Origin {
	return func(slurm.Env) Origin { return Origin{Hidden: hidden} }
}

var (
	inBatch   = slurm.Env{"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "SLURM_TASK_PID": "100"}
	inBatch26 = recorded.With(inBatch, slurm.Env{"SLURM_STEP_ID": "-5"})
	inShell   = recorded.With(inBatch, slurm.Env{"SLURM_STEP_ID": "4294967290"})
	inShell26 = recorded.With(inBatch, slurm.Env{"SLURM_STEP_ID": "-6"})
	inStep    = recorded.With(inBatch, slurm.Env{"SLURM_STEP_ID": "3", "SLURM_LOCALID": "2", "SLURM_GTIDS": "4,5,6,7"})
	inStep4   = recorded.With(inStep, slurm.Env{"SLURM_STEP_ID": "4"})
	another   = recorded.With(inBatch, slurm.Env{"SLURM_JOB_ID": "6"})
	child     = recorded.With(inBatch, slurm.Env{"SLURM_TASK_PID": "99"})
	noJob     = slurm.Env{"SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "SLURM_TASK_PID": "100"}
	onlyJob   = slurm.Env{"SLURM_JOB_ID": "7"}
)

const missing = "Slurm's variables are missing: put srun before it; in a container, hand on SLURM_LOCALID, SLURM_GTIDS and SLURM_STEP_ID"

var starts = []start{
	{"sbatch", inBatch, 101, seen(inBatch), 0, 1, SourceInherited, ""},
	{"sbatch of 26.05", inBatch26, 101, seen(inBatch26), 0, 1, SourceInherited, ""},
	{"sbatch, exec", inBatch, 100, seen(inBatch), 0, 1, SourceStepd, ""},
	{"sbatch, SLURM_JOB_ID unset", noJob, 101, seen(inBatch), 0, 1, SourceInherited, ""},
	{"salloc", inShell, 101, seen(inShell), 0, 1, SourceInherited, ""},
	{"salloc of 26.05", inShell26, 101, seen(inShell26), 0, 1, SourceInherited, ""},
	{"salloc on the submit host", onlyJob, 101, nil, 0, 0, "", missing},
	{"srun", inStep, 100, seen(inStep), 2, 4, SourceStepd, ""},
	{"srun, a shell between", inStep, 101, seen(inStep), 2, 4, SourceInherited, ""},
	{"srun --overlap, a shell between", inStep4, 101, seen(inStep4), 2, 4, SourceInherited, ""},
	{"sudo -E", recorded.With(inStep, slurm.Env{"SUDO_UID": "0"}), 101, seen(inStep), 2, 4, SourceInherited, ""},
	{"sudo", slurm.Env{"SUDO_UID": "1000"}, 101, nil, 0, 1, SourceSingle, ""},
	{"ssh", slurm.Env{}, 101, nil, 0, 1, SourceSingle, ""},
	{"ssh with the job", onlyJob, 101, nil, 0, 0, "", missing},
	{"env -i", onlyJob, 101, nil, 0, 0, "", missing},
	{"env -i, handed on", recorded.With(inStep, slurm.Env{"SLURM_TASK_PID": "-"}), 101, nil, 2, 4, SourceInherited, ""},
	{"its script has ended", inBatch, 101, unseen(false), 0, 1, SourceInherited, ""},
	{"its script's pid is another's", inBatch, 101, seen(another), 0, 1, SourceInherited, ""},
	{"its script's pid is a child's", inBatch, 101, seen(child), 0, 1, SourceInherited, ""},
	{"a pid or user namespace", inStep, 2, unseen(true), 2, 4, SourceInherited, ""},
}

// known reports whether the origin of the process is seen.
func (s start) known() bool {
	if s.origin == nil {
		return false
	}
	env := s.origin(nil).Env
	return env["SLURM_TASK_PID"] == "100" && env["SLURM_JOB_ID"] == "7"
}

// place reads the place of a process, as mpirun-wrap does.
func (s start) place(set, inherited slurm.Env, pmi bool) (Task, error) {
	env := recorded.With(s.env, set)
	if s.origin != nil && env["SLURM_TASK_PID"] != strconv.Itoa(s.pid) {
		origin := s.origin(inherited)
		origin.HasPMI = pmi
		var err error
		if env, err = WithoutInheritedLauncher(env, origin); err != nil {
			return Task{}, err
		}
	}
	return ReadTask(env, s.pid)
}

// check compares a place with that of a start without any launcher.
func (s start) check(t *testing.T, what string, got Task, err error) {
	t.Helper()
	switch {
	case s.err != "" && !strings.Contains(recorded.Message(err), s.err):
		t.Errorf("%s, %s: %+v, %v, want %q", s.name, what, got, err, s.err)
	case s.err == "" && (err != nil || got.LocalRank != s.rank || got.LocalSize != s.size || got.Source != s.source):
		t.Errorf("%s, %s: %+v, %v, want rank %d of %d by %s", s.name, what, got, err, s.rank, s.size, s.source)
	}
}

// subsets returns each part of an environment but the empty one.
func subsets(env slurm.Env) []slurm.Env {
	all := []slurm.Env{{}}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		for _, part := range slices.Clone(all) {
			all = append(all, recorded.With(part, slurm.Env{name: env[name]}))
		}
	}
	return all[1:]
}

// A process takes no place from a launcher that has not started it: each launcher, each half of its variables, each way
// of starting.
func TestInheritedLaunchers(t *testing.T) {
	for _, s := range starts {
		got, err := s.place(nil, nil, false)
		s.check(t, "no launcher", got, err)
		if !s.known() {
			continue // nothing to compare with
		}
		for _, l := range launches {
			for _, half := range subsets(l.of(0, 1)) {
				got, err := s.place(half, half, false)
				s.check(t, fmt.Sprint(l.name, " ", half), got, err)
			}
		}
	}
}

// A rank has the place that its launcher gives it, also if it is in a job or step that a rank of the same number of the
// same launcher has submitted.
func TestLaunchersOfTheTask(t *testing.T) {
	for _, row := range launchers {
		if row.size != "" && !slices.ContainsFunc(launches, func(l launch) bool { return strings.Contains(" "+l.sets, " "+row.rank+"=") }) {
			t.Errorf("launches has no row of %s, which sets %s", row.name, row.rank)
		}
	}
	for _, s := range starts {
		if !s.known() {
			continue
		}
		for _, l := range launches {
			for _, outer := range slices.Concat([]launch{{name: "nothing"}}, launches) {
				for rank := range 2 {
					inherited := outer.of(0, 1-rank)
					if outer.name == l.name {
						inherited = l.of(0, rank)
					}
					if shareAName(l.name, outer.name) {
						continue
					}
					got, err := s.place(recorded.With(inherited, l.of(1, rank)), inherited, l.pmi)
					what := fmt.Sprintf("rank %d of %s in a job from %s", rank, l.name, outer.name)
					placeBy(s, l, outer, rank).check(t, what, got, err)
				}
			}
		}
	}
}

// shareAName reports whether two launchers name their launches by the same variable, and only one of them sets the
// variables of the other's place. Then the inherited place cannot be told from a place of the inner launch.
func shareAName(inner, outer string) bool {
	switch inner {
	case "prun", "jsrun":
		return inner != outer && (strings.HasPrefix(outer, "Open MPI") || outer == "jsrun")
	case "MVAPICH2 by mpirun_rsh":
		return outer == "Intel MPI by port" || outer == "hydra"
	}
	return false
}

// placeBy returns the place that a launcher in a task gives.
func placeBy(s start, l, outer launch, rank int) start {
	byHand := l.name == "Ray Train" && outer.name == l.name
	switch {
	case s.pid == 100: // Slurm has started this process, which no launcher can have done
	case byHand: // the same values as the inherited ones
	case outer.name == "torchrun" && l.source == "LOCAL_RANK":
		return start{rank: rank, size: 2, source: "torchrun"}
	case l.source != "":
		return start{rank: rank, size: 2, source: l.source}
	case l.name == "prun":
		return start{err: "PMIX_RANK is set, so a launcher started this rank"}
	case l.name == "Lightning" && (outer.name == "Ray Train" || outer.name == "torchrun"): // the size is inherited
		return start{rank: rank, size: 2, source: outer.source}
	case l.name == "Lightning" && outer.name != l.name:
		return start{err: `or unset LOCAL_RANK if no launcher has set it`}
	}
	return s
}

// If nothing can be compared, the place of a launcher is believed only where it cannot be told from another's: in a
// pid namespace, and in an environment that has no SLURM_TASK_PID. A half of a place is refused with both repairs.
func TestLaunchersOfAnUnknownTask(t *testing.T) {
	for _, s := range starts {
		if s.known() {
			continue
		}
		for _, l := range launches {
			for rank := range 2 {
				for _, pmi := range []bool{false, l.pmi} {
					set := l.of(1, rank)
					got, err := s.place(set, set, pmi)
					want := placeBy(s, l, launch{}, rank)
					_, hasRank := set["LOCAL_RANK"]
					if refuses := s.origin != nil && !s.origin(nil).Hidden && !pmi; refuses && (l.source != "" || hasRank) {
						want = start{err: "because SLURM_TASK_PID (\"100\") "}
					}
					want.check(t, fmt.Sprintf("%s: rank %d of %s", s.name, rank, l.name), got, err)
				}
			}
		}
	}
}

// In the shell of an salloc that a job has started, the task is the job's. The refusal names that job.
func TestATaskOfAnotherJob(t *testing.T) {
	env := recorded.With(launches[1].of(0, 1), slurm.Env{"SLURM_JOB_ID": "8", "SLURM_TASK_PID": "100"})
	_, err := WithoutInheritedLauncher(env, Origin{Env: recorded.With(slurm.Env{"SLURM_JOB_ID": "7", "SLURM_TASK_PID": "100"}, nil)})
	if err == nil || !strings.Contains(err.Error(), `because SLURM_TASK_PID ("100") is a process of job "7": unset `) {
		t.Error(err)
	}
}

// A script that gives its processes places by hand is believed, whatever the job has inherited besides.
func TestPlacesByHand(t *testing.T) {
	outer, ompi := launches[0].of(0, 2), launches[1].of(0, 1)
	byHand := slurm.Env{"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
	for _, c := range []struct {
		name           string
		set, inherited slurm.Env
		rank, size     int
		source, err    string
	}{
		{"a loop", byHand, nil, 1, 4, "LOCAL_RANK", ""},
		{"a loop in a job from torchrun", recorded.With(outer, byHand), outer, 1, 4, "torchrun", ""},
		{"of the same size", recorded.With(outer, slurm.Env{"LOCAL_RANK": "1"}), outer, 1, 2, "torchrun", ""},
		{"a profile in the script", slurm.Env{"LOCAL_RANK": "2"}, nil, 0, 0, "", "or unset LOCAL_RANK if no launcher has set it"},
		{"a profile before sbatch", slurm.Env{"LOCAL_RANK": "2"}, slurm.Env{"LOCAL_RANK": "2"}, 0, 1, SourceInherited, ""},
		{"the script has unset a part", slurm.Env{"LOCAL_RANK": "2"}, outer, 0, 1, SourceInherited, ""},
		{"the script has another port", recorded.With(outer, slurm.Env{"MASTER_PORT": "29501"}), outer, 0, 1, SourceInherited, ""},
		{"a transport in the script", recorded.With(ompi, slurm.Env{"OMPI_MCA_pml": "ucx"}), ompi, 0, 1, SourceInherited, ""},
	} {
		got, err := starts[0].place(c.set, c.inherited, false)
		start{rank: c.rank, size: c.size, source: c.source, err: c.err}.check(t, c.name, got, err)
	}
}

// hydra's PMI_FD is a proof of hydra only. Slurm's pmi2 has an open one, too.
func TestAnOpenPMI(t *testing.T) {
	hydra := launches[3].of(0, 1)
	pmi2 := recorded.With(hydra, slurm.Env{"PMI_FD": "11", "PMI_RANK": "6", "PMI_SIZE": "8", "PMI_JOBID": "7.3"})
	inSrun := starts[slices.IndexFunc(starts, func(s start) bool { return s.name == "srun, a shell between" })]
	got, err := inSrun.place(pmi2, pmi2, true)
	inSrun.check(t, "pmi2 in a job from hydra", got, err)
	ompi := recorded.With(launches[1].of(0, 1), hydra)
	got, err = starts[0].place(ompi, ompi, true)
	start{rank: 1, size: 2, source: "hydra"}.check(t, "hydra in a job from Open MPI from hydra", got, err)
}

// An inherited name of a launch would join two launches, so it is removed. Slurm's own name of a step stays.
func TestTheNameOfALaunch(t *testing.T) {
	pmix := func(step string) slurm.Env {
		return recorded.With(inStep, slurm.Env{"PMIX_NAMESPACE": "slurm.pmix.7." + step, "PMIX_RANK": "6"})
	}
	for _, c := range []struct {
		env    slurm.Env
		origin Origin
		want   string
	}{
		{pmix("3"), Origin{Env: pmix("3")}, "slurm.pmix.7.3"},
		{pmix("2"), Origin{Env: pmix("2")}, ""},
		{recorded.With(inBatch, launches[2].of(0, 1)), seen(inBatch)(launches[2].of(0, 1)), ""},
		{recorded.With(inBatch, launches[2].of(1, 1)), seen(inBatch)(launches[2].of(0, 1)), "prterun-n1-901@1"},
	} {
		before := maps.Clone(c.env)
		got, err := WithoutInheritedLauncher(c.env, c.origin)
		must.Hold(t, err == nil && got["PMIX_NAMESPACE"] == c.want, "%v: %v, %v, want %q", c.env, got, err, c.want)
		must.Hold(t, reflect.DeepEqual(c.env, before), "the environment given was changed")
	}
}

// The recorded ranks of Open MPI and MPICH in a batch script and in a step, in a job that the same rank has submitted.
func TestRecordedRanksInAJobOfTheirOwn(t *testing.T) {
	for _, path := range recordings(t, "launcher-env/*.[0-9]", 15) {
		env := recording(t, path)
		if !strings.HasPrefix(filepath.Base(path), "hydra") && !strings.HasPrefix(filepath.Base(path), "mpirun") {
			continue
		}
		rank, _ := strconv.Atoi(strings.TrimPrefix(filepath.Ext(path), "."))
		origin := Origin{Env: maps.Clone(env), HasPMI: strings.Contains(path, "hydra")}
		for _, name := range []string{"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"} {
			if _, ok := env[name]; ok {
				origin.Env[name] = "864900000"
			}
		}
		fresh := must.Get(WithoutInheritedLauncher(env, origin))(t)
		got, err := ReadTask(fresh, 1)
		must.Hold(t, err == nil && got.LocalRank == rank && got.Source != SourceInherited, "%s: %+v, %v", path, got, err)
		origin.HasPMI = false
		origin.Env = env
		fresh = must.Get(WithoutInheritedLauncher(env, origin))(t)
		if got, err = ReadTask(fresh, 1); err != nil || got.LocalRank != 0 || got.LocalSize != 1 {
			t.Errorf("%s, inherited: %+v, %v", path, got, err)
		}
	}
}
