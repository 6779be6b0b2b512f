package mpirunwrap

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// peers is a folder by which the wrappers of one job on one node know of each other: an empty file for each that drains
// now, named by its process, and a lock for what only one may do at a time. With no folder a wrapper is alone.
type peers struct {
	dir  string
	self string // the name of this wrapper's file, once it drains
}

const turnFile = "turn"

// enter says that this wrapper drains; leave, that it has.
func (p *peers) enter() error {
	if p.dir == "" {
		return nil
	}
	self, err := site.Self()
	if err != nil {
		return fmt.Errorf("cannot tell peers in %s: %w", p.dir, err)
	}
	p.self = fmt.Sprintf("%d-%d", self.PID, self.Start)
	fd, err := unix.Open(filepath.Join(p.dir, p.self), unix.O_CREAT|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot tell peers in %s: %w", p.dir, err)
	}
	return unix.Close(fd)
}

func (p peers) leave() {
	if p.self != "" {
		_ = os.Remove(filepath.Join(p.dir, p.self))
	}
}

// draining counts the other wrappers that drain and live. The file of one that was killed says nothing.
func (p peers) draining() int {
	if p.dir == "" {
		return 0
	}
	entries, _ := os.ReadDir(p.dir)
	count := 0
	for _, entry := range entries {
		var proc site.Proc
		name := entry.Name()
		if name == p.self || !strings.Contains(name, "-") {
			continue
		}
		if n, _ := fmt.Sscanf(name, "%d-%d", &proc.PID, &proc.Start); n == 2 && proc.Alive() {
			count++
		}
	}
	return count
}

// await waits until no other wrapper drains, for so long at most.
func (p peers) await(longest time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	for p.draining() > 0 && site.Pause(ctx, 5*time.Millisecond) {
	}
}

// turn is the right to do what wrappers do one after the other. The error is site.ErrLocked where ctx ends first.
func (p peers) turn(ctx context.Context) (done func(), err error) {
	if p.dir == "" {
		return func() {}, nil
	}
	file, err := os.OpenFile(filepath.Join(p.dir, turnFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot take turn in %s: %w", p.dir, err)
	}
	if err := site.Flock(ctx, file); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot take turn in %s: %w", p.dir, err)
	}
	return func() { file.Close() }, nil
}
