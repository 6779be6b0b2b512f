// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// TestMain sets the default actions of SIGHUP and SIGINT for the programs that the tests start: nohup ignores the one,
// and a script that starts "make test &" the other. SIGINT of a terminal still ends the tests, if no one ignores it.
// A caught signal gets its default action in a new program, but an ignored signal stays ignored.
func TestMain(m *testing.M) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	if signal.Ignored(syscall.SIGINT) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	}
	os.Exit(m.Run())
}

// wrapperBinary is mpirun-wrap as it is shipped. Its file is unlinked, so that nothing is left, and is run through a
// descriptor.
var wrapperBinary = sync.OnceValues(func() (*os.File, error) {
	dir, err := os.MkdirTemp("", "wrapper")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "mpirun-wrap")
	cmd := exec.Command("go", "build", "-o", path, "../cmd/mpirun-wrap")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build mpirun-wrap: %w: %s", err, out)
	}
	return os.Open(path)
})

// rank is a program that mpirun-wrap has placed, with a folder for its files.
type rank struct {
	t      *testing.T
	dir    string
	root   string // the root folder of the node
	binary string
	env    []string
	in     string
	cmd    *exec.Cmd
	said   *bytes.Buffer // stdout and stderr; read them after the end
	ended  chan struct{}
}

// newRank makes a rank of a job that has one GPU. The job's daemon is this process. Only root can write a ticket; if
// another user runs the tests, MPS is off for the rank.
func newRank(t *testing.T) *rank {
	t.Helper()
	t.Parallel()
	binary, err := wrapperBinary()
	must.OK(t, err)
	r := &rank{t: t, dir: t.TempDir(), said: &bytes.Buffer{}, binary: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), binary.Fd())}
	r.env = append(os.Environ(), "SLURM_JOB_ID=7", "SLURM_LOCALID=0", "SLURM_GTIDS=0")
	if os.Geteuid() != 0 {
		r.env = append(r.env, "SLURM_MPS=off")
		r.root = r.dir
		return r
	}
	r.root, err = os.MkdirTemp("/tmp", "mps") // a socket's path is short
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(r.root) })
	boot := must.Get(proc.BootID())(t)
	store := must.Get(lease.Open(site.Paths{Root: r.root}.Run(), boot))(t)
	must.OK(t, store.WriteTicket(r.ticket()))
	listener := must.Get(net.Listen("unixpacket", filepath.Join(r.root, "control")))(t)
	t.Cleanup(func() { listener.Close() })
	return r
}

func (r *rank) ticket() lease.Ticket {
	self := must.Get(proc.Current())(r.t)
	ticket := ticketOf(1, policy.ScopeJob, 1)
	ticket.Daemons[0] = lease.Daemon{PipeDir: r.root, LogDir: r.root, Proc: self}
	ticket.ControlProgram = lease.Program{Path: filepath.Join(r.root, "ask")}
	return ticket
}

// wrapper is the command line of mpirun-wrap before a program.
func (r *rank) wrapper(program ...string) []string {
	line := []string{r.binary, "--root", r.root, "--local-rank", "1", "--local-size", "2", "--"}
	return append(line, program...)
}

// start starts the rank in its own process group. The rank's remaining processes are killed when the test ends.
func (r *rank) start(line ...string) {
	r.t.Helper()
	r.cmd = exec.Command(line[0], line[1:]...)
	r.cmd.Dir, r.cmd.Env, r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = r.dir, r.env, strings.NewReader(r.in), r.said, r.said
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must.OK(r.t, r.cmd.Start())
	r.ended = make(chan struct{})
	go func() { _ = r.cmd.Wait(); close(r.ended) }()
	r.t.Cleanup(func() { _ = node.SignalGroup(r.cmd, unix.SIGKILL); <-r.ended })
}

// sh starts a shell script as a rank.
func (r *rank) sh(script string) {
	r.t.Helper()
	r.start(r.wrapper("/bin/sh", "-c", script)...)
}

// timeLimit bounds each wait. Only a hang takes as long.
const timeLimit = 3 * time.Minute

// end waits for the rank's end and returns the status that its parent sees.
func (r *rank) end() syscall.WaitStatus {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(timeLimit):
		r.t.Fatal("the rank does not end")
	}
	return r.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// code returns the exit code of a rank that no signal ends.
func (r *rank) code() int {
	r.t.Helper()
	status := r.end()
	if status.Signaled() {
		r.t.Fatalf("the rank died of %v", status.Signal())
	}
	return status.ExitStatus()
}

func (r *rank) signal(s syscall.Signal) {
	r.t.Helper()
	must.OK(r.t, r.cmd.Process.Signal(s))
}

// proc returns the process that wrote its pid into a file of the folder.
func (r *rank) proc(name string) proc.Process {
	r.t.Helper()
	var found proc.Process
	r.until("pid in "+name, func() bool {
		content, _ := os.ReadFile(filepath.Join(r.dir, name))
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil || !bytes.HasSuffix(content, []byte("\n")) {
			return false
		}
		stat, err := proc.ReadStat(pid)
		found = stat.Process
		return err == nil
	})
	return found
}

func (r *rank) until(what string, done func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	for !done() {
		must.Have(r.t, wait.Sleep(ctx, time.Millisecond), "no %s", what)
	}
}

func stateOf(p proc.Process) byte {
	stat, err := proc.ReadStat(p.PID)
	if err != nil || stat.Start != p.Start {
		return 'X'
	}
	return stat.State
}

func TestTheProgramsExitIsTheRanks(t *testing.T) {
	for _, c := range []struct {
		program []string
		code    int
		says    string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "exit 7"}, 7, ""},
		{[]string{"sh", "-c", "exit 125"}, 125, ""},
		{[]string{"sh", "-c", "exit 255"}, 255, ""},
		{[]string{"nosuchprogram"}, 127, "mpirun-wrap: cannot run nosuchprogram: not found in PATH\n"},
		{[]string{"/etc/passwd"}, 126, "mpirun-wrap: cannot run /etc/passwd: permission denied: " +
			"make it executable: chmod +x /etc/passwd\n"},
		{[]string{""}, 127, "mpirun-wrap: cannot run a program: its name is empty\n"},
		{[]string{"./text"}, 126, "mpirun-wrap: cannot run ./text: exec format error: " +
			"it is no binary, and has no first line like #!/bin/sh: add one\n"},
		{[]string{"./orphan"}, 127, "mpirun-wrap: cannot run ./orphan: no such file or directory: " +
			"its first line (#!) needs an interpreter: cannot run /nonexistent/interpreter: no such file or directory\n"},
		{[]string{"./"}, 126, "mpirun-wrap: cannot run ./: it is a directory\n"},
		{nil, 125, "mpirun-wrap: cannot run a program: none is given: see mpirun-wrap --help\n"},
	} {
		t.Run(strings.Join(c.program, " "), func(t *testing.T) {
			r := newRank(t)
			for name, content := range map[string]string{"text": "no program\n", "orphan": "#!/nonexistent/interpreter\n"} {
				must.OK(t, node.WriteProgram(filepath.Join(r.dir, name), []byte(content)))
			}
			r.start(r.wrapper(c.program...)...)
			if code := r.code(); code != c.code || r.said.String() != c.says {
				t.Errorf("code %d and %q, want %d and %q", code, r.said, c.code, c.says)
			}
		})
	}
	t.Run("a job without a ticket", func(t *testing.T) {
		r := newRank(t)
		r.env = append(slices.DeleteFunc(r.env, func(e string) bool { return e == "SLURM_MPS=off" }), "SLURM_JOB_ID=8")
		r.start(r.wrapper("true")...)
		if code := r.code(); code != 125 || !strings.Contains(r.said.String(), "cannot find ticket of job 8") {
			t.Errorf("code %d and %q", code, r.said)
		}
	})
}

// Each reason why a program does not run is named, with what to do.
func TestWhyAProgramDoesNotRun(t *testing.T) {
	ours := e2e.Read(t, "/proc/self/exe")[:4096]
	foreign, name := ours[:18]+"\xb7\x00"+ours[20:], "aarch64"
	if runtime.GOARCH == "arm64" {
		foreign, name = ours[:18]+"\x3e\x00"+ours[20:], "x86_64"
	}
	linked := e2e.Read(t, "/bin/sh")
	loader := regexp.MustCompile(`/lib[-/.\w]*/ld-[-.\w]+\x00`).FindString(linked)
	if loader == "" {
		t.Skip("needs a /bin/sh with a loader")
	}
	other := "/lib/none" + strings.Repeat("x", len(loader)-len("/lib/none")-1)
	const none, denied, format = "no such file or directory", "permission denied", "exec format error"
	const script = "its first line (#!) needs an interpreter: cannot run "
	for _, c := range []struct{ name, content, cause, says string }{
		{"dos", "#!/bin/sh\r\ntrue\r\n", none,
			`its first line ends in a carriage return, as in DOS: convert it: sed -i 's/\r$//' ./dos`},
		{"option", "#! /nonexistent/python3\t-u\n", none, script + "/nonexistent/python3: " + none},
		{"locked", "#!/etc/passwd\n", denied, script + "/etc/passwd: " + denied + ": make it executable: chmod +x /etc/passwd"},
		{"folder", "#!/etc\n", denied, script + "/etc: it is a directory"},
		{"bom", "\xef\xbb\xbf#!/bin/sh\n", format, "it begins with a byte order mark (BOM): save it as UTF-8 without one"},
		{"utf16", "\xff\xfe#\x00!\x00", format, "it begins with a byte order mark (BOM): save it as UTF-8 without one"},
		{"empty", "", format, "it is no binary, and has no first line like #!/bin/sh: add one"},
		{"plain", "#!/bin/sh\n", denied, "make it executable: chmod +x ./plain"},
		{"two words", "#!/bin/sh\n", denied, "make it executable: chmod +x './two words'"},
		{"loop", "#!./loop\n", denied, "make it executable: chmod +x ./loop"},
		{"foreign", foreign, format,
			"it is a binary for " + name + ": build it for " + machine(ours) + ", as this node is"},
		{"damaged", ours[:16] + "\x01" + ours[17:], format, "the binary is damaged, or no program: build it again"},
		{"alien", strings.Replace(linked, loader, other+"\x00", 1), none,
			"it needs the loader " + other + ", which is not there: build it for this node, or run it in its container"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRank(t)
			path := filepath.Join(r.dir, c.name)
			must.OK(t, node.WriteProgram(path, []byte(c.content)))
			if c.name == "plain" || c.name == "two words" || c.name == "loop" {
				must.OK(t, os.Chmod(path, 0o644))
			}
			r.start(r.wrapper("./" + c.name)...)
			code := 126
			if c.cause == none {
				code = 127
			}
			want := fmt.Sprintf("mpirun-wrap: cannot run ./%s: %s: %s\n", c.name, c.cause, c.says)
			if got := r.code(); got != code || r.said.String() != want {
				t.Errorf("code %d and %q, want %d and %q", got, r.said, code, want)
			}
		})
	}
	t.Run("noexec", func(t *testing.T) {
		r := newRank(t)
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=64k"); err != nil {
			t.Skipf("cannot mount a file system: %v", err)
		}
		defer func() { must.OK(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
		must.OK(t, node.WriteProgram(filepath.Join(dir, "app"), []byte("#!/bin/sh\n")))
		r.start(r.wrapper(dir + "/app")...)
		want := "mpirun-wrap: cannot run " + dir + "/app: " + denied +
			": its file system is mounted noexec: copy it to another one\n"
		if code := r.code(); code != 126 || r.said.String() != want {
			t.Errorf("code %d and %q, want %q", code, r.said, want)
		}
	})
}

// A binary can be cut off anywhere, or be another's: its head is read with care.
func TestInterpreterOfAnyHead(t *testing.T) {
	linked := e2e.Read(t, "/bin/sh")[:4096]
	for n := range linked {
		interpreter(linked[:n])
		machine(linked[:n])
		interpreter(linked[:n] + strings.Repeat("\xff", 4096-n))
	}
	for head, want := range map[string]string{"#!": "", "#!\n/bin/sh": "", "# /bin/sh": "",
		"#!  /bin/sh  -e\n": "/bin/sh", "#!/bin/sh": "/bin/sh"} {
		if path, isELF := interpreter(head); path != want || isELF {
			t.Errorf("%q: %q, %v", head, path, isELF)
		}
	}
}

// A signal to a rank has the same effect as on the program, and the parent sees the program's exit status.
//
// Contract: K5
func TestASignalReachesTheProgram(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGXCPU,
		syscall.SIGUSR1, syscall.SIGPIPE, syscall.SIGSEGV, syscall.SIGKILL} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			r := newRank(t)
			r.sh("ulimit -c 0; echo $$ >pid; exec sleep 60")
			program := r.proc("pid")
			r.signal(signal)
			if status := r.end(); !status.Signaled() || status.Signal() != signal {
				t.Errorf("the rank ends with %v", status)
			}
			must.Equal(t, "the program is pid", program.PID, r.cmd.Process.Pid)
		})
	}
	t.Run("a script with a trap", func(t *testing.T) {
		r := newRank(t)
		r.sh("trap 'echo caught; exit 3' TERM; trap 'echo saved' USR1; echo $$ >pid; while :; do sleep 0.01; done")
		r.proc("pid")
		r.signal(syscall.SIGUSR1)
		time.Sleep(100 * time.Millisecond) // because the order of two pending signals is undefined
		r.signal(syscall.SIGTERM)
		if code := r.code(); code != 3 || r.said.String() != "saved\ncaught\n" {
			t.Errorf("code %d, %q", code, r.said)
		}
	})
	t.Run("stop and go on", func(t *testing.T) {
		r := newRank(t)
		r.sh("echo $$ >pid; exec sleep 60")
		program := r.proc("pid")
		for _, stop := range []syscall.Signal{syscall.SIGTSTP, syscall.SIGSTOP} {
			r.signal(stop)
			r.until("stopped program", func() bool { return stateOf(program) == 'T' })
			r.signal(syscall.SIGCONT)
			r.until("program that runs", func() bool { return stateOf(program) == 'S' })
		}
		r.signal(syscall.SIGTERM)
		if status := r.end(); !status.Signaled() || status.Signal() != syscall.SIGTERM {
			t.Errorf("the rank ends with %v", status)
		}
	})
}

// inherits prints what a program inherits. The printed pid is its own.
const inherits = `ulimit -Sa; ulimit -Ha; umask; pwd; read -r pid name state parent group session terminal foreground rest </proc/self/stat
echo "$pid $parent $group $session $terminal $foreground"
grep -E "^(Umask|Uid|Gid|Groups|Threads|Cap|NoNewPrivs|Seccomp|Cpus_allowed|Mems_allowed)" /proc/self/status
ls /proc/$$/fd; cat`

// A program inherits the same with and without the wrapper: limits, signals, mask, folder, descriptors, stdin,
// parent, group and session. The process also stays the same.
//
// Contract: K5
func TestWhatAProgramInherits(t *testing.T) {
	for _, c := range []struct{ name, before string }{
		{"plain", ""},
		{"few open files", "ulimit -Sn 512; "},
		{"few open files for good", "ulimit -n 300; "},
		{"no core", "ulimit -Sc 0; "},
		{"a core of its own", "ulimit -Hc 4096; ulimit -Sc 1024; "},
		{"small stack and file", "ulimit -Ss 1024; ulimit -Sf 8192; "},
		{"umask", "umask 077; "},
		{"another folder", "cd /; "},
		{"under nohup", "trap '' HUP; "},
		{"ignored", "trap '' TERM INT PIPE CHLD USR1 XFSZ URG QUIT; "},
		{"a file more", "exec 7</dev/null; "},
		{"blocked", "env --block-signal=TERM,CHLD,PROF,USR1,SEGV,URG,RTMIN+3 "},
		{"all blocked", "env --block-signal "},
		{"all ignored", "env --ignore-signal "},
		{"both", "env --ignore-signal=WINCH,TSTP,ALRM --block-signal=TSTP,CHLD "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRank(t)
			r.in = "from stdin\n"
			run := func(words, program string) string {
				r.said = &bytes.Buffer{}
				before := c.before + "exec "
				if strings.HasPrefix(c.before, "env ") {
					before = "exec " + c.before
				}
				r.start("/bin/sh", "-c", before+words+" "+program)
				if code := r.code(); code != 0 {
					t.Fatalf("code %d: %s", code, r.said)
				}
				return regexp.MustCompile(fmt.Sprintf(`\b%d\b`, r.cmd.Process.Pid)).ReplaceAllString(r.said.String(), "PID")
			}
			wrapper := strings.Join(r.wrapper(), " ")
			without, with := run("", "bash -c '"+inherits+"'"), run(wrapper, "bash -c '"+inherits+"'")
			if with != without || !strings.Contains(with, "from stdin") || !strings.Contains(with, "PID "+strconv.Itoa(os.Getpid())+" PID ") {
				t.Errorf("without the wrapper:\n%s\nwith it:\n%s", without, with)
			}
			const signals = "grep -E ^S[ih][gd][A-P] /proc/self/status" // not in a shell, which blocks and ignores signals itself
			// Go's runtime sends SIGURG to its threads. If the caller blocks all signals, SIGURG stays pending
			// through an exec. Programs ignore SIGURG by default.
			pending := strings.NewReplacer("SigPnd:\t0000000000400000", "SigPnd:\t0000000000000000")
			if without, with := run("", signals), pending.Replace(run(wrapper, signals)); with != without || !strings.Contains(with, "SigBlk") {
				t.Errorf("without the wrapper:\n%s\nwith it:\n%s", without, with)
			}
		})
	}
}

// The program gets its arguments unchanged.
//
// Contract: K5
func TestTheArgumentsAreTheProgramsOwn(t *testing.T) {
	r := newRank(t)
	args := []string{"", "a b", "--share", "none", "--", "-h", "\xff\n", "--root=/"}
	r.start(r.wrapper(append([]string{"/bin/sh", "-c", `printf '<%s>' "$@"`, "sh"}, args...)...)...)
	if want := "<" + strings.Join(args, "><") + ">"; r.code() != 0 || r.said.String() != want {
		t.Errorf("%q, want %q", r.said, want)
	}
}

// A rank that has waited for its server leaves the program no process and no descriptor.
//
// Contract: K5
func TestAProgramAfterAWait(t *testing.T) {
	r := newRank(t)
	must.Root(t)
	must.OK(t, os.WriteFile(filepath.Join(r.root, "server.log"), []byte(faulted), 0o644))
	must.OK(t, node.WriteProgram(filepath.Join(r.root, "ask"), []byte(`#!/bin/sh
read -r question
cd "${CUDA_MPS_PIPE_DIRECTORY}" || exit
echo "$question" >>asked
case $(wc -l <asked) in
	1) exit 0 ;;                            # the question is dropped
	2) echo "Cannot send command"; exit 1 ;;
	3) echo FAULT ;;
	4) sleep 60 & echo FAULT ;;             # an answer that does not end
	*) echo ACTIVE ;;
esac
`)))
	const looks = `read -r children </proc/$$/task/$$/children; echo "children: $children"; ls /proc/$$/fd; grep -E '^Sig[A-P]' /proc/self/status`
	r.start("/bin/sh", "-c", looks)
	if code := r.code(); code != 0 {
		t.Fatalf("code %d: %s", code, r.said)
	}
	want := r.said.String()
	r.said = &bytes.Buffer{}
	r.sh(looks)
	if code := r.code(); code != 0 || r.said.String() != want {
		t.Errorf("code %d, %s\nwithout a wrapper: %s", code, r.said, want)
	}
	asked := must.Get(os.ReadFile(filepath.Join(r.root, "asked")))(t)
	if want := strings.Repeat("get_server_status 829\n", 5); string(asked) != want {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

// With the set-user-id or set-group-id bit, the wrapper would run any program as the file's owner.
//
// Contract: K5
func TestAWrapperWithTheSetUserIDBit(t *testing.T) {
	r := newRank(t)
	must.Root(t)
	var fs unix.Statfs_t
	must.OK(t, unix.Statfs(r.root, &fs))
	if fs.Flags&unix.ST_NOSUID != 0 {
		t.Skip("needs a file system without nosuid")
	}
	must.OK(t, os.Chmod(r.root, 0o755))
	content := must.Get(os.ReadFile(r.binary))(t)
	for name, bit := range map[string]os.FileMode{"user": os.ModeSetuid, "group": os.ModeSetgid, "none": 0} {
		path := filepath.Join(r.root, name)
		must.OK(t, errors.Join(node.WriteProgram(path, content), os.Chmod(path, 0o755|bit)))
		cmd := exec.Command(path, "id", "-u")
		cmd.Env = []string{"PATH=/usr/bin:/bin", "SLURM_MPS=off"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		want, code := "mpirun-wrap: "+"cannot run a program for another user: this file has the set-user-id or "+
			"set-group-id bit: ask your admin to remove it (chmod ug-s)\n", 125
		if bit == 0 {
			want, code = "65534\n", 0
		}
		must.Hold(t, string(out) == want && cmd.ProcessState.ExitCode() == code, "%s: %q, %v, want %q", name, out, err, want)
	}
}
