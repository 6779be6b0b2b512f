// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cgroup"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/state"
	"golang.org/x/sys/unix"
)

// Question is the input of doctor.
type Question struct {
	Paths  site.Paths
	Conf   string // path of slurm.conf; "": find it
	Node   string // its name in slurm.conf
	Slurmd string // its path; "": find it, "none": do not run it

	Registers []string // as registers returns it
}

// driverTimeout bounds one call of NVML: a driver without persistence initialises its GPUs first.
const driverTimeout = 15 * time.Second

// gather reads the state of a node. If a part cannot be read, it records that and continues. Programs of ours that Slurm
// does not start are where that function says.
func gather(ctx context.Context, q Question, where func(program string) string) node {
	q.Conf, q.Registers = state.SlurmConf(q.Conf), registers(q.Node)
	n := node{Name: q.Node, Root: os.Geteuid() == 0, Time: time.Now(), Paths: q.Paths, Conf: q.Conf, Unseen: []string{}}
	if !n.Root {
		n.Unseen = append(n.Unseen, "what root alone may read: run it as root")
	}
	compiled, status := policyfile.ReadPolicy(q.Paths)
	if n.Policy.FileStatus = status; compiled != nil {
		n.Policy.Trigger = compiled.Policy().Trigger
	}
	n.Own = []installed{look("the policy", q.Paths.Policy()), look("the site's file", q.Paths.ConfigFile())}
	n.Config, n.ConfigErr = policyfile.ReadConfig(q.Paths)
	n.Own = append(n.Own, look("NVML", n.Config.NVMLLibrary)) // without a path the loader finds it, by files of root's
	if n.known() {
		n.Helpers = []installed{look("mps_control", n.Config.Control)}
		for _, dir := range filepath.SplitList(n.Config.LibraryPath) {
			n.Helpers = append(n.Helpers, look("library_path", dir))
		}
		n.Control = driverOf(n.Config.Control)
	}
	n.Slurm, n.SlurmErr = readSlurm(q, n.Config)
	if n.Slurm != nil {
		if n.Root && q.Slurmd != LeaveSlurmd {
			n.Slurm.askSlurmd(ctx, q)
		}
		n.Unseen = append(n.Unseen, n.Slurm.Unread...)
	}
	n.Programs = programs(ctx, n.Slurm, where)
	n.State = stateDir(q.Paths)
	n.Limits = limits()
	n.Guard = guarding()
	_, n.NoGroups = cgroup.Mount()
	n.askDriver(ctx)
	return n
}

// known reports whether the site's settings are known: its file can be used, or a copy of it.
func (n node) known() bool { return n.ConfigErr.Err == nil || !n.ConfigErr.Kept.IsZero() }

// programs finds our programs: those that Slurm starts at Slurm's paths, the others where that function says.
func programs(ctx context.Context, s *slurmFiles, where func(program string) string) []program {
	var all []program
	for _, name := range []string{"prolog", "epilog", "guard", "gpu-usage", "task-prolog", "mpirun-wrap", "mpsctl"} {
		path := s.started(name)
		if path == "" {
			path = where(name)
		}
		if path == filepath.Join(site.Libexec, "mpirun-wrap") {
			path = "/usr/bin/mpirun-wrap"
		}
		file := look(name, path)
		all = append(all, program{file, versionOf(ctx, file)})
	}
	return all
}

// started returns the path of one of our programs that Slurm starts, "" if it starts none of that name.
func (s *slurmFiles) started(name string) string {
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

// guarding duplicates a file of this process, as a guard does with those of a client.
func guarding() (g holding) {
	text, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope") // a kernel without Yama does not have it
	g.Scope, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if g.NoGetfd = err; err != nil {
		return g
	}
	defer unix.Close(self)
	file, err := unix.PidfdGetfd(self, self, 0)
	if g.NoGetfd = err; err == nil {
		unix.Close(file)
	}
	return g
}

// readSlurm reads Slurm's files. It fails if slurm.conf cannot be read. The other files have their own errors.
func readSlurm(q Question, config site.Config) (*slurmFiles, error) {
	settings, err := slurm.ReadConfFile(q.Conf, q.Node)
	if err != nil {
		return nil, err
	}
	s := &slurmFiles{ConfFile: settings, Registers: q.Registers, Hooks: []hook{
		readHook("Prolog", "prolog", settings), readHook("Epilog", "epilog", settings),
		readHook("TaskProlog", "task-prolog", settings),
	}}
	line, err := slurm.ReadNode(q.Conf, q.Node)
	if errors.Is(err, slurm.ErrNoNode) && q.Registers != nil {
		line, err = slurm.ParseNode(q.Registers[2])
	}
	s.Features, s.NodeErr = line.Features, err
	gres, err := slurm.ReadGres(cmp.Or(config.GresConf, s.inFolder("gres.conf")), q.Node)
	if s.GresErr = err; err == nil {
		gres.Add(line)
		s.Gres = &gres
	}
	s.Container = optional(s, slurm.ReadConfFile, "job_container.conf", q.Node)
	s.Cgroup = optional(s, slurm.ReadConfFile, "cgroup.conf", q.Node)
	if s.value("NamespaceType") == "namespace/linux" { // without the file, this plugin does nothing
		s.Namespace = optional(s, readNamespace, "namespace.yaml", q.Node)
	}
	return s, nil
}

// inFolder returns the path of a file beside slurm.conf.
func (s *slurmFiles) inFolder(name string) string { return filepath.Join(filepath.Dir(s.Path), name) }

// optional reads another of Slurm's files. The result is nil for a missing file, because Slurm's defaults then apply.
func optional[T any](s *slurmFiles, read func(path, node string) (T, error), name, node string) *T {
	content, err := read(s.inFolder(name), node)
	switch {
	case err == nil:
		return &content
	case !errors.Is(err, fs.ErrNotExist):
		s.Unread = append(s.Unread, err.Error())
	}
	return nil
}

// askDriver asks NVML, and finds the leftovers of jobs.
func (n *node) askDriver(ctx context.Context) {
	if !n.known() {
		n.Unseen = append(n.Unseen, fmt.Sprintf("the driver, the control program and leftovers of jobs: "+
			"%s has their paths, and cannot be read", n.Paths.ConfigFile()))
		return
	}
	nvml, err := gpu.OpenTimeout(n.Config.NVMLLibrary, driverTimeout)
	if n.NVMLErr = err; err == nil {
		defer nvml.Close()
		n.Driver, n.NVMLErr = askGPUs(nvml)
	}
	n.findLeftovers(ctx, nvml)
}

func askGPUs(nvml *gpu.NVML) (*driverState, error) {
	version, err := nvml.Driver()
	if err != nil {
		return nil, err
	}
	seen, err := nvml.List()
	if err != nil {
		return nil, err
	}
	d := &driverState{Version: version}
	for _, s := range seen {
		g := device{Index: s.Index, Device: s.Device, Mode: s.Mode, Err: s.Err}
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

// findLeftovers reads the node as mpsctl status does, with the same NVML.
func (n *node) findLeftovers(ctx context.Context, nvml *gpu.NVML) {
	reader, err := state.Open(n.Paths, n.Conf, true)
	if err != nil {
		n.Unseen = append(n.Unseen, "leftovers of jobs: "+err.Error())
		return
	}
	reader.Driver = func() (state.Driver, error) { return nvml, n.NVMLErr }
	seen, found := reader.Inspect(ctx, state.Disagreements)
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
func limits() []limit {
	all := limitOf(nil, "this shell", os.Getpid())
	pids, _ := proc.PIDs()
	for _, pid := range pids {
		if isSlurmd(pid) {
			all = limitOf(all, fmt.Sprintf("slurmd (pid %d)", pid), pid)
		}
	}
	return all
}

// registers returns how this node's running slurmd registers a node that is in no file, nil if it does not.
func registers(node string) []string {
	pids, _ := proc.PIDs()
	for _, pid := range pids {
		line, err := proc.ReadFile(proc.Folder(pid)+"/cmdline", 1<<16)
		if args := registration(strings.Split(string(line), "\x00"), node); err == nil && args != nil && isSlurmd(pid) {
			return args
		}
	}
	return nil
}

// registration returns -Z, --conf and its value from slurmd's command line, nil if the node is in a file or another one.
func registration(argv []string, node string) (args []string) {
	conf, dynamic := "", false
	for i, arg := range argv {
		next := strings.Join(argv[i+1:min(i+2, len(argv))], "")
		switch {
		case arg == "-N" && next != node:
			return nil
		case arg == "--conf":
			conf = next
		case strings.HasPrefix(arg, "--conf="):
			conf = arg[len("--conf="):]
		case len(arg) > 1 && strings.Trim(arg[1:], "DMcsv") == "Z": // -Z, also in one word with flags without a value
			dynamic = true
		}
	}
	if !dynamic {
		return nil
	}
	return []string{"-Z", "--conf", conf}
}

// isSlurmd reports whether a process is root's slurmd. A user can give a process this name, also one with the
// set-user-id bit, and a limit that would drain the node.
func isSlurmd(pid int) bool {
	name, err := proc.Name(pid)
	status, unread := proc.ReadStatus(pid)
	return err == nil && name == "slurmd" && unread == nil && status.UIDs[0] == 0
}

// limitOf appends the limit of a process that has not ended.
func limitOf(all []limit, name string, pid int) []limit {
	var files unix.Rlimit
	var granted [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(pid)}
	err := errors.Join(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &files), unix.Capget(&header, &granted[0]))
	if err != nil {
		return all
	}
	return append(all, limit{name, files.Max, granted[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0})
}

// slurmds are the usual paths of slurmd. --slurmd names another path.
var slurmds = []string{"/usr/sbin/slurmd", "/usr/local/sbin/slurmd", "/opt/slurm/sbin/slurmd"}

// LeaveSlurmd means that slurmd is not run.
const LeaveSlurmd = "none"

// slurmdTimeout bounds slurmd -G, which waits 19 s for a missing device file (22.05 and 24.11, run).
const slurmdTimeout = 30 * time.Second

var slurmVersion = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+`)

// askSlurmd runs slurmd to print its list of the node's GPUs, because slurmd's reading of its files decides. -L keeps
// this run out of the node's slurmd.log.
func (s *slurmFiles) askSlurmd(ctx context.Context, q Question) {
	path := q.Slurmd
	for _, usual := range slurmds {
		if _, err := os.Stat(usual); path == "" && err == nil {
			path = usual
		}
	}
	unread := func(format string, args ...any) {
		s.Unread = append(s.Unread, fmt.Sprintf("slurmd's own list of GPUs: "+format, args...))
	}
	if path == "" {
		unread("it is in none of %q: name it by --slurmd", slurmds)
		return
	}
	if f := look("slurmd", path); f.Err != nil || f.Loose != "" {
		unread("%s is not there, or not root's own: name slurmd by --slurmd", path)
		return
	}
	version, _ := run(ctx, versionTimeout, path, "-V")
	s.Version = slurmVersion.FindString(version)
	printed, err := run(ctx, slurmdTimeout, path, append(q.Registers, "-G", "-N", q.Node, "-f", q.Conf, "-L", os.DevNull)...)
	if s.SlurmdGPUs, s.ListErr = slurm.ParseGresList(printed); s.ListErr == nil && err != nil {
		s.ListErr = fmt.Errorf("%s -G: %w", path, err)
	}
	if s.SlurmdGPUs == nil && s.ListErr == nil && s.Gres != nil && s.count() > 0 {
		unread("%s -G prints none in a form that is known: read it and compare it with %s", path, q.Conf)
	}
}

// namespace is namespace.yaml's part for the jobs of a node, for the plugin namespace/linux of 25.11 and later.
type namespace struct {
	Dirs []string // of which each job has its own
	Base string   // base_path
	From string   // where Dirs are set, "FILE:LINE", or the file
}

// readNamespace reads namespace.yaml for a node. It understands keys with plain values and lists in brackets, as
// Slurm's manual has them. Any other form of YAML is an error.
//
//	defaults:
//	  base_path: "/var/nvme/storage"
//	  dirs: "/tmp,/dev/shm"
//	node_confs:
//	  - nodes: "gpu[01-16]"
//	    dirs: ["/tmp", "/scratch"]
func readNamespace(path, node string) (namespace, error) {
	content, err := osfile.ReadAny(path)
	found := namespace{}
	if err == nil {
		found, err = parseNamespace(string(content), path, node)
	}
	if err != nil {
		return namespace{}, fmt.Errorf("cannot read namespaces: %w", err)
	}
	return found, nil
}

func parseNamespace(text, path, node string) (namespace, error) {
	found := namespace{Dirs: []string{"/tmp", "/dev/shm"}, From: path}
	applies := false // to the node: all of defaults, and the elements of node_confs that name it
	for n, line := range strings.Split(text, "\n") {
		line, where := strings.TrimRight(slurm.StripComment(line), " \t\r"), fmt.Sprintf("%s:%d", path, n+1)
		if line == "" || line == "---" {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimLeft(line, " -"), ":")
		if !ok || strings.ContainsAny(value, "{}&*|>") {
			return found, fmt.Errorf("%s: %s is not a key with a plain value", where, slurm.Quote(line))
		}
		values, err := plainValues(value)
		if err != nil {
			return found, fmt.Errorf("%s: %w", where, err)
		}
		switch {
		case line[0] != ' ' && line[0] != '-': // a section
			applies = key == "defaults"
		case key == "nodes":
			nodes, err := slurm.ExpandHostlist(strings.Join(values, ","))
			if err != nil {
				return found, fmt.Errorf("%s: %w", where, err)
			}
			applies = slices.Contains(nodes, node)
		case !applies:
		case key == "dirs":
			found.Dirs, found.From = values, where
		case key == "dir_confs": // a list of elements with path
			found.Dirs, found.From = nil, where
		case key == "path":
			found.Dirs = append(found.Dirs, values...)
		case key == "base_path":
			found.Base = strings.Join(values, ",")
		}
	}
	return found, nil
}

// plainValues splits "a,b", "\"a,b\"" and ["a", "b"], but not within the brackets of a host list.
func plainValues(value string) (values []string, err error) {
	value = strings.TrimSpace(value)
	if strings.HasPrefix(value, "[") && strings.HasSuffix(value, "]") {
		value = value[1 : len(value)-1]
	}
	items, err := slurm.SplitHosts(value)
	for _, item := range items {
		if item = strings.Trim(item, ` "'`); item != "" {
			values = append(values, item)
		}
	}
	return values, err
}
