// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// shares runs what slurm-mps-reports.path starts on a node.
func shares(n e2e.Node) (string, error) {
	line := n.Command("mpsctl", "report", "--share")
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	return string(out), err
}

// loggedIn runs mpsctl as a user on a machine that has only a site.hcl.
func loggedIn(c *cluster, user uint32, args ...string) (string, int) {
	login := c.First()
	login.Root = filepath.Join(c.Top, "login")
	line := login.Command("mpsctl", append([]string{"report"}, args...)...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// The user of a job of two nodes reads its report on a login node, also by the job's name in an array. Another user
// does not. A shared folder that does not answer delays no epilog and drains no node; at most one process of a node
// waits for it, and not for ever.
//
// Contract: U4
func TestReportsOfTwoNodes(t *testing.T) {
	c := newCluster(t, testnode.Default(""), lab.Options{Nodes: 2, UTSNodes: true, PrologFlags: "Alloc"})
	shared, login := filepath.Join(c.Top, "shared"), filepath.Join(c.Top, "login", "etc", "slurm-mps")
	fact := fmt.Sprintf("shared_reports = %q", shared+"/%u")
	must.OK(t, errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o777|os.ModeSticky), os.MkdirAll(login, 0o755),
		os.WriteFile(filepath.Join(login, "site.hcl"), []byte(fact+"\n"), 0o644)))
	for _, n := range c.TestNodes {
		n.Facts(fact, `usage_interval = "1s"`)
	}
	run := func() string {
		t.Helper()
		id := c.Batch("srun -N2 -n2 "+c.Wrap("spin -ms 1 -for 3"), "-N2", "-n2", "--ntasks-per-node=1", "--gres=gpu:1",
			"--array=3")
		job := c.Ended(id)
		for _, n := range c.TestNodes {
			n.Until("the kept report", func() bool {
				_, err := os.Stat(filepath.Join(n.Paths().Reports(), strconv.Itoa(id)+".json"))
				return err == nil
			})
		}
		if job.State != "COMPLETED" {
			t.Errorf("%+v\n%s\n%s", job, c.Output(id), c.Log())
		}
		return strconv.Itoa(id)
	}
	job := run()
	expect := func(user uint32, code int, want string, args ...string) {
		t.Helper()
		out, got := loggedIn(c, user, args...)
		if got != code || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("report %q of uid %d: code %d, want %d and %s\n%s", args, user, got, code, want, out)
		}
	}
	expect(e2e.UID, 1, shared+"/"+e2e.UserName+" has no copy of its report that is your own: it comes at the job's end; open ", job)
	if out, err := shares(c.TestNodes["n1"]); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	expect(e2e.UID, 0, `(?s)on n1:\s+ended.*No report here of n2\.`, job)
	if out, err := shares(c.TestNodes["n2"]); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := `(?s)on 2 nodes:\s+ended.*\n +n1 +1 .*\n +n2 +1 .*\n +all +2 `
	expect(e2e.UID, 0, all, job)
	expect(e2e.UID, 0, all, job+"_3")
	expect(e2e.UID, 0, all, job, "--from", shared+"/"+e2e.UserName)
	expect(e2e.UID, 0, `"array":"`+job+`_3".*"nodes":\[\{"job":`+job+`,"node":"n1".*"missing":\[\]`, job, "--json")
	expect(e2e.UID+1, 1, "this node has no report of it", job)
	expect(e2e.UID+1, 1, "permission denied", job, "--from", shared+"/"+e2e.UserName)
	expect(e2e.UID, 1, "has no copy of its report that is your own", job+"_4")

	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		defer device.Close() // the file system ends with it
		options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device.Fd())
		err = unix.Mount("hung", shared, "fuse", 0, options)
	}
	if err != nil {
		t.Skipf("no file system hangs here: %v", err)
	}
	defer func() { _ = unix.Unmount(shared, unix.MNT_DETACH) }()
	line := c.First().Command("mpsctl", "report", "--share")
	first := exec.Command(line[0], line[1:]...)
	var said strings.Builder
	first.Stdout, first.Stderr = &said, &said
	began := time.Now()
	must.OK(t, first.Start())
	c.First().Until("the first process with the lock", func() bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", first.Process.Pid))
		return slices.ContainsFunc(files, func(file string) bool {
			content, _ := os.ReadFile(file)
			return strings.Contains(string(content), "FLOCK")
		})
	})
	if out, err := shares(c.First()); err == nil || !strings.Contains(out, "as one process of root can at a time") {
		t.Errorf("a second process: %v, %s", err, out)
	}
	run()
	for _, name := range c.Nodes() {
		if state, reason, err := c.NodeState(c.Ctx, name); err != nil || strings.Contains(state, "DRAIN") {
			t.Errorf("%s is %s: %s, %v", name, state, reason, err)
		}
	}
	_ = first.Wait()
	want := "cannot share reports of " + e2e.UserName + ": " + shared + "/%u does not answer within"
	if !strings.Contains(said.String(), want) {
		t.Errorf("no %q after %v: %s", want, time.Since(began), said.String())
	}
	c.Quiet()
}
