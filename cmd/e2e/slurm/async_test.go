// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// asyncMembers is how many members the block of the recipe has here.
const asyncMembers = 12

// Steps that no srun waits for: each gets its place and its guard, and the report has its line. The block is the one of
// docs/recipes.md. A member that a signal ends with work in flight harms no other.
func TestAsynchronousSteps(t *testing.T) {
	needRelease(t, "26.05")
	c := newCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Contain",
		Extra: []string{"SlurmctldParameters=enable_stepmgr"}})
	_, section, _ := strings.Cut(e2e.Read(t, "../../../docs/recipes.md"), "\n## Asynchronous steps\n")
	_, block, _ := strings.Cut(section, "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	must.Have(t, strings.Contains(block, "seq 1000"), "the recipe has no block of a thousand members: %s", block)
	client := c.Client()
	member := "#!/bin/sh\n" + client + " info\n" +
		"[ $1 != 3 ] || exec " + client + " spin -ms 500 -queue 2 -end signal:9 -after 0.5\n" +
		"exec " + client + " spin -ms 5 -for "
	setup := c.asyncFolder("short", member+"4\n")
	id := c.Batch(setup+block+"echo all ended\ncat slurm-*\n", "-n8", "--gres=gpu:1", "--stepmgr")
	c.Ended(id)
	out := c.Output(id)
	sms := e2e.SMCounts(t, out)
	must.Hold(t, len(sms) == asyncMembers && !slices.ContainsFunc(sms, func(n int) bool { return n != 16 && n != 18 }),
		"SMs %v, want 16 or 18 of %d members\n%s", sms, asyncMembers, out)
	if done := strings.Count(out, " done kernels="); done != asyncMembers-1 || !strings.Contains(out, "\nall ended\n") {
		t.Errorf("%d members ended well, want %d:\n%s\n%s", done, asyncMembers-1, out, c.Log())
	}
	report := c.First().Ctl("report", strconv.Itoa(id)).Output
	must.Hold(t, regexp.MustCompile(`rank 0 of step 2 \(cuda-client, pid \d+\) ended by signal 9`).MatchString(report),
		"the report lacks the third member's end by a signal:\n%s", report)
	t.Run("the script ends first", func(t *testing.T) {
		setup := c.asyncFolder("long", member+"600\n")
		lines := strings.ReplaceAll(block, "swait", "true") +
			"until [ $(grep -l ready slurm-* | wc -l) -ge 8 ]; do sleep 0.1; done\npwd\n"
		id := c.Batch(setup+lines, "-n8", "--gres=gpu:1", "--stepmgr")
		c.Ended(id)
		lastLine := regexp.MustCompile(`(?m)^/\S+$`).FindString(c.Output(id))
		files, err := filepath.Glob(filepath.Join(lastLine, "slurm-*"))
		if err != nil || len(files) < 8 {
			t.Fatalf("the members' files are %q, %v:\n%s", files, err, c.Output(id))
		}
		for _, file := range files {
			if said := e2e.Read(t, file); strings.Contains(said, " done ") {
				t.Errorf("a member has outlived its job's script: %s: the recipe tells otherwise", said)
			}
		}
	})
	t.Run("a cancelled job", func(t *testing.T) {
		line := "srun --async --mpi=none --exact --overlap -n1 -o /dev/null " + c.Wrap("spin -ms 5 -for 600")
		id := c.Batch("for i in 1 2 3 4; do "+line+"; done; swait", "-n4", "--gres=gpu:1", "--stepmgr")
		c.seen(id, 4)
		c.Does(c.User, "scancel", strconv.Itoa(id))
		c.Ended(id)
	})
	c.Quiet()
}

// seen waits until the guard of a job has seen so many clients.
func (c *cluster) seen(job, clients int) {
	c.T.Helper()
	store := lease.OpenReadOnly(c.First().Paths().Run(), e2e.Boot(c.T))
	ctx, cancel := context.WithTimeout(c.Ctx, 2*time.Minute)
	defer cancel()
	for {
		state, err := store.ReadGuard(uint32(job))
		if err == nil && state.ClientsSeen >= clients {
			return
		}
		if !wait.Sleep(ctx, 50*time.Millisecond) {
			c.T.Fatalf("the guard has seen %d clients, want %d: %v\n%s", state.ClientsSeen, clients, err, c.Log())
		}
	}
}

// asyncFolder is the beginning of a script: a folder with ./member and seq for fewer members.
func (c *cluster) asyncFolder(name, member string) string {
	bin := filepath.Join(c.Top, name)
	must.OK(c.T, os.Mkdir(bin, 0o755))
	for name, text := range map[string]string{
		"member": member, "mpirun-wrap": "#!/bin/sh\nexec " + filepath.Join(c.Top, "mpirun-wrap") + ` "$@"` + "\n",
		"seq": fmt.Sprintf("#!/bin/sh\nexec /usr/bin/seq %d\n", asyncMembers),
	} {
		must.OK(c.T, node.WriteProgram(filepath.Join(bin, name), []byte(text)))
	}
	return "cd $(mktemp -d); ln -s " + bin + "/member .; export PATH=" + bin + ":$PATH\n"
}
