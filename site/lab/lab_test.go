// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// testLimit bounds every test that has a cluster.
const testLimit = 50 * time.Second

// needLab skips a test if no cluster can run here. If REQUIRE_LAB is set, needLab fails the test instead.
func needLab(t *testing.T) {
	t.Helper()
	needed(t, Unfit())
	t.Parallel()
}

func needed(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("REQUIRE_LAB") != "" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// scene is a cluster with a user and a folder for records.
type scene struct {
	*Cluster
	ctx     context.Context
	user    User
	records string
}

func newDir(t *testing.T) string {
	t.Helper()
	// Not t.TempDir: its parents are 0700, and the jobs' user must pass them.
	dir, err := os.MkdirTemp("/tmp", "lab-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// up starts a cluster, and stops it at the test's end. If SLURM_BUNDLE is set, it names the Slurm to use. After the
// stop, nothing of the cluster may be left. A hook with the argument vector []string{"record"} records its
// environment.
func up(t *testing.T, o Options) scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	user, err := EnsureUser("hpc1", 2001)
	if err != nil {
		t.Fatal(err)
	}
	o.Dir = newDir(t)
	if o.Bundle == "" {
		o.Bundle = os.Getenv("SLURM_BUNDLE")
	}
	records := filepath.Join(o.Dir, "records")
	if err := makeDir(records, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	o.Prolog, o.Epilog, o.TaskProlog = recorder(t, o.Prolog, records, "prolog"), recorder(t, o.Epilog, records, "epilog"),
		recorder(t, o.TaskProlog, records, "task")
	begun := time.Now()
	c, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up in %s", time.Since(begun).Round(time.Millisecond))
	t.Cleanup(func() {
		begun := time.Now()
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		t.Logf("down in %s", time.Since(begun).Round(time.Millisecond))
	})
	return scene{c, ctx, user, records}
}

var record = []string{"record"}

func recorder(t *testing.T, argv []string, records, kind string) []string {
	t.Helper()
	if !slices.Equal(argv, record) {
		return argv
	}
	return []string{script(t, records, "record.sh", readFile(t, "testdata/record.sh")), records, kind}
}

// script writes an executable file that every user may run.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := node.WriteProgram(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// must runs a command as the user and fails the test if the exit code is not 0.
func (s scene) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	r, err := s.Run(s.ctx, s.user, name, args...)
	if err != nil || r.Exit != 0 {
		t.Fatalf("%s %s: exit code %d, %v\n%s%s", name, strings.Join(args, " "), r.Exit, err, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

func (s scene) submit(t *testing.T, args ...string) int {
	t.Helper()
	id, err := s.Submit(s.ctx, s.user, args...)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (s scene) wait(t *testing.T, id int) Job {
	t.Helper()
	j, err := s.WaitJob(s.ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// file waits until a job has written a complete line to a file, and returns the file's text.
func (s scene) file(t *testing.T, path string) string {
	t.Helper()
	var text []byte
	err := until(s.ctx, 10*time.Millisecond, func() (bool, error) {
		var err error
		text, err = os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return bytes.HasSuffix(text, []byte("\n")), err
	})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(text)
}

// hook returns the environment that a hook recorded, or nil if the hook did not run.
func (s scene) hook(t *testing.T, kind string, job int, node string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.records, fmt.Sprintf("%s.%d.%s", kind, job, node)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, line := range strings.Split(string(text), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	return env
}

func wantVariables(t *testing.T, what string, env, want map[string]string) {
	t.Helper()
	if env == nil {
		t.Fatalf("no %s ran", what)
	}
	for name, value := range want {
		if env[name] != value {
			t.Errorf("the %s has %s=%q, want %q", what, name, env[name], value)
		}
	}
}

// TestBatchJob runs a batch job with a step. Every hook must run as the right user with the right environment, and
// WaitJob must return after the epilog.
func TestBatchJob(t *testing.T) {
	needLab(t)
	s := up(t, Options{GPUs: 4, Features: "mps", PrologFlags: "Alloc", Prolog: record, Epilog: record, TaskProlog: record})
	job := s.wait(t, s.submit(t, "--gres=gpu:2", "--constraint=mps", "--ntasks=2", "--output=out", "--wrap=srun --label id -un"))
	if job.State != "COMPLETED" || job.Exit != 0 {
		t.Errorf("the job is %s with exit code %d", job.State, job.Exit)
	}
	home, err := s.Home(s.user)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(readFile(t, filepath.Join(home, "out")))
	slices.Sort(lines)
	if got := strings.Join(lines, " "); got != "0: 1: hpc1 hpc1" {
		t.Errorf("the step printed %q", got)
	}
	common := map[string]string{"SLURM_JOB_UID": "2001", "SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1",
		"SLURM_JOB_CONSTRAINTS": "mps", "SLURM_CONF": confPath(s.Dir()), "HOME": "", "PATH": ""}
	wantVariables(t, "prolog", s.hook(t, "prolog", job.ID, "n1"), common)
	wantVariables(t, "epilog", s.hook(t, "epilog", job.ID, "n1"), common)
	wantVariables(t, "task prolog", s.hook(t, "task", job.ID, "n1"), map[string]string{"USER": "hpc1", "SLURM_JOB_UID": "2001"})
}

// batch runs a command in its own job and returns the output. The job must succeed.
func (s scene) batch(t *testing.T, args []string, command string) string {
	t.Helper()
	id := s.submit(t, append(args, "--output=%j.out", "--wrap="+command)...)
	job := s.wait(t, id)
	home, err := s.Home(s.user)
	if err != nil {
		t.Fatal(err)
	}
	out := readFile(t, filepath.Join(home, fmt.Sprintf("%d.out", id)))
	if job.State != "COMPLETED" {
		t.Fatalf("%s: the job is %s, exit code %d: %s", command, job.State, job.Exit, out)
	}
	return out
}

// openEach tries to open every fake GPU. The kernel answers ENXIO if the control group allows access, because there
// is no driver. It answers EPERM if the control group denies access.
const openEach = `for d in 0 1 2 3; do (: <%s/nvidia$d) 2>&1 | sed -e "s/.*No such device.*/$d allowed/" -e "s/.*not permitted.*/$d denied/"; done`

// TestNodeEndsAndReturns ends a slurmd with SIGTERM and with SIGKILL. The job must continue, and the new slurmd must
// take it over.
func TestNodeEndsAndReturns(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*Cluster, string) error
	}{{"stopped", (*Cluster).StopNode}, {"killed", (*Cluster).KillNode}} {
		t.Run(tc.name, func(t *testing.T) {
			needLab(t)
			s := up(t, Options{PrologFlags: "Alloc", Prolog: record, Epilog: record})
			home, err := s.Home(s.user)
			if err != nil {
				t.Fatal(err)
			}
			id := s.submit(t, "--output=out", "--wrap=echo $$ >pid; until [ -e go ]; do sleep 0.05; done; echo done")
			pid, err := strconv.Atoi(strings.TrimSpace(s.file(t, filepath.Join(home, "pid"))))
			if err != nil {
				t.Fatal(err)
			}
			before, err := readStat(pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.end(s.Cluster, "n1"); err != nil {
				t.Fatal(err)
			}
			if err := tc.end(s.Cluster, "n1"); err == nil {
				t.Error("ending a slurmd that is not running gave no error")
			}
			if err := s.StartNode("n1"); err != nil {
				t.Fatal(err)
			}
			if err := s.StartNode("n1"); err == nil {
				t.Error("starting a slurmd that is running gave no error")
			}
			if after, err := readStat(pid); err != nil || after.start != before.start {
				t.Errorf("the job's process did not survive: %v", err)
			}
			if err := os.WriteFile(filepath.Join(home, "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if job := s.wait(t, id); job.State != "COMPLETED" {
				t.Errorf("the job is %s", job.State)
			}
			wantVariables(t, "epilog", s.hook(t, "epilog", id, "n1"), map[string]string{"SLURM_JOB_UID": "2001"})
		})
	}
}

// TestStopLeavesNothing checks that Stop ends jobs that ignore SIGTERM, hooks that hang, and the processes of a
// killed node. Stop must also wait for the epilogs.
func TestStopLeavesNothing(t *testing.T) {
	t.Run("a job that ignores SIGTERM", func(t *testing.T) {
		needLab(t)
		s := up(t, Options{PrologFlags: "Alloc", Epilog: record, Extra: []string{"KillWait=1"}})
		id, job := s.stubborn(t)
		s.stopAndFind(t, job)
		wantVariables(t, "epilog", s.hook(t, "epilog", id, "n1"), map[string]string{"SLURM_JOB_UID": "2001"})
	})
	t.Run("a job whose slurmd was killed", func(t *testing.T) {
		needLab(t)
		s := up(t, Options{})
		_, job := s.stubborn(t)
		if err := s.KillNode("n1"); err != nil {
			t.Fatal(err)
		}
		s.stopAndFind(t, job)
	})
	t.Run("a prolog that hangs", func(t *testing.T) {
		needLab(t)
		dir := newDir(t)
		s := up(t, Options{PrologFlags: "Alloc", Extra: []string{"PrologEpilogTimeout=1"},
			Prolog: []string{script(t, dir, "prolog", "#!/bin/sh\ncat /proc/$$/stat >"+dir+"/stat\nexec sleep 600\n")}})
		s.submit(t, "--wrap=true")
		s.stopAndFind(t, s.procIn(t, filepath.Join(dir, "stat")))
	})
}

// stubborn submits a job that ignores SIGTERM. It returns the process of the job's script.
func (s scene) stubborn(t *testing.T) (id int, p proc.Process) {
	t.Helper()
	home, err := s.Home(s.user)
	if err != nil {
		t.Fatal(err)
	}
	id = s.submit(t, "--output=out", "--wrap=trap '' TERM; cat /proc/$$/stat >stat; while :; do sleep 600; done")
	return id, s.procIn(t, filepath.Join(home, "stat"))
}

// procIn returns the process that has written its stat to a file. It may have ended since, as a hook does that slurmd
// has killed.
func (s scene) procIn(t *testing.T, path string) proc.Process {
	t.Helper()
	text := s.file(t, path)
	st, err := parseStat(text)
	var pid int
	if _, bad := fmt.Sscan(text, &pid); err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	return proc.Process{PID: pid, Start: st.start}
}

// stopAndFind stops the cluster. It fails the test if p still runs, or if any process names the cluster's folder.
func (s scene) stopAndFind(t *testing.T, p proc.Process) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if st, err := readStat(p.PID); err == nil && st.start == p.Start && st.state != 'Z' && !dying(p.PID) {
		t.Errorf("%s (%s) still runs", p, st.name)
	}
	if left := commandLines(t, s.Dir()); len(left) > 0 {
		t.Errorf("processes with %s in their command line still run: %q", s.Dir(), left)
	}
}

// dying reports whether a process runs no more code: the kernel is ending it, or SIGKILL waits for it. Such a process has
// its command line until it gets a processor.
func dying(pid int) bool {
	const exiting, kill = 4, 1 << (9 - 1) // PF_EXITING of include/linux/sched.h, and the bit of SIGKILL
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])); len(f) > 6 {
		if flags, err := strconv.ParseUint(f[6], 10, 64); err == nil && flags&exiting != 0 {
			return true
		}
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for _, name := range []string{"\nSigPnd:", "\nShdPnd:"} {
		_, rest, _ := strings.Cut(string(status), name)
		line, _, _ := strings.Cut(rest, "\n")
		if pending, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64); err == nil && pending&kill != 0 {
			return true
		}
	}
	return false
}

// commandLines returns the command lines of all users that contain a word, without those of dying processes. Stop
// itself searches in another way.
func commandLines(t *testing.T, word string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if bytes.Contains(text, []byte(word)) && !dying(pid) {
			found = append(found, string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// TestDaemonsDieWithTheirParent starts a cluster in a child process, which is another run of this test, and kills the
// child.
func TestDaemonsDieWithTheirParent(t *testing.T) {
	if dir := os.Getenv("LAB_TEST_CHILD"); dir != "" {
		if _, err := Start(context.Background(), Options{Dir: dir, Nodes: 3, UTSNodes: true}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "up"), []byte("up\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		select {} // the parent kills this process; otherwise the test binary's deadline ends it
	}
	needLab(t)
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	dir := newDir(t)
	child := exec.Command(os.Args[0], "-test.run=^TestDaemonsDieWithTheirParent$", "-test.timeout=60s")
	child.Env = append(os.Environ(), "LAB_TEST_CHILD="+dir)
	var said bytes.Buffer
	child.Stdout = &said
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	err := until(ctx, 10*time.Millisecond, func() (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("the child ended too early: %s", said.String())
		default:
		}
		_, err := os.Stat(filepath.Join(dir, "up"))
		return err == nil, nil
	})
	if err != nil {
		child.Process.Kill()
		t.Fatal(err)
	}
	if n := len(commandLines(t, dir)); n == 0 {
		t.Error("found no daemon of the child")
	}
	child.Process.Kill()
	<-ended
	var left []string
	err = until(ctx, 10*time.Millisecond, func() (bool, error) {
		left = commandLines(t, dir)
		return len(left) == 0 && noMembers(t, dir), nil
	})
	if err != nil {
		t.Errorf("daemons run after their parent died: %q: %v", left, err)
	}
}

func noMembers(t *testing.T, dir string) bool {
	t.Helper()
	found, err := members(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	return len(found) == 0
}
