// SPDX-License-Identifier: Apache-2.0

// Package testproc has processes for tests of the guard, and what this process has open.
package testproc

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// soon is a long time for what takes a moment.
const soon = 10 * time.Second

// Counter is a process that prints, from several threads of its own.
type Counter struct {
	*exec.Cmd
	out *os.File
}

// NewCounter starts the test's own program with --count, for which its TestMain calls Count. It ends with the test.
func NewCounter(t *testing.T) *Counter {
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
	c := &Counter{cmd, reads}
	c.Resumes(t, "at its start")
	return c
}

// Count is the process: threads that print a byte each millisecond.
func Count() {
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

// Identity identifies the process.
func (c *Counter) Identity(t *testing.T) proc.Process {
	t.Helper()
	stat := must.Get(proc.ReadStat(c.Process.Pid))(t)
	return stat.Process
}

// Counts reports whether the process prints, after what it has printed before.
func (c *Counter) Counts() bool {
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

// Resumes waits until the process counts.
func (c *Counter) Resumes(t *testing.T, what string) {
	t.Helper()
	for began := time.Now(); !c.Counts(); {
		must.Have(t, time.Since(began) <= soon, "%s: the process does not continue", what)
	}
}

// OpenBelow returns this process's open files below a folder.
func OpenBelow(folder string) (files []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, folder+"/") {
			files = append(files, filepath.Base(target))
		}
	}
	return files
}

// Overwrite writes a title over a process's environment, as its program does by setproctitle.
func Overwrite(t *testing.T, pid int) {
	t.Helper()
	name := func(file string) string { return filepath.Join("/proc", strconv.Itoa(pid), file) }
	for until := time.Now().Add(soon); time.Now().Before(until); { // it may be in the middle of its exec
		if text, _ := os.ReadFile(name("environ")); len(text) > 0 {
			break
		}
	}
	content, err := os.ReadFile(name("stat"))
	memory, err2 := os.OpenFile(name("mem"), os.O_WRONLY, 0)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')'):])) // the second field of all
	from, err := strconv.ParseInt(fields[50-2], 10, 64)
	to, err2 := strconv.ParseInt(fields[51-2], 10, 64)
	_, err3 := memory.WriteAt(append([]byte("VLLM::Worker_TP=0"), make([]byte, max(to-from-17, 0))...), from)
	if err = errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
}
