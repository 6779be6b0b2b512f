// SPDX-License-Identifier: Apache-2.0

// Package testnode is a node for tests, the demo and benchmarks. The production binaries, unchanged, are installed
// below a root folder, on a simulated node or on a real one. The package also checks that a node is as it was before.
package testnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"golang.org/x/sys/unix"
)

// Programs are the production binaries.
var Programs = []string{"prolog", "epilog", "guard", "gpu-usage", "task-prolog", "mpirun-wrap", "mpsctl", "mps-tune"}

// Links are the programs that are links to another one, as in the packages.
var Links = map[string]string{"gpu-usage": "epilog", "mps-tune": "mpsctl"}

// Link makes the links in a folder with the other programs. A link that is there already stays.
func Link(bin string) error {
	for link, program := range Links {
		path := filepath.Join(bin, link)
		if at, err := os.Readlink(path); err == nil && at == program {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot link %s: %w", link, err)
		}
		if err := os.Symlink(program, path); err != nil {
			return fmt.Errorf("cannot link %s: %w", link, err)
		}
	}
	return nil
}

// Node is one node for tests: a root folder with a configuration, the production binaries, and simulated or real
// GPUs.
type Node struct {
	Root string   // the --root of the binaries
	Bin  string   // the folder of the binaries
	Sim  *sim.Sim // nil on a real node

	// Before are the GPUs of a real node with the modes that they had. It is empty if the policy does not change
	// modes.
	Before []GPU
}

// Build builds the production binaries, as make build does, and the simulation, into a folder. A second call uses
// what is built already. If BUILT_FOLDER names a folder with all of it, that folder is used, because a machine
// with a GPU may have no Go.
func Build(dir string) (string, error) {
	if built := os.Getenv("BUILT_FOLDER"); built != "" {
		return built, nil
	}
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	unlock, err := lockBuild(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	for _, program := range Programs {
		if Links[program] != "" {
			continue
		}
		if err := goBuild(module, filepath.Join(dir, "bin", program), program); err != nil {
			return "", err
		}
	}
	return dir, errors.Join(Link(filepath.Join(dir, "bin")), sim.Build(filepath.Join(dir, "sim")))
}

// lockBuild makes test programs that share the folder build one after the other.
func lockBuild(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot build in %s: %w", dir, err)
	}
	file, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("cannot build in %s: %w", dir, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := osfile.Flock(ctx, file); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot build in %s: %w", dir, err)
	}
	return func() { file.Close() }, nil
}

// Shared is the folder of builds that all tests of this module use. It is .build at the top of the module, or the
// folder that BUILT_FOLDER names.
func Shared() (string, error) {
	if built := os.Getenv("BUILT_FOLDER"); built != "" {
		return built, nil
	}
	module, err := moduleDir()
	return filepath.Join(module, ".build"), err
}

// Built is the folder of what Build makes, at its shared place.
func Built() (string, error) {
	shared, err := Shared()
	if err != nil {
		return "", err
	}
	return Build(shared)
}

// goBuild builds one binary. The binaries that ranks run are static, and so is the guard.
func goBuild(module, output, program string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-o", output, "./cmd/"+program)
	cmd.Dir = module
	cgo := "CGO_ENABLED=1"
	if program == "mpirun-wrap" || program == "task-prolog" || program == "guard" {
		cgo = "CGO_ENABLED=0"
	}
	cmd.Env = append(os.Environ(), cgo, "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %s: %w: %s", program, err, out)
	}
	return nil
}

// moduleDir is the folder of this module. It works also for the benchmarks, which are a separate module.
func moduleDir() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/slurm-mps/slurm-mps").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// New makes a simulated node with these GPUs in dir, and a root with the given policy. The site's configuration names
// the simulated programs. Every user must be able to traverse dir. If the policy is "", the node gets the policy
// Default().
func New(dir, built, policy string, models ...node.Model) (Node, error) {
	simulated, err := sim.New(filepath.Join(dir, "sim"), filepath.Join(built, "sim"), models...)
	if err != nil {
		return Node{}, err
	}
	facts := fmt.Sprintf("mps_control = %q\nnvml_library = %q\n", simulated.Program("nvidia-cuda-mps-control"), simulated.NVML())
	s := Node{Root: filepath.Join(dir, "root"), Bin: filepath.Join(built, "bin"), Sim: &simulated}
	return s, errors.Join(s.install(policy, facts), s.linkDevices(filepath.Join(simulated.Node.Dir, "dev")),
		s.linkKernel(simulated.Node.Dir))
}

// Real makes a test node on a real node. The policy must not change compute modes, unless ALLOW_MODE_CHANGES=1 allows
// this (MayChangeModes).
func Real(dir, built, policy string) (Node, error) {
	s := Node{Root: filepath.Join(dir, "root"), Bin: filepath.Join(built, "bin")}
	if !strings.Contains(policy, Unchanged) {
		if !MayChangeModes() {
			return Node{}, errors.New("cannot make test node on a real node: the policy lacks " + Unchanged + ", and ALLOW_MODE_CHANGES is not 1")
		}
		var err error
		if s.Before, err = realGPUs(); err != nil {
			return Node{}, fmt.Errorf("cannot make test node on a real node: %w", err)
		}
	}
	return s, errors.Join(s.install(policy, realFacts()), s.linkDevices("/dev"), s.link("/proc/driver/nvidia", "/proc/driver/nvidia"))
}

// linkDevices links the device files of a node below the root, where the programs look for them.
func (s Node) linkDevices(from string) error {
	files, err := filepath.Glob(filepath.Join(from, "nvidia*"))
	err = errors.Join(err, os.MkdirAll(s.Paths().Devices(), 0o755))
	for _, file := range files {
		err = errors.Join(err, s.link(file, filepath.Join("/dev", filepath.Base(file))))
	}
	return err
}

// linkKernel links what the kernel shows of a simulated node below the root, where the programs look for it.
func (s Node) linkKernel(simulated string) error {
	return errors.Join(s.link(filepath.Join(simulated, "proc"), "/proc"), s.link(filepath.Join(simulated, "sys"), "/sys"))
}

// link makes a link to a file or folder at a path below the root, if there is none.
func (s Node) link(to, path string) error {
	path = filepath.Join(s.Root, path)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.Symlink(to, path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make test node: %w", err)
	}
	return nil
}

// RealControl is the path of a real node's control program.
const RealControl = "/usr/bin/nvidia-cuda-mps-control"

// RealGPUs counts the real GPUs of this machine. It is 0 if there is no control program.
func RealGPUs() int { return len(RealMinors()) }

// RealMinors are the numbers of /dev/nvidiaN, in order. In a container they need not begin with 0.
func RealMinors() (minors []int) {
	if _, err := os.Stat(RealControl); err != nil {
		return nil
	}
	devices, _ := filepath.Glob("/dev/nvidia[0-9]*")
	for _, device := range devices {
		if n, err := strconv.Atoi(strings.TrimPrefix(device, "/dev/nvidia")); err == nil {
			minors = append(minors, n)
		}
	}
	slices.Sort(minors)
	return minors
}

// GresConf names the device files of the first n GPUs: the real ones, or nvidia0 and so on of a simulated node.
func (s Node) GresConf(n int) string {
	var text strings.Builder
	for i := range n {
		if real := RealMinors(); s.Sim == nil && i < len(real) {
			i = real[i]
		}
		fmt.Fprintf(&text, "Name=gpu File=/dev/nvidia%d\n", i)
	}
	return text.String()
}

// realFacts names the driver's library if the loader may not find it. slurmd gives prologs no LD_LIBRARY_PATH.
func realFacts() string {
	if path := RealNVML(); path != "" {
		return fmt.Sprintf("nvml_library = %q\n", path)
	}
	return ""
}

// RealNVML is the path of the real library if the loader does not search its folder. It is "" if the loader finds the
// library.
func RealNVML() string {
	const unsearched = "/usr/local/nvidia/lib64/libnvidia-ml.so.1"
	if _, err := os.Stat(unsearched); err == nil {
		return unsearched
	}
	return ""
}

// Teaching is a policy with a rule that denies, one that lets its jobs choose, and one for all others.
const Teaching = `version = 1

trigger {
  constraint = "mps"
  option     = true
}

rule "teaching" {
  when = job.partition == "edu" && length(job.gpus) > 1
  deny = "MPS on the edu partition is for one GPU at a time"
}

rule "chemistry" {
  when  = startswith(job.account, "chem")
  allow = ["share", "ceiling"]
  grant {
    scope = "gpu"
    share = "overlap:3"
  }
}

rule "all" {
  when = true
  grant {}
}
`

// Default is a policy that grants MPS to every job that asks for it. The attributes are lines of its grant.
func Default(attributes ...string) string {
	return "version = 1\nrule \"mps\" {\n  when = contains(job.requested, \"mps\")\n  grant {\n    " +
		strings.Join(attributes, "\n    ") + "\n  }\n}\n"
}

func (s Node) install(policy, facts string) error {
	if policy == "" {
		policy = Default()
	}
	paths := site.Paths{Root: s.Root}
	if err := os.MkdirAll(filepath.Dir(paths.Policy()), 0o755); err != nil {
		return fmt.Errorf("cannot make test node: %w", err)
	}
	for _, dir := range []string{"tmp", "dev/shm"} { // mpirun-wrap --own makes folders there
		dir = filepath.Join(s.Root, dir)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
			return fmt.Errorf("cannot make test node: %w", err)
		}
	}
	return errors.Join(os.WriteFile(paths.Policy(), []byte(policy), 0o644), os.WriteFile(paths.ConfigFile(), []byte(facts), 0o644))
}

// Paths returns the paths of the binaries' files.
func (s Node) Paths() site.Paths { return site.Paths{Root: s.Root} }

// Command is a binary with its --root, as Prolog= in slurm.conf has it.
func (s Node) Command(program string, args ...string) []string {
	return append([]string{filepath.Join(s.Bin, program), "--root", s.Root}, args...)
}

// Job is a job of a test.
type Job struct {
	ID       uint32
	UID, GID uint32
	GPUs     string // SLURM_JOB_GPUS, "0,1"
	Features string // SLURM_JOB_CONSTRAINTS
	Conf     string // SLURM_CONF; gres.conf is in the same folder
	Extra    []string
}

// Environment is exactly what slurmd gives its prolog or epilog for a job (recorded on Slurm 22.05).
func (j Job) Environment(context string) []string {
	env := []string{
		"SLURM_SCRIPT_CONTEXT=" + context, "SLURMD_NODENAME=n1", "SLURM_CLUSTER_NAME=lab", "SLURM_CONF=" + j.Conf,
		fmt.Sprintf("SLURM_JOB_ID=%d", j.ID), fmt.Sprintf("SLURM_JOB_UID=%d", j.UID), fmt.Sprintf("SLURM_JOB_GID=%d", j.GID),
		"SLURM_JOB_USER=hpc1", "SLURM_JOB_PARTITION=main", "SLURM_JOB_CONSTRAINTS=" + j.Features,
		"SLURM_JOB_RESTART_COUNT=0", "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_NTASKS=1",
	}
	if j.GPUs != "" {
		env = append(env, "SLURM_JOB_GPUS="+j.GPUs, "CUDA_VISIBLE_DEVICES="+j.GPUs)
	}
	return append(env, j.Extra...)
}

// Result is how a program ended.
type Result struct {
	Code   int
	Output string // stdout and stderr, which are one pipe under slurmd
}

// Run runs a binary to its end with an environment. The folder, stdin and a process group of its own are as under slurmd:
// an interrupt of a test is none of its hooks.
func (s Node) Run(ctx context.Context, env []string, program string, args ...string) (Result, error) {
	line := s.Command(program, args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = env
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := blocked(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Result{}, fmt.Errorf("cannot run %s: %w: %s", program, err, out.String())
	}
	return Result{cmd.ProcessState.ExitCode(), out.String()}, ctx.Err()
}

// blocked starts a program with SIGINT and SIGPIPE blocked, as slurmd does (recorded). A child gets the signal mask
// of the thread that starts it.
func blocked(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const sigint, sigpipe = 1 << 1, 1 << 12
	mask, before := unix.Sigset_t{Val: [16]uint64{sigint | sigpipe}}, unix.Sigset_t{}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &mask, &before); err != nil {
		return err
	}
	err := start()
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

// Left lists what differs from the node before any job: files of state, processes of MPS below the root, control
// groups of jobs, and GPUs with another mode. On a simulated node the mode before is the default. The list is empty
// if nothing is left. Lock files, which stay, are not state.
func (s Node) Left() ([]string, error) {
	files, err := s.leftFiles()
	if err != nil {
		return nil, err
	}
	processes, err := s.leftProcesses()
	if err != nil {
		return nil, err
	}
	groups, err := s.leftGroups()
	if err != nil {
		return nil, err
	}
	modes, err := s.leftModes()
	return slices.Concat(files, processes, groups, modes), err
}

func (s Node) leftGroups() (left []string, err error) {
	groups, err := s.groups()
	for _, group := range groups {
		left = append(left, "control group "+group)
	}
	return left, err
}

// groups returns the control groups of the node's jobs.
func (s Node) groups() ([]string, error) {
	one, err := cgroup.Tree{Run: s.Paths().Run()}.Of(0, 0)
	if errors.Is(err, cgroup.ErrNone) {
		return nil, nil
	}
	groups, err2 := filepath.Glob(strings.TrimSuffix(one, "0-0") + "*")
	return groups, errors.Join(err, err2)
}

// LoseGroups removes the control groups of the node's jobs, as a reboot does. Their processes must have ended.
func (s Node) LoseGroups() error {
	groups, err := s.groups()
	for _, group := range groups {
		err = errors.Join(err, os.Remove(group))
	}
	return err
}

func (s Node) leftFiles() ([]string, error) {
	var left []string
	run := s.Paths().Run()
	err := filepath.WalkDir(run, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) { // below a folder that is found
			return nil
		}
		name, _ := filepath.Rel(run, path)
		if err == nil && strings.Contains(name, "/") || !known(name) {
			left = append(left, "file "+name)
		}
		return err
	})
	return left, err
}

func known(name string) bool {
	switch name {
	case ".", "lock", "takers", "busy", "leases", "tickets", "jobs", "locks", "guards":
		return true
	}
	return false
}

func (s Node) leftProcesses() ([]string, error) {
	pids, err := s.Processes()
	var left []string
	for _, pid := range pids {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if len(command) == 0 && ends(pid) {
			continue
		}
		left = append(left, fmt.Sprintf("process %d %s", pid, bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
	}
	return left, err
}

// ends waits for the end of a process without a command line: it has lost its memory already.
func ends(pid int) bool {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if stat, err := proc.ReadStat(pid); err != nil || !stat.Running() {
			return true
		}
	}
	return false
}

// Processes returns the living processes of MPS whose pipe folder is below the root, and the guards of the root's
// jobs.
func (s Node) Processes() ([]int, error) {
	var pids []int
	below, err := s.Below(s.Paths().Run())
	for _, p := range below {
		pids = append(pids, p.PID)
	}
	guards, err2 := s.Guards()
	return append(pids, guards...), errors.Join(err, err2)
}

// Guards returns the living guards of the root's jobs.
func (s Node) Guards() (pids []int, err error) {
	all, err := proc.PIDs()
	var named []proc.Process
	for _, pid := range all {
		if name, _ := proc.Name(pid); name != "guard" {
			continue
		}
		if stat, err := proc.ReadStat(pid); err == nil && stat.Running() {
			named = append(named, stat.Process)
		}
	}
	for i, line := range proc.CommandLines(context.Background(), named) {
		if at := slices.Index(line.Args, "--root"); at >= 0 && at+1 < len(line.Args) && line.Args[at+1] == s.Root {
			pids = append(pids, named[i].PID)
		}
	}
	return pids, err
}

// Below returns the living processes of MPS whose pipe folder begins with dir, in the order of their pids.
func (s Node) Below(dir string) ([]proc.Process, error) {
	all, err := mps.FindAll(context.Background())
	if err != nil {
		return nil, err
	}
	var below []proc.Process
	for _, p := range all {
		if strings.HasPrefix(p.PipeDir, dir) {
			below = append(below, p.Process)
		}
	}
	slices.SortFunc(below, func(a, b proc.Process) int { return a.PID - b.PID })
	return below, nil
}

func (s Node) leftModes() ([]string, error) {
	if s.Sim == nil {
		return s.WrongModes()
	}
	gpus, err := s.Sim.Node.GPUs()
	if err != nil {
		return nil, err
	}
	var left []string
	for i, gpu := range gpus {
		mode, err := gpu.Mode()
		if err != nil {
			return nil, err
		}
		if mode != 0 {
			left = append(left, fmt.Sprintf("GPU %d in mode %d", i, mode))
		}
	}
	return left, nil
}
