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

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// testLimit bounds every test that has a cluster.
const testLimit = 50 * time.Second

// needLab skips a test that needs a cluster where none can run, or fails it where REQUIRE_LAB says that one must.
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

// scene is a cluster with a user and a folder of records.
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

// up starts a cluster, of the Slurm that SLURM_BUNDLE names where it is set, and stops it at the test's end, when
// nothing may be left of it. Its hooks record their environments where the options give them the argument vector
// []string{"record"}.
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

// must runs a command as the user and fails the test unless it ends with 0.
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

// file waits until a file that a job writes is there and holds something, and returns its text.
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

// hook returns the environment that a hook recorded, or nil where it did not run.
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

// A batch job with a step: every hook runs, as whom and with what it should, and WaitJob returns after the epilog.
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

// An allocation without a step: with Alloc its prolog runs, without it only its epilog does.
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

// Three nodes with host names of their own, and MPI launchers that believe them.
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
		t.Logf("not tried over several nodes, since Open MPI 5's runtime refuses the loopback interface: %s", version)
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

// batch runs a command in a job of its own and returns its output; the job must succeed.
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

// Every launcher starts its ranks on one node that is named like the host.
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
		t.Error("an extra line of slurm.conf did not win over the lab's own")
	}
}

// openEach tries to open every fake GPU; the kernel says ENXIO where the control group lets it look for a driver, and
// EPERM where it does not.
const openEach = `for d in 0 1 2 3; do (: <%s/nvidia$d) 2>&1 | sed -e "s/.*No such device.*/$d allowed/" -e "s/.*not permitted.*/$d denied/"; done`

func TestConstrainDevices(t *testing.T) {
	needLab(t)
	if err := checkGroups(); err != nil {
		t.Skip(err) // no package brings version 1 back to a kernel that mounts version 2
	}
	s := up(t, Options{GPUs: 4, ConstrainDevices: true})
	look := fmt.Sprintf(openEach, filepath.Join(s.Dir(), "dev"))
	got := s.must(t, "srun", "--gres=gpu:2", "sh", "-c", look)
	if want := "0 allowed\n1 allowed\n2 denied\n3 denied\n"; got != want {
		t.Errorf("a step with two of four GPUs finds:\n%swant:\n%s", got, want)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(cgroupRoot + "/*/slurm_n1"); len(left) > 0 {
		t.Errorf("control groups are left: %q", left)
	}
}

// A slurmd ends, in order and killed; the job lives on and the new slurmd takes it over.
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
				t.Error("a slurmd that is not running was ended")
			}
			if err := s.StartNode("n1"); err != nil {
				t.Fatal(err)
			}
			if err := s.StartNode("n1"); err == nil {
				t.Error("a slurmd that is running was started")
			}
			if after, err := readStat(pid); err != nil || after.start != before.start {
				t.Errorf("the job's process did not live on: %v", err)
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

// A failing prolog drains the node and holds the job, and Resume brings the node back.
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
	// Slurm keeps a requeued job waiting for two minutes, so another one shows that the node is well.
	if job := s.wait(t, s.submit(t, "--wrap=true")); job.State != "COMPLETED" {
		t.Errorf("the next job is %s, %s", job.State, job.Reason)
	}
}

// Stop ends jobs that ignore SIGTERM, hooks that hang, and what is left of a killed node, and waits for the epilogs.
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
			Prolog: []string{script(t, dir, "prolog", "#!/bin/sh\necho $$ >"+dir+"/pid\nexec sleep 600\n")}})
		s.submit(t, "--wrap=true")
		s.stopAndFind(t, s.procIn(t, filepath.Join(dir, "pid")))
	})
}

// stubborn submits a job that ignores SIGTERM and returns the process of its script.
func (s scene) stubborn(t *testing.T) (id int, p site.Process) {
	t.Helper()
	home, err := s.Home(s.user)
	if err != nil {
		t.Fatal(err)
	}
	id = s.submit(t, "--output=out", "--wrap=trap '' TERM; echo $$ >pid; while :; do sleep 600; done")
	return id, s.procIn(t, filepath.Join(home, "pid"))
}

func (s scene) procIn(t *testing.T, path string) site.Process {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(s.file(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	st, err := readStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	return site.Process{PID: pid, Start: st.start}
}

// stopAndFind stops the cluster and looks for a process that it had, and for anything that names its folder.
func (s scene) stopAndFind(t *testing.T, p site.Process) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if st, err := readStat(p.PID); err == nil && st.start == p.Start && st.state != 'Z' {
		t.Errorf("%s (%s) lives", p, st.name)
	}
	if left := commandLines(t, s.Dir()); len(left) > 0 {
		t.Errorf("processes with %s in their command line live: %q", s.Dir(), left)
	}
}

// commandLines are those that hold a word, whoever's they are: another look than Stop's own.
func commandLines(t *testing.T, word string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		if bytes.Contains(text, []byte(word)) {
			found = append(found, string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// A daemon that a hook leaves behind is not ended, since nobody knows what it is, but Stop's error names it.
func TestStopNamesWhatAHookLeft(t *testing.T) {
	needLab(t)
	dir := newDir(t)
	// The pause lets the child out of the hook's process group before slurmd kills that.
	epilog := script(t, dir, "epilog", "#!/bin/sh\nset -- "+dir+"\n"+
		"/usr/bin/setsid /usr/bin/env -i /bin/sh -c 'cd '$2' && echo $$ >'$1'/pid; exec /bin/sleep 600' >/dev/null 2>&1 </dev/null &\n"+
		"until [ -s $1/pid ]; do /bin/sleep 0.01; done\n")
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
	left := s.procIn(t, filepath.Join(dir, "pid"))
	defer kill(left)
	err = c.Stop()
	if want := fmt.Sprintf("left running: sleep (pid %d)", left.PID); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Stop says %v, want %q", err, want)
	}
	if st, err := readStat(left.PID); err != nil || st.start != left.Start {
		t.Error("Stop ended a process that it does not know")
	}
}

// Clusters of the same shape run side by side.
func TestTwoClusters(t *testing.T) {
	needLab(t)
	a, b := up(t, Options{GPUs: 1, UTSNodes: true}), up(t, Options{GPUs: 1, UTSNodes: true})
	if a.base == b.base {
		t.Fatalf("both have port %d", a.base)
	}
	for _, s := range []scene{a, b} {
		if got := s.must(t, "srun", "--gres=gpu:1", "sh", "-c", "echo $SLURM_JOB_ID $SLURM_CONF"); got != fmt.Sprintf("%d %s\n", firstJob(s.base), confPath(s.Dir())) {
			t.Errorf("the step printed %q", got)
		}
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	b.must(t, "srun", "true")
}

// A cluster that cannot come up says why, and leaves nothing.
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
				t.Fatalf("it started; stopping it: %v", c.Stop())
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if left := commandLines(t, tc.o.Dir); len(left) > 0 {
				t.Errorf("left running: %q", left)
			}
		})
	}
}

// The daemons die with their process: here another run of this test, killed.
func TestDaemonsDieWithTheirParent(t *testing.T) {
	if dir := os.Getenv("LAB_TEST_CHILD"); dir != "" {
		if _, err := Start(context.Background(), Options{Dir: dir, Nodes: 3, UTSNodes: true}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "up"), []byte("up\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		select {} // until the parent kills this process; the test binary's own deadline ends it otherwise
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
			return false, fmt.Errorf("the child ended by itself: %s", said.String())
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
		t.Error("no daemon of the child is to be seen")
	}
	child.Process.Kill()
	<-ended
	var left []string
	err = until(ctx, 10*time.Millisecond, func() (bool, error) {
		left = commandLines(t, dir)
		return len(left) == 0 && noMembers(t, dir), nil
	})
	if err != nil {
		t.Errorf("daemons outlived their parent: %q: %v", left, err)
	}
}

// A shell that works with a cluster ends before it, and what that has started. The cluster and its jobs live on.
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
		t.Error("the shell has ended by itself")
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

// A Slurm from elsewhere; LAB_BUNDLE is the root of an unpacked bundle, or of one that has another release's Slurm
// and this machine's MPIs. Either takes a while to make.
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

// wantInside wants a process to run from the bundle, with no library of Slurm, munge or PMIx from elsewhere.
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
