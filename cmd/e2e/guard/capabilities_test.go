// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// capabilities are those that docs/operator.md names. CAP_SYS_RESOURCE and CAP_SYS_NICE are left out, because a container
// that runs tests may lack them, and nothing of a job's life fails without them.
func capabilities(t *testing.T) (names []string) {
	t.Helper()
	_, section, _ := strings.Cut(e2e.Read(t, "../../../docs/operator.md"), "\n### What runs as root\n")
	section, _, _ = strings.Cut(section, "\n#")
	for _, m := range regexp.MustCompile(`CAP_([A-Z_]+)`).FindAllStringSubmatch(section, -1) {
		if name := strings.ToLower(m[1]); name != "sys_resource" && name != "sys_nice" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// bounded gives a node's prolog and epilog these capabilities alone, as a slurmd with a bounding set does.
func bounded(p e2e.Node, names []string) e2e.Node {
	p.T.Helper()
	set, programs := "-all", p.Bin
	for _, name := range names {
		set += ",+" + name
	}
	p.Bin = filepath.Join(filepath.Dir(p.Root), "bin")
	must.OK(p.T, os.Mkdir(p.Bin, 0o755))
	for _, program := range []string{"prolog", "epilog"} {
		script := fmt.Sprintf("#!/bin/sh\nexec setpriv --bounding-set=%s --inh-caps=%[1]s %s \"$@\"\n", set, filepath.Join(programs, program))
		must.OK(p.T, node.WriteProgram(filepath.Join(p.Bin, program), []byte(script)))
	}
	return p
}

// With the capabilities that docs/operator.md names and no other one, a job's life is whole: its prolog prints no
// warning, its folder is a file system of its own, a neighbour outlives a rank that is killed with work in flight, and
// the epilog ends a daemon that does not answer.
func TestCapabilities(t *testing.T) {
	names := capabilities(t)
	must.Have(t, len(names) >= 8, "docs/operator.md names only %q", names)
	s := e2e.OpenShared(bounded(e2e.NewNode(t, testnode.Default(), node.H200), names))
	if log := s.Log(); strings.Contains(log, `"level":"warn"`) || strings.Contains(log, `"level":"error"`) {
		t.Errorf("the prolog warns:\n%s", log)
	}
	must.Hold(t, ownFileSystem(s.Node), "the job's folder is no file system of its own")
	neighbour := s.Neighbour()
	killedWithWork(s)
	s.Survive([]*e2e.Running{neighbour}, 3*time.Second)
	must.OK(t, s.Ticket(7).Daemons[0].Proc.Kill(unix.SIGSTOP))
}

// killedWithWork kills a client that needs most of the GPU's memory and computes without a gap.
func killedWithWork(s *e2e.Shared) {
	s.T.Helper()
	victim := s.Start("spin", "-ms", "5", "-queue", "400", "-for", "900", "-mib", "80000")
	wait.Sleep(s.Ctx, 200*time.Millisecond)
	victim.Kill()
}

// ownFileSystem reports whether the folder of job 7 is a mount.
func ownFileSystem(p e2e.Node) bool {
	var job, above unix.Stat_t
	run := p.Paths().Run()
	return unix.Stat(run+"/jobs/7", &job) == nil && unix.Stat(run+"/jobs", &above) == nil && job.Dev != above.Dev
}

// What docs/operator.md says of a node that lacks one of them.
func TestWithoutACapability(t *testing.T) {
	t.Parallel()
	for _, missing := range []string{"chown", "setuid", "setgid", "sys_admin", "sys_ptrace"} {
		t.Run(missing, func(t *testing.T) {
			names := capabilities(t)
			must.Have(t, slices.Contains(names, missing), "docs/operator.md does not name it: %q", names)
			p := bounded(e2e.NewNode(t, testnode.Default(), node.H200), slices.DeleteFunc(names, func(n string) bool { return n == missing }))
			if missing != "sys_admin" && missing != "sys_ptrace" {
				p.Must(1, p.Job(7, "0"), "prolog")
				p.Close(p.Job(7, "0"))
				return
			}
			s := e2e.OpenShared(p)
			if got := ownFileSystem(p); got == (missing == "sys_admin") {
				t.Errorf("a file system of its own: %v", got)
			}
			neighbour := s.Neighbour()
			killedWithWork(s)
			wait.Sleep(s.Ctx, 3*time.Second+e2e.HitBy)
			if got := s.Alive([]*e2e.Running{neighbour}); got == 1 == (missing == "sys_ptrace") {
				t.Errorf("%d of 1 neighbours live", got)
			}
		})
	}
}
