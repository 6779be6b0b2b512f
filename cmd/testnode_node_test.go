// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// This file has what the tests of all subjects share: a node, the programs that run on it, and what is left of them.
//
//	p := newTestNode(t, "", node.H200)             // a simulated node with one GPU and the default policy
//	p.must(0, p.job(7, "0"), "prolog")         // job 7 gets GPU 0: the prolog's exit code is 0
//	p.client(7, "spin", "-ms", "1")            // a CUDA client, as the job's user
//	p.ticket(7), p.lease(7), p.log(), p.modes() // what is there now
//	p.must(0, p.job(7, "0"), "epilog")
//	p.clean()                                  // nothing is left of any job
//
// A test under a real Slurm begins with newCluster (testnode_cluster_test.go), which has such a node for each node of
// Slurm.

// The user of the jobs in these tests. The name and the number need not exist on the machine.
const uid, gid = 2001, 2001

// testNode is the node of one test: the production binaries on a simulated node of its own.
type testNode struct {
	testnode.Node
	t    *testing.T
	ctx  context.Context
	conf string // path of slurm.conf
}

// built is the folder of the binaries, built once for all tests.
var built = sync.OnceValues(func() (string, error) {
	shared, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	return testnode.Build(shared)
})

// newTestNode returns a simulated node with these GPUs under a policy; "" is the default policy. The test runs beside
// others.
func newTestNode(t *testing.T, policy string, models ...node.Model) testNode {
	t.Helper()
	t.Parallel() // each test has its own node, and waits most of the time
	printRerun(t)
	return testNodeIn(t, publicDir(t), policy, models...)
}

// testNodeIn is newTestNode in a folder, for a test that may run alone.
func testNodeIn(t *testing.T, dir, policy string, models ...node.Model) testNode {
	t.Helper()
	needRoot(t)
	beside(t)
	built, err := built()
	if err != nil {
		t.Fatal(err)
	}
	s, err := testnode.New(dir, built, policy, models...)
	if err != nil {
		t.Fatal(err)
	}
	return installed(t, s, dir, len(models), 2*time.Minute)
}

// installed makes a node in dir ready for a test: with a time limit, and files of Slurm that name its GPUs.
func installed(t *testing.T, s testnode.Node, dir string, gpus int, limit time.Duration) testNode {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	p := testNode{s, t, ctx, filepath.Join(dir, "slurm", "slurm.conf")}
	p.write(p.conf, fmt.Sprintf("NodeName=n1 Gres=gpu:%d\n", gpus))
	p.write(p.gres(), fmt.Sprintf("Name=gpu File=/dev/nvidia[0-%d]\n", gpus-1))
	t.Cleanup(p.killLeft)
	return p
}

// needRoot skips a test that is not run as root. If REQUIRE_LAB says that all tests must run, the test fails.
func needRoot(t *testing.T) {
	t.Helper()
	skipOutsideSweep(t)
	const why = "prologs are root's, and nodes have mounts and users of their own: run as root"
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("REQUIRE_LAB") != "":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// publicDir is a short folder that every user can traverse. It is short because a socket's path has at most 107
// bytes.
func publicDir(t *testing.T) string { return publicDirIn(t, "/tmp") }

// publicDirIn is publicDir below another folder than /tmp.
func publicDirIn(t *testing.T, parent string) string {
	dir, err := os.MkdirTemp(parent, "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(dir); os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// unmount removes the file systems of jobs that a failed test has left below a folder.
func unmount(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}

// gres is the path of gres.conf.
func (p testNode) gres() string { return filepath.Join(filepath.Dir(p.conf), "gres.conf") }

// write writes a file, and makes its folder.
func (p testNode) write(path, content string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// rewrite changes a record in place. The record still belongs to root, with its mode.
func (p testNode) rewrite(path, content string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// read returns the content of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// facts adds lines to the site's file.
func (p testNode) facts(lines ...string) {
	p.t.Helper()
	path := p.Paths().ConfigFile()
	p.write(path, read(p.t, path)+strings.Join(lines, "\n")+"\n")
}

// fault sets a fault of the simulated node.
func (p testNode) fault(knob, value string) {
	p.t.Helper()
	if err := p.Sim.Node.Set("faults/"+knob, value); err != nil {
		p.t.Fatal(err)
	}
}

// fail makes an NVML function return a code a number of times; 0 means always.
func (p testNode) fail(function string, code, times int) {
	p.t.Helper()
	if err := p.Sim.Node.GPU(0).Fail(function, code, times); err != nil {
		p.t.Fatal(err)
	}
}

// job is a job that asks for MPS on these GPUs, such as "0,1".
func (p testNode) job(id uint32, gpus string) testnode.Job {
	return testnode.Job{ID: id, UID: uid, GID: gid, GPUs: gpus, Features: "mps", Conf: p.conf}
}

// must runs a binary and checks its exit code.
func (p testNode) must(code int, job testnode.Job, program string) string {
	p.t.Helper()
	result, err := p.Run(p.ctx, job.Environment(program+"_slurmd"), program)
	if err != nil {
		p.t.Fatal(err)
	}
	if result.Code != code {
		p.t.Fatalf("%s of job %d: code %d, want %d: %s\n%s", program, job.ID, result.Code, code, result.Output, p.log())
	}
	return result.Output
}

// ctl runs mpsctl as root. It runs it again if mpsctl could not read a daemon that just starts or ends, because other
// tests have daemons on this machine.
func (p testNode) ctl(args ...string) (result testnode.Result) {
	p.t.Helper()
	for range 5 {
		var err error
		if result, err = p.Run(p.ctx, nil, "mpsctl", args...); err != nil {
			p.t.Fatal(err)
		}
		if !strings.Contains(result.Output, "the pipe folders of ") {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	return result
}

// client is a CUDA client of the job, which its user starts through the wrapper. Only this test waits for the client.
// So the client is like a process that has escaped and outlived its job.
func (p testNode) client(job uint32, args ...string) *exec.Cmd {
	p.t.Helper()
	cmd := p.asUser(job, p.Command("mpirun-wrap", append([]string{p.cudaClient()}, args...)...))
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if strings.HasPrefix(line, "mpirun-wrap: another process") { // the other process has the whole GPU too
		line, err = lines.ReadString('\n')
	}
	if err != nil || !strings.Contains(line, "ready") {
		p.t.Fatalf("the client prints %q, %v\n%s", line, err, p.log())
	}
	return cmd
}

// asUser is a command of the job's user, in the only rank of a step.
func (p testNode) asUser(job uint32, line []string) *exec.Cmd {
	libraries := os.Getenv("LD_LIBRARY_PATH")
	if p.Sim != nil {
		libraries = p.Sim.Libraries()
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + libraries, fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_STEP_ID=0",
		"SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{gid}}}
	return cmd
}

// cudaClient is one program for the simulation and for a real GPU.
func (p testNode) cudaClient() string {
	return filepath.Join(filepath.Dir(p.Bin), "sim", "bin", "cuda-client")
}

// lease reads the lease of a job.
func (p testNode) lease(job uint32) lease.Lease {
	p.t.Helper()
	boot, err := site.BootID()
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := lease.OpenReadOnly(p.Paths().Run(), boot).Read(job)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.log())
	}
	return l
}

// ticket reads the ticket of a job.
func (p testNode) ticket(job uint32) lease.Ticket {
	p.t.Helper()
	boot, err := site.BootID()
	if err != nil {
		p.t.Fatal(err)
	}
	t, err := lease.OpenReadOnly(p.Paths().Run(), boot).ReadTicket(job)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.log())
	}
	return t
}

// serverLog is the log of the server of a job's first daemon.
func (p testNode) serverLog(job uint32) string {
	content, _ := os.ReadFile(filepath.Join(p.ticket(job).Daemons[0].LogDir, "server.log"))
	return string(content)
}

// uuid returns the UUID of a simulated GPU.
func (p testNode) uuid(gpu int) site.UUID {
	p.t.Helper()
	uuid, err := p.Sim.Node.GPU(gpu).Text("uuid")
	if err != nil {
		p.t.Fatal(err)
	}
	return site.UUID(uuid)
}

// modes returns the compute modes of the simulated GPUs, a digit for each.
func (p testNode) modes() string {
	p.t.Helper()
	gpus, err := p.Sim.Node.GPUs()
	if err != nil {
		p.t.Fatal(err)
	}
	var modes []string
	for _, gpu := range gpus {
		mode, err := gpu.Mode()
		if err != nil {
			p.t.Fatal(err)
		}
		modes = append(modes, fmt.Sprint(mode))
	}
	return strings.Join(modes, "")
}

// log returns the log of the programs.
func (p testNode) log() string {
	content, _ := os.ReadFile(p.Paths().Log())
	return string(content)
}

// left returns files, processes and modes that are left of any job.
func (p testNode) left() []string {
	p.t.Helper()
	left, err := p.Left()
	if err != nil {
		p.t.Fatal(err)
	}
	return left
}

// clean checks that nothing is left of any job.
func (p testNode) clean() {
	p.t.Helper()
	if left := p.left(); len(left) > 0 {
		p.t.Errorf("left behind: %q\n%s", left, p.log())
	}
}

// booted removes all state and the log, so that the next job is the first job after a boot.
func (p testNode) booted() {
	p.t.Helper()
	for _, path := range []string{filepath.Join(p.Root, "run"), filepath.Join(p.Root, "var")} {
		if err := os.RemoveAll(path); err != nil {
			p.t.Fatal(err)
		}
	}
}

// quiet checks that the node is as it was before any job. It checks what clean checks, and that there is no process
// of the test node, no lock held, nothing mounted, and no new file.
func (p testNode) quiet() {
	p.t.Helper()
	p.awaitLateGuard()
	p.clean()
	for _, what := range slices.Concat(p.strangers(), p.locks(), p.mounts(), p.strays(), p.jobFiles()) {
		p.t.Errorf("left behind: %s\n%s", what, p.log())
	}
}

// lateGuardEnds is the time in which a guard ends that has started after its job's epilog. It finds no lease.
const lateGuardEnds = 3 * time.Second

// awaitLateGuard waits until no guard runs that a killed prolog has started. On a busy machine such a guard may begin to
// run after the epilog. A guard that does not end is found by quiet.
func (p testNode) awaitLateGuard() {
	p.t.Helper()
	late := func(left string) bool { return strings.Contains(left, "/guard --job ") }
	for deadline := time.Now().Add(lateGuardEnds); time.Now().Before(deadline) && slices.ContainsFunc(p.left(), late); {
		time.Sleep(20 * time.Millisecond)
	}
}

// strangers are living processes of any kind that have the folder of the test node in their command line or
// environment.
func (p testNode) strangers() []string {
	var found []string
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		line, _ := os.ReadFile(folder + "/cmdline")
		environment, _ := os.ReadFile(folder + "/environ")
		var pid int
		fmt.Sscanf(filepath.Base(folder), "%d", &pid)
		stat, err := site.ReadStat(pid)
		if err == nil && stat.Running() && strings.Contains(string(line)+string(environment), filepath.Dir(p.Root)+"/") {
			found = append(found, fmt.Sprintf("process %d %q", pid, line))
		}
	}
	return found
}

// locks are files of the state that a process holds locked.
func (p testNode) locks() []string {
	var held []string
	_ = filepath.WalkDir(p.Paths().Run(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer file.Close()
		if errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
			held = append(held, "lock of "+path)
		}
		return nil
	})
	return held
}

// mounts are file systems that are mounted in the folders of the state.
func (p testNode) mounts() []string {
	table, _ := os.ReadFile("/proc/self/mounts")
	var found []string
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], p.Paths().Run()+"/") {
			found = append(found, "mount "+fields[1])
		}
	}
	return found
}

// jobFiles are files for dcgm-exporter that are left, if the log has no line about them.
func (p testNode) jobFiles() (found []string) {
	config, _ := policyfile.ReadConfig(p.Paths())
	if config.JobMappingDir == "" {
		return nil
	}
	files, err := os.ReadDir(config.JobMappingDir)
	if err != nil {
		p.t.Error(err)
	}
	for _, file := range files {
		path := filepath.Join(config.JobMappingDir, file.Name())
		if !strings.Contains(p.log(), "cannot remove "+path+":") {
			found = append(found, "file "+path)
		}
		if err := os.Remove(path); err != nil { // because the next point must find none
			p.t.Error(err)
		}
	}
	return found
}

// strays are files below the test node that are not there at its start, without the complete logs that were kept. The
// simulated driver's folder is left out, because the driver cleans up after a process that dies in it. The state is
// left out, because clean checks it. The copies of the site's files are left out, because they belong to the node.
func (p testNode) strays() []string {
	var found []string
	_ = filepath.WalkDir(p.Root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasPrefix(path, p.Paths().Run()+"/") || strings.HasPrefix(path, p.Paths().Devices()+"/") ||
			strings.HasPrefix(path, p.Paths().Kept()+"/") {
			return err
		}
		switch path {
		case p.Paths().Policy(), p.Paths().ConfigFile(), p.Paths().Log(),
			filepath.Join(p.Root, "proc"), filepath.Join(p.Root, "sys"):
			return nil
		}
		if kept, ok := strings.CutPrefix(path, p.keptLogs()); !ok || strings.HasPrefix(kept, ".") {
			found = append(found, "file "+path)
		}
		return nil
	})
	return found
}

// keptLogs is the folder in which the logs of jobs are kept, with a slash.
func (p testNode) keptLogs() string {
	return filepath.Join(filepath.Dir(p.Paths().Log()), "jobs") + "/"
}

// again is the same node for another point.
func (p testNode) again(t *testing.T) testNode {
	ctx, cancel := context.WithTimeout(context.Background(), pointDeadline)
	t.Cleanup(cancel)
	printRerun(t)
	return testNode{p.Node, t, ctx, p.conf}
}

// gone waits until a process has ended.
func (p testNode) gone(proc site.Process) {
	p.t.Helper()
	for proc.Running() {
		if !site.Sleep(p.ctx, time.Millisecond) {
			p.t.Fatalf("%v does not end", proc)
		}
	}
}

// killLeft kills the processes that a failed test has left. The test node proves that their pids are its own.
func (p testNode) killLeft() {
	pids, _ := p.Processes()
	for _, pid := range pids {
		if stat, err := site.ReadStat(pid); err == nil {
			_ = stat.Kill(9)
		}
	}
	for deadline := time.Now().Add(time.Second); p.LoseGroups() != nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // the group of a process that is ending is busy
	}
}

// until waits until a condition holds.
func (p testNode) until(what string, done func() bool) {
	p.t.Helper()
	for !done() {
		if !site.Sleep(p.ctx, time.Millisecond) {
			p.t.Fatalf("no %s", what)
		}
	}
}

// without returns an environment without a variable.
func without(env []string, name string) []string {
	var rest []string
	for _, entry := range env {
		if !strings.HasPrefix(entry, name+"=") {
			rest = append(rest, entry)
		}
	}
	return rest
}

// with returns an environment that has a variable once.
func with(env []string, name, value string) []string {
	return append(without(env, name), name+"="+value)
}
