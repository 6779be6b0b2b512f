// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site/guard/pause"
	"github.com/slurm-mps/slurm-mps/site/guard/take"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"golang.org/x/sys/unix"
)

// The programs that mpirun-wrap is if its first argument is one of these. They are not options of users.
const (
	superviseMode = "--own-supervise" // keeps a keeper running: JOB ROOT
	keepMode      = "--own-keep"      // is the keeper: DIR JOB ROOT
	takeMode      = "--own-take"      // duplicates files for the guard
	pauseMode     = "--own-pause"     // pauses processes for the guard: DURATION
	gaugeMode     = "--own-gauge"     // reads the GPUs' usage for the guard, with nvidia-smi: PATH LD_LIBRARY_PATH UUID...
)

// itself is this program's file.
const itself = "/proc/self/exe"

// Main runs one of these programs. It reports false if the arguments name none.
func Main(args []string, environ []string) (code int, is bool) {
	if len(args) == 0 {
		return 0, false
	}
	var program func() error
	switch rest := args[1:]; {
	case args[0] == superviseMode && len(rest) == 2:
		program = func() error { return supervise(rest[0], rest[1]) }
	case args[0] == keepMode && len(rest) == 3:
		program = func() error { return keep(rest[0], rest[1], rest[2], slurm.NewEnv(environ)) }
	case args[0] == takeMode && len(rest) == 0:
		program = func() error { return take.Run(0) }
	case args[0] == pauseMode && len(rest) == 1:
		program = func() error { return pauseFor(rest[0]) }
	case args[0] == gaugeMode && len(rest) > 2:
		program = func() error { return runGauge(rest[0], rest[1], rest[2:]) }
	default:
		return 0, false
	}
	ignoreSignals()
	if program() != nil {
		return 1, true
	}
	return 0, true
}

func pauseFor(limit string) error {
	duration, err := time.ParseDuration(limit)
	if err != nil {
		return err
	}
	return pause.Run(duration)
}

// endSignals are the signals that Slurm, a terminal or a launcher sends to all processes of a step, and those of limits.
// The ranks decide how they react, and the daemon and its guard must serve them until they have ended.
var endSignals = []syscall.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE, unix.SIGALRM, unix.SIGXCPU,
	unix.SIGXFSZ, unix.SIGTSTP,
}

// ignoreSignals ignores endSignals. Package os/signal has no effect in this program, whose runtime catches no signal
// (cmd/mpirun-wrap/signals.go).
func ignoreSignals() {
	var ignored struct {
		handler uintptr
		rest    [7]uintptr
	}
	ignored.handler = 1 // SIG_IGN
	for _, signal := range endSignals {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&ignored)), 0, 8, 0, 0)
	}
}

// The descriptors that a supervisor and its keepers inherit. The folder is the null device if none could be made.
const (
	listenerFD = 3 + iota // the ranks' meeting point
	lifeFD                // the end of a pipe that hangs up when no process of the ranks has the other end
	stateFD               // what a keeper leaves to the next one
	folderFD              // the step's folder, locked
)

// startSupervisor starts the supervisor of a step's keeper in a session of its own, so that no terminal ends it. It
// returns the other end of the step's life.
func startSupervisor(step step, listener *os.File) (life *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start the daemon's keeper: %w", err)
	}
	defer read.Close()
	argv := []string{"mpirun-wrap", superviseMode, strconv.FormatUint(uint64(step.Job), 10), step.Root}
	process, err := start(argv, withoutPipes(step.env), listener, read)
	if err != nil {
		write.Close()
		return nil, fmt.Errorf("cannot start the daemon's keeper: %w", err)
	}
	return write, process.Release()
}

// start starts a mode of this program in a new session, with some files from descriptor 3 on.
func start(argv, env []string, files ...*os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return os.StartProcess(itself, argv, &os.ProcAttr{
		Dir: "/", Env: env, Files: append([]*os.File{null, null, null}, files...), Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// inherited returns a descriptor of this process as a file, which its children get only if they are told.
func inherited(fd int, name string) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

// maxRestarts limits how often a keeper is started again.
const maxRestarts = 5

// supervise makes what a step's keepers share, runs the keeper, and again if it was killed. What a killed keeper has
// started becomes a child of this process.
func supervise(job, root string) error {
	unix.Umask(0o077)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	number, err := strconv.ParseUint(job, 10, 32)
	if err != nil {
		return err
	}
	listener, life := inherited(listenerFD, "listener"), inherited(lifeFD, "life")
	state, err := newState()
	if err != nil {
		return err
	}
	dir := ""
	folder, err := makeFolder(root, uint32(number))
	if err == nil {
		dir = folder.Name()
	} else if folder, err = state.refuse(err); err != nil {
		return err
	}
	for range maxRestarts {
		keeper, err := start([]string{"mpirun-wrap", keepMode, dir, job, root}, os.Environ(), listener, life, state.file, folder)
		if err != nil {
			return err
		}
		end, err := keeper.Wait()
		if err != nil {
			return err
		}
		if end.Exited() {
			return nil
		}
	}
	return errors.New("the keeper was killed too often")
}

// withoutPipes is an environment without the daemon of other ranks, as a keeper must have it: the keeper of those ranks
// would take this one for a process that they have left behind.
func withoutPipes(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, pipeVariable+"=") })
}
