// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Child is a program that this process has started, without variables and in the root folder.
type Child struct {
	Process
	Ended <-chan struct{} // closed when it has ended
	Used  time.Duration   // its processor time, once it has ended
	// In and Out are pipes to its stdin and from its stdout, if StartPiped has started it.
	In, Out *os.File

	process *os.Process
}

// StartChild starts a program from its command line, with these files as its descriptors 0, 1 and so on. session says
// that it gets a session of its own, so that no terminal ends it. An end of it is noticed without a call.
func StartChild(line []string, session bool, files ...*os.File) (*Child, error) {
	process, err := os.StartProcess(line[0], line, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: files, Sys: &syscall.SysProcAttr{Setsid: session},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot start %q: %w", line, err)
	}
	stat, _ := ReadStat(process.Pid) // the pid is not reused, because the child is not reaped
	ended := make(chan struct{})
	c := &Child{Process: Process{process.Pid, stat.Start}, Ended: ended, process: process}
	go func() {
		if state, err := process.Wait(); err == nil {
			c.Used = state.UserTime() + state.SystemTime()
		}
		close(ended)
	}()
	return c, nil
}

// StartPiped starts a program with pipes to its stdin and from its stdout, in a session of its own. Its stderr is
// /dev/null.
func StartPiped(line ...string) (*Child, error) {
	null, err1 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	stdin, in, err2 := os.Pipe()
	out, stdout, err3 := os.Pipe()
	defer null.Close() // of nil, this only returns an error
	defer stdin.Close()
	defer stdout.Close()
	var c *Child
	err := errors.Join(err1, err2, err3)
	if err == nil {
		c, err = StartChild(line, true, stdin, stdout, null)
	}
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	c.In, c.Out = in, out
	return c, nil
}

// End kills the child. Only this process knows it, so it is no other process.
func (c *Child) End() { _ = c.process.Kill() }
