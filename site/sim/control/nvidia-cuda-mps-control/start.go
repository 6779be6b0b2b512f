// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/control/faults"
	"github.com/slurm-mps/slurm-mps/site/sim/control/nofile"
	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// startDeadline bounds the wait of `-d` for the daemon that it has started. 12 to 18 ms were measured.
const startDeadline = 20 * time.Second

// highDescriptor is the lowest number for the socket between the two processes of `-d`. A caller hardly leaves such a
// high descriptor open.
const highDescriptor = 100

// background is `-d`. The daemon is this program again, in its own session. It keeps the working directory, the
// environment, the command line and every descriptor above 2, as the real one does. A socket whose
// other end was made by the parent shows it that it is the daemon. So the environment and the command line stay as
// the caller wrote them.
func background(stdout, stderr io.Writer) int {
	if parent, ok := parentSocket(); ok {
		return serve(parent)
	}
	own, others, err := wire.Pair()
	if err != nil {
		return fail(stderr, err)
	}
	if err := spawn(others); err != nil {
		return fail(stderr, err)
	}
	others.Close()
	return report(own, stdout, stderr)
}

func fail(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, err)
	return 1
}

// report passes on what the daemon sends about its start. A packet is a stream's name and a text, or "end CODE".
func report(own wire.Conn, stdout, stderr io.Writer) int {
	answers := make(chan string)
	go func() {
		for {
			text, _, err := own.Receive()
			if err != nil {
				close(answers)
				return
			}
			answers <- text
		}
	}()
	deadline := time.After(startDeadline)
	for {
		select {
		case text, ok := <-answers:
			word, rest, _ := strings.Cut(text, " ")
			switch {
			case !ok:
				return 1
			case word == "stdout":
				fmt.Fprint(stdout, rest)
			case word == "stderr":
				fmt.Fprint(stderr, rest)
			default:
				code, _ := strconv.Atoi(rest)
				return code
			}
		case <-deadline:
			return 1
		}
	}
}

// spawn starts the daemon. The socket between the two has a high descriptor.
func spawn(socket *os.File) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find own program: %w", err)
	}
	high, _, errno := syscall.Syscall(syscall.SYS_FCNTL, socket.Fd(), syscall.F_DUPFD, highDescriptor)
	if errno != 0 {
		return fmt.Errorf("cannot start daemon: %w", errno)
	}
	defer syscall.Close(int(high))
	streams, err := streams()
	if err != nil {
		return err
	}
	_, err = syscall.ForkExec(program, os.Args, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: streams,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("cannot start daemon: %w", err)
	}
	return nil
}

// streams returns descriptors 0 to 2 of the daemon. They are /dev/null, or the caller's own if the knob holds_fds is
// set.
func streams() ([]uintptr, error) {
	if here, err := node.Here(); err == nil && faults.Of(here).On("holds_fds") {
		return []uintptr{0, 1, 2}, nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot start daemon: %w", err)
	}
	return []uintptr{null.Fd(), null.Fd(), null.Fd()}, nil
}

// parentSocket finds the socket that background left open for its daemon. Its other end was made by the parent
// process.
func parentSocket() (wire.Conn, bool) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return wire.Conn{}, false
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd < highDescriptor {
			continue
		}
		who, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err != nil || int(who.Pid) != os.Getppid() || who.Pid == 0 {
			continue
		}
		conn, err := wire.Adopt(fd)
		return conn, err == nil
	}
	return wire.Conn{}, false
}

// serve runs the daemon's side of `-d`.
func serve(parent wire.Conn) int {
	d, problem := prepare(parentWriter{parent, "stdout"}, parentWriter{parent, "stderr"}, logDirectory())
	if problem != nil {
		parent.Send(fmt.Sprintf("end %d", problem.code))
		return problem.code
	}
	parent.Send("end 0")
	parent.Close()
	return d.run()
}

// foreground is `-f`: the same daemon in the caller's process and session, with its logs on standard output.
func foreground(stdout, stderr io.Writer) int {
	d, problem := prepare(stdout, stderr, "")
	if problem != nil {
		return problem.code
	}
	d.log.To, d.foreground = stdout, true
	return d.run()
}

// parentWriter writes to a stream of the `-d` process that started the daemon.
type parentWriter struct {
	parent wire.Conn
	stream string
}

func (t parentWriter) Write(text []byte) (int, error) {
	return len(text), t.parent.Send(t.stream + " " + string(text))
}

// refusal is the reason why a daemon does not start. Its message, if there is one, is already written.
type refusal struct{ code int }

// prepare does everything that comes before the daemon serves. It prints only what the real daemon prints. If logs is
// "", the daemon writes no log files.
func prepare(stdout, stderr io.Writer, logs string) (*daemon, *refusal) {
	syscall.Umask(0)
	if _, err := nofile.Restore(); err != nil {
		fmt.Fprintln(stderr, err)
		return nil, &refusal{1}
	}
	here, err := node.Here()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return nil, &refusal{1}
	}
	d := newDaemon(here, pipeDirectory())
	if d.knobs.On("dies_at_start") || tooLong(d.pipe) {
		return nil, &refusal{1}
	}
	warning := d.openLogs(logs)
	fmt.Fprint(stdout, warning)
	os.Mkdir(d.pipe, 0o700)
	if err := syscall.Access(d.pipe, 7); err != nil {
		fmt.Fprintf(stdout, "Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n%s", d.pipe, warning)
		return nil, &refusal{1}
	}
	if !d.lock() {
		fmt.Fprintln(stdout, "An instance of this daemon is already running")
		return nil, &refusal{1}
	}
	if code := d.findDevices(); code != 0 {
		return nil, &refusal{code}
	}
	d.handleSignals()
	if d.knobs.On("silent_start") {
		d.silent = true
		return d, nil
	}
	if err := d.listen(); err != nil {
		fmt.Fprintln(stderr, err)
		return nil, &refusal{1}
	}
	return d, nil
}

// tooLong reports whether the longest socket's name, with its final zero, does not fit the 108 bytes of sun_path.
func tooLong(pipe string) bool { return len(filepath.Join(pipe, "control_privileged")) >= 108 }

// lock locks the pipe directory. It returns false while another daemon has the lock. The lock ends with the process,
// however the process ends.
func (d *daemon) lock() bool {
	path := filepath.Join(d.pipe, "control_lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return false
	}
	d.held = file
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// quitsOn reports whether the knob daemon_quits_on names a signal.
func quitsOn(s os.Signal) bool {
	here, err := node.Here()
	return err == nil && faults.Of(here).Names("daemon_quits_on", s)
}

// handleSignals does what the knobs daemon_ignores and daemon_quits_on say about SIGTERM, SIGINT and SIGHUP. Without
// them each of these signals ends the daemon, if it was not started to ignore the signal. While the knob ignore_quit is
// set, SIGTERM has no effect.
func (d *daemon) handleSignals() {
	arrived := faults.Arrivals()
	go func() {
		for s := range arrived {
			switch {
			case d.knobs.Names("daemon_ignores", s), s == syscall.SIGTERM && d.knobs.On("ignore_quit"):
			case d.knobs.Names("daemon_quits_on", s):
				d.asked <- struct{}{}
			default:
				os.Exit(128 + int(s.(syscall.Signal)))
			}
		}
	}()
}

// limits are the limits that a server is started with.
type limits struct {
	percentage float64           // of the threads of each device, up to 100
	pinned     map[string]string // device ordinal → "4G"
	priority   int               // 0 normal, 1 below normal
}

// limitsOf returns the limits that the daemon's environment sets. A value that is no limit is ignored silently.
func limitsOf(variable func(string) string) limits {
	set := limits{percentage: 100, pinned: map[string]string{}}
	set.setPercentage(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
	for _, entry := range strings.Split(variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), ",") {
		device, value, _ := strings.Cut(entry, "=")
		set.setPinned(device, value)
	}
	return set
}

// setPercentage ignores a text that is no number, and a number that is not above 0 and at most 100.
func (l *limits) setPercentage(text string) {
	value, err := strconv.ParseFloat(text, 64)
	if err == nil && value > 0 && value <= 100 && !math.IsNaN(value) {
		l.percentage = value
	}
}

var amount = regexp.MustCompile(`^[0-9]+[KMG]?$`)

// setPinned ignores a device that is no ordinal (also a UUID: measured) and a value that is no amount of memory.
func (l *limits) setPinned(device, value string) {
	if _, err := strconv.ParseUint(device, 10, 16); err == nil && amount.MatchString(value) {
		l.pinned[device] = value
	}
}

// shown returns a percentage as the control program prints it. It has one decimal; the stored number keeps all
// decimals.
func shown(percentage float64) string { return strconv.FormatFloat(percentage, 'f', 1, 64) }

// text returns the limits in the form that a server reads: "33.333334 0 0=4G,1=2G".
func (l limits) text() string {
	var pinned []string
	for device, value := range l.pinned {
		pinned = append(pinned, device+"="+value)
	}
	sort.Strings(pinned)
	return fmt.Sprintf("%s %d %s", strconv.FormatFloat(l.percentage, 'g', -1, 64), l.priority, strings.Join(pinned, ","))
}
