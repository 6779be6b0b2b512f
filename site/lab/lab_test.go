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

func TestDirectStep(t *testing.T) {
	needLab(t)
	s := up(t, Options{GPUs: 2, Prolog: record, TaskProlog: record})
	if got := s.must(t, "srun", "--gres=gpu:1", "sh", "-c", "id -u; echo $CUDA_VISIBLE_DEVICES"); got != "2001\n0\n" {
		t.Errorf("the step printed %q", got)
	}
	wantVariables(t, "prolog", s.hook(t, "prolog", firstJob(s.base), "n1"), map[string]string{"SLURM_JOB_GPUS": "0"})
	wantVariables(t, "task prolog", s.hook(t, "task", firstJob(s.base), "n1"), map[string]string{"SLURM_PROCID": "0"})
	r, err := s.Run(s.ctx, s.user, "srun", "sh", "-c", "exit 7")
	if err != nil || r.Exit != 7 {
		t.Errorf("srun of a program that exits 7: %d, %v", r.Exit, err)
	}
}

// TestPrologFlags makes an allocation without a step. With Alloc the prolog and the epilog run. Without Alloc only
// the epilog runs.
func TestPrologFlags(t *testing.T) {
	for _, tc := range []struct {
		flags  string
		prolog bool
	}{{"Alloc", true}, {"", false}} {
		t.Run("flags="+tc.flags, func(t *testing.T) {
			needLab(t)
			s := up(t, Options{GPUs: 1, PrologFlags: tc.flags, Prolog: record, Epilog: record})
			s.must(t, "salloc", "--gres=gpu:1", "true")
			s.wait(t, firstJob(s.base))
			if got := s.hook(t, "prolog", firstJob(s.base), "n1") != nil; got != tc.prolog {
				t.Errorf("a prolog ran: %t, want %t", got, tc.prolog)
			}
			wantVariables(t, "epilog", s.hook(t, "epilog", firstJob(s.base), "n1"), map[string]string{"SLURM_JOB_ID": fmt.Sprint(firstJob(s.base))})
		})
	}
}

// TestNodesWithNames starts three nodes that each have a host name. The MPI launchers rely on these names.
func TestNodesWithNames(t *testing.T) {
	needLab(t)
	s := up(t, Options{Nodes: 3, UTSNodes: true})
	lines := strings.Fields(s.must(t, "srun", "--nodes=3", "--label", "hostname"))
	if want := []string{"0:", "n1", "1:", "n2", "2:", "n3"}; !sameWords(lines, want) {
		t.Errorf("srun hostname printed %q, want the words of %q", lines, want)
	}
	out := s.batch(t, []string{"--nodes=3", "--ntasks=3"}, "mpiexec.hydra -n 3 -ppn 1 hostname")
	if got := strings.Fields(out); !sameWords(got, []string{"n1", "n2", "n3"}) {
		t.Errorf("mpiexec.hydra hostname printed %q", got)
	}
	if version := s.must(t, "mpirun.openmpi", "--version"); !strings.Contains(version, "Open MPI) 4.") {
		t.Logf("not tested with several nodes, because Open MPI 5's runtime refuses the loopback interface: %s", version)
		return
	}
	out = s.batch(t, []string{"--nodes=3", "--ntasks=3"}, "mpirun.openmpi -n 3 hostname")
	if got := strings.Fields(out); !sameWords(got, []string{"n1", "n2", "n3"}) {
		t.Errorf("mpirun.openmpi hostname printed %q", got)
	}
}

func sameWords(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
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

// TestLaunchers checks that every launcher starts its ranks on one node that has the host's name.
func TestLaunchers(t *testing.T) {
	needLab(t)
	s := up(t, Options{SameName: true, Extra: []string{"KillWait=1"}})
	for _, tc := range []struct{ command, want string }{
		{"mpirun.openmpi -n 2 printenv OMPI_COMM_WORLD_LOCAL_RANK", "0 1"},
		{"mpiexec.hydra -n 2 printenv MPI_LOCALRANKID", "0 1"},
		{"srun --mpi=pmix printenv PMIX_RANK", "0 1"},
		{"srun --mpi=pmi2 printenv SLURM_LOCALID", "0 1"},
	} {
		if strings.Contains(tc.command, "--mpi=pmix") && !HasPMIx(os.Getenv("SLURM_BUNDLE")) {
			continue
		}
		got := strings.Fields(s.batch(t, []string{"--ntasks=2"}, tc.command))
		slices.Sort(got)
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s printed %q, want %s", tc.command, got, tc.want)
		}
	}
	if conf := s.must(t, "scontrol", "show", "config"); !strings.Contains(conf, "KillWait                = 1 sec") {
		t.Error("an extra line of slurm.conf did not replace the lab's line")
	}
}

// openEach tries to open every fake GPU. The kernel answers ENXIO if the control group allows access, because there
// is no driver. It answers EPERM if the control group denies access.
const openEach = `for d in 0 1 2 3; do (: <%s/nvidia$d) 2>&1 | sed -e "s/.*No such device.*/$d allowed/" -e "s/.*not permitted.*/$d denied/"; done`

func TestConstrainDevices(t *testing.T) {
	needLab(t)
	if err := checkGroups(); err != nil {
		t.Skip(err) // no package changes a kernel from cgroup version 2 to version 1
	}
	s := up(t, Options{GPUs: 4, ConstrainDevices: true})
	look := fmt.Sprintf(openEach, filepath.Join(s.Dir(), "dev"))
	got := s.must(t, "srun", "--gres=gpu:2", "sh", "-c", look)
	if want := "0 allowed\n1 allowed\n2 denied\n3 denied\n"; got != want {
		t.Errorf("a step with two of four GPUs prints:\n%swant:\n%s", got, want)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(cgroupRoot + "/*/slurm_n1"); len(left) > 0 {
		t.Errorf("control groups are left: %q", left)
	}
}

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

// TestFailingProlog checks that a failing prolog drains the node and holds the job, and that Resume makes the node
// available again.
func TestFailingProlog(t *testing.T) {
	needLab(t)
	dir := newDir(t)
	switchFile := filepath.Join(dir, "well")
	prolog := script(t, dir, "prolog", "#!/bin/sh\n[ -e "+switchFile+" ]\n")
	s := up(t, Options{PrologFlags: "Alloc", Prolog: []string{prolog}})
	id := s.submit(t, "--wrap=true")
	if job := s.wait(t, id); !job.Held() {
		t.Errorf("the job is %s, %s; want it held", job.State, job.Reason)
	}
	state, reason, err := s.WaitNode(s.ctx, "n1", func(state string) bool { return state == "IDLE+DRAIN" })
	if err != nil || reason != "Prolog error" {
		t.Fatalf("the node is %s, %q, %v", state, reason, err)
	}
	if err := os.WriteFile(switchFile, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(s.ctx, "n1"); err != nil {
		t.Fatal(err)
	}
	// Slurm delays a requeued job for two minutes, so another job shows that the node works.
	if job := s.wait(t, s.submit(t, "--wrap=true")); job.State != "COMPLETED" {
		t.Errorf("the next job is %s, %s", job.State, job.Reason)
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

// TestStopNamesWhatAHookLeft checks a daemon that a hook leaves behind. Stop does not end it, because it may belong
// to someone else, but Stop's error names it.
func TestStopNamesWhatAHookLeft(t *testing.T) {
	needLab(t)
	dir := newDir(t)
	// The hook waits until the child has left the hook's process group, because slurmd then kills the group.
	epilog := script(t, dir, "epilog", "#!/bin/sh\nset -- "+dir+"\n"+
		"/usr/bin/setsid /usr/bin/env -i /bin/sh -c 'cd '$2' && /bin/cat /proc/$$/stat >'$1'/stat; exec /bin/sleep 600' >/dev/null 2>&1 </dev/null &\n"+
		"until [ -s $1/stat ]; do /bin/sleep 0.01; done\n")
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	user, err := EnsureUser("hpc1", 2001)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(ctx, Options{Dir: newDir(t), Epilog: []string{epilog}})
	if err != nil {
		t.Fatal(err)
	}
	s := scene{Cluster: c, ctx: ctx, user: user}
	s.must(t, "srun", "true")
	left := s.procIn(t, filepath.Join(dir, "stat"))
	defer kill(left)
	err = c.Stop()
	if want := fmt.Sprintf("left running: sleep (pid %d)", left.PID); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Stop returned %v, want %q", err, want)
	}
	if st, err := readStat(left.PID); err != nil || st.start != left.Start {
		t.Error("Stop ended a process that is not the cluster's")
	}
}

// TestTwoClusters runs two clusters with the same options at the same time.
func TestTwoClusters(t *testing.T) {
	needLab(t)
	a, b := up(t, Options{GPUs: 1, UTSNodes: true}), up(t, Options{GPUs: 1, UTSNodes: true})
	if a.base == b.base {
		t.Fatalf("both clusters have port %d", a.base)
	}
	for _, s := range []scene{a, b} {
		if got := s.must(t, "srun", "--gres=gpu:1", "sh", "-c",
			"echo $SLURM_JOB_ID $SLURM_CONF"); got != fmt.Sprintf("%d %s\n", firstJob(s.base), confPath(s.Dir())) {
			t.Errorf("the step printed %q", got)
		}
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	b.must(t, "srun", "true")
}

// TestStartSaysWhy checks that the error of a failed Start names the cause, and that no process is left.
func TestStartSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Options
		want []string
	}{
		{"unknown line", Options{Extra: []string{"NoSuchThing=1"}}, []string{"cannot start slurmctld: it ended with exit status 1", "Parsing error", "NoSuchThing"}},
		{"fewer GPUs than promised", Options{GPUs: 1, Gres: "gpu:2"}, []string{"node n1 is", "gres/gpu count reported lower than configured (1 < 2)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			needLab(t)
			ctx, cancel := context.WithTimeout(context.Background(), testLimit)
			defer cancel()
			tc.o.Dir = newDir(t)
			c, err := Start(ctx, tc.o)
			if err == nil {
				t.Fatalf("Start returned no error; Stop returned %v", c.Stop())
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if left := commandLines(t, tc.o.Dir); len(left) > 0 {
				t.Errorf("processes still run: %q", left)
			}
		})
	}
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

// TestClientsEnd checks that EndClients ends a user's shell and the processes that the shell started. The cluster and
// its jobs must continue to run.
func TestClientsEnd(t *testing.T) {
	needLab(t)
	s := up(t, Options{})
	id := s.submit(t, "--wrap", "sleep 100")
	if _, err := s.WaitJobUntil(s.ctx, id, func(j Job) bool { return j.State == "RUNNING" }); err != nil {
		t.Fatal(err)
	}
	shell, err := s.Command(s.ctx, s.user, "bash", "-c", "trap '' HUP; sleep 1000 & wait")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(shell.Start(), s.EndClients()); err != nil {
		t.Fatal(err)
	}
	if err := shell.Wait(); err == nil {
		t.Error("the shell ended without a signal")
	}
	if j, err := s.Job(s.ctx, id); err != nil || j.State != "RUNNING" {
		t.Errorf("the job is %+v, %v", j, err)
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

// TestBundle runs a Slurm from a bundle. LAB_BUNDLE is the root of an unpacked bundle, or of a bundle with another
// release's Slurm and this machine's MPIs. Both take some time to make.
func TestBundle(t *testing.T) {
	root := os.Getenv("LAB_BUNDLE")
	if root == "" {
		t.Skip("LAB_BUNDLE does not name an unpacked bundle (site/lab/bundle.sh makes one)")
	}
	t.Parallel()
	s := up(t, Options{Bundle: root, SameName: true, GPUs: 2, PrologFlags: "Alloc", Prolog: record, Epilog: record})
	for _, command := range []string{"srun --mpi=pmix printenv PMIX_RANK", "mpirun.openmpi -n 2 printenv OMPI_COMM_WORLD_LOCAL_RANK",
		"mpiexec.hydra -n 2 printenv MPI_LOCALRANKID"} {
		if got := strings.Fields(s.batch(t, []string{"--ntasks=2", "--gres=gpu:1"}, command)); !sameWords(got, []string{"0", "1"}) {
			t.Errorf("%s printed %q", command, got)
		}
	}
	wantVariables(t, "prolog", s.hook(t, "prolog", firstJob(s.base), s.Nodes()[0]), map[string]string{"SLURM_JOB_GPUS": "0"})
	wantInside(t, root, "slurmd", s.node(s.Nodes()[0]).cmd.Process.Pid)
	wantInside(t, root, "munged", s.munged.cmd.Process.Pid)
}

// wantInside checks that a process runs from the bundle, and that its libraries of Slurm, munge and PMIx are the
// bundle's.
func wantInside(t *testing.T, root, name string, pid int) {
	t.Helper()
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || exe != filepath.Join(root, "sbin", name) {
		t.Errorf("%s runs from %s, %v", name, exe, err)
	}
	for _, line := range strings.Split(readFile(t, fmt.Sprintf("/proc/%d/maps", pid)), "\n") {
		for _, lib := range []string{"slurm", "munge", "pmix"} {
			if f := strings.Fields(line); len(f) > 5 && strings.Contains(filepath.Base(f[5]), lib) && !strings.HasPrefix(f[5], root) {
				t.Errorf("%s uses %s", name, f[5])
			}
		}
	}
}
