// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

const (
	// answerWithin limits the time of one question. An answer takes at most 5 ms (measured).
	answerWithin = 5 * time.Second
	// maxAnswer limits what is read of an answer. A genuine answer is one word.
	maxAnswer = 4 << 10
)

// askServer asks the daemon for the state of a server, by the control program. It is a serverStatus. The daemon drops a third of the questions
// of ranks that ask at the same time (measured). A dropped question is an error, and the rank asks again. os/exec is
// not used, because this program must stay small.
func (p Placement) askServer(ctx context.Context, server int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	question, err := pipeOf(fmt.Sprintf("get_server_status %d\n", server))
	if err != nil {
		return "", err
	}
	defer question.Close()
	answer, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer answer.Close()
	program := p.Ticket.ControlProgram
	env := []string{"PATH=/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + p.Daemon.PipeDir}
	if program.LibraryPath != "" {
		env = append(env, "LD_LIBRARY_PATH="+program.LibraryPath)
	}
	process, err := os.StartProcess(program.Path, []string{program.Path}, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{question, out, nil}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	out.Close()
	if err != nil {
		return "", fmt.Errorf("cannot ask daemon: %w", err)
	}
	deadline, _ := ctx.Deadline()
	_ = answer.SetReadDeadline(deadline)
	output, err := io.ReadAll(io.LimitReader(answer, maxAnswer))
	_ = syscall.Kill(-process.Pid, syscall.SIGKILL) // it has answered or hangs, and is not reaped yet, so no other group has this number
	end, waited := process.Wait()
	state := strings.TrimSpace(string(output))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", fmt.Errorf("cannot ask daemon: %w", site.ErrNoAnswer)
	case err != nil || waited != nil:
		return "", fmt.Errorf("cannot ask daemon: %w", errors.Join(err, waited))
	case state == "" || !end.Success():
		return "", fmt.Errorf("cannot ask daemon: it answers %q (%s)", state, end)
	}
	return state, nil
}

// pipeOf returns the read end of a pipe that contains a text. The text must fit into a pipe.
func pipeOf(text string) (*os.File, error) {
	reads, writes, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = writes.WriteString(text)
	if err = errors.Join(err, writes.Close()); err != nil {
		reads.Close()
		return nil, err
	}
	return reads, nil
}
