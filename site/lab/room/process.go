// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// process is a program of the user, with its children, and what they print.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	mutex sync.Mutex
	rest  []byte
	lines []string
	works map[string]time.Time // when a neighbour last printed its work
	count map[string]count     // what it printed then
	over  time.Time
}

// maxLines is the maximum number of lines that a process keeps.
const maxLines = 2000

var worksLine = regexp.MustCompile(`^(\S+) works kernels=(\d+) .*clock=([0-9.]+)`)

// count is a neighbour's number of kernels, and the second in which it had done them.
type count struct {
	kernels int
	clock   float64
}

func (p *process) Write(b []byte) (int, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.rest = append(p.rest, b...)
	for {
		text, rest, found := bytes.Cut(p.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		p.rest = rest
		if m := worksLine.FindSubmatch(text); m != nil {
			p.works[string(m[1])] = time.Now()
			kernels, _ := strconv.Atoi(string(m[2]))
			clock, _ := strconv.ParseFloat(string(m[3]), 64)
			p.count[string(m[1])] = count{kernels, clock}
			continue
		}
		if len(p.lines) < maxLines {
			p.lines = append(p.lines, string(text))
		}
	}
}

// heard returns the submatches of the lines that match.
func (p *process) heard(pattern string) (found [][]string) {
	form := regexp.MustCompile(pattern)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, line := range p.lines {
		if m := form.FindStringSubmatch(line); m != nil {
			found = append(found, m)
		}
	}
	return found
}

func (p *process) text() string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return strings.Join(p.lines, "\n") + "\n"
}

func (p *process) worked(name string) time.Time {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.works[name]
}

func (p *process) counted(name string) count {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.count[name]
}

func (p *process) isOver() bool { return watch.Closed(p.ended) }

// kill kills the program and its children. The program's group exists as long as the program is not reaped.
func (p *process) kill() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.over.IsZero() {
		_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	}
}

// start starts a program as the user, in a process group of its own. It ends with the lane.
func (l *lane) start(env []string, line ...string) (*process, error) {
	p, err := l.r.start(nil, env, line...)
	if err == nil {
		l.processes = append(l.processes, p)
	}
	return p, err
}

func (r *room) start(stdin *os.File, env []string, line ...string) (*process, error) {
	p := &process{ended: make(chan struct{}), works: map[string]time.Time{}, count: map[string]count{}}
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Dir = r.dir
	p.cmd.Env = append(r.environment(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.credential(), Setpgid: true}
	if stdin != nil {
		p.cmd.Stdin = stdin
	}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = time.Second // a child that lives on may have the pipe open
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", line[0], err)
	}
	go func() {
		var status unix.Siginfo // the program stays a zombie, so its group's number is not used again
		for unix.Waitid(unix.P_PID, p.cmd.Process.Pid, &status, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		p.mutex.Lock()
		p.over = time.Now()
		p.mutex.Unlock()
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// credential makes a program the user's.
func (r *room) credential() *syscall.Credential {
	return &syscall.Credential{Uid: r.user.UID, Gid: r.user.GID, Groups: []uint32{r.user.GID}}
}

// rank is one process of room.py. Several may print to the same process.
type rank struct {
	*process
	name string
}

// said returns the first line of a rank with a word, "" for none.
func (k rank) said(word string) string {
	found := k.heard(`^` + k.name + ` ` + word + `.*`)
	if len(found) == 0 {
		return ""
	}
	return found[0][0]
}

// await waits until a rank has printed a word. The error has the rank's own error.
func (k rank) await(ctx context.Context, word string, limit time.Duration) error {
	failed := func() bool { return k.said("err=") != "" || k.isOver() }
	watch.Until(ctx, limit, func() bool { return k.said(word) != "" || failed() })
	if k.said(word) == "" {
		return fmt.Errorf("rank %s does not print %q: %q", k.name, word, k.said("err="))
	}
	return nil
}

var pidOf = regexp.MustCompile(` pid=(\d+)`)

// proc returns the rank's process if it lives.
func (k rank) proc() (proc.Process, bool) {
	m := pidOf.FindStringSubmatch(k.said("loaded"))
	if m == nil {
		return proc.Process{}, false
	}
	pid, _ := strconv.Atoi(m[1])
	stat, err := proc.ReadStat(pid)
	return stat.Process, err == nil && stat.Running()
}

// living waits until each rank has printed work after a time, or has failed. The result is the number that work. A
// rank that is paused has time to go on.
func living(ctx context.Context, since time.Time, ranks []rank) (count int) {
	const limit = 12 * time.Second
	for _, k := range ranks {
		works := func() bool { return k.worked(k.name).After(since) }
		failed := func() bool {
			_, lives := k.proc()
			return !lives || k.said("err=") != ""
		}
		watch.Until(ctx, limit-time.Since(since), func() bool { return works() || failed() })
		if works() && !failed() {
			count++
		}
	}
	return count
}
