// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

// takerLine and pauserLine run this test's own program as a taker and as a process that pauses.
var takerLine, pauserLine = []string{"/proc/self/exe", "--take"}, []string{"/proc/self/exe", "--pause"}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "--take":
			err = take.Run(0)
		case "--pause":
			var limit time.Duration
			if limit, err = time.ParseDuration(os.Args[2]); err == nil {
				err = pause.Run(limit)
			}
		case "--count":
			count()
		case "--refuse":
			refuse()
		default:
			os.Exit(m.Run())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// counter is a process that prints numbers, from several threads of its own.
type counter struct {
	*exec.Cmd
	out *os.File
}

// newCounter starts a process with some threads. Each thread writes bytes into a pipe without an end.
func newCounter(t *testing.T) *counter {
	t.Helper()
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "--count")
	cmd.Stdout = writes
	err = cmd.Start()
	writes.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reads.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := &counter{cmd, reads}
	c.resumes(t, "at its start")
	return c
}

// count is the counter's program: threads that print a byte each millisecond.
func count() {
	for range 8 {
		go func() {
			for {
				if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
					os.Exit(0)
				}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	select {}
}

func (c *counter) process(t *testing.T) proc.Process {
	t.Helper()
	stat, err := proc.ReadStat(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return stat.Process
}

// counts reports whether the process prints, after what it has printed before.
func (c *counter) counts() bool {
	buffer := make([]byte, 128<<10) // more than the pipe holds
	_ = c.out.SetReadDeadline(time.Time{})
	pipe, err := c.out.SyscallConn()
	if err == nil {
		err = pipe.Read(func(fd uintptr) bool { _, _ = unix.Read(int(fd), buffer); return true }) // it waits for nothing
	}
	_ = c.out.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	_, err2 := c.out.Read(buffer)
	return err == nil && err2 == nil
}

// resumes waits until the process counts.
func (c *counter) resumes(t *testing.T, what string) {
	t.Helper()
	for began := time.Now(); !c.counts(); {
		if time.Since(began) > soon {
			t.Fatalf("%s: the process does not continue", what)
		}
	}
}
