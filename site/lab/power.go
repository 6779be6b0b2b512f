// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

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
