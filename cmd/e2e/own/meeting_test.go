// SPDX-License-Identifier: Apache-2.0

package own_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// What others do to the files of a step, and what a container does to its ranks: the ranks that compute live, and each
// new one computes under MPS or ends with a sentence.

// programs are what this test's file is as a program of a user: its first argument is their name.
var programs = map[string]func(args []string) error{
	"filter": filter(unix.SYS_PIDFD_GETFD, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)), // as with Docker's profile
	"killer": filter(unix.SYS_MEMFD_CREATE, unix.SECCOMP_RET_KILL_PROCESS),
	"keeper": becomeKeeper,
}

func TestMain(m *testing.M) {
	if name := os.Getenv("OWN_TEST"); programs[name] != nil {
		fmt.Fprintln(os.Stderr, programs[name](os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// program is a command line of one of programs.
func (n testNode) program(name string, args ...string) []string {
	n.T.Helper()
	path := filepath.Join(n.home, "own.test")
	if _, err := os.Stat(path); err != nil {
		self, err := os.ReadFile("/proc/self/exe")
		must.OK(n.T, errors.Join(err, node.WriteProgram(path, self)))
	}
	return append([]string{"env", "OWN_TEST=" + name, path}, args...)
}

// filter returns a program that runs another one with a filter, which answers one system call with an action.
func filter(call, action uint32) func(line []string) error {
	return func(line []string) error {
		code := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: action},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			_, _, failed := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
			err = errors.Join(err, errnoOrNil(failed))
		}
		return errors.Join(err, syscall.Exec(line[0], line, os.Environ()))
	}
}

func errnoOrNil(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// A container has a /tmp and a /dev/shm of its own. Its rank reads what to bind, and the daemon of the others lives.
func TestARankThatDoesNotSeeTheFolder(t *testing.T) {
	n := newTestNode(t, node.H200)
	first := n.start(inStep(7, 0, 0, 2), n.spin("60")...)
	ready(first)
	// Mounts need root of a user namespace. A name of a step has its user's number, so a second namespace gives that back.
	script := fmt.Sprintf(`mount -t tmpfs none %s && mount -t tmpfs none %s && exec unshare -U --map-user=%d --map-group=%d "$@"`,
		n.bases()[0], n.bases()[1], e2e.UID, e2e.GID)
	contained := append([]string{"unshare", "-Urm", "sh", "-c", script, "sh"}, n.wrap("true")...)
	n.start(inStep(7, 0, 1, 2), contained...).says("cannot use MPS: this container does not show " + n.folders()[0])
	if got := n.serving(2); got != 2 {
		t.Errorf("%d processes of MPS, want 2\n%s", got, n.state())
	}
	lives(first)
	n.clean()
}

// Cleaners of /tmp remove files while a rank computes: systemd-tmpfiles by age, and scripts by find.
func TestCleaners(t *testing.T) {
	for name, line := range map[string]string{
		"systemd-tmpfiles": `echo "e $1 - - - 1s" >$2/clean.conf; systemd-tmpfiles --clean $2/clean.conf`,
		"files":            "find $1/slurm-mps-* -type f -delete",
		"all but folders":  "find $1/slurm-mps-* ! -type d -delete",
		"all":              "rm -rf $1/slurm-mps-*",
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t, node.H200)
			first := n.start(inStep(7, 0, 0, 3), n.spin("600", "--slots=2")...)
			ready(first)
			wait.Sleep(n.Ctx, 1500*time.Millisecond)
			if out, err := exec.Command("sh", "-c", line, "sh", n.bases()[0], n.home).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for rank := 1; rank < 3; rank++ {
				next := n.start(inStep(7, 0, rank, 3), n.spin("0.1", "--slots=2")...)
				if strings.HasPrefix(name, "all") {
					next.says("cannot use MPS any more: something has removed ")
				} else {
					ends(0, next)
				}
			}
			if got := n.serving(2); got != 2 {
				t.Errorf("%d processes of MPS, want 2\n%s", got, n.state())
			}
			lives(first)
			n.clean()
		})
	}
}

// Where a filter forbids the guard's call, a rank reads so when it starts.
func TestAFilterOfSystemCalls(t *testing.T) {
	n := newTestNode(t, node.H200)
	line := n.program("filter", append([]string{n.wrapper()}, n.wrap("true")[1:]...)...)
	p := n.start(nil, line...)
	ends(0, p)
	want := "mpirun-wrap: cannot guard these ranks, because a filter of system calls forbids that (operation not permitted): " +
		"give the container the capability SYS_PTRACE"
	if !strings.Contains(p.Text(), want) {
		t.Errorf("it prints %s\nwant %s", p.Text(), want)
	}
	n.clean()
}

// Something kills each supervisor at its start, or a limit forbids all files. The ranks end soon with a sentence, and
// leave no folder for each try.
func TestAKeeperThatCannotStart(t *testing.T) {
	n := newTestNode(t, node.H200)
	killer := n.program("killer", append([]string{n.wrapper()}, n.wrap("true")[1:]...)...)
	n.start(nil, killer...).says("cannot use MPS: the keeper of this step's daemon was started 3 times")
	limited := append([]string{"sh", "-c", `ulimit -f 0; exec "$@"`, "sh"}, n.wrap("true")...)
	n.start(nil, limited...).says("file too large")
	n.clean()
}

// Slurm sends a signal to all processes of a step. What serves the ranks lives, and no false line is printed.
func TestSignalsOfAStep(t *testing.T) {
	n := newTestNode(t, node.H200)
	neighbour := n.start(inStep(7, 0, 0, 2), n.spin("60")...)
	ready(neighbour)
	helpers := n.helpers()
	for _, signal := range []unix.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGTERM, unix.SIGHUP, unix.SIGINT} {
		for _, pid := range helpers {
			_ = unix.Kill(pid, signal)
		}
	}
	crash := n.start(inStep(7, 0, 1, 2), n.wrap(n.CudaClient(), "spin", "-ms", "100", "-queue", "10", "-for", "60", "-end", "signal:9", "-after", "0.5")...)
	ends(137, crash)
	for _, pid := range helpers {
		if unix.Kill(pid, 0) != nil {
			t.Errorf("process %d has ended\n%s", pid, n.state())
		}
	}
	lives(neighbour)
	if text := neighbour.Text() + crash.Text(); strings.Contains(text, "guard") {
		t.Errorf("they print %s", text)
	}
	n.clean()
}

// helpers are the pids of what --own runs beside the ranks of the only step.
func (n testNode) helpers() []int {
	n.T.Helper()
	keeper := n.one("--own-keep").PID
	var children []int
	n.Until("taker", func() bool {
		children = proc.Children(keeper)
		return slices.ContainsFunc(children, func(pid int) bool {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return strings.Contains(string(line), "--own-take")
		})
	})
	children = slices.DeleteFunc(children, func(pid int) bool {
		name, _ := proc.Name(pid)
		return strings.HasPrefix(name, "nvidia-cuda-mps")
	})
	return append(children, keeper, n.one("--own-supervise").PID)
}

// A umask takes no rights of our folders, and leaves nothing that a later step cannot use.
func TestAUmask(t *testing.T) {
	n := newTestNode(t, node.H200)
	for _, mask := range []string{"0177", "0777", "0022"} {
		line := append([]string{"sh", "-c", "umask " + mask + `; exec "$@"`, "sh"}, n.wrap(n.CudaClient(), "info")...)
		ends(0, n.start(nil, line...))
		n.clean()
	}
}

// Root of a container without privileges may not change its groups, and needs not: the daemon is its own.
func TestRootOfAContainer(t *testing.T) {
	n := newTestNode(t, node.H200)
	ends(0, n.start(nil, append([]string{"unshare", "-Ur"}, n.wrap(n.CudaClient(), "info")...)...))
	n.clean()
}

// Another user has bound the name of a step. The rank names that user.
func TestANameThatAnotherUserHas(t *testing.T) {
	n := newTestNode(t, node.H200)
	name := n.nameOf(7)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Listen(fd, 8))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	n.start(inStep(7, 0, 0, 2), n.spin("60")...).says(fmt.Sprintf("process %d of uid 0 listens at %s", os.Getpid(), name))
	n.clean()
}

// address is the name at which the ranks of the only step meet.
func (n testNode) address() string {
	n.T.Helper()
	socket, err1 := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", n.one("--own-supervise").PID))
	content, err2 := os.ReadFile("/proc/net/unix")
	inode := " " + strings.Trim(socket, "socket:[]") + " "
	for line := range strings.Lines(string(content)) {
		if _, name, found := strings.Cut(line, inode); found {
			return strings.TrimSpace(name)
		}
	}
	n.T.Fatalf("no socket%s: %v\n%s", inode, errors.Join(err1, err2), n.state())
	return ""
}
