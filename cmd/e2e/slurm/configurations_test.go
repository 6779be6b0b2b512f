// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// A job has one component on a node with GPUs and one on a node without. The ranks of the first have their GPU, and
// the ranks of the second run without the wrapper. The node without GPUs stays in service.
func TestAJobWithANodeWithoutGPUs(t *testing.T) {
	c := newCluster(t, "", lab.Options{Nodes: 2, UTSNodes: true, PrologFlags: "Alloc", GresOf: map[string]string{"n2": ""},
		GresConf: "NodeName=n1 Name=gpu File=%D/dev/nvidia[0-3]\n"})
	id := c.Batch("srun --het-group=0 -n2 "+c.Wrap("info")+"\nsrun --het-group=1 -n2 hostname\nsrun --het-group=1 -n1 "+c.Wrap("info")+"; echo code $?",
		"-N1", "-n2", "-w", "n1", "--gres=gpu:1", ":", "-N1", "-n2", "-w", "n2", "--constraint=mps")
	job := c.Ended(id)
	output := c.Output(id)
	if sms := e2e.SMCounts(t, output); len(sms) != 2 {
		t.Errorf("%+v: want two ranks on a GPU, got %v\n%s\n%s", job, sms, output, c.Log())
	}
	refused := "asks for MPS and has no GPU on node n2: submit it with --gres=gpu:N"
	if strings.Count(output, "n2\n") < 2 || !strings.Contains(output, refused) || !strings.Contains(output, "code 125\n") {
		t.Errorf("want two ranks on n2, and the wrapper's 125 and %q there\n%s\n%s", refused, output, c.Log())
	}
	c.Quiet()
}

// A dynamic node (slurmd -Z) is in no file, so nothing reads its GPUs and features there: prolog, ranks and epilog work
// as on a configured one.
func TestADynamicNode(t *testing.T) {
	c := newCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Alloc", SameName: true, Dynamic: true})
	id := c.Batch("scontrol show node; srun -n4 "+c.Wrap("info"), "-n4", "--gres=gpu:2")
	job := c.Ended(id)
	if got := e2e.SMCounts(t, c.Output(id)); !slices.Equal(got, []int{66, 66, 66, 66}) ||
		!strings.Contains(c.Output(id), "DYNAMIC_NORM") {
		t.Errorf("SMs %v on a node that is not dynamic, or not halves: %+v\n%s\n%s", got, job, c.Output(id), c.Log())
	}
	c.Quiet()
}

// Jobs with their own namespaces, as namespace/linux makes them since 25.11, get their shares. Ranks see no pid of
// the daemon, but the guard and the epilog see all processes from outside.
func TestJobsWithNamespaces(t *testing.T) {
	release, err := lab.Release(t.Context(), os.Getenv("SLURM_BUNDLE"))
	if err != nil || release < "25.11" {
		t.Skipf("Slurm %s has no namespace/linux: %v", release, err)
	}
	for _, flags := range []string{"CLONE_NEWNS", "CLONE_NEWNS,CLONE_NEWPID", "CLONE_NEWNS,CLONE_NEWPID,CLONE_NEWUSER"} {
		t.Run(flags, func(t *testing.T) {
			c := newCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Alloc,Contain", SameName: true,
				Extra:     []string{"NamespaceType=namespace/linux"},
				Namespace: "defaults:\n  auto_base_path: true\n  base_path: \"%D/spool\"\n  dirs: \"/dev/shm,/var/tmp\"\n  clone_ns_flags: \"" + flags + "\"\n"})
			want := []int{66, 66, 66, 66}
			for _, command := range []string{"srun -n4 " + c.Wrap("info"), "mpirun.openmpi -np 4 " + c.Wrap("info"), "srun -n4 " + c.Client() + " info"} {
				id := c.Batch(command, "-n4", "--gres=gpu:2")
				c.Ended(id)
				if got := e2e.SMCounts(t, c.Output(id)); !slices.Equal(got, want) {
					t.Errorf("%s: SMs %v, want %v\n%s\n%s", command, got, want, c.Output(id), c.Log())
				}
			}
			c.dies()
			c.Quiet()
		})
	}
}

// dies kills a rank beside a neighbour. The neighbour lives, because the guard keeps the dead rank's files open. The
// epilog ends what is left at the end of the job.
func (c *cluster) dies() {
	c.T.Helper()
	id := c.Batch(strings.Join([]string{
		c.Wrap("spin -ms 5 -for 3") + " & neighbour=$!",
		c.Wrap("spin -ms 5 -queue 150 -after 0.3 -for 100") + " & victim=$!",
		"sleep 1; kill -9 $victim; wait $neighbour; echo neighbour=$?",
		"setsid " + c.Wrap("spin -ms 1 -for 100") + " >/dev/null & sleep 0.5",
	}, "\n"), "-n2", "--gres=gpu:1")
	c.Ended(id)
	if out := c.Output(id); !strings.Contains(out, "neighbour=0") ||
		!regexp.MustCompile(fmt.Sprintf(`"job":%d,"step":"summary".*"held":[1-9]`, id)).MatchString(c.Log()) {
		c.T.Errorf("the neighbour of a rank that died: %s\n%s", out, c.Log())
	}
}

// cluster is a real Slurm, with the methods of these tests alone.
type cluster struct{ *e2e.Cluster }

func newCluster(t *testing.T, policy string, o lab.Options) *cluster {
	t.Helper()
	return &cluster{e2e.NewCluster(t, policy, o)}
}
