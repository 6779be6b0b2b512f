// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

const (
	userName = "hpc1"
	uid      = 2001
)

// room is the machine of the trials.
type room struct {
	settings settings
	dir      string // below /tmp; every user can traverse it
	node     testnode.Node
	user     lab.User
	control  string // path of the control program
	client   string // path of cuda-client
	python   string
	kind     string // of the ranks: torch or driver
	records  *records
	log      *os.File // for people
	guardLog *os.File // the guard's lines of the product's log
	logged   int64    // bytes of the product's log that were read
	jobs     uint32
	total    int      // MiB of the GPU's memory
	sms      int      // of the GPU: as many blocks fill it
	server   *process // forks ranks
	orders   *os.File // its stdin
}

func newRoom(ctx context.Context, s settings) (_ *room, err error) {
	r := &room{settings: s, kind: "torch", control: testnode.RealControl}
	if err := os.MkdirAll(s.results, 0o755); err != nil {
		return nil, err
	}
	if r.records, err = openRecords(filepath.Join(s.results, "room.jsonl"), s.earlier); err != nil {
		return nil, err
	}
	if r.log, err = appendTo(filepath.Join(s.results, "room-log.txt")); err != nil {
		return nil, err
	}
	if r.guardLog, err = appendTo(filepath.Join(s.results, "room-guard.jsonl")); err != nil {
		return nil, err
	}
	if r.user, err = lab.EnsureUser(userName, uid); err != nil {
		return nil, err
	}
	if r.dir, err = os.MkdirTemp("/tmp", "room"); err != nil {
		return nil, err
	}
	if err := os.Chmod(r.dir, 0o755); err != nil {
		return nil, err
	}
	if err := r.makeNode(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(r.dir))
	}
	if err := r.findPython(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(r.dir))
	}
	return r, r.serve(ctx) // the first import of PyTorch on a machine may take long
}

func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

func (r *room) makeNode() error {
	built, err := testnode.Built()
	if err != nil {
		return err
	}
	attributes := []string{testnode.Unchanged}
	for attribute := range strings.SplitSeq(r.settings.policy, ";") {
		attributes = append(attributes, strings.TrimSpace(attribute))
	}
	policy := testnode.Default(attributes...)
	if r.settings.real && testnode.RealGPUs() == 0 {
		return fmt.Errorf("cannot try on a real GPU: this machine has none, or no %s", testnode.RealControl)
	}
	if r.settings.simulated || testnode.RealGPUs() == 0 {
		r.kind = "driver"
		if r.node, err = testnode.New(filepath.Join(r.dir, "n"), built, policy, node.H200); err == nil {
			r.control = r.node.Sim.Program("nvidia-cuda-mps-control")
		}
	} else {
		r.node, err = testnode.Real(filepath.Join(r.dir, "n"), built, policy)
	}
	r.client = filepath.Join(built, "sim", "bin", "cuda-client")
	return errors.Join(err, os.WriteFile(r.path("slurm.conf"), []byte("NodeName=n1 Gres=gpu:1\n"), 0o644),
		os.WriteFile(r.path("gres.conf"), []byte(r.node.GresConf(1)), 0o644), r.copyRanks(built))
}

func (r *room) path(name string) string { return filepath.Join(r.dir, name) }

// copyRanks copies the Python files of the ranks from the pack, or from the source.
func (r *room) copyRanks(built string) error {
	for _, file := range []string{"ends/victim.py", "room/room.py"} {
		text, err := os.ReadFile(filepath.Join(built, file))
		if err != nil {
			text, err = os.ReadFile(filepath.Join(built, "..", "site", "lab", file))
		}
		if err == nil {
			err = os.WriteFile(r.path(filepath.Base(file)), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findPython finds the first python3 that the user can run and that has PyTorch, if the ranks need it.
func (r *room) findPython(ctx context.Context) error {
	module := map[string]string{"torch": "torch", "driver": "ctypes"}[r.kind]
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		python := filepath.Join(dir, "python3")
		test := `import importlib.util as u, sys; sys.exit(u.find_spec("` + module + `") is None)`
		cmd := exec.CommandContext(ctx, python, "-c", test)
		cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "HOME=/tmp"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.credential()}
		if cmd.Run() == nil {
			r.python = python
			return nil
		}
	}
	return fmt.Errorf("cannot try: user %s has no python3 with %s on PATH", userName, module)
}

// environment is what programs of the user need. It does not change NVLink multicast.
func (r *room) environment() []string {
	libraries := os.Getenv("LD_LIBRARY_PATH")
	if r.node.Sim != nil {
		libraries = r.node.Sim.Libraries()
	}
	env := []string{"PATH=/usr/bin:/bin", "HOME=/tmp", "LD_LIBRARY_PATH=" + libraries, "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONUNBUFFERED=1", "OMP_NUM_THREADS=1"}
	for _, name := range []string{"NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// The MiB of an H200, as CUDA reports them, and those that the contexts of a trial's ranks take on every GPU.
const (
	ofH200     = 143155
	ofContexts = 3500
	leastMiB   = 8192
)

// mib converts MiB of an H200 into the same part of what this GPU has beside the contexts of a trial.
func (r *room) mib(mib int) int { return mib * (r.total - ofContexts) / (ofH200 - ofContexts) }

// end removes the folder of the trials. It fails if the node is not as it was.
func (r *room) end() error {
	if r.server != nil {
		r.server.kill()
		r.orders.Close()
	}
	left, err := r.node.Left()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left behind: %q", left))
	}
	return errors.Join(err, r.log.Close(), r.guardLog.Close(), r.records.file.Close(), os.RemoveAll(r.dir))
}

// lane is an open job with the product, or a plain daemon of the same user. Its processes end with it.
type lane struct {
	r          *room
	method     string
	job        testnode.Job // with the product
	guard      int          // its pid
	pipe       string       // of the plain daemon
	wrapper    string       // of --own
	steps      int
	coming     int // number of the next trial, or -1
	processes  []*process
	ranks      map[int][]rank // that a trial has started for the next one
	neighbours []rank
	forked     []rank
	placed     map[string]string // the environment of a program, nil before it is known
}

// open runs the prolog of a new job, or starts a plain daemon.
func (r *room) open(ctx context.Context, method string) (*lane, error) {
	r.jobs++
	l := &lane{r: r, method: method, ranks: map[int][]rank{}}
	if l.own() {
		if err := l.openOwn(ctx); err != nil {
			return l, err
		}
	} else if method == bare {
		l.pipe = r.path(fmt.Sprintf("bare%d", r.jobs))
		if err := l.startDaemon(ctx); err != nil {
			return l, err
		}
	} else {
		l.job = testnode.Job{ID: r.jobs, UID: r.user.UID, GID: r.user.GID, GPUs: "0", Features: "mps"}
		l.job.Conf = r.path("slurm.conf")
		if err := l.hook(ctx, "prolog"); err != nil {
			return l, err
		}
		opened, err := l.lease()
		if err != nil {
			return l, err
		}
		l.guard = opened.Guard.PID
	}
	return l, l.measure(ctx)
}

// lease is the record of the lane's job.
func (l *lane) lease() (lease.Lease, error) {
	boot, err := proc.BootID()
	if err != nil {
		return lease.Lease{}, err
	}
	return lease.OpenReadOnly(l.r.node.Paths().Run(), boot).Read(l.job.ID)
}

func (l *lane) hook(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	result, err := l.r.node.Run(ctx, l.job.Environment(program+"_slurmd"), program)
	if err == nil && result.Code != 0 {
		err = fmt.Errorf("%s of job %d ends with %d: %s", program, l.job.ID, result.Code, result.Output)
	}
	return err
}

func (l *lane) daemonEnvironment() []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + l.pipe, "CUDA_MPS_LOG_DIRECTORY=" + l.pipe + ".log"}
}

func (l *lane) startDaemon(ctx context.Context) error {
	for _, dir := range []string{l.pipe, l.pipe + ".log"} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, int(l.r.user.UID), int(l.r.user.GID))); err != nil {
			return err
		}
	}
	p, err := l.start(l.daemonEnvironment(), l.r.control, "-d")
	if err == nil && !watch.Until(ctx, 20*time.Second, p.isOver) {
		err = errors.New("cannot start a plain daemon: the control program does not end")
	}
	return err
}

// closeLane ends the lane's processes, and the job or the daemon. Nothing of them may be left.
func (r *room) closeLane(l *lane) error {
	if l == nil {
		return nil
	}
	l.killAll()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	switch l.method {
	case bare:
		return l.stopDaemon(ctx)
	case withOwn, ownBeside:
		return l.closeOwn(ctx)
	}
	if state, err := json.Marshal(l.state()); err == nil { // it also counts those that the log leaves out
		fmt.Fprintf(r.guardLog, `{"part":"state","trial":%d,"line":%s}`+"\n", l.job.ID, state)
	}
	err := l.hook(ctx, "epilog")
	left, wrong := r.node.Left()
	if len(left) > 0 {
		wrong = errors.Join(wrong, fmt.Errorf("the epilog of job %d left %q", l.job.ID, left))
	}
	r.copyLog(r.node.Paths().Log(), "epilog", int(l.job.ID))
	return errors.Join(err, wrong)
}

// killAll kills all processes of the lane and waits for their ends.
func (l *lane) killAll() {
	for _, p := range l.processes {
		p.kill()
	}
	for _, k := range l.forked {
		if proc, lives := k.proc(); lives {
			_ = proc.Kill(unix.SIGKILL)
		}
	}
	for _, p := range l.processes {
		watch.Until(context.Background(), 10*time.Second, p.isOver)
	}
	l.processes, l.neighbours, l.forked = nil, nil, nil
	clear(l.ranks)
}

// stopDaemon ends a plain daemon. Its processes are those with its pipe folder.
func (l *lane) stopDaemon(ctx context.Context) error {
	p, err := l.start(l.daemonEnvironment(), "sh", "-c", "echo quit -t 5 | "+l.r.control)
	if err != nil {
		return err
	}
	watch.Until(ctx, 10*time.Second, p.isOver)
	p.kill()
	gone := func() bool {
		left, err := l.r.node.Below(l.pipe)
		return err == nil && len(left) == 0
	}
	if watch.Until(ctx, 5*time.Second, gone) {
		return nil
	}
	left, err := l.r.node.Below(l.pipe)
	for _, p := range left {
		err = errors.Join(err, p.Kill(unix.SIGKILL))
	}
	if !watch.Until(ctx, 5*time.Second, gone) {
		err = errors.Join(err, fmt.Errorf("the plain daemon does not end: %v", left))
	}
	return err
}

// place returns the command and the environment of rank i of n of a step. Slots is their number for ranks without
// Slurm's variables, as in an ensemble, and 0 else.
func (l *lane) place(i, n, slots int, program ...string) (env, line []string) {
	if l.method == bare {
		return l.daemonEnvironment()[:1], program
	}
	if l.own() {
		return l.placeOwn(slots, program)
	}
	env = []string{fmt.Sprintf("SLURM_JOB_ID=%d", l.job.ID)}
	if slots > 0 {
		return env, append(l.r.node.Command("mpirun-wrap", fmt.Sprintf("--slots=%d", slots)), program...)
	}
	var ids []string
	for id := range n {
		ids = append(ids, strconv.Itoa(id))
	}
	env = append(env, fmt.Sprintf("SLURM_STEP_ID=%d", l.steps), fmt.Sprintf("SLURM_LOCALID=%d", i),
		"SLURM_GTIDS="+strings.Join(ids, ","), "SLURM_NODEID=0")
	return env, append(l.r.node.Command("mpirun-wrap"), program...)
}

// step starts n processes, as srun starts the ranks of a step.
func (l *lane) step(n int, program func(i int) []string) (all []*process, err error) {
	l.steps++
	for i := range n {
		env, line := l.place(i, n, 0, program(i)...)
		p, err := l.start(env, line...)
		if err != nil {
			return all, err
		}
		all = append(all, p)
	}
	return all, nil
}

// one starts one program of the user.
func (l *lane) one(program ...string) (*process, error) {
	all, err := l.step(1, func(int) []string { return program })
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// python starts ranks of room.py, one for each list of options.
func (l *lane) python(options ...[]string) (ranks []rank, err error) {
	all, err := l.step(len(options), func(i int) []string {
		return append([]string{l.r.python, l.r.path("room.py"), "rank", l.r.kind}, options[i]...)
	})
	for i, p := range all {
		ranks = append(ranks, rank{p, options[i][0]})
	}
	return ranks, err
}

var sizes = regexp.MustCompile(`err=0.* sm=(\d+) .* total=(\d+)MiB`)

// measure reads the sizes of the GPU, and starts the server on the way.
func (l *lane) measure(ctx context.Context) error {
	p, err := l.one(l.r.client, "info")
	if err != nil {
		return err
	}
	watch.Until(ctx, 20*time.Second, p.isOver)
	m := p.heard(sizes.String())
	if len(m) != 1 {
		return fmt.Errorf("a first client fails: %s", p.text())
	}
	l.r.sms, _ = strconv.Atoi(m[0][1])
	l.r.total, _ = strconv.Atoi(m[0][2])
	if l.r.total < leastMiB {
		return fmt.Errorf("the GPU has %d MiB of memory: the trials need %d MiB, because seven ranks have a context each",
			l.r.total, leastMiB)
	}
	return nil
}

// newClient runs one kernel in a new client.
func (l *lane) newClient(ctx context.Context) (works bool, seconds float64) {
	began := time.Now()
	p, err := l.one(l.r.client, "first")
	if err != nil {
		return false, 0
	}
	if !watch.Until(ctx, 20*time.Second, p.isOver) {
		p.kill()
	}
	return len(p.heard(`first kernel pid=\d+ err=0 `)) == 1, time.Since(began).Seconds()
}

// beside starts two neighbours unless they work already. The result is the number of those that an earlier trial has
// killed after it had counted them.
func (l *lane) beside(ctx context.Context) (lost int, err error) {
	lost = len(l.neighbours) - living(ctx, time.Now(), l.neighbours)
	if len(l.neighbours) > 0 && lost == 0 {
		return 0, nil
	}
	for _, k := range l.neighbours {
		k.kill()
	}
	l.neighbours, err = l.python([]string{"n0", "role=neighbour"}, []string{"n1", "role=neighbour"})
	for _, k := range l.neighbours {
		err = errors.Join(err, k.await(ctx, "ready", 30*time.Second))
	}
	return lost, err
}

// touch makes a file that ranks wait for.
func touch(path string) error { return os.WriteFile(path, nil, 0o644) }

// serve starts the process that forks ranks, unless it runs. It imports PyTorch once, and lives as long as the room.
func (r *room) serve(ctx context.Context) error {
	if r.server != nil && !r.server.isOver() {
		return nil
	}
	in, orders, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	r.orders = orders
	if r.server, err = r.start(in, nil, r.python, r.path("room.py"), "serve", r.kind); err != nil {
		return err
	}
	return rank{r.server, "server"}.await(ctx, "serves", 2*time.Minute)
}

// wrapped returns the environment of a program of the lane. With the product it is what the wrapper gives.
func (l *lane) wrapped(ctx context.Context) (map[string]string, error) {
	if l.placed != nil {
		return l.placed, nil
	}
	env, line := l.place(0, 1, 0, "env", "-0")
	if l.method != bare {
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		cmd.Dir, cmd.Env = "/", append(l.r.environment(), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: l.r.credential()}
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("cannot place a rank: %w", err)
		}
		env = strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	}
	l.placed = map[string]string{}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		l.placed[name] = value
	}
	return l.placed, nil
}

// fork makes the server fork a rank of this lane. Its name must be new.
func (l *lane) fork(ctx context.Context, options ...string) (rank, error) {
	env, err := l.wrapped(ctx)
	if err = errors.Join(err, l.r.serve(ctx)); err != nil {
		return rank{}, err
	}
	order, err := json.Marshal(map[string]any{"env": env, "args": options})
	if err == nil {
		_, err = l.r.orders.Write(append(order, '\n'))
	}
	k := rank{l.r.server, options[0]}
	l.forked = append(l.forked, k)
	return k, err
}

// state is the guard's own count. It is zero without a guard.
func (l *lane) state() (s lease.GuardState) {
	if l.method != withGuard {
		return s
	}
	if boot, err := proc.BootID(); err == nil {
		s, _ = lease.OpenReadOnly(l.r.node.Paths().Run(), boot).ReadGuard(l.job.ID)
	}
	return s
}

// The times in which the guard lets go of the files of dead clients. Beside neighbours that compute without a pause it
// may hold them longer.
const (
	settlesAlone  = 15 * time.Second
	settlesBeside = 4 * time.Second
)

// stateAge is a little more than the age that the guard's state can have.
const stateAge = 1200 * time.Millisecond

// settledAlone waits until the guard holds no files, if all clients have ended. It returns the seconds.
func (l *lane) settledAlone(ctx context.Context) float64 {
	began := time.Now()
	watch.Until(ctx, settlesAlone, func() bool { return memoryFiles(l.guard) == 0 })
	return time.Since(began).Seconds()
}

// settledBeside waits until the guard holds no files of dead clients beside neighbours, as far as its state tells.
func (l *lane) settledBeside(ctx context.Context) float64 {
	began := time.Now()
	watch.Until(ctx, settlesBeside, func() bool { return time.Since(began) > stateAge && l.state().Dead == 0 })
	return time.Since(began).Seconds()
}

// copyLog copies new lines of the guard from the product's log to the results. It returns the dead clients by the
// reason why their files were closed, and the lines of pauses.
func (r *room) copyLog(log, name string, trial int) (released map[string]int, pauses []json.RawMessage) {
	file, err := os.Open(log)
	if err != nil {
		return nil, nil
	}
	defer file.Close()
	if _, err := file.Seek(r.logged, io.SeekStart); err != nil {
		return nil, nil
	}
	const bound = 8 << 20
	text, err := io.ReadAll(io.LimitReader(file, bound))
	if err != nil {
		return nil, nil
	}
	released = map[string]int{}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	r.logged += int64(len(text))
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if !json.Valid(line) || !bytes.Contains(line, []byte(`"program":"guard"`)) {
			continue
		}
		fmt.Fprintf(r.guardLog, `{"part":%q,"trial":%d,"line":%s}`+"\n", name, trial, line)
		var entry guardLine
		if json.Unmarshal(line, &entry) != nil {
			continue
		}
		if entry.Paused != nil {
			pauses = append(pauses, slices.Clone(line))
		}
		if entry.Reason != "" {
			released[entry.Reason]++
		}
	}
	return released, pauses
}
