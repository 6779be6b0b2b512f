// SPDX-License-Identifier: Apache-2.0

// Package e2e has what the end-to-end tests of all subjects share: a node, the programs that run on it, and what is
// left of them. The tests are in the packages below cmd/e2e.
//
//	p := e2e.NewNode(t, "", node.H200)          // a simulated node with one GPU and the default policy
//	p.Must(0, p.Job(7, "0"), "prolog")          // job 7 gets GPU 0: the prolog's exit code is 0
//	p.Client(7, "spin", "-ms", "1")             // a CUDA client, as the job's user
//	p.Ticket(7), p.Lease(7), p.Log(), p.Modes() // what is there now
//	p.Must(0, p.Job(7, "0"), "epilog")
//	p.Clean()                                   // nothing is left of any job
//
// A test under a real Slurm begins with NewCluster, which has such a node for each node of Slurm. A Node that many
// clients share is a Shared.
package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Node is the node of one test: the production binaries on a simulated node of its own.
type Node struct {
	testnode.Node
	T    *testing.T
	Ctx  context.Context
	Conf string // path of slurm.conf
}

// Built is the folder of the binaries, built once for all tests.
var Built = sync.OnceValues(testnode.Built)

// testLimit bounds what a test starts and does not wait for. It is far above the time of any test: each wait has a
// limit of its own.
const testLimit = 15 * time.Minute

// WaitLimit bounds each wait of a test, however much time the test has used before. Only a hang takes as long, on a
// machine with too little processor time too.
const WaitLimit = 3 * time.Minute

// Limited is a context for one call of a test, which ends after WaitLimit.
func Limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), WaitLimit)
}

// Comes waits until a condition holds. It reports false if that takes longer than WaitLimit.
func Comes(is func() bool) bool {
	ctx, cancel := Limited()
	defer cancel()
	for began := time.Now(); ; {
		at := time.Now()
		if is() {
			return true
		}
		if !wait.Sleep(ctx, lab.Pause(look, began, at)) {
			return false
		}
	}
}

// Lines reads what a process prints. A process that prints nothing for WaitLimit is an error, so that no read of a test
// lasts for ever.
type Lines struct {
	file *os.File
	*bufio.Reader
}

// LinesOf are the lines of a pipe of a command.
func LinesOf(t *testing.T, pipe io.Reader) Lines {
	t.Helper()
	file, ok := pipe.(*os.File)
	if !ok {
		t.Fatalf("%T is no pipe", pipe)
	}
	return Lines{file, bufio.NewReader(file)}
}

// Next waits for the next line.
func (l Lines) Next() (string, error) {
	_ = l.file.SetReadDeadline(time.Now().Add(WaitLimit))
	return l.ReadString('\n')
}

// Rest waits until every process that has the pipe open has ended, and returns what they have printed.
func (l Lines) Rest() (string, error) {
	_ = l.file.SetReadDeadline(time.Now().Add(WaitLimit))
	rest, err := io.ReadAll(l.Reader)
	return string(rest), err
}

// NewNode returns a simulated node with these GPUs under a policy; "" is the default policy. The test runs beside
// others.
func NewNode(t *testing.T, policy string, models ...node.Model) Node {
	t.Helper()
	t.Parallel() // each test has its own node, and waits most of the time
	printRerun(t)
	return NodeIn(t, PublicDir(t), policy, models...)
}

// NodeIn is NewNode in a folder, for a test that may run alone.
func NodeIn(t *testing.T, dir, policy string, models ...node.Model) Node {
	t.Helper()
	NeedRoot(t)
	beside(t)
	built := must.Get(Built())(t)
	s := must.Get(testnode.New(dir, built, policy, models...))(t)
	return Installed(t, s, dir, len(models), testLimit)
}

// Installed makes a node in dir ready for a test: with a time limit, and files of Slurm that name its GPUs.
func Installed(t *testing.T, s testnode.Node, dir string, gpus int, limit time.Duration) Node {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	p := Node{s, t, ctx, filepath.Join(dir, "slurm", "slurm.conf")}
	p.Write(p.Conf, fmt.Sprintf("NodeName=n1 Gres=gpu:%d\n", gpus))
	p.Write(p.Gres(), s.GresConf(gpus))
	t.Cleanup(p.KillLeft)
	return p
}

// NeedRoot skips a test that is not run as root. If REQUIRE_LAB says that all tests must run, the test fails.
func NeedRoot(t *testing.T) {
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

// PublicDir is a short folder that every user can traverse. It is short because a socket's path has at most 107
// bytes. It is a tmpfs, as /run is, so no test pays for a disk that production does not write to.
func PublicDir(t *testing.T) string {
	dir := PublicDirIn(t, "/tmp")
	if err := unix.Mount("slurm-mps-test", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Logf("%s is no tmpfs: %v", dir, err) // not root, or a container without mounts
	}
	return dir
}

// PublicDirIn is a folder like PublicDir below another folder than /tmp, and no tmpfs of its own.
func PublicDirIn(t *testing.T, parent string) string {
	dir := must.Get(os.MkdirTemp(parent, "mps"))(t)
	t.Cleanup(func() { unmount(dir); os.RemoveAll(dir) })
	must.OK(t, os.Chmod(dir, 0o755))
	return dir
}

// unmount removes a folder's tmpfs, and the file systems of jobs that a failed test has left below it.
func unmount(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4]+"/", dir+"/") {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}

// Gres is the path of gres.conf.
func (p Node) Gres() string { return filepath.Join(filepath.Dir(p.Conf), "gres.conf") }

// Runs runs a command that must end with 0.
func Runs(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", cmd.Args, err, out)
	}
}

// Write writes a file, and makes its folder.
func (p Node) Write(path, content string) {
	p.T.Helper()
	must.OK(p.T, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(p.T, os.WriteFile(path, []byte(content), 0o644))
}

// Rewrite changes a record in place. The record still belongs to root, with its mode.
func (p Node) Rewrite(path, content string) {
	p.T.Helper()
	must.OK(p.T, os.WriteFile(path, []byte(content), 0o600))
}

// Read returns the content of a file.
func Read(t *testing.T, path string) string {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	return string(content)
}

// Facts adds lines to the site's file.
func (p Node) Facts(lines ...string) {
	p.T.Helper()
	path := p.Paths().ConfigFile()
	p.Write(path, Read(p.T, path)+strings.Join(lines, "\n")+"\n")
}

// Fault sets a fault of the simulated node.
func (p Node) Fault(knob, value string) {
	p.T.Helper()
	must.OK(p.T, p.Sim.Node.Set("faults/"+knob, value))
}

// Fail makes an NVML function return a code a number of times; 0 means always.
func (p Node) Fail(function string, code, times int) {
	p.T.Helper()
	must.OK(p.T, p.Sim.Node.GPU(0).Fail(function, code, times))
}

// Job is a job that asks for MPS on these GPUs, such as "0,1".
func (p Node) Job(id uint32, gpus string) testnode.Job {
	return testnode.Job{ID: id, UID: UID, GID: GID, GPUs: gpus, Features: "mps", Conf: p.Conf}
}

// Must runs a binary and checks its exit code.
func (p Node) Must(code int, job testnode.Job, program string) string {
	p.T.Helper()
	ctx, cancel := Limited()
	defer cancel()
	result := must.Get(p.Run(ctx, job.Environment(program+"_slurmd"), program))(p.T)
	if result.Code != code {
		p.T.Fatalf("%s of job %d: code %d, want %d: %s\n%s", program, job.ID, result.Code, code, result.Output, p.Log())
	}
	return result.Output
}

// Open runs the prolog of a job that gets MPS. A prolog that refuses a job exits with 0, so the test fails here with the
// reason that the ticket gives, and does not wait for what cannot come.
func (p Node) Open(job testnode.Job) string {
	p.T.Helper()
	output := p.Must(0, job, "prolog")
	if reason := p.Ticket(job.ID).RefusalReason; reason != "" {
		p.T.Fatalf("cannot open job %d: %s: %s\n%s", job.ID, reason, output, p.Log())
	}
	return output
}

// Ctl runs mpsctl as root. It runs it again if mpsctl could not read a daemon that just starts or ends, because other
// tests have daemons on this machine.
func (p Node) Ctl(args ...string) (result testnode.Result) {
	p.T.Helper()
	for range 50 {
		ctx, cancel := Limited()
		var err error
		result, err = p.Run(ctx, nil, "mpsctl", args...)
		if cancel(); err != nil {
			p.T.Fatal(err)
		}
		if !strings.Contains(result.Output, "the pipe folders of ") {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	return result
}

// Client is a CUDA client of the job, which its user starts through the wrapper. Only this test waits for the client.
// So the client is like a process that has escaped and outlived its job.
func (p Node) Client(job uint32, args ...string) *exec.Cmd {
	p.T.Helper()
	return p.ClientWith(job, nil, args...)
}

// ClientWith is Client with more variables.
func (p Node) ClientWith(job uint32, env []string, args ...string) *exec.Cmd {
	p.T.Helper()
	cmd := p.AsUser(job, p.Command("mpirun-wrap", append([]string{p.CudaClient()}, args...)...))
	cmd.Env = append(cmd.Env, env...)
	return p.Ready(cmd)
}

// Ready starts a CUDA client, and waits until it is ready.
func (p Node) Ready(cmd *exec.Cmd) *exec.Cmd {
	p.T.Helper()
	out := must.Get(cmd.StdoutPipe())(p.T)
	cmd.Stderr = cmd.Stdout
	must.OK(p.T, cmd.Start())
	p.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := LinesOf(p.T, out)
	line, err := lines.Next()
	if strings.HasPrefix(line, "mpirun-wrap: another process") { // the other process has the whole GPU too
		line, err = lines.Next()
	}
	if err != nil || !strings.Contains(line, "ready") {
		p.T.Fatalf("the client prints %q, %v\n%s", line, err, p.Log())
	}
	return cmd
}

// AsUser is a command of the job's user, in the only rank of a step.
func (p Node) AsUser(job uint32, line []string) *exec.Cmd {
	libraries := os.Getenv("LD_LIBRARY_PATH")
	if p.Sim != nil {
		libraries = p.Sim.Libraries()
	}
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + libraries, fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_STEP_ID=0",
		"SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: UID, Gid: GID, Groups: []uint32{GID}}}
	return cmd
}

// CudaClient is one program for the simulation and for a real GPU.
func (p Node) CudaClient() string {
	return filepath.Join(filepath.Dir(p.Bin), "sim", "bin", "cuda-client")
}

// Lease reads the lease of a job.
func (p Node) Lease(job uint32) lease.Lease {
	p.T.Helper()
	l, err := lease.OpenReadOnly(p.Paths().Run(), Boot(p.T)).Read(job)
	if err != nil {
		p.T.Fatalf("%v\n%s", err, p.Log())
	}
	return l
}

// Ticket reads the ticket of a job.
func (p Node) Ticket(job uint32) lease.Ticket {
	p.T.Helper()
	t, err := lease.OpenReadOnly(p.Paths().Run(), Boot(p.T)).ReadTicket(job)
	if err != nil {
		p.T.Fatalf("%v\n%s", err, p.Log())
	}
	return t
}

// ServerLog is the log of the server of a job's first daemon.
func (p Node) ServerLog(job uint32) string {
	content, _ := os.ReadFile(filepath.Join(p.Ticket(job).Daemons[0].LogDir, "server.log"))
	return string(content)
}

// UUID returns the UUID of a simulated GPU.
func (p Node) UUID(gpu int) site.UUID {
	p.T.Helper()
	uuid := must.Get(p.Sim.Node.GPU(gpu).Text("uuid"))(p.T)
	return site.UUID(uuid)
}

// Modes returns the compute modes of the simulated GPUs, a digit for each.
func (p Node) Modes() string {
	p.T.Helper()
	gpus := must.Get(p.Sim.Node.GPUs())(p.T)
	var modes []string
	for _, gpu := range gpus {
		mode := must.Get(gpu.Mode())(p.T)
		modes = append(modes, fmt.Sprint(mode))
	}
	return strings.Join(modes, "")
}

// Log returns the log of the programs.
func (p Node) Log() string {
	content, _ := os.ReadFile(p.Paths().Log())
	return string(content)
}

// Leftovers returns files, processes and modes that are left of any job.
func (p Node) Leftovers() []string {
	p.T.Helper()
	left := must.Get(p.Left())(p.T)
	return left
}

// Clean checks that nothing is left of any job.
func (p Node) Clean() {
	p.T.Helper()
	if left := p.Leftovers(); len(left) > 0 {
		p.T.Errorf("left behind: %q\n%s", left, p.Log())
	}
}

// Close runs a job's epilog, after which nothing is left of any job.
func (p Node) Close(job testnode.Job) {
	p.T.Helper()
	p.Must(0, job, "epilog")
	p.Clean()
}

// Booted removes all state and the log, so that the next job is the first job after a boot.
func (p Node) Booted() {
	p.T.Helper()
	for _, path := range []string{filepath.Join(p.Root, "run"), filepath.Join(p.Root, "var")} {
		must.OK(p.T, os.RemoveAll(path))
	}
}

// Quiet checks that the node is as it was before any job. It checks what clean checks, and that there is no process
// of the test node, no lock held, nothing mounted, and no new file.
func (p Node) Quiet() {
	p.T.Helper()
	p.awaitLateGuard()
	p.Clean()
	for _, what := range slices.Concat(p.Strangers(), p.Locks(), p.mounts(), p.Strays()) {
		p.T.Errorf("left behind: %s\n%s", what, p.Log())
	}
}

// awaitLateGuard waits until no guard runs that a killed prolog has started. On a busy machine such a guard may begin to
// run after the epilog. It finds no lease. A guard that does not end is found by quiet.
func (p Node) awaitLateGuard() {
	p.T.Helper()
	late := func(left string) bool { return strings.Contains(left, "/guard --job ") }
	Comes(func() bool { return !slices.ContainsFunc(p.Leftovers(), late) })
}

// Strangers are living processes of any kind that have the folder of the test node in their command line or
// environment.
func (p Node) Strangers() []string {
	var found []string
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		line, _ := os.ReadFile(folder + "/cmdline")
		environment, _ := os.ReadFile(folder + "/environ")
		var pid int
		fmt.Sscanf(filepath.Base(folder), "%d", &pid)
		stat, err := proc.ReadStat(pid)
		if err == nil && stat.Running() && strings.Contains(string(line)+string(environment), filepath.Dir(p.Root)+"/") {
			found = append(found, fmt.Sprintf("process %d %q", pid, line))
		}
	}
	return found
}

// Locks are files of the state that a process holds locked.
func (p Node) Locks() []string {
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
func (p Node) mounts() []string {
	table, _ := os.ReadFile("/proc/self/mounts")
	var found []string
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], p.Paths().Run()+"/") {
			found = append(found, "mount "+fields[1])
		}
	}
	return found
}

// Strays are files below the test node that are not there at its start, without the complete logs that were kept. The
// simulated driver's folder is left out, because the driver cleans up after a process that dies in it. The state is
// left out, because clean checks it. The copies of the site's files are left out, because they belong to the node.
func (p Node) Strays() []string {
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
		if kept, ok := strings.CutPrefix(path, p.KeptLogs()); !ok || strings.HasPrefix(kept, ".") {
			found = append(found, "file "+path)
		}
		return nil
	})
	return found
}

// KeptLogs is the folder in which the logs of jobs are kept, with a slash.
func (p Node) KeptLogs() string {
	return filepath.Join(filepath.Dir(p.Paths().Log()), "jobs") + "/"
}

// Again is the same node for another point.
func (p Node) Again(t *testing.T) Node {
	ctx, cancel := context.WithTimeout(context.Background(), pointDeadline)
	t.Cleanup(cancel)
	printRerun(t)
	return Node{p.Node, t, ctx, p.Conf}
}

// Alive reports whether a process runs. One that does not answer on a busy machine is not dead, as it would be for
// proc.Process.Running.
func Alive(p proc.Process) bool { return len(proc.Left([]proc.Process{p})) == 1 }

// Gone waits until a process has ended.
func (p Node) Gone(ending proc.Process) {
	p.T.Helper()
	if !Comes(func() bool { return !Alive(ending) }) {
		p.T.Fatalf("%v does not end", ending)
	}
}

// KillLeft kills the processes that a failed test has left. The test node proves that their pids are its own.
func (p Node) KillLeft() {
	pids, _ := p.Processes()
	for _, pid := range pids {
		if stat, err := proc.ReadStat(pid); err == nil {
			_ = stat.Kill(9)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); p.LoseGroups() != nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // the group of a process that is ending is busy
	}
}

// look is the first pause of a wait.
const look = 2 * time.Millisecond

// Until waits until a condition holds.
func (p Node) Until(what string, done func() bool) {
	p.T.Helper()
	if !Comes(done) {
		p.T.Fatalf("no %s within %v", what, WaitLimit)
	}
}

// Without returns an environment without a variable.
func Without(env []string, name string) []string {
	var rest []string
	for _, entry := range env {
		if !strings.HasPrefix(entry, name+"=") {
			rest = append(rest, entry)
		}
	}
	return rest
}

// With returns an environment that has a variable once.
func With(env []string, name, value string) []string {
	return append(Without(env, name), name+"="+value)
}

// Says checks that an output is one line that matches a pattern. The pattern leaves open what differs between runs.
func Says(t *testing.T, output, pattern string) {
	t.Helper()
	if !regexp.MustCompile(`^` + pattern + `\n$`).MatchString(output) {
		t.Errorf("got  %swant %s", output, pattern)
	}
}

// Module is the prefix of the paths of this module.
const Module = "github.com/slurm-mps/slurm-mps/"
