// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// With control groups of version 2, nothing of a job stays in the group in which its prolog ran. systemd starts slurmd
// again only if slurmd's groups can be removed; Slurm 25.11 has given them controllers. All of the job is in the
// scope of the step daemons, and the epilog leaves that as it was. The prolog runs in slurmd's unit, beside the step
// daemons if slurmd is no unit, or in a job (PrologFlags=RunInJob).
//
// Contract: D5, G1
func TestNothingStaysInSlurmdsGroup(t *testing.T) {
	for name, own := range map[string]string{
		"unit": "slurmd.service/slurmd", "by hand": "n1_slurmstepd.scope/slurmd", "in a job": "n1_slurmstepd.scope/job_7/step_extern/slurm",
	} {
		t.Run(name, func(t *testing.T) {
			top := newGroups(t)
			p := newTestNode(t, "record = \"all\"\n"+testnode.Default(`scope = "gpu"`), node.H200, node.H200)
			withMPS, without := p.Job(7, "0,1"), p.Job(8, "0")
			without.Features = ""
			for _, job := range []testnode.Job{withMPS, without} {
				top.prolog(p, own, job)
			}
			for dir := filepath.Join(top.path, own); filepath.Base(dir) != "n1_slurmstepd.scope" && dir != top.path; dir = filepath.Dir(dir) {
				must.OK(t, os.Remove(dir)) // as systemd does; it fails if a process is in the group
			}
			for job, groups := range map[uint32]int{7: 3, 8: 1} { // of two daemons and a guard; of a recorder
				l := p.Lease(job)
				found := []string{l.GuardGroup}
				for _, d := range l.Daemons {
					found = append(found, d.Group)
				}
				if len(found) != groups {
					t.Errorf("job %d has the groups %q", job, found)
				}
				for _, group := range found {
					if pids, err := cgroup.Members(group); filepath.Dir(group) != top.scope || err != nil || len(pids) == 0 {
						t.Errorf("job %d: group %q has the processes %d: %v", job, group, pids, err)
					}
				}
			}
			p.Must(0, without, "epilog")
			p.Close(withMPS)
			if left, err := filepath.Glob(top.scope + "/*slurm-mps*"); err != nil || len(left) > 0 {
				t.Errorf("groups are left: %q, %v", left, err)
			}
			p.Clean()
		})
	}
}

// groups is a tree of control groups of version 2 as systemd and Slurm make them on a node.
type groups struct {
	t           *testing.T
	path, scope string
}

func newGroups(t *testing.T) groups {
	t.Helper()
	mount, err := cgroup.Mount()
	if err == nil {
		_, err = os.Stat(filepath.Join(mount, "cgroup.controllers"))
	}
	if err != nil {
		t.Skipf("no control groups of version 2: %v", err)
	}
	path, err := os.MkdirTemp(mount, "slurm-mps-test-")
	must.OK(t, err)
	g := groups{t, path, filepath.Join(path, "n1_slurmstepd.scope")}
	must.OK(t, os.MkdirAll(filepath.Join(g.scope, "system"), 0o755))
	t.Cleanup(func() { must.OK(t, removeGroups(path)) })
	return g
}

// removeGroups removes a group and all groups below it.
func removeGroups(path string) error {
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		if err == nil && e.IsDir() {
			err = removeGroups(filepath.Join(path, e.Name()))
		}
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// prolog runs a job's prolog in a group of the tree, which it makes.
func (g groups) prolog(p testNode, group string, job testnode.Job) {
	g.t.Helper()
	folder := filepath.Join(g.path, group)
	must.OK(g.t, os.MkdirAll(folder, 0o755))
	inside := []string{"-c", `echo 0 >"$0" && exec "$@"`, filepath.Join(folder, "cgroup.procs")}
	cmd := exec.Command("/bin/sh", append(inside, p.Command("prolog")...)...)
	cmd.Env = job.Environment("prolog_slurmd")
	if out, err := cmd.CombinedOutput(); err != nil {
		g.t.Fatalf("prolog of job %d: %v: %s\n%s", job.ID, err, out, p.Log())
	}
}
