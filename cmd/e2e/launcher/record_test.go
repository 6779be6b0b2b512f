// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/txtar"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// Goldens are the environments of real launches: go test ./cmd/e2e/launcher -run TestPlacements -args -record ARCHIVE. It
// writes a file for each launch and node, with the environments of the ranks in order (site/sim/recorded/launches.txtar).
var recordTo = flag.String("record", "", "absolute path of the archive for the environments of the ranks of every launch")

// recordScript records the environment that a rank in its place sees, and then becomes that rank.
const recordScript = `#!/bin/sh
open=$(for f in %[1]s/lab/dev/nvidia*; do [ -r $f ] && [ -w $f ] && echo ${f##*nvidia}; done)
{ /usr/bin/env; echo RANK_PID=$$; echo RANK_OPEN=$open; } >%[1]s/said/$1.$(/bin/hostname).$$
shift
exec "$@"
`

// recorder returns the command that precedes the wrapper in a recorded launch.
func (s *launchCluster) recorder(number int) string {
	if *recordTo == "" {
		return ""
	}
	path := filepath.Join(s.Top, "record")
	must.OK(s.T, node.WriteProgram(path, []byte(fmt.Sprintf(recordScript, s.Top))))
	must.OK(s.T, os.MkdirAll(filepath.Join(s.Top, "said"), 0o777))
	must.OK(s.T, os.Chmod(filepath.Join(s.Top, "said"), 0o777))
	return fmt.Sprintf("%s %d ", path, number)
}

// keep writes a launch's recordings into the archive.
func (s *launchCluster) keep(number int, l launchCase) {
	if *recordTo == "" {
		return
	}
	for _, name := range s.Nodes() {
		paths := must.Get(filepath.Glob(fmt.Sprintf("%s/said/%d.%s.*", s.Top, number, name)))(s.T)
		var ranks []slurm.Env
		for _, path := range paths {
			ranks = append(ranks, slurm.ParseEnv(strings.Split(e2e.Read(s.T, path), "\n")))
			must.OK(s.T, os.Remove(path))
		}
		if len(ranks) == 0 {
			continue
		}
		slices.SortFunc(ranks, func(a, b slurm.Env) int { return s.localRank(a) - s.localRank(b) })
		var text strings.Builder
		for _, env := range ranks {
			text.WriteString(s.plain(env, name) + "\n")
		}
		file := s.name + "." + strings.NewReplacer(", ", "-", " ", "-", ":", "-", "*", "x", ",", "-").Replace(l.name)
		if len(s.Nodes()) == 1 {
			name = "n1"
		}
		must.OK(s.T, txtar.Put(*recordTo, file+"."+name, text.String()))
	}
}

func (s *launchCluster) localRank(env slurm.Env) int {
	pid, _ := strconv.Atoi(env["RANK_PID"])
	task := must.Get(launch.ReadTask(env, pid))(s.T)
	return task.LocalRank
}

// plain returns the lines that describe a launch and not the machine on which it ran.
func (s *launchCluster) plain(env slurm.Env, name string) string {
	var lines []string
	for variable, value := range env {
		if variable == "_" {
			value = "/usr/bin/" + filepath.Base(value) // the program's folder differs between machines
		} else if strings.HasPrefix(value, "/") || !describesLaunch(variable) {
			continue
		}
		if len(s.Nodes()) == 1 && value == name {
			value = "n1"
		}
		lines = append(lines, variable+"="+value+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// describesLaunch reports whether a variable describes a launch and not the machine.
func describesLaunch(variable string) bool {
	for _, part := range []string{"HOST", "PORT", "ADDR", "CLUSTER", "JOB_NAME", "SLURM_CONF", "_UID", "_TIME", "_DIR", "_GID", "_USER", "UMASK",
		"PACK_GROUP", "ALIASES", "PRIO", "JOBID", "STEPID", "NPROCS", "PARTITION", "NODELIST"} {
		if strings.Contains(variable, part) {
			return false
		}
	}
	for _, prefix := range []string{"SLURM_", "SLURMD_TRES", "OMPI_COMM_", "OMPI_NUM_APP", "OMPI_MCA_ess_base_jobid", "PMI_RANK", "PMI_SIZE",
		"PMIX_RANK", "PMIX_NAMESPACE", "PMIX_MCA_mca", "MPI_LOCAL", "IPATH_NO", "HFI_NO", "RANK_", "_", "CUDA_VISIBLE"} {
		if strings.HasPrefix(variable, prefix) {
			return true
		}
	}
	return false
}

// If ranks get another share than they ask for, or ask for more memory than the GPU has, one rank prints this.
func TestACutShareIsSaidOnce(t *testing.T) {
	p := sharedGPU(t, `ceiling = 25`)
	const cut = "mpirun-wrap: share 60% asks for 78 of 132 SMs, and the site's ceiling of 25 % allows 32\n"
	for _, c := range []struct{ launch, line, want string }{
		{"flag", "--share=60% true", cut},
		{"pct", "--report --share=60pct --mem=8GB true", cut},
		{"raised", "--share=1% true", "mpirun-wrap: share 1% is less than a client can have: it gets 8 of 132 SMs\n"},
		{"exact", "--share=16% true", ""},
		{"policy", "true", ""},
		{"memory", "--mem=100G true",
			"mpirun-wrap: 4 ranks with 102400M each need more than their GPU has (143155 MiB), so some may get error 2: --mem=even gives each an equal part\n"},
	} {
		ranks := p.LaunchAs(e2e.UID, 4, []string{"PMIX_NAMESPACE=" + c.launch}, strings.Fields(c.line)...)
		codes, said := ranks.End()
		if got := strings.Join(said, ""); got != c.want || codes[0] != 0 {
			t.Errorf("%s: codes %v, printed\n%swant\n%s", c.line, codes, got, c.want)
		}
		if reports := strings.Count(ranks.Out(), "32 of 132 SMs (24.2 %, ceiling 25 %), 8192 MiB, 4 ranks on it\n"); c.launch == "pct" && reports != 4 {
			t.Errorf("%d reports, want 4:\n%s", reports, ranks.Out())
		}
	}
}

// If a variable looks like one of mpirun-wrap and is not, one rank prints this, with the name that was probably meant.
func TestAMisspeltVariableIsPrintedOnce(t *testing.T) {
	p := sharedGPU(t)
	variables := []string{"SLURM_MPS_SHAER=25%", "SLURM_MPS_MEMORY=8G", "SLURM_MPS_REPORT=no", "SLURM_MPS_SITE_NOTE=x", "MPS_SHARE=25%"}
	ranks := p.LaunchAs(e2e.UID, 4, variables, "true")
	codes, lines := ranks.End()
	want := "mpirun-wrap: ignoring variable SLURM_MPS_MEMORY: no flag has it: did you mean SLURM_MPS_MEM?\n" +
		"mpirun-wrap: ignoring variable SLURM_MPS_SHAER: no flag has it: did you mean SLURM_MPS_SHARE?\n" +
		"mpirun-wrap: ignoring variable SLURM_MPS_SITE_NOTE: no flag has it: see mpirun-wrap --help\n"
	slices.Sort(lines)
	if got := strings.Join(lines, ""); got != want || slices.Max(codes) != 0 {
		t.Errorf("codes %v, printed\n%s\nwant\n%s", codes, got, want)
	}
}

// A rank submits a job. The job's batch script, its steps and its launchers have their own places, and not that rank's.
// The rank is the first of two, as a rank of the job's launchers is.
func TestPlacementsOfAJobFromARank(t *testing.T) {
	s := newLaunchCluster(t, "from-a-rank", lab.Options{SameName: true})
	halves := listed("1 50", "1 50") // the rank's own job has the first GPU
	launches := []launchCase{
		{"a program", "WRAP; true", "", []int{1}, listed("1 -")},
		{"srun", "srun -n2 WRAP", "", []int{2}, halves},
		{"srun, a shell between", "srun -n2 sh -c 'WRAP; true'", "", []int{2}, halves},
		// Open MPI 4.1 itself does not run with a rank's variables. Its place is left.
		{"mpirun", "(unset ${!OMPI_MCA_@} ${!PMIX_@} OMPI_UNIVERSE_SIZE; mpirun.openmpi -np 2 WRAP)",
			"openmpi", []int{2}, halves},
		{"hydra", "mpiexec.hydra -launcher fork -n 2 WRAP", "mpich", []int{2}, halves},
	}
	for _, launcher := range []string{"mpirun.openmpi -np 2", "mpiexec.hydra -launcher fork -n 2"} {
		inner := filepath.Join(s.Top, "inner.sh")
		script := "#!/bin/bash\n" + s.script(launches)
		must.OK(t, os.WriteFile(inner, []byte(script), 0o755))
		id := s.Batch(launcher+` sh -c '[ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 0 ] || exit 0
			sbatch -W -n2 --gres=gpu:1 --constraint=mps -o $TMPDIR/inner.out `+inner+`'
			cat $TMPDIR/inner.out`, "-n2", "--gres=gpu:1")
		s.Ended(id)
		s.judge(launches, s.Output(id))
	}
}

// Ranks that have lost Slurm's variables, as in a container, are refused. They would each have a whole GPU.
func TestRanksInACleanedEnvironment(t *testing.T) {
	s := newLaunchCluster(t, "cleaned", lab.Options{SameName: true})
	const cleaned = "env -i PATH=$PATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH SLURM_JOB_ID=$SLURM_JOB_ID " +
		"CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES "
	const repair = "hand on SLURM_LOCALID, SLURM_GTIDS and SLURM_STEP_ID, or run the wrapper outside"
	wrap := filepath.Join(s.Top, "mpirun-wrap") + " "
	id := s.Batch("srun -n4 bash -c '"+cleaned+wrap+"true; echo code $?'\n"+
		"srun -n4 bash -c '"+cleaned+"SLURM_LOCALID=$SLURM_LOCALID SLURM_GTIDS=$SLURM_GTIDS SLURM_STEP_ID=$SLURM_STEP_ID "+
		wrap+"--share=even "+s.Client()+" info'", "-n4", "--gres=gpu:1")
	s.Ended(id)
	output := s.Output(id)
	must.Hold(t, strings.Count(output, "code 125") == 4 && strings.Contains(output, repair), "cleaned: %s", output)
	if got := e2e.SMCounts(t, output); len(got) != 4 || got[3] > 34 {
		t.Errorf("handed on: %v SMs\n%s", got, output)
	}
	s.Quiet()
}

// testNode is the node of one test, with the methods of these tests alone.
type testNode struct{ e2e.Node }

func newTestNode(t *testing.T, policy string, models ...node.Model) testNode {
	t.Helper()
	return testNode{e2e.NewNode(t, policy, models...)}
}
