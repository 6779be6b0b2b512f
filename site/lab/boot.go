// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// boot starts the daemons in order, and waits until every node is idle. It starts each daemon when the daemon before
// it answers.
func (c *Cluster) boot(ctx context.Context) error {
	if err := c.startMunged(ctx); err != nil {
		return err
	}
	if err := c.startController(ctx); err != nil {
		return err
	}
	for _, name := range c.names {
		if err := c.launchNode(name); err != nil {
			return err
		}
	}
	return c.waitIdle(ctx)
}

func (c *Cluster) startMunged(ctx context.Context) error {
	run := filepath.Join(c.opts.Dir, "run")
	socket := mungeSocket(c.opts.Dir)
	var err error
	c.munged, err = launch(c.keeper, c.opts, c.tree, "munged", c.tree.sbin("munged"), "--foreground", "--num-threads=4",
		"--key-file="+filepath.Join(c.opts.Dir, "etc", "munge.key"), "--socket="+socket,
		"--pid-file="+filepath.Join(run, "munged.pid"), "--seed-file="+filepath.Join(run, "munged.seed"),
		"--log-file="+logPath(c.opts.Dir, "munged"))
	if err != nil {
		return err
	}
	return c.munged.ready(ctx, func() bool {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

func (c *Cluster) startController(ctx context.Context) error {
	argv := []string{c.tree.sbin("slurmctld"), "-D", "-i"}
	if c.tree.release >= "24.11" {
		argv = append(withHosts(c.opts), argv...)
	}
	var err error
	c.controller, err = launch(c.keeper, c.opts, c.tree, "slurmctld", argv...)
	if err != nil {
		return err
	}
	return c.controller.ready(ctx, func() bool { return listening(c.base) })
}

// launchNode starts a node's slurmd and returns at once.
func (c *Cluster) launchNode(name string) error {
	argv := []string{c.tree.sbin("slurmd"), "-D", "-N", name}
	if c.opts.Dynamic {
		argv = append(argv, "-Z", "--conf", strings.Join(nodeWords(c.opts, name), " "))
	}
	if c.tree.root != "" {
		argv = append(argv, "-d", c.tree.sbin("slurmstepd"))
	}
	if c.opts.UTSNodes {
		argv = append(apart(c.opts, name), argv...)
	}
	d, err := launch(c.keeper, c.opts, c.tree, "slurmd."+name, argv...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[name] = d
	return nil
}

// apart returns the start of a command line that gives the rest of the line its own host name and /etc/hosts. With
// BootIDs it also gives it a boot id. All of this happens in the same process. Later mounts of the host are still
// visible there.
func apart(o Options, name string) []string {
	const script = `hostname "$1" && mount --bind "$2" /etc/hosts && { [ -z "$3" ] || mount --bind "$3" ` + bootID + `; } && shift 3 && exec "$@"`
	boot := ""
	if o.BootIDs {
		boot = bootPath(o.Dir, name)
	}
	return []string{"/usr/bin/unshare", "--uts", "--mount", "--propagation", "slave", "--", "/bin/sh", "-c", script, "sh", name, hostsPath(o.Dir), boot}
}

// withHosts returns the start of a command line that gives the rest of the line an /etc/hosts with the nodes' names,
// in the same process. slurmctld looks up the name of an srun on a node to connect to it. Since 24.11 it tries for
// ten seconds, and does nothing else in that time (run).
func withHosts(o Options) []string {
	const script = `mount --bind "$1" /etc/hosts && shift && exec "$@"`
	return []string{"/usr/bin/unshare", "--mount", "--propagation", "slave", "--", "/bin/sh", "-c", script, "sh", hostsPath(o.Dir)}
}

// waitIdle waits until Slurm reports every node as idle. It returns an error as soon as a node can no longer become
// idle.
func (c *Cluster) waitIdle(ctx context.Context) error {
	err := until(ctx, 20*time.Millisecond, func() (bool, error) {
		for _, name := range c.names {
			if d := c.node(name); !d.running() {
				return false, fmt.Errorf("slurmd ended with %s%s", d.cmd.ProcessState, logTail(c.opts.Dir, d.name))
			}
			state, reason, err := c.NodeState(ctx, name)
			if err != nil && c.opts.Dynamic && ctx.Err() == nil { // it has not registered yet
				return false, nil
			}
			if err != nil {
				return false, err
			}
			if strings.Contains(state, "INVALID") || strings.Contains(state, "DRAIN") {
				return false, fmt.Errorf("node %s is %s: %s%s", name, state, reason, logTail(c.opts.Dir, "slurmd."+name))
			}
			if strings.TrimSuffix(state, "+DYNAMIC_NORM") != "IDLE" {
				return false, nil
			}
		}
		return true, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the nodes are not idle: %w%s", err, logTail(c.opts.Dir, "slurmctld"))
	}
	return err
}

func (c *Cluster) node(name string) *daemon {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// StartNode starts the slurmd of a node that is not running. It returns when slurmd listens and Slurm has contact
// with it.
func (c *Cluster) StartNode(name string) error {
	if !slices.Contains(c.names, name) {
		return fmt.Errorf("cannot start node %s: the nodes are %s", name, strings.Join(c.names, ", "))
	}
	if c.node(name).running() {
		return fmt.Errorf("cannot start node %s: its slurmd is running", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := c.launchNode(name); err != nil {
		return err
	}
	port := c.base + 1 + slices.Index(c.names, name)
	return c.node(name).ready(ctx, func() bool { return listening(port) && c.responding(ctx, name) })
}

// responding reports whether Slurm believes that a node is up.
func (c *Cluster) responding(ctx context.Context, name string) bool {
	state, _, err := c.NodeState(ctx, name)
	return err == nil && !strings.Contains(state, "DOWN") && !strings.Contains(state, "*") && !strings.Contains(state, "NOT_RESPONDING")
}

// endLimit is the time that a daemon has to end after a signal.
const endLimit = 5 * time.Second

// StopNode ends a node's slurmd as a restart of the service does. Its jobs continue to run.
func (c *Cluster) StopNode(name string) error { return c.endNode(name, syscall.SIGTERM) }

// KillNode ends a node's slurmd with SIGKILL. Its jobs continue to run, and so does a prolog or an epilog that is
// running.
func (c *Cluster) KillNode(name string) error { return c.endNode(name, syscall.SIGKILL) }

func (c *Cluster) endNode(name string, sig syscall.Signal) error {
	d := c.node(name)
	if !d.running() {
		return fmt.Errorf("cannot end node %s: its slurmd: %s", name, d.ending())
	}
	if !d.end(sig, endLimit) {
		return fmt.Errorf("cannot end node %s: its slurmd (pid %d) lives %s after %s", name, d.cmd.Process.Pid, endLimit, sig)
	}
	return nil
}

// listening reports whether a process listens on a TCP port. With SO_REUSEADDR, which Slurm's daemons set too, nothing
// else on a port of the lab prevents another bind. To read /proc/net/tcp takes 20 ms of processor time, because the kernel's table is big.
func listening(port int) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	return err == nil && errors.Is(unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.EADDRINUSE)
}

// bootID is the kernel's file with the ID of the current boot.
const bootID = "/proc/sys/kernel/random/boot_id"

// writeBootIDs gives each node its own boot id.
func writeBootIDs(o Options, names []string) error {
	if !o.BootIDs {
		return nil
	}
	var failed error
	for _, name := range names {
		failed = errors.Join(failed, writeText(bootPath(o.Dir, name), newBootID()))
	}
	return failed
}

// newBootID returns a random UUID and a newline, as the kernel prints them.
func newBootID() string {
	var b [16]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// BootID returns the node's boot id, for a cluster with BootIDs.
func (c *Cluster) BootID(name string) (string, error) {
	content, err := os.ReadFile(bootPath(c.opts.Dir, name))
	if err != nil {
		return "", fmt.Errorf("cannot read boot id of node %s: %w", name, err)
	}
	return string(content[:len(content)-1]), nil
}

// NodeProc returns the process of a node's slurmd.
func (c *Cluster) NodeProc(name string) (proc.Process, error) {
	d := c.node(name)
	if !d.running() {
		return proc.Process{}, fmt.Errorf("cannot find slurmd of node %s: %s", name, d.ending())
	}
	stat, err := ReadStat(d.cmd.Process.Pid)
	return stat.Process, err
}

// silentFor is longer than an attack of the soak lasts.
const silentFor = 13 * time.Second

// Heard calls ask again while a process does not answer. A test process plays many nodes, and each of them looks at all
// processes of the machine. When some of these are in the middle of an exec, all readers of the test process are taken
// for a moment, and a healthy process seems silent.
func Heard(ask func() error) error {
	for until := time.Now().Add(silentFor); ; time.Sleep(100 * time.Millisecond) {
		if err := ask(); !errors.Is(err, proc.ErrSilent) || time.Now().After(until) {
			return err
		}
	}
}

// ReadStat is proc.ReadStat of a process that is heard.
func ReadStat(pid int) (stat proc.Stat, err error) {
	err = Heard(func() error { stat, err = proc.ReadStat(pid); return err })
	return stat, err
}

// powerLimit bounds the time until the processes of a node are dead. On a busy machine this takes some seconds.
const powerLimit = 30 * time.Second

// PowerOff ends a node as a power cut does. It kills the slurmd and every process that the slurmd started, also
// daemons, without any message. StartNode starts the node again, with another boot id. Files stay, although a real
// node would lose those in /run.
func (c *Cluster) PowerOff(name string) error {
	d := c.node(name)
	if !c.opts.BootIDs || !d.running() {
		return fmt.Errorf("cannot power off node %s: it takes BootIDs and a slurmd that runs", name)
	}
	// The processes of a node are in its mount namespace. Only this property identifies them reliably when they
	// become orphans.
	link := fmt.Sprintf("/proc/%d/ns/mnt", d.cmd.Process.Pid)
	// The open file reserves the namespace's number, so that a node that starts now cannot get it.
	held, err := os.Open(link)
	if err != nil {
		return fmt.Errorf("cannot power off node %s: %w", name, err)
	}
	defer held.Close()
	own, err := os.Readlink(link)
	if err != nil {
		return fmt.Errorf("cannot power off node %s: %w", name, err)
	}
	mine, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("cannot power off node %s: %w", name, err)
	}
	if mine == own {
		return fmt.Errorf("cannot power off node %s: its slurmd is in this process's own mount namespace", name)
	}
	if err := c.KillNode(name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), powerLimit)
	defer cancel()
	if err := until(ctx, 5*time.Millisecond, func() (bool, error) { return endNamespace(own) }); err != nil {
		return fmt.Errorf("cannot power off node %s: %w", name, err)
	}
	return writeText(bootPath(c.opts.Dir, name), newBootID())
}

// endNamespace kills the processes in a mount namespace, and reports whether there were none.
func endNamespace(namespace string) (empty bool, err error) {
	links, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	if err != nil {
		return false, err
	}
	empty = true
	for _, link := range links {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err != nil {
			return false, err
		}
		// Read the process's start time before its namespace: if a later process has the same pid, it has another
		// start time. The link of a zombie or of an ended process cannot be read.
		stat, err := proc.StatNow(pid)
		if err != nil {
			continue
		}
		if target, err := os.Readlink(link); err != nil || target != namespace {
			continue
		}
		empty = false
		if err := kill(stat.Process); err != nil {
			return false, err
		}
	}
	return empty, nil
}
