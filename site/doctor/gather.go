// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Question is the input of doctor.
type Question struct {
	Paths  site.Paths
	Conf   string // path of slurm.conf
	Node   string // its name in slurm.conf
	Self   string // this program's path
	Slurmd string // its path; "": find it, "none": do not run it
}

// driverTimeout bounds one call of NVML: a driver without persistence initialises its GPUs first.
const driverTimeout = 15 * time.Second

// Gather reads the state of a node. If a part cannot be read, it records that and continues.
func Gather(ctx context.Context, q Question) Node {
	n := Node{Name: q.Node, Root: os.Geteuid() == 0, Time: time.Now(), Paths: q.Paths, Conf: q.Conf, Unseen: []string{}}
	if !n.Root {
		n.Unseen = append(n.Unseen, "what root alone may read: run it as root")
	}
	n.Policy = readLaw(q.Paths)
	n.Own = []File{look("the policy", q.Paths.Policy()), look("the site's file", q.Paths.ConfigFile())}
	n.Config, n.ConfigErr = policyfile.ReadConfig(q.Paths)
	if n.known() {
		n.Helpers = helpers(n.Config)
		n.Control = driverOf(n.Config.Control)
	}
	n.Slurm, n.SlurmErr = readSlurm(q, n.Config)
	if n.Slurm != nil {
		if n.Root && q.Slurmd != LeaveSlurmd {
			n.Slurm.askSlurmd(ctx, q)
		}
		n.Unseen = append(n.Unseen, n.Slurm.Unread...)
	}
	n.Programs = programs(ctx, q, n.Slurm)
	n.State = state(q.Paths)
	n.Limits = limits()
	n.Guard = guarding()
	_, n.NoGroups = cgroup.Mount()
	n.askDriver(ctx, q.Paths)
	return n
}

// known reports whether the site's settings are known: its file can be used, or a copy of it.
func (n Node) known() bool { return n.ConfigErr.Err == nil || !n.ConfigErr.Kept.IsZero() }

func readLaw(paths site.Paths) PolicyResult {
	compiled, standing := policyfile.ReadPolicy(paths)
	if compiled == nil {
		return PolicyResult{FileStatus: standing}
	}
	return PolicyResult{compiled.Policy().Trigger, standing}
}

func helpers(facts site.Config) []File {
	all := []File{look("mps_control", facts.Control)}
	if facts.LibraryPath != "" {
		for _, dir := range filepath.SplitList(facts.LibraryPath) {
			all = append(all, look("library_path", dir))
		}
	}
	return all
}

// programs finds our programs: those that Slurm starts at Slurm's paths, the others beside this program.
func programs(ctx context.Context, q Question, s *Slurm) []Program {
	var all []Program
	for _, name := range []string{"prolog", "epilog", "guard", "gpu-usage", "task-prolog", "mpirun-wrap"} {
		path := hooked(s, name)
		if path == "" {
			path = installed(filepath.Dir(q.Self), name)
		}
		all = append(all, program(ctx, name, path))
	}
	return append(all, program(ctx, "mpsctl", q.Self))
}

// guarding tries on this process what a guard does with a client.
func guarding() (g Guarding) {
	text, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil {
		g.Scope, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return Guarding{g.Scope, err}
	}
	defer unix.Close(self)
	file, err := unix.PidfdGetfd(self, self, 0)
	if err == nil {
		unix.Close(file)
	}
	return Guarding{g.Scope, err}
}

func program(ctx context.Context, name, path string) Program {
	file := look(name, path)
	return Program{file, versionOf(ctx, file)}
}

func hooked(s *Slurm, name string) string {
	if s == nil {
		return ""
	}
	for _, h := range s.Hooks {
		for _, script := range h.Scripts {
			if script.Starts == name {
				return script.By
			}
		}
	}
	return ""
}

// installed returns the path of a program that Slurm does not name: beside this program, or as in docs/operator.md.
func installed(beside, name string) string {
	home := libexec
	if name == "mpirun-wrap" {
		home = "/usr/bin"
	}
	path := filepath.Join(beside, name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(home, name)
	}
	return path
}

// readSlurm reads Slurm's files. It fails if slurm.conf cannot be read. The other files have their own errors.
func readSlurm(q Question, facts site.Config) (*Slurm, error) {
	settings, err := slurm.ReadConfFile(q.Conf, q.Node)
	if err != nil {
		return nil, err
	}
	s := &Slurm{ConfFile: settings, Hooks: []Hook{readHook("Prolog", "prolog", settings), readHook("Epilog", "epilog", settings), readHook("TaskProlog", "task-prolog", settings)}}
	line, err := slurm.ReadNode(q.Conf, q.Node)
	s.Features, s.NodeErr = line.Features, err
	path := facts.GresConf
	if path == "" {
		path = filepath.Join(filepath.Dir(q.Conf), "gres.conf")
	}
	gres, err := slurm.ReadGres(path, q.Node)
	if s.GresErr = err; err == nil {
		gres.Add(line)
		s.Gres = &gres
	}
	s.Container = s.beside("job_container.conf", q.Node)
	s.readNamespace(q.Node)
	s.Cgroup = s.beside("cgroup.conf", q.Node)
	s.readPlugstack()
	return s, nil
}

// beside reads another of Slurm's files. The result is nil for a missing file, because Slurm's defaults then apply.
func (s *Slurm) beside(name, node string) *slurm.ConfFile {
	settings, err := slurm.ReadConfFile(filepath.Join(filepath.Dir(s.Path), name), node)
	if err == nil {
		return &settings
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.Unread = append(s.Unread, err.Error())
	}
	return nil
}

// readNamespace reads namespace.yaml for the plugin that needs it. Without the file, that plugin does nothing.
func (s *Slurm) readNamespace(node string) {
	if s.value("NamespaceType") != "namespace/linux" {
		return
	}
	found, err := slurm.ReadNamespace(filepath.Join(filepath.Dir(s.Path), "namespace.yaml"), node)
	switch {
	case err == nil:
		s.Namespace = &found
	case !errors.Is(err, fs.ErrNotExist):
		s.Unread = append(s.Unread, err.Error())
	}
}

// askDriver asks NVML, and finds what jobs have left.
func (n *Node) askDriver(ctx context.Context, paths site.Paths) {
	if !n.known() {
		n.Unseen = append(n.Unseen, "the driver, the control program and what is left of jobs: "+paths.ConfigFile()+" has their paths, and cannot be read")
		return
	}
	nvml, err := gpu.OpenTimeout(n.Config.NVMLLibrary, driverTimeout)
	if n.NVMLErr = err; err == nil {
		defer nvml.Close()
		n.Driver, n.NVMLErr = askGPUs(nvml)
	}
	n.lookForLeft(ctx, paths, nvml, n.NVMLErr)
}

func askGPUs(nvml *gpu.NVML) (*Driver, error) {
	version, err := nvml.Driver()
	if err != nil {
		return nil, err
	}
	seen, err := nvml.List()
	if err != nil {
		return nil, err
	}
	d := &Driver{Version: version}
	for _, s := range seen {
		g := GPU{Index: s.Index, Device: s.Device, Mode: s.Mode, Err: s.Err}
		if g.Err == nil {
			var err1, err2 error
			g.Major, g.Minor, err1 = nvml.Capability(g.Device.UUID)
			g.Persistent, err2 = nvml.PersistenceMode(g.Device.UUID)
			g.Err = errors.Join(err1, err2)
		}
		d.GPUs = append(d.GPUs, g)
	}
	return d, nil
}

// lookForLeft reads what mpsctl status reads, with the same NVML.
func (n *Node) lookForLeft(ctx context.Context, paths site.Paths, nvml *gpu.NVML, driverErr error) {
	reader, err := inspect.Open(paths, true)
	if err != nil {
		n.Unseen = append(n.Unseen, "what is left of jobs: "+err.Error())
		return
	}
	reader.Driver = func() (inspect.Driver, error) { return nvml, driverErr }
	seen, found := reader.Inspect(ctx, inspect.Disagreements)
	n.Leftovers = found
	for _, missed := range seen.Incomplete {
		switch {
		case strings.HasPrefix(missed, "the GPUs: "), strings.HasPrefix(missed, "GPU "): // these have their own findings
		case n.Root:
			n.Hidden = append(n.Hidden, missed)
		default:
			n.Unseen = append(n.Unseen, missed)
		}
	}
}

// limits returns the limits of slurmd, because prologs are its children. It also returns this process's limits, which
// a slurmd started by hand would inherit.
func limits() []Limit {
	all := []Limit{limitOf("this shell", os.Getpid())}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return all
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if name, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm")); err == nil && string(name) == "slurmd\n" {
			all = append(all, limitOf(fmt.Sprintf("slurmd (pid %d)", pid), pid))
		}
	}
	return slices.DeleteFunc(all, func(l Limit) bool { return l.Who == "" })
}

// limitOf returns the limit of a process, zero if the process has ended.
func limitOf(who string, pid int) Limit {
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return Limit{}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Limit{}
	}
	return Limit{Who: who, Hard: limit.Max, MayRaise: hasCapability(string(status), unix.CAP_SYS_RESOURCE)}
}

// hasCapability reads CapEff of /proc/PID/status.
func hasCapability(status string, capability int) bool {
	_, rest, ok := strings.Cut(status, "\nCapEff:")
	if !ok {
		return false
	}
	line, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && set&(1<<capability) != 0
}
