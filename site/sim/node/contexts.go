// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// The types of a context, as nvidia-smi prints them. nvidia-smi prints C for a Server too; this package tells them
// apart.
const (
	Compute = "C"   // a process that computes without MPS
	Client  = "M+C" // a client of an MPS server
	Server  = "S"   // an MPS server
)

// Whole is the Instance of a context on a GPU that is not in MIG mode.
const Whole = -1

// Context is a process that holds a context on a GPU.
type Context struct {
	PID       int
	Start     uint64 // field 22 of /proc/PID/stat
	Type      string // Compute, Client or Server
	MemoryMiB int
	Instance  int // K of mig/K, or Whole
}

// Contexts returns the processes that hold a context on the GPU: living ones, and dead ones whose driver files
// another process holds.
func (g GPU) Contexts() ([]Context, error) {
	held, _, err := g.entries()
	return held, err
}

// AddContext notes that a process holds a context. The error is ErrBusy if the compute mode forbids the context. A
// process has one entry on a GPU, and a second call replaces the first.
func (g GPU) AddContext(added Context) error {
	return locked(g.Dir, func() error {
		held, err := g.sweep()
		if err != nil {
			return err
		}
		mode, err := g.Mode()
		if err != nil {
			return err
		}
		if !admits(mode, held, added) {
			return fmt.Errorf("cannot create context of pid %d on simulated GPU %d: %w", added.PID, g.Index, ErrBusy)
		}
		return g.Set(filepath.Join("contexts", strconv.Itoa(added.PID)), added.text())
	})
}

// DropContext notes that a process no longer holds a context. It is no error if the process held none.
func (g GPU) DropContext(pid int) error {
	return locked(g.Dir, func() error {
		err := os.Remove(filepath.Join(g.Dir, "contexts", strconv.Itoa(pid)))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

// Start returns the start time of a living process, field 22 of /proc/PID/stat. ok is false for a zombie and if there
// is no process. A process whose first thread has ended looks like a zombie and lives while it has other threads: the
// real driver serves it (seen on an H100).
func Start(pid int) (start uint64, ok bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false
	}
	// Field 2 is the program's name in parentheses. The name may hold any character, so the fields are counted from
	// its end.
	_, rest, found := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 {
		return 0, false
	}
	if ended := fields[0] == "Z" || fields[0] == "X"; ended && fields[17] == "1" { // no thread but the first
		return 0, false
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, err == nil
}

// admits is the driver's rule for each compute mode.
func admits(mode int, held []Context, added Context) bool {
	if added.Type == Client || mode == Default {
		return true
	}
	if mode == Prohibited {
		return false
	}
	for _, other := range held {
		if other.PID != added.PID && other.Type != Client {
			return false
		}
	}
	return true
}

// sweep removes the entries that no longer count and returns the others. The caller holds the lock.
func (g GPU) sweep() ([]Context, error) {
	held, dead, err := g.entries()
	if err != nil {
		return nil, err
	}
	for _, gone := range dead {
		if err := os.Remove(filepath.Join(g.Dir, "contexts", strconv.Itoa(gone.PID))); err != nil {
			return nil, fmt.Errorf("cannot drop context of dead pid %d: %w", gone.PID, err)
		}
	}
	return held, nil
}

// entries returns the entries in contexts/ in two lists: those that count and those that no longer count.
func (g GPU) entries() (held, dead []Context, err error) {
	files, err := os.ReadDir(filepath.Join(g.Dir, "contexts"))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list contexts of simulated GPU %d: %w", g.Index, err)
	}
	for _, file := range files {
		context, err := g.context(file.Name())
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue // it was dropped during this loop, or it is a draft
		case err != nil:
			return nil, nil, err
		case g.counts(context):
			held = append(held, context)
		default:
			dead = append(dead, context)
		}
	}
	return held, dead, nil
}

func (g GPU) context(name string) (Context, error) {
	found := Context{Instance: Whole}
	pid, err := strconv.Atoi(name)
	if err != nil {
		return found, os.ErrNotExist // a draft, which another process is writing
	}
	text, err := g.Text(filepath.Join("contexts", name))
	if err != nil {
		return found, err
	}
	found.PID = pid
	words, err := fmt.Sscan(text, &found.Start, &found.Type, &found.MemoryMiB, &found.Instance)
	if words < 3 {
		return found, fmt.Errorf("cannot read context %s of simulated GPU %d: %w", name, g.Index, err)
	}
	return found, nil
}

// counts reports whether a context exists. It does if its process lives. It also does if the process is dead and
// another process holds one of its driver files.
func (g GPU) counts(c Context) bool {
	if start, ok := Start(c.PID); ok {
		return start == c.Start
	}
	return g.filesHeld(c.PID)
}

// filesHeld reports whether any process has a driver file of this process open. cuda.c locks a byte of each file.
func (g GPU) filesHeld(pid int) bool {
	minor, _ := g.Text("minor")
	for _, each := range []struct {
		name string
		at   int
	}{{"nvidia-uvm", 2 * pid}, {"nvidia-uvm", 2*pid + 1}, {"nvidiactl", pid}, {"nvidia" + minor, pid}} {
		file, err := os.Open(filepath.Join(filepath.Dir(g.Dir), "dev", each.name))
		if err != nil {
			continue
		}
		locked := ByteLocked(file, int64(each.at))
		file.Close()
		if locked {
			return true
		}
	}
	return false
}

// ByteLocked reports whether another open file has a lock on a byte.
func ByteLocked(file *os.File, at int64) bool {
	const ofdGetLock = 36 // F_OFD_GETLK, which package syscall lacks
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: at, Len: 1}
	return syscall.FcntlFlock(file.Fd(), ofdGetLock, &lock) == nil && lock.Type != syscall.F_UNLCK
}

func (c Context) text() string {
	text := fmt.Sprintf("%d %s %d", c.Start, c.Type, c.MemoryMiB)
	if c.Instance != Whole {
		text += " " + strconv.Itoa(c.Instance)
	}
	return text
}
