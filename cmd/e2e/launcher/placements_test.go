// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

//go:embed testdata/rank.c
var rankSource string

// rankScript is a rank without MPI. It prints what Slurm's variables report about the rank.
const rankScript = `#!/bin/sh
size=$(echo "$SLURM_GTIDS" | tr , '\n' | wc -l)
echo "rank launch=$1 world=$SLURM_PROCID local=$SLURM_LOCALID/$size node=$(hostname) gpu=${CUDA_VISIBLE_DEVICES:--} percent=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:--} pipe=${CUDA_MPS_PIPE_DIRECTORY:--}"
`

// placement is the placement that one rank prints.
type placement struct {
	world, local, size int
	node               string
	gpu, percent, pipe string
}

// launchCase is one way of starting ranks.
type launchCase struct {
	name string
	// line is the command. WRAP is replaced by a rank under the wrapper, and PLAIN by a rank without it.
	line   string
	rank   string // "openmpi" or "mpich": the rank is a real MPI program; "": a script
	layout []int  // the number of ranks on each node, in the nodes' order
	want   plan
}

// plan returns where a rank must be placed, by the rank's number and the number of ranks on its node. The result is
// the GPU's position in Slurm's list, "*" for any, and the percentage, "-" for no cap.
type plan func(rank placement) string

// round is the plan that the policy requires. It places the ranks round-robin on the GPUs, and the ranks of
// one GPU divide it evenly.
func round(gpus int) plan {
	return func(rank placement) string {
		gpu, place := rank.local%gpus, rank.local/gpus
		beside := (rank.size - gpu + gpus - 1) / gpus
		shares, err := policy.EvenShares(h200, beside, policy.Grant{Share: policy.Overlap(1), Ceiling: 100})
		if err != nil {
			return err.Error()
		}
		if shares[place].Percent == 0 {
			return fmt.Sprintf("%d -", gpu)
		}
		return fmt.Sprintf("%d %s", gpu, shares[place].Percent)
	}
}

// listed is a plan that lists the places by node-local rank.
func listed(places ...string) plan {
	return func(rank placement) string {
		if rank.local >= len(places) {
			return "nothing"
		}
		return places[rank.local]
	}
}

// again repeats a launch until it succeeds, at most four times. On several nodes, ranks of Open MPI 4.1.4 die of
// SIGSEGV in MPI_Init under Slurm's pmix, before they print anything. That also happens without the wrapper (7 of 60
// launches).
func again(line string) string { return strings.Join([]string{line, line, line, line}, " || ") }

// inherited is the plan for ranks without the wrapper that have the batch script's variables or those of the launcher's
// daemon: all GPUs, by number in a job of several nodes. Hydra gives all nodes the variables of the first one, and the
// daemon of a job has the same path on each node of a site, though not here.
func inherited(rank placement) string {
	if rank.node != "n1" && strings.Contains(rank.pipe, "/n1/") {
		return "0,1 - of n1"
	}
	return "0,1 -"
}

// unplaced is the plan for ranks without a placement.
func unplaced(placement) string { return "no placement" }

var h200 = policy.GPU{SMs: node.H200.SMs, SMsPerTPC: node.H200.TPC}

// launchCluster is a cluster whose ranks print their placements.
type launchCluster struct {
	*e2e.Cluster
	name  string   // the first part of the names of its recordings
	uuids []string // the UUIDs of every node's GPUs, in Slurm's order
}

func newLaunchCluster(t *testing.T, name string, o lab.Options) *launchCluster {
	t.Helper()
	o.PrologFlags = "Alloc"
	s := &launchCluster{name: name, Cluster: e2e.NewCluster(t, testnode.Default(`share = "even"`), o)}
	// A job in these tests makes many launches.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	s.Ctx = ctx
	gpus := must.Get(s.First().Sim.Node.GPUs())(t)
	for _, gpu := range gpus {
		uuid := must.Get(gpu.Text("uuid"))(t)
		s.uuids = append(s.uuids, uuid)
	}
	s.makeRanks()
	return s
}

// makeRanks writes the programs that ranks run to a folder that their user can read.
func (s *launchCluster) makeRanks() {
	s.T.Helper()
	source := filepath.Join(s.Top, "rank.c")
	for path, text := range map[string]string{source: rankSource, filepath.Join(s.Top, "rank"): rankScript} {
		must.OK(s.T, node.WriteProgram(path, []byte(text)))
	}
	for _, mpi := range []string{"openmpi", "mpich"} {
		e2e.Runs(s.T, exec.CommandContext(s.Ctx, "mpicc."+mpi, "-o", filepath.Join(s.Top, "rank."+mpi), source))
	}
}

// command returns the command line of a launch. The ranks repeat the launch's number.
func (s *launchCluster) command(l launchCase, number int) string {
	program := strings.TrimSuffix(filepath.Join(s.Top, "rank")+"."+l.rank, ".")
	plain := fmt.Sprintf("%s %d", program, number)
	return strings.NewReplacer("WRAP", s.recorder(number)+filepath.Join(s.Top, "mpirun-wrap")+" "+plain, "PLAIN", plain).Replace(l.line)
}

// try runs all launches in one job and compares each rank's placement with its plan.
func (s *launchCluster) try(launches []launchCase, args ...string) {
	s.T.Helper()
	if !lab.HasPMIx(os.Getenv("SLURM_BUNDLE")) {
		launches = slices.DeleteFunc(launches, func(l launchCase) bool { return strings.Contains(l.line, "--mpi=pmix") })
	}
	id := s.Batch(s.script(launches), args...)
	s.Ended(id)
	s.judge(launches, s.Output(id))
}

// script returns a script that runs all launches, one after another.
func (s *launchCluster) script(launches []launchCase) string {
	var script strings.Builder
	for i, l := range launches {
		fmt.Fprintf(&script, "echo == $SECONDS s: %s\n%s\n", l.name, s.command(l, i))
	}
	return script.String()
}

// judge compares what a script's ranks printed with their plans.
func (s *launchCluster) judge(launches []launchCase, output string) {
	s.T.Helper()
	said := placementsOf(output)
	failed := false
	for i, l := range launches {
		failed = !s.T.Run(l.name, func(t *testing.T) { s.hold(t, l, said[i]) }) || failed
		s.keep(i, l)
	}
	if failed {
		s.T.Logf("%s\n%s", output, s.Log())
	}
	s.Quiet()
}

var placementLine = regexp.MustCompile(`rank launch=(\d+) world=(\d+) local=(\d+)/(\d+) node=(\S+) gpu=(\S+) percent=(\S+) pipe=(\S+)`)

// placementsOf returns the placements of each launch, in the ranks' order.
func placementsOf(output string) map[int][]placement {
	said := map[int][]placement{}
	for _, m := range placementLine.FindAllStringSubmatch(output, -1) {
		var n [4]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[i+1]) // the expression allows only digits
		}
		said[n[0]] = append(said[n[0]], placement{n[1], n[2], n[3], m[5], m[6], m[7], m[8]})
	}
	for _, placements := range said {
		slices.SortFunc(placements, func(a, b placement) int { return a.world - b.world })
	}
	return said
}

// hold compares a launch's placements with its plan, rank by rank. It checks that no SM of a GPU is given twice.
func (s *launchCluster) hold(t *testing.T, l launchCase, placements []placement) {
	layout := make([]int, len(s.Nodes()))
	assigned := map[string]int{}
	for _, x := range placements {
		// A cluster's only node may have a name that differs from its host's name.
		i := max(0, slices.Index(s.Nodes(), x.node))
		layout[i]++
		at, want := s.place(s.Nodes()[i], x), l.want(x)
		if any, ok := strings.CutPrefix(want, "*"); at != want && !(ok && strings.HasSuffix(at, any)) {
			t.Errorf("rank %d (local rank %d of %d on %s) has %s, want %s", x.world, x.local, x.size, x.node, at, want)
		}
		if at != "no placement" && !strings.Contains(x.gpu, ",") {
			assigned[x.node+" "+x.gpu] += smsAt(x.percent)
		}
	}
	for gpu, sms := range assigned {
		if sms > h200.SMs {
			t.Errorf("%d SMs of %s are given, but it has fewer", sms, gpu)
		}
	}
	if !slices.Equal(layout, l.layout) {
		t.Errorf("the ranks on the nodes are %v, want %v", layout, l.layout)
	}
}

// place formats a placement as a plan does. If the daemon is that of another node, the text ends with this node's name.
func (s *launchCluster) place(name string, x placement) string {
	if x.pipe == "-" && !strings.HasPrefix(x.gpu, "GPU-") {
		return "no placement"
	}
	var gpus []string
	for gpu := range strings.SplitSeq(x.gpu, ",") {
		if i := slices.Index(s.uuids, gpu); i >= 0 {
			gpu = strconv.Itoa(i)
		}
		gpus = append(gpus, gpu)
	}
	text := strings.Join(gpus, ",") + " " + x.percent
	for other, node := range s.TestNodes {
		if other != name && strings.HasPrefix(x.pipe, node.Paths().Run()) {
			text += " of " + other
		}
	}
	return text
}

func smsAt(percent string) int {
	p, err := policy.ParsePercent(percent)
	if err != nil {
		return h200.SMs // no cap
	}
	return h200.SMsAt(p)
}

// Every launcher places five ranks on the two GPUs of one node, where the shares differ.
func TestPlacementsOnOneNode(t *testing.T) {
	s := newLaunchCluster(t, "one", lab.Options{SameName: true, Extra: []string{
		"LaunchParameters=use_interactive_step", `InteractiveStepOptions="--interactive --preserve-env bash %D/step.sh"`}})
	five, three := []int{5}, []int{3}
	s.try([]launchCase{
		{"srun", "srun -n5 --mpi=none WRAP", "", five, round(2)},
		{"srun, pmi2", "srun -n5 --mpi=pmi2 WRAP", "mpich", five, round(2)},
		{"srun, pmix", again("srun -n5 --mpi=pmix WRAP"), "openmpi", five, round(2)},
		{"mpirun", "mpirun.openmpi -np 5 WRAP", "openmpi", five, round(2)},
		{"hydra", "mpiexec.hydra -n 5 WRAP", "mpich", five, round(2)},
		{"srun, a shell between", "srun -n5 sh -c 'WRAP; true'", "", five, round(2)},
		{"srun of several programs", "printf '0 WRAP\n1-2 WRAP\n3-4 env WRAP\n' >programs; srun -n5 --multi-prog programs", "", five, round(2)},
		{"task prolog", "srun -n5 PLAIN", "", five, round(2)},
		{"task prolog, pmi2", "srun -n5 --mpi=pmi2 PLAIN", "mpich", five, round(2)},
		// The ranks of a step with one of the job's GPUs share that GPU.
		{"two steps", "srun --exact -n2 --gres=gpu:1 WRAP & srun --exact -n2 --gres=gpu:1 WRAP & wait", "", []int{4}, listed("* 50", "* 50")},
	}, "-n5", "--gres=gpu:2")
	s.try([]launchCase{
		// Variables of an outer launcher are stale, so Slurm's variables decide.
		{"srun in mpirun", "mpirun.openmpi -np 1 srun -n5 --overlap WRAP", "", five, round(2)},
		{"srun in mpirun, a shell between", "mpirun.openmpi -np 1 sh -c 'srun -n5 --overlap WRAP; true'", "", five, round(2)},
		{"srun in mpirun, a shell behind", "mpirun.openmpi -np 1 srun -n5 --overlap sh -c 'WRAP; true'", "", five, round(2)},
		{"srun in hydra, a shell behind", "mpiexec.hydra -n 1 srun -n5 --overlap sh -c 'WRAP; true'", "", five, round(2)},
		{"srun in hydra", "mpiexec.hydra -n 1 srun -n5 --overlap WRAP", "", five, round(2)},
		{"task prolog in mpirun", "mpirun.openmpi -np 1 srun -n5 --overlap PLAIN", "", five, round(2)},
		// Variables of an outer step belong to the task that runs the launcher.
		{"mpirun in srun", "srun -n1 -c5 mpirun.openmpi --oversubscribe -np 3 WRAP", "openmpi", three, round(2)},
		{"mpirun in srun, a shell between", "srun -n1 -c5 sh -c 'mpirun.openmpi --oversubscribe -np 3 WRAP; true'", "openmpi", three, round(2)},
		{"hydra in srun", "srun -n1 -c5 mpiexec.hydra -launcher fork -n 3 WRAP", "mpich", three, round(2)},
		// mpiexec starts its own daemon with srun. That daemon is not a rank, so its ranks have no placement without
		// the wrapper.
		{"mpirun without the wrapper", "mpirun.openmpi -np 5 PLAIN", "openmpi", five, inherited},
		{"hydra without the wrapper", "mpiexec.hydra -n 5 PLAIN", "mpich", five, inherited},
		// This step wants no GPU.
		{"no GPU", "srun -n5 --gres=none WRAP", "", five, unplaced},
		{"no GPU, task prolog", "srun -n5 --gres=none PLAIN", "", five, unplaced},
		{"bind map_gpu:1,0", "srun -n5 --gpu-bind=map_gpu:1,0 WRAP", "", five, listed("1 33.333334", "0 50", "1 33.333334", "0 50", "1 33.333334")},
	}, "-n5", "--gres=gpu:2")
	s.interactive([]launchCase{
		{"the shell", "PLAIN", "", []int{1}, inherited},
		{"a program of the shell", "WRAP", "", []int{1}, listed("0 -")},
		{"mpirun in an interactive step", "mpirun.openmpi -np 5 WRAP", "openmpi", five, round(2)},
	})
}

// interactive runs launches in the shell of salloc, which is a step of its own. The programs that it starts are placed
// as in a batch script, and the shell itself is not a rank.
func (s *launchCluster) interactive(launches []launchCase) {
	s.T.Helper()
	script := "export LD_LIBRARY_PATH=" + s.First().Sim.Libraries() + "\n" + s.script(launches)
	must.OK(s.T, node.WriteProgram(filepath.Join(s.Dir(), "step.sh"), []byte(script)))
	result := must.Get(s.Run(s.Ctx, s.User, "salloc", "-n5", "--gres=gpu:2", "--constraint=mps"))(s.T)
	s.judge(launches, result.Stdout+result.Stderr)
}

// If Slurm binds GPUs to tasks and confines tasks to their own devices, its variables number these devices from 0 in
// every task. The devices that a process may open then decide which GPU it has. All other ways to bind are recorded
// (site/sim/recorded), and judged beside the code.
func TestPlacementsOfConfinedTasks(t *testing.T) {
	e2e.JoinSweep(t, "points")
	s := newLaunchCluster(t, "confined", lab.Options{SameName: true, ConstrainDevices: true})
	s.try([]launchCase{
		{"bind map_gpu:1*2,0", "srun -n4 --gpu-bind=verbose,map_gpu:1*2,0 WRAP", "", []int{4}, listed("1 33.333334", "1 33.333334", "0 -", "1 33.333334")},
		{"bind mask_gpu:3,c, task prolog", "srun -n2 --gpu-bind=mask_gpu:0x3,0xc PLAIN", "", []int{2}, listed("0,1 -", "2,3 -")},
	}, "-n4", "--gres=gpu:4")
	each := listed("0 -", "1 -", "2 -", "3 -")
	s.try([]launchCase{
		{"a GPU per task, pmi2", "srun -n4 --mpi=pmi2 WRAP", "mpich", []int{4}, each},
		{"a GPU per task, task prolog", "srun -n4 PLAIN", "", []int{4}, each},
		{"a GPU per task, mpirun", "mpirun.openmpi -np 4 WRAP", "openmpi", []int{4}, round(4)},
		// MPICH's ranks may open the devices that their daemon may open.
		{"a GPU per task, hydra", "mpiexec.hydra -n 4 WRAP", "mpich", []int{4}, round(s.ofDaemon(4))},
	}, "-n4", "--gpus-per-task=1")
	s.try([]launchCase{
		{"two tasks per GPU", "srun -n8 WRAP", "", []int{8}, listed("0 50", "0 50", "1 50", "1 50", "2 50", "2 50", "3 50", "3 50")},
	}, "-n8", "--gpus=4", "--ntasks-per-gpu=2")
}

// ofDaemon returns how many of a job's GPUs on a node the launcher's daemon has. The daemon is a task for Slurm. With
// one GPU per task, it has one GPU on 22.05 and all GPUs on 24.11.
func (s *launchCluster) ofDaemon(all int) int {
	if s.Release() < "24.11" {
		return 1
	}
	return all
}

// Every launcher places ranks on three nodes, which get different numbers of ranks.
func TestPlacementsOnThreeNodes(t *testing.T) {
	e2e.JoinSweep(t, "points")
	s := newLaunchCluster(t, "three", lab.Options{Nodes: 3, UTSNodes: true})
	uneven, more := []int{2, 2, 1}, []int{3, 1, 1}
	s.try([]launchCase{
		{"srun", "srun -n5 WRAP", "", uneven, round(2)},
		{"srun, pmi2, cyclic", "srun -n5 --mpi=pmi2 -m cyclic WRAP", "mpich", uneven, round(2)},
		{"srun, pmix, plane", again("srun -n5 --mpi=pmix -m plane=2 WRAP"), "openmpi", uneven, round(2)},
		{"task prolog", "srun -n5 PLAIN", "", uneven, round(2)},
		{"srun, arbitrary", "printf 'n1\nn2\nn2\nn1\nn2\nn3\n' >arbitrary; SLURM_HOSTFILE=arbitrary srun -n6 -m arbitrary WRAP", "", []int{2, 3, 1}, round(2)},
		{"srun, bound", "srun -n9 --gpu-bind=map_gpu:1,0 WRAP", "", []int{3, 3, 3}, listed("1 50", "0 -", "1 50")},
		{"mpirun, hostfile", "printf 'n1 slots=3\nn2 slots=1\nn3 slots=1\n' >hosts; mpirun.openmpi --hostfile hosts -np 5 WRAP", "openmpi", more, round(2)},
		{"mpirun, by node", "mpirun.openmpi --map-by node -np 7 WRAP", "openmpi", []int{3, 2, 2}, round(2)},
		{"hydra", "mpiexec.hydra -hosts n1:3,n2:1,n3:1 -n 5 WRAP", "mpich", more, round(2)},
		{"mpirun without the wrapper", "mpirun.openmpi --map-by node -np 7 PLAIN", "openmpi", []int{3, 2, 2}, inherited},
		{"hydra without the wrapper", "mpiexec.hydra -hosts n1:3,n2:1,n3:1 -n 5 PLAIN", "mpich", more, inherited},
		{"mpirun without a shell and the wrapper", "perl -e 'system qw(mpirun.openmpi --map-by node -np 7), @ARGV' PLAIN", "openmpi", []int{3, 2, 2}, inherited},
		{"srun in mpirun", "mpirun.openmpi -np 1 srun -n5 --overlap PLAIN", "", uneven, round(2)},
	}, "-N3", "--ntasks-per-node=3", "--gres=gpu:2")
	s.try([]launchCase{
		// These are two programs of one step. On 22.05 they never share a node: "already allocated 3 nodes to
		// previous components".
		{"srun of two groups", "srun -N1 -n2 WRAP : -N2 -n3 WRAP", "", []int{2, 2, 1}, round(2)},
	}, "-N3", "--ntasks-per-node=3", "--gres=gpu:2")
	s.try([]launchCase{
		{"a GPU per task", "srun WRAP", "", []int{2, 2, 2}, round(2)},
		{"a GPU per task, hydra", "mpiexec.hydra -ppn 2 -n 6 WRAP", "mpich", []int{2, 2, 2}, round(2)},
		// mpirun is a process of the batch script on the first node. On the other nodes it has a daemon.
		{"a GPU per task, mpirun", "mpirun.openmpi WRAP", "openmpi", []int{2, 2, 2}, func(rank placement) string {
			if rank.node == "n1" {
				return round(2)(rank)
			}
			return round(s.ofDaemon(2))(rank)
		}},
	}, "-N3", "--ntasks-per-node=2", "--gpus-per-task=1")
	groups := func(rank placement) string { return round(map[string]int{"n1": 2, "n2": 1}[rank.node])(rank) }
	// This is a heterogeneous job. On 22.05 its components never share a node: if there is only one node, they wait
	// for ever.
	s.try([]launchCase{
		{"a group each", "srun --het-group=0 -n3 WRAP", "", []int{3, 0, 0}, round(2)},
		{"the other group", "srun --het-group=1 -n2 WRAP", "", []int{0, 2, 0}, round(1)},
		{"both groups", "srun --het-group=0,1 WRAP", "", []int{3, 2, 0}, groups},
		{"task prolog", "srun --het-group=0,1 PLAIN", "", []int{3, 2, 0}, groups},
	}, "-N1", "-n3", "--gres=gpu:2", ":", "-N1", "-n2", "--gres=gpu:1", "--constraint=mps")
}
