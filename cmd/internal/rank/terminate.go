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

// terminator asks a seat's daemon to end clients. Ranks of one daemon take turns: a third of questions asked at the same
// time fail (measured), and terminate_client is serial in the daemon anyway.
type terminator struct {
	seat mpirunwrap.Seat
}

// terminate has the daemon end the client with the pid, which must not be stopped. It waits for what it starts, and ends
// that when ctx does.
func (t terminator) terminate(ctx context.Context, pid int) error {
	lock, err := os.OpenFile(filepath.Join(t.seat.Ticket.Meet, "terminate"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot terminate client %d: %w", pid, err)
	}
	defer lock.Close()
	if err := site.Flock(ctx, lock); err != nil {
		return fmt.Errorf("cannot terminate client %d: %w", pid, err)
	}
	servers, err := t.askAgain(ctx, "get_server_list")
	if err != nil {
		return err
	}
	server, _, _ := strings.Cut(servers, "\n")
	if server == "" {
		return mpirunwrap.ErrNoClient
	}
	answer, err := t.ask(ctx, fmt.Sprintf("terminate_client %s %d", server, pid)) // never twice (measured)
	switch {
	case err != nil:
		return err
	case answer == "0":
		return nil
	case strings.Contains(answer, "Invalid process"):
		return mpirunwrap.ErrNoClient
	}
	return fmt.Errorf("cannot terminate client %d: the daemon says %q", pid, answer)
}

// askAgain asks until the question is not dropped, as a third of questions is while others are asked (measured).
func (t terminator) askAgain(ctx context.Context, question string) (string, error) {
	for {
		answer, err := t.ask(ctx, question)
		if err != nil || !strings.Contains(answer, "Cannot send command") {
			return answer, err
		}
		if !site.Pause(ctx, 5*time.Millisecond) {
			return "", fmt.Errorf("cannot ask daemon %q: %w", question, site.ErrWedged)
		}
	}
}

// ask runs the control program with a question on its stdin. It is no use of os/exec: this binary stays small.
func (t terminator) ask(ctx context.Context, question string) (string, error) {
	ours, theirs, err := pipes()
	if err != nil {
		return "", err
	}
	defer closeAll(ours)
	control := t.seat.Ticket.Control
	env := []string{"PATH=/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + t.seat.Daemon.PipeDir}
	if control.LibraryPath != "" {
		env = append(env, "LD_LIBRARY_PATH="+control.LibraryPath)
	}
	process, err := os.StartProcess(control.Path, []string{control.Path}, &os.ProcAttr{
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
		answer, _ := io.ReadAll(io.LimitReader(ours[1], 4096))
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
