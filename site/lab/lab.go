// SPDX-License-Identifier: Apache-2.0

// Package lab is a temporary Slurm cluster: a real munged, a slurmctld and one slurmd for each node, on loopback,
// below one folder. It makes three promises.
//
// 1. When Start returns a cluster, every node is idle. 2. The cluster has its own key, ports, state and devices, so
// several clusters can run at the same time, also next to a site's Slurm. 3. When Stop returns nil, no process, no
// control group and no reserved port of the cluster is left.
//
// The daemons die with the process that started them, so a killed test leaves no cluster behind.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options describe the cluster to start. The zero value of every field except Dir has a meaning.
type Options struct {
	Dir      string // all state; Start makes it; the jobs' users must be able to traverse it and all its parents
	Nodes    int    // 1 to 31; 0 means 1
	GPUs     int    // GPU devices of each node; all nodes share the same device nodes; 0 means none
	DevDir   string // folder of nvidia0, …; "" makes fake devices (mknod c 195 N) in Dir/dev, "/dev" has real ones
	CPUs     int    // cores of each node in slurm.conf; 0 means 16, also if the machine has fewer or more
	Features string // features of every node, comma separated, for example "mps"

	// Prolog, Epilog and TaskProlog are the command lines of the hooks. The program comes first, with an absolute
	// path. Empty means none. Slurm accepts only a path, so a hook with arguments runs through a script in Dir/hooks.
	// The script's shell adds PWD to the hook's environment.
	Prolog, Epilog, TaskProlog []string

	PrologFlags      string            // "Alloc", or "" for none
	ConstrainDevices bool              // proctrack/cgroup and task/cgroup with ConstrainDevices=yes; needs cgroup v1
	Prefix           string            // of the nodes' names, default n; see reserveGroups for equal names
	SameName         bool              // one node with the host's name, for Open MPI's mpirun; else Prefix1, Prefix2, …
	Dynamic          bool              // the node is in no file: slurmd -Z registers it; needs Slurm 22.05
	UTSNodes         bool              // every slurmd has its own host name, as MPI over several nodes needs it
	BootIDs          bool              // with UTSNodes: every node has its own boot id, and PowerOff changes it
	Gres             string            // Gres= of every node, "gpu:a:1,gpu:b:1"; "" means gpu:GPUs
	GresOf           map[string]string // Gres= of single nodes that differ
	GresConf         string            // full text of gres.conf; "" means a line for each device
	Namespace        string            // full text of namespace.yaml; "" for none
	Extra            []string          // more lines of slurm.conf; if a name comes twice, the last line counts
	Bundle           string            // root of a Slurm that bundle.sh made; "" means the Debian packages
}

// startLimit bounds Start if the caller's context has no deadline. A cluster normally starts in half a second.
const startLimit = 30 * time.Second

// Cluster is a running cluster. Its methods may be called at the same time, except Stop.
type Cluster struct {
	opts    Options
	tree    tree
	names   []string
	base    int    // the controller's port; the nodes' ports follow
	since   uint64 // clock ticks since the boot when the cluster was started
	release func() // releases the reserved ports and control groups
	keeper  *keeper

	munged, controller *daemon

	mu    sync.Mutex
	nodes map[string]*daemon

	stopOnce sync.Once
	stopErr  error
}

// Start starts a cluster and returns when every node is idle. Its error names the daemon or node that failed, and
// ends with the log lines that show why. After an error no process is left.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	ctx, cancel := withLimit(ctx, startLimit)
	defer cancel()
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("cannot start the lab: %w", err)
	}
	c, err := prepare(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot start the lab: %w", err)
	}
	if err := c.boot(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start the lab: %w", err), c.Stop())
	}
	return c, nil
}

// prepare reserves the ports and control groups, which clusters share, and writes everything below Dir.
func prepare(ctx context.Context, o Options) (*Cluster, error) {
	host, err := shortHostname()
	if err != nil {
		return nil, err
	}
	t, err := newTree(ctx, o.Bundle)
	if err != nil {
		return nil, err
	}
	names := nodeNames(o, host)
	base, release, err := reserve(ctx, o, names)
	if err != nil {
		return nil, err
	}
	if err := writeFiles(o, t, host, names, base); err != nil {
		release()
		return nil, err
	}
	since, err := bootTicks()
	if err != nil {
		release()
		return nil, err
	}
	return &Cluster{opts: o, tree: t, names: names, base: base, since: since, release: release,
		keeper: newKeeper(), nodes: map[string]*daemon{}}, nil
}

// reserve reserves the ports and, for a cluster that uses them, the control groups of its nodes.
func reserve(ctx context.Context, o Options, names []string) (base int, release func(), err error) {
	base, freePorts, err := reservePorts()
	if err != nil {
		return 0, nil, err
	}
	if !o.ConstrainDevices {
		return base, freePorts, nil
	}
	freeGroups, err := reserveGroups(ctx, names)
	if err != nil {
		freePorts()
		return 0, nil, err
	}
	return base, func() { freeGroups(); freePorts() }, nil
}

func (o Options) withDefaults() Options {
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.Prefix == "" {
		o.Prefix = "n"
	}
	if o.CPUs == 0 {
		o.CPUs = 16
	}
	if o.Gres == "" && o.GPUs > 0 {
		o.Gres = fmt.Sprintf("gpu:%d", o.GPUs)
	}
	return o
}

// check refuses options that cannot make a cluster, before Start changes anything.
func (o Options) check() error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("it needs root")
	case !filepath.IsAbs(o.Dir):
		return fmt.Errorf("Dir is %q: it must be an absolute path", o.Dir)
	case strings.ContainsAny(o.Dir, " \t\n#'\"\\"):
		return fmt.Errorf("Dir is %q: slurm.conf cannot hold a path with blanks, quotes or #", o.Dir)
	case len(o.Dir) > 60:
		// The longest socket is Dir/spool/HOST/HOST_JOB.STEP, and a socket's path has 107 bytes.
		return fmt.Errorf("Dir is %q: more than 60 bytes leave no room for Slurm's sockets", o.Dir)
	case o.Nodes < 1 || o.Nodes > portsPerLab-1:
		return fmt.Errorf("Nodes is %d: it must be 1 to %d", o.Nodes, portsPerLab-1)
	case o.SameName && (o.Nodes > 1 || o.UTSNodes):
		return errors.New("SameName is for one node without UTSNodes")
	case o.Dynamic && (o.Nodes > 1 || o.UTSNodes || o.GresOf != nil):
		return errors.New("Dynamic is for one node, because dynamic nodes share one port")
	case o.BootIDs && !o.UTSNodes:
		return errors.New("BootIDs needs UTSNodes")
	case o.GPUs < 0 || o.CPUs < 0:
		return errors.New("GPUs and CPUs cannot be negative")
	}
	return errors.Join(checkReachable(o.Dir), checkReachable(o.Bundle),
		checkHook("Prolog", o.Prolog), checkHook("Epilog", o.Epilog), checkHook("TaskProlog", o.TaskProlog))
}

// checkReachable refuses a Dir or a Bundle below a folder that an ordinary user cannot traverse. The jobs' users need
// the devices, the munge socket and slurm.conf in Dir, and the programs in Bundle.
func checkReachable(dir string) error {
	if dir == "" {
		return nil
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err == nil && info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("jobs' users cannot reach %s: %s has mode %#o; choose a place below /tmp or add o+x",
				dir, parent, info.Mode().Perm())
		}
		if parent == "/" {
			return nil
		}
	}
}

// checkHook refuses a hook that slurmd would refuse only at the first job. slurmd would then drain the node.
func checkHook(what string, argv []string) error {
	if len(argv) == 0 {
		return nil
	}
	if !filepath.IsAbs(argv[0]) {
		return fmt.Errorf("%s is %q: it must be an absolute path", what, argv[0])
	}
	info, err := os.Stat(argv[0])
	if err != nil {
		return fmt.Errorf("cannot use %s: %w", what, err)
	}
	if info.IsDir() || info.Mode().Perm()&0o500 != 0o500 {
		return fmt.Errorf("cannot use %s: %s must be a readable and executable file", what, argv[0])
	}
	return nil
}

// Dir returns the folder of the cluster's state. Its logs are in Dir/log.
func (c *Cluster) Dir() string { return c.opts.Dir }

// Nodes returns the names of the nodes, in order.
func (c *Cluster) Nodes() []string { return append([]string(nil), c.names...) }

// Release returns Slurm's release, for example "22.05". Releases compare as strings.
func (c *Cluster) Release() string { return c.tree.release }

// Env returns the environment, as NAME=value, that a Slurm or an MPI command needs to work with this cluster. It
// holds PATH, but nothing from the caller's environment. It has no variable for Open MPI 5 (Debian 13): the runtime
// of Open MPI 5 refuses the loopback interface, and its mpirun works on one node only.
func (c *Cluster) Env() []string {
	env := append([]string{
		"SLURM_CONF=" + confPath(c.opts.Dir),
		"OMPI_MCA_oob_tcp_if_include=lo",
		"OMPI_MCA_btl_tcp_if_include=lo",
	}, c.tree.env()...)
	if !hasRemoteShell() {
		// Open MPI 4.1 aborts if neither ssh nor rsh exists, even if it would use Slurm to start its daemons.
		env = append(env, "OMPI_MCA_plm_rsh_agent=/bin/false")
	}
	return env
}

// withLimit adds a deadline to a context that has none.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// until polls done until done returns true or an error, or until the context ends. It calls done at least once, even
// after the deadline.
func until(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	for began := time.Now(); ; {
		at := time.Now()
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(Pause(every, began, at)):
		}
	}
}

// Pause is the time until the next look at something that has not come since began. The last look began at at. A look
// costs processor time that others need, and a tenth more of a wait costs little. So the pause grows from every to
// eight times that, and is twice as long as the look took, but not above half a second.
func Pause(every time.Duration, began, at time.Time) time.Duration {
	return max(every, min(time.Since(began)/10, 8*every), min(2*time.Since(at), 500*time.Millisecond))
}

func shortHostname() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read the host name: %w", err)
	}
	short, _, _ := strings.Cut(name, ".")
	return short, nil
}
