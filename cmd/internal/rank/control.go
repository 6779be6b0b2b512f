package rank

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site"
)

// control asks a seat's daemon. Ranks of one daemon take turns: a third of questions asked at the same time fail
// (measured).
type control struct {
	seat mpirunwrap.Seat
}

// turn waits for this rank's turn to ask; done ends it. A ticket without a meeting place gives everybody a turn.
func (c control) turn(ctx context.Context) (done func(), err error) {
	if c.seat.Ticket.Meet == "" {
		return func() {}, nil
	}
	lock, err := os.OpenFile(filepath.Join(c.seat.Ticket.Meet, "terminate"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := site.Flock(ctx, lock); err != nil {
		lock.Close()
		return nil, err
	}
	return func() { lock.Close() }, nil
}

// alwaysAnswered is a question that is never without an answer: behind another it tells no answer from a dropped question,
// as a third of questions is while others are asked (measured).
const alwaysAnswered = "get_default_active_thread_percentage"

// askAgain asks until the question is not dropped, and returns the lines of the answer.
func (c control) askAgain(ctx context.Context, question string) ([]string, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		answer, err := c.ask(ctx, question+"\n"+alwaysAnswered)
		if err != nil {
			return nil, err
		}
		if lines := strings.Split(answer, "\n"); answer != "" {
			return lines[:len(lines)-1], nil
		}
		if !site.Pause(ctx, pause) {
			return nil, fmt.Errorf("cannot ask daemon %q: %w", question, site.ErrWedged)
		}
	}
}

// mostAnswered is the most that is read of an answer: ps has a line of 100 bytes for each client and device.
const mostAnswered = 64 << 10

// ask runs the control program with a question on its stdin. It is no use of os/exec: this binary stays small.
func (c control) ask(ctx context.Context, question string) (string, error) {
	ours, theirs, err := pipes()
	if err != nil {
		return "", err
	}
	defer closeAll(ours)
	program := c.seat.Ticket.Control
	env := []string{"PATH=/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + c.seat.Daemon.PipeDir}
	if program.LibraryPath != "" {
		env = append(env, "LD_LIBRARY_PATH="+program.LibraryPath)
	}
	process, err := os.StartProcess(program.Path, []string{program.Path}, &os.ProcAttr{
		Dir: "/", Env: env, Files: []*os.File{theirs[0], theirs[1], nil}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	closeAll(theirs)
	if err != nil {
		return "", fmt.Errorf("cannot ask daemon %q: %w", question, err)
	}
	done := make(chan string, 1)
	go func() {
		_, _ = io.WriteString(ours[0], question+"\n")
		ours[0].Close()
		answer, _ := io.ReadAll(io.LimitReader(ours[1], mostAnswered))
		ours[1].Close() // ends a program that says more
		done <- strings.TrimSpace(string(answer))
	}()
	select {
	case answer := <-done:
		_, err = process.Wait()
		return answer, err
	case <-ctx.Done():
		err := syscall.Kill(-process.Pid, syscall.SIGKILL)
		_, waited := process.Wait()
		return "", errors.Join(fmt.Errorf("cannot ask daemon %q: %w", question, site.ErrWedged), err, waited)
	}
}

// pipes are our ends and the program's: its stdin and its stdout.
func pipes() (ours, theirs []*os.File, err error) {
	in, question, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	answer, out, err := os.Pipe()
	if err != nil {
		closeAll([]*os.File{in, question})
		return nil, nil, err
	}
	return []*os.File{question, answer}, []*os.File{in, out}, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}
