// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// kit is the node of a run.
type kit struct {
	settings
	folder, built   string
	node            testnode.Node
	who             *user.User
	uid, gid        uint32
	control, client string
	libraries       string // for LD_LIBRARY_PATH
	driver          string
	gpu             site.Device // the first one, which all parts use
	before          site.Mode
	method          string // guard, or own for a user
	lanes           int
	other           *user.User        // of the second job of a shared GPU
	sms, mib        int               // of the GPU, once a trial has asked
	absent          map[string]string // what this machine cannot do, and why
	python          string            // of victim.py
	namespace       []string          // the command that gives a client a pid namespace
}

// The methods: our prolog and epilog, mpirun-wrap --own, and a daemon without slurm-mps.
const (
	byProlog = "prolog and epilog"
	byOwn    = "mpirun-wrap --own"
	bare     = "a plain daemon"
)

func newKit(s settings, folder, built string) (k *kit, err error) {
	k = &kit{settings: s, folder: folder, built: built, method: byOwn, control: testnode.RealControl,
		client: filepath.Join(built, "sim", "bin", "cuda-client"), libraries: os.Getenv("LD_LIBRARY_PATH")}
	if k.who, err = user.Current(); err == nil && os.Geteuid() == 0 {
		k.method = byProlog
		k.who, err = user.Lookup(s.user)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the user of the jobs: %w", err)
	}
	if k.uid, k.gid, err = numbers(k.who); err != nil {
		return nil, err
	}
	if k.method == byProlog {
		if k.other, err = user.Lookup(s.other); err != nil {
			return nil, fmt.Errorf("cannot find the user of a second job: %w", err)
		}
	}
	if err := k.makeNode(); err != nil {
		return nil, err
	}
	return k, k.look()
}

func numbers(who *user.User) (uid, gid uint32, err error) {
	u, err1 := strconv.ParseUint(who.Uid, 10, 32)
	g, err2 := strconv.ParseUint(who.Gid, 10, 32)
	if err = errors.Join(err1, err2); err == nil && u == 0 {
		err = errors.New("cannot run jobs of root: give -user NAME")
	}
	return uint32(u), uint32(g), err
}

// policy lets jobs change the compute mode only with -exclusive.
func (k *kit) policy(attributes ...string) string {
	mode := testnode.Unchanged
	if k.exclusive {
		mode = `compute_mode = "exclusive_process"`
	}
	return testnode.Default(append(attributes, mode)...)
}

func (k *kit) makeNode() (err error) {
	policy := k.policy()
	if k.exclusive {
		if err := os.Setenv("ALLOW_MODE_CHANGES", "1"); err != nil { // the volunteer's flag is the permission
			return err
		}
	}
	at := filepath.Join(k.folder, "n")
	if !k.simulate {
		if testnode.RealGPUs() == 0 {
			return fmt.Errorf("cannot check: this machine has no GPU of NVIDIA, or no %s", testnode.RealControl)
		}
		k.node, err = testnode.Real(at, k.built, policy)
		return errors.Join(err, testnode.Link(filepath.Join(k.built, "bin")))
	}
	model := node.H200
	if k.mig {
		model = node.H100SXM.Cut(node.H100Slice3, node.H100Slice3)
	}
	if k.node, err = testnode.New(at, k.built, policy, model); err == nil {
		k.control, k.libraries = k.node.Sim.Program("nvidia-cuda-mps-control"), k.node.Sim.Libraries()
	}
	return err
}

// look reads the driver and the GPU. It refuses a node whose GPUs have processes, because an end of a client may harm
// others, and others change what is measured.
func (k *kit) look() error {
	nvml, err := gpu.OpenTimeout(k.nvml(), 15*time.Second)
	if err != nil {
		return err
	}
	defer nvml.Close()
	version, err := nvml.Driver()
	if err != nil {
		return err
	}
	seen, err := nvml.List()
	if err != nil || len(seen) == 0 {
		return errors.Join(errors.New("cannot check: the driver shows no GPU"), err)
	}
	for _, g := range seen {
		switch {
		case g.Err != nil:
			return fmt.Errorf("cannot check: GPU %d: %w", g.Index, g.Err)
		case len(g.Processes) > 0:
			return fmt.Errorf("cannot check: GPU %d has a process, pid %d: run it when all GPUs are idle",
				g.Index, g.Processes[0].PID)
		case g.Device.MIGMode && !k.mig:
			return fmt.Errorf("cannot check: GPU %d is in MIG mode: as root, -mig tries an instance", g.Index)
		}
	}
	if !k.simulate {
		daemons, err := mps.FindAll(context.Background())
		if err != nil || len(daemons) > 0 {
			err = errors.Join(fmt.Errorf("cannot check: %d processes of MPS run", len(daemons)), err)
			return err
		}
	}
	k.driver, k.gpu, k.before = version, seen[0].Device, seen[0].Mode
	if k.mig {
		if err := k.lookAtInstances(nvml); err != nil {
			return err
		}
	} else if k.before != site.ModeDefault && !k.exclusive {
		return fmt.Errorf("cannot check: the compute mode of GPU 0 is %s, and the trials need default", k.before)
	}
	conf, gres := filepath.Join(k.folder, "slurm.conf"), fmt.Appendf(nil, "Name=gpu File=/dev/nvidia%d\n", k.gpu.Minor)
	return errors.Join(os.WriteFile(conf, []byte("NodeName=n1 Gres=gpu:1\n"), 0o644),
		os.WriteFile(filepath.Join(k.folder, "gres.conf"), gres, 0o644))
}

// howToMakeOne is for the admin: this command changes no MIG setting.
const howToMakeOne = "An admin makes one on an idle GPU, here GPU 0, by `nvidia-smi -i 0 -mig 1`, which may need a " +
	"reset or a reboot, and `nvidia-smi mig -i 0 -cgi ID -C` with an ID of `nvidia-smi mig -lgip`. " +
	"`nvidia-smi mig -i 0 -dci`, `nvidia-smi mig -i 0 -dgi` and `nvidia-smi -i 0 -mig 0` undo that. This command does none of it"

var instanceUUID = regexp.MustCompile(`\(UUID: (MIG-[^)]+)\)`)

// lookAtInstances chooses the first MIG instance. It refuses a node that has none, and one with a process on any.
func (k *kit) lookAtInstances(nvml *gpu.NVML) error {
	smi := "nvidia-smi"
	if k.simulate {
		smi = k.node.Sim.Program(smi)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := exec.CommandContext(ctx, smi, "-L").CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot list MIG instances: %s -L: %w: %s", smi, err, list)
	}
	found := instanceUUID.FindAllSubmatch(list, -1)
	if len(found) == 0 {
		return errors.New("cannot check: no GPU has a MIG instance. " + howToMakeOne)
	}
	for i := len(found) - 1; i >= 0; i-- {
		seen := nvml.Instance(site.UUID(found[i][1]))
		switch {
		case seen.Err != nil:
			return fmt.Errorf("cannot check: %s: %w", found[i][1], seen.Err)
		case len(seen.Processes) > 0:
			return fmt.Errorf("cannot check: %s has a process, pid %d: run it when all instances are idle",
				found[i][1], seen.Processes[0].PID)
		}
		k.gpu = seen.Device
	}
	return nil
}

// mode is the compute mode of the jobs, for the table.
func (k *kit) mode() string {
	if k.mig {
		return "MIG, none"
	}
	if k.exclusive {
		return string(site.ModeExclusiveProcess)
	}
	return string(k.before)
}

// close closes a job that is still open, and checks that the node is as it was.
func (k *kit) close() error {
	if k.method != byProlog {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := k.node.CloseLeft(ctx)
	left, err2 := k.node.Left()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left behind: %q", left))
	}
	return errors.Join(err, err2, k.sameMode())
}

// sameMode fails if the compute mode of the GPU is not the one that it had.
func (k *kit) sameMode() error {
	if k.mig {
		return nil
	}
	nvml, err := gpu.OpenTimeout(k.nvml(), 15*time.Second)
	if err != nil {
		return err
	}
	defer nvml.Close()
	seen, err := nvml.List()
	if err == nil && (len(seen) == 0 || seen[0].Mode != k.before) {
		err = fmt.Errorf("the compute mode of GPU 0 is no longer %s", k.before)
	}
	return err
}

func (k *kit) nvml() string {
	if k.simulate {
		return k.node.Sim.NVML()
	}
	return testnode.RealNVML()
}

// lane is a job, a daemon of --own, or a plain daemon, with its clients.
type lane struct {
	*kit
	method  string
	job     testnode.Job
	env     []string
	prefix  []string // the wrapper
	clients []*client
	uid     uint32
	gid     uint32
	beside  []*client // the neighbours of the trials
	started int       // trials
}

// tenant is whose job a lane is, and its part of a shared GPU in percent; 0 is a whole GPU.
type tenant struct {
	who     *user.User
	percent int
}

func (k *kit) open(ctx context.Context, method string) (*lane, error) {
	return k.openFor(ctx, method, tenant{who: k.who})
}

func (k *kit) openFor(ctx context.Context, method string, of tenant) (l *lane, err error) {
	k.lanes++
	l = &lane{kit: k, method: method}
	if l.uid, l.gid, err = numbers(of.who); err != nil {
		return l, err
	}
	path := "PATH=" + filepath.Dir(k.control) + ":/usr/bin:/bin"
	l.env = []string{path, "HOME=/tmp", "LD_LIBRARY_PATH=" + k.libraries}
	task := []string{fmt.Sprintf("SLURM_JOB_ID=%d", k.lanes), "SLURM_STEP_ID=0", "SLURM_LOCALID=0",
		"SLURM_GTIDS=0", "SLURM_NODEID=0"}
	switch method {
	case byProlog:
		l.job = testnode.Job{ID: uint32(k.lanes), UID: l.uid, GID: l.gid, GPUs: "0", Features: "mps",
			Conf: filepath.Join(k.folder, "slurm.conf"), Extra: []string{"SLURM_JOB_USER=" + of.who.Username}}
		if of.percent > 0 {
			l.job.Conf = filepath.Join(k.folder, "shared", "slurm.conf")
			l.job.Extra = append(l.job.Extra, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", of.percent))
		}
		if k.mig { // so does slurmd name an instance
			l.job.GPUs = ""
			l.job.Extra = append(l.job.Extra, "SLURM_JOB_GPUS=0", "CUDA_VISIBLE_DEVICES="+string(k.gpu.UUID))
		}
		l.env, l.prefix = append(l.env, task...), k.node.Command("mpirun-wrap")
		return l, l.hook("prolog")
	case byOwn:
		l.env = append(append(l.env, task[0], task[2], task[3]), "CUDA_VISIBLE_DEVICES="+string(k.gpu.UUID))
		l.prefix = []string{filepath.Join(k.node.Bin, "mpirun-wrap"), "--own"}
		if k.simulate {
			l.prefix = append(l.prefix, "--root", k.node.Root)
		}
		return l, l.keep(ctx)
	}
	pipe := filepath.Join(k.folder, fmt.Sprintf("bare%d", k.lanes))
	for _, dir := range []string{pipe, pipe + ".log"} {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, int(k.uid), int(k.gid))); err != nil {
			return l, err
		}
	}
	l.env = append(l.env, "CUDA_MPS_PIPE_DIRECTORY="+pipe, "CUDA_MPS_LOG_DIRECTORY="+pipe+".log",
		"CUDA_VISIBLE_DEVICES="+string(k.gpu.UUID))
	p, err := l.run(k.control, "-d")
	if err == nil && !watch.Until(ctx, 20*time.Second, p.over) {
		err = errors.New("cannot start a plain daemon: the control program does not end")
	}
	if !k.mig { // NVIDIA's guide gives an instance's UUID to clients, too
		l.env = l.env[:len(l.env)-1] // clients have the daemon's GPU
	}
	return l, err
}

func (l *lane) hook(program string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // an interrupt ends no hook
	defer cancel()
	result, err := l.node.Run(ctx, l.job.Environment(program+"_slurmd"), program)
	if err == nil && result.Code != 0 {
		err = fmt.Errorf("%s ends with %d: %s", program, result.Code, result.Output)
	}
	return err
}

// shut ends the clients, and the job or the daemon.
func (l *lane) shut() error {
	l.killAll()
	switch l.method {
	case byProlog:
		return l.hook("epilog")
	case byOwn: // its daemon ends with its last rank
		return nil
	}
	p, err := l.run("sh", "-c", `echo quit -t 5 | "$0"`, l.control)
	if err == nil && !watch.Until(context.Background(), 15*time.Second, p.over) {
		err = errors.New("cannot end a plain daemon: the control program does not answer")
	}
	return err
}

// killAll kills the groups of all programs, and waits for them.
func (l *lane) killAll() {
	for _, c := range l.clients {
		c.kill(unix.SIGKILL)
	}
	for _, c := range l.clients {
		watch.Until(context.Background(), 10*time.Second, c.over)
	}
	l.clients, l.beside = nil, nil
}

// client is a program of the user, and what it prints.
type client struct {
	watch.Output
	cmd   *exec.Cmd
	ended chan struct{}
}

// heard returns the last match of a pattern in what the client has printed, and how many there are.
func (c *client) heard(pattern string) (last []string, count int) {
	all := regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(c.Text(), -1)
	if len(all) == 0 {
		return nil, 0
	}
	return all[len(all)-1], len(all)
}

// kill sends a signal to the program's group.
func (c *client) kill(signal unix.Signal) {
	if !c.over() { // the group exists as long as its first process is not reaped
		_ = unix.Kill(-c.cmd.Process.Pid, signal)
	}
}

func (c *client) over() bool { return watch.Closed(c.ended) }

// await waits until a client has printed a line, or has ended.
func (c *client) await(ctx context.Context, pattern string) error {
	heard := func() bool { _, n := c.heard(pattern); return n > 0 }
	watch.Until(ctx, 40*time.Second, func() bool { return heard() || c.over() })
	if !heard() {
		return fmt.Errorf("a client does not print %q: %s", pattern, strings.TrimSpace(c.Text()))
	}
	return nil
}

// start starts cuda-client in the lane, by the wrapper with options.
func (l *lane) start(options []string, args ...string) (*client, error) {
	if l.prefix == nil {
		return l.run(append([]string{l.client}, args...)...)
	}
	return l.run(slices.Concat(options, []string{l.client}, args)...)
}

func (l *lane) run(line ...string) (*client, error) {
	return l.exec(l.env, slices.Concat(l.prefix, line))
}

// exec starts a program of the user with an environment.
func (l *lane) exec(env, line []string) (*client, error) {
	c := &client{cmd: exec.Command(line[0], line[1:]...), ended: make(chan struct{})}
	c.cmd.Dir, c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = "/", env, c, c
	c.cmd.WaitDelay = time.Second // a daemon may have the pipe open
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		c.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: l.uid, Gid: l.gid, Groups: []uint32{l.gid}}
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", line[0], err)
	}
	l.clients = append(l.clients, c)
	go func() { _ = c.cmd.Wait(); close(c.ended) }()
	return c, nil
}
