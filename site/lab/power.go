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

	"github.com/slurm-mps/slurm-mps/site"
)

// bootID is where the kernel says which boot this is.
const bootID = "/proc/sys/kernel/random/boot_id"

// writeBootIDs gives every node a boot id of its own.
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

// newBootID is a random UUID with its line's end, as the kernel writes it.
func newBootID() string {
	var b [16]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// BootID is the node's boot id, for a cluster with BootIDs.
func (c *Cluster) BootID(name string) (string, error) {
	content, err := os.ReadFile(bootPath(c.opts.Dir, name))
	if err != nil {
		return "", fmt.Errorf("cannot read boot id of node %s: %w", name, err)
	}
	return string(content[:len(content)-1]), nil
}

// NodeProc is a node's slurmd.
func (c *Cluster) NodeProc(name string) (site.Process, error) {
	d := c.node(name)
	if !d.running() {
		return site.Process{}, fmt.Errorf("cannot find slurmd of node %s: %s", name, d.ending())
	}
	stat, err := site.ReadStat(d.cmd.Process.Pid)
	return stat.Process, err
}

// powerLimit is how long the processes of a node may take to die, which with a busy machine is some seconds.
const powerLimit = 30 * time.Second

// PowerOff ends a node as a power cut does: its slurmd and every process that this has started, daemons too, with no
// word to anybody. StartNode starts it again, with another boot id. Files stay, though on a real node those of /run
// would not.
func (c *Cluster) PowerOff(name string) error {
	d := c.node(name)
	if !c.opts.BootIDs || !d.running() {
		return fmt.Errorf("cannot power off node %s: it takes BootIDs and a slurmd that runs", name)
	}
	// What a node has started is in its mount namespace: nothing else of it can be counted on once a process is an
	// orphan.
	link := fmt.Sprintf("/proc/%d/ns/mnt", d.cmd.Process.Pid)
	held, err := os.Open(link) // while it is open no other namespace gets its number: that of a node that starts meanwhile
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

// endNamespace kills what is in a mount namespace and says whether there was nothing.
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
		// Who it is, before where it is: another that has its number by then has another start. The link of a zombie
		// cannot be read, nor that of a process that has gone.
		stat, err := readStat(pid)
		if err != nil {
			continue
		}
		if target, err := os.Readlink(link); err != nil || target != namespace {
			continue
		}
		empty = false
		if err := kill(site.Process{PID: pid, Start: stat.start}); err != nil {
			return false, err
		}
	}
	return empty, nil
}
