// SPDX-License-Identifier: Apache-2.0

// Package lab is a throw-away Slurm cluster: a real munged, slurmctld and one slurmd a node, on loopback, below one
// folder. It promises three things. A cluster that Start returns has every node idle. Everything that it needs is its
// own (key, ports, state, devices), so clusters live beside one another and beside a site's Slurm. And when Stop
// returns nil, no process, no control group and no reserved port of it is left.
//
// The daemons die with the process that started them, so a test that is killed leaves no cluster behind.
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

// Options say what cluster to start. The zero value of every field but Dir has a meaning.
type Options struct {
	Dir      string // all state; made if absent, and it and all above it must be traversable by the jobs' users
	Nodes    int    // 1 to 31; 0 means 1
	GPUs     int    // GPU devices a node, all nodes share the same device nodes; 0 means none
	DevDir   string // folder of nvidia0, nvidia1, …; "" makes fake ones (mknod c 195 N) in Dir/dev, "/dev" takes real ones
	CPUs     int    // cores a node, as Slurm is told; 0 means 16, whatever the machine has
	Features string // features of every node, comma separated, "mps"

	// Command lines of the hooks, program first, its path absolute; empty means none. Slurm takes a path alone, so a
	// hook with arguments is reached through a script in Dir/hooks, whose shell adds PWD to the hook's environment.
	Prolog, Epilog, TaskProlog []string

	PrologFlags      string            // "Alloc", or "" for none
	ConstrainDevices bool              // proctrack/cgroup and task/cgroup with ConstrainDevices=yes; needs cgroup v1
	Prefix           string            // of the nodes' names, n; clusters with ConstrainDevices wait for one another where names are alike
	SameName         bool              // the only node is named like the host, as Open MPI's mpirun wants it; else Prefix1, Prefix2, …
	UTSNodes         bool              // every slurmd has its own host name, as MPI over several nodes wants it
	BootIDs          bool              // with UTSNodes: every node has a boot id of its own, and PowerOff gives it another
	Gres             string            // Gres= of every node, "gpu:a:1,gpu:b:1"; "" means gpu:GPUs
	GresOf           map[string]string // Gres= of single nodes that differ
	GresConf         string            // whole text of gres.conf; "" means a line for each device
	Namespace        string            // whole text of namespace.yaml; "" for none
	Extra            []string          // more lines of slurm.conf; where a name comes twice, the last one counts
	Bundle           string            // root of a Slurm that bundle.sh made; "" means the Debian packages
}

// startLimit bounds Start where the caller's context has no deadline; a cluster is normally up in half a second.
const startLimit = 30 * time.Second

// Cluster is a running cluster. Its methods may be called at the same time, except Stop.
type Cluster struct {
	opts    Options
	tree    tree
	names   []string
	base    int    // the controller's port; the nodes' follow it
	since   uint64 // clock ticks since the boot when the cluster was started
	release func() // gives back the reserved ports and control groups
	keeper  *keeper

	munged, controller *daemon

	mu    sync.Mutex
	nodes map[string]*daemon

	stopOnce sync.Once
	stopErr  error
}

// Start brings a cluster up and returns when every node is idle. Its error says which daemon or node is not well and
// ends with the lines of the log that say why; nothing is left running then.
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

// prepare reserves what is shared with other clusters and writes everything below Dir.
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

// reserve takes the ports and, for a cluster that uses them, the control groups of its nodes.
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

// check refuses what no cluster can be made of, before anything is touched.
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
	case o.BootIDs && !o.UTSNodes:
		return errors.New("BootIDs needs UTSNodes")
	case o.GPUs < 0 || o.CPUs < 0:
		return errors.New("GPUs and CPUs cannot be negative")
	}
	return errors.Join(checkReachable(o.Dir), checkReachable(o.Bundle),
		checkHook("Prolog", o.Prolog), checkHook("Epilog", o.Epilog), checkHook("TaskProlog", o.TaskProlog))
}

// checkReachable refuses a Dir or a Bundle below a folder that an ordinary user cannot pass: the jobs' users need the
// devices, the munge socket and the slurm.conf of the one, and the programs of the other.
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

// checkHook refuses what slurmd would only find out at the first job, and then by draining the node.
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

// Dir is the folder of all the cluster's state. Its logs are in Dir/log.
func (c *Cluster) Dir() string { return c.opts.Dir }

// Nodes are the names of the nodes, in order.
func (c *Cluster) Nodes() []string { return append([]string(nil), c.names...) }

// Release is Slurm's, "22.05". Releases compare as strings.
func (c *Cluster) Release() string { return c.tree.release }

// Env is what a Slurm or an MPI command needs in its environment to work with this cluster, as NAME=value. It holds
// PATH, but nothing of the caller's environment. Open MPI 5 (Debian 13) has no variable here: its runtime refuses the
// loopback interface, and its mpirun works on one node only.
func (c *Cluster) Env() []string {
	env := append([]string{
		"SLURM_CONF=" + confPath(c.opts.Dir),
		"OMPI_MCA_oob_tcp_if_include=lo",
		"OMPI_MCA_btl_tcp_if_include=lo",
	}, c.tree.env()...)
	if !hasRemoteShell() {
		// Open MPI 4.1 aborts when there is neither ssh nor rsh, even where it would use Slurm to start its daemons.
		env = append(env, "OMPI_MCA_plm_rsh_agent=/bin/false")
	}
	return env
}

// withLimit gives a context a deadline where it has none.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// until polls done until it says yes, errs, or the context ends. It asks once more than the deadline allows for.
func until(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func shortHostname() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read the host name: %w", err)
	}
	short, _, _ := strings.Cut(name, ".")
	return short, nil
}
