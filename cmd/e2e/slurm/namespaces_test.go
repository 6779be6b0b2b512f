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
