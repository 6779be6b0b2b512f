// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// Attacks of a hostile user against the shipped binaries. A test fails if its attack has succeeded. An attack has
// succeeded in each of these cases:
//
//   - Root touches anything outside of the job's folders.
//   - Root ends a process that does not belong to the job.
//   - Root waits or writes without end.
//   - A GPU stays in a wrong state.
//   - A node is drained because of a user.

// stormy is the first of the users of tests that send signals to all processes of a user.
var stormy = e2e.UID + 10

// attack is a node with a folder of root that a hostile user must not reach.
type attack struct {
	e2e.Node
	program string
	secret  string       // a folder of root
	going   *[]*exec.Cmd // the processes that go on
}

func newAttack(t *testing.T, policy string, gpus int) attack {
	t.Helper()
	begin := e2e.ReportEnd(t)
	p := e2e.NewNode(t, policy, slices.Repeat([]node.Model{node.H200}, gpus)...)
	begin()
	program := must.Get(e2e.Hostile())(t)
	a := attack{p, program, filepath.Join(filepath.Dir(p.Root), "secret"), new([]*exec.Cmd)}
	a.Write(filepath.Join(a.secret, "precious", "file"), "root's own words\n")
	must.OK(t, os.Chmod(filepath.Join(a.secret, "precious", "file"), 0o600))
	before := a.account(a.secret)
	t.Cleanup(func() {
		if after := a.account(a.secret); after != before {
			t.Errorf("root's files were\n%sand are\n%s", before, after)
		}
	})
	return a
}

// account returns the attributes and the contents of all files of a tree.
func (a attack) account(top string) string {
	var all strings.Builder
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		content := ""
		if err == nil && entry.Type().IsRegular() {
			content = e2e.Read(a.T, path)
		}
		fmt.Fprintf(&all, "%s mode %o uid %d gid %d links %d changed %d %q\n", path, st.Mode, st.Uid, st.Gid, st.Nlink, st.Mtim.Nano(), content)
		return err
	})
	if err != nil {
		a.T.Error(err)
	}
	return all.String()
}

// as returns a command of a user. Its environment has no variable of Slurm.
func (a attack) as(user uint32, line ...string) *exec.Cmd {
	cmd := exec.CommandContext(a.Ctx, line[0], line[1:]...)
	cmd.WaitDelay = 10 * time.Second // a process that it leaves behind may hold its output
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user, Groups: []uint32{user}}}
	return cmd
}

// does runs a command of a user to its end. It ignores an error, because a refusal is a good result.
func (a attack) does(user uint32, line ...string) string {
	cmd := a.as(user, line...)
	defer e2e.EndAfter(cmd)()
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// sh runs a shell script as the job's user. The job's folders are $PIPE, $LOG and $EXCHANGE. The folder of root is
// $SECRET.
func (a attack) sh(f folders, script string) {
	a.T.Helper()
	cmd := a.as(e2e.UID, "/bin/sh", "-ec", script)
	cmd.Env = append(cmd.Env, "PIPE="+f.pipe, "LOG="+f.log, "EXCHANGE="+f.exchange, "SECRET="+a.secret)
	e2e.Runs(a.T, cmd)
}

// goesOn starts an attack that continues until the test ends. It returns when the attack has begun.
func (a attack) goesOn(cmd *exec.Cmd) *exec.Cmd {
	a.T.Helper()
	out := must.Get(cmd.StdoutPipe())(a.T)
	must.OK(a.T, cmd.Start())
	a.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	*a.going = append(*a.going, cmd)
	if line, err := e2e.LinesOf(a.T, out).Next(); err != nil || line != "ready\n" {
		a.T.Fatalf("the attack %q prints %q, %v", cmd.Args, line, err)
	}
	return cmd
}

// named returns a link to the program of the attacks, so that its process has another name.
func (a attack) named(name string) string {
	a.T.Helper()
	path := filepath.Join(e2e.PublicDir(a.T), name)
	must.OK(a.T, os.Symlink(a.program, path))
	return path
}

// folders are the job's folders. They belong to its user.
type folders struct{ pipe, log, exchange string }

func (a attack) opens(job testnode.Job) folders {
	a.T.Helper()
	a.Open(job)
	ticket := a.Ticket(job.ID)
	return folders{ticket.Daemons[0].PipeDir, ticket.Daemons[0].LogDir, ticket.ExchangeDir}
}

// hookRun is one run of a binary, as slurmd runs it.
type hookRun struct {
	code   int
	output string
	took   time.Duration
	rss    int // peak, in MiB
}

func (a attack) runHook(job testnode.Job, program string, before ...string) hookRun {
	a.T.Helper()
	line := append(before, a.Command(program)...)
	ctx, cancel := e2e.Limited()
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Env = "/", job.Environment(program+"_slurmd")
	began := time.Now()
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		a.T.Fatalf("%s does not start", program)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return hookRun{cmd.ProcessState.ExitCode(), string(out), time.Since(began), int(usage.Maxrss / 1024)}
}

// tooLong is far above every deadline that these tests set, on a busy machine too, and below e2e.WaitLimit.
const tooLong = 2 * time.Minute

// fileSystemLife is far above the time for which a test needs a file system that does not answer.
const fileSystemLife = 10 * time.Minute

// withstands checks what must hold for every prolog and epilog, whatever the user did. There is no drain, no endless
// wait, no memory or output without end, and the log contains only its own lines.
func (a attack) withstands(job testnode.Job, program string, before ...string) {
	a.T.Helper()
	logged := len(a.Log())
	run := a.runHook(job, program, before...)
	if run.code != 0 {
		a.T.Errorf("%s: code %d: %s\n%s", program, run.code, run.output, a.Log())
	}
	if run.took > tooLong {
		a.T.Errorf("%s took %v\n%s", program, run.took, a.Log())
	}
	var own unix.Rusage // a child begins with its parent's peak, and the peak of the tests may be higher
	must.OK(a.T, unix.Getrusage(unix.RUSAGE_SELF, &own))
	if run.rss > max(100, int(own.Maxrss/1024)) {
		a.T.Errorf("%s used %d MiB", program, run.rss)
	}
	if more := len(a.Log()) - logged; more > 64<<10 {
		a.T.Errorf("%s logged %d bytes", program, more)
	}
	plain(a.T, run.output)
	a.plainLog()
}

// closes runs the epilog and checks that nothing is left on the node.
func (a attack) closes(job testnode.Job) {
	a.T.Helper()
	a.withstands(job, "epilog")
	if len(*a.going) > 0 { // they may keep files of the job in use, which are free when they have ended
		for _, cmd := range *a.going {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		a.emptied()
	}
	a.Clean()
	if mounts := e2e.Read(a.T, "/proc/self/mountinfo"); strings.Contains(mounts, a.Root) {
		a.T.Errorf("a file system is left:\n%s", mounts)
	}
}

// plain checks that a text contains only printable characters and newlines, so that it controls no terminal.
func plain(t *testing.T, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }); i >= 0 {
		t.Errorf("not printable at %d: %q", i, text[max(0, i-50):min(len(text), i+50)])
	}
}

// plainLog checks that every line of the log is a printable JSON object with the fields of this project.
func (a attack) plainLog() {
	a.T.Helper()
	log := a.Log()
	plain(a.T, log)
	for line := range strings.Lines(log) {
		var entry struct{ Program, Time string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Program == "" || entry.Time == "" {
			a.T.Errorf("a line of the log is no entry: %q, %v", line, err)
		}
	}
}

// The epilog removes the job's folders, whatever the user leaves in them.
func TestHostileFolders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		act  func(attack, folders)
	}{
		{"links to root's files", func(a attack, f folders) {
			a.sh(f, `rm -f $LOG/* ; for f in $LOG/control.log $LOG/server.log $PIPE/x $EXCHANGE/printed $EXCHANGE/turn; do ln -s $SECRET/precious/file $f; done`)
		}},
		{"links to root's folders", func(a attack, f folders) {
			a.sh(f, `for d in $PIPE $LOG $EXCHANGE; do ln -s $SECRET $d/secret; ln -s / $d/root; ln -s ../../../.. $d/up; done`)
		}},
		{"links to nowhere and in a circle", func(a attack, f folders) {
			a.sh(f, `for d in $PIPE $LOG $EXCHANGE; do ln -s nowhere $d/a; ln -s b $d/c; ln -s c $d/b; ln -s . $d/self; done`)
		}},
		{"fifos and sockets where files are", func(a attack, f folders) {
			a.sh(f, `rm -f $LOG/* $PIPE/*; mkfifo $LOG/control.log $LOG/server.log $PIPE/nvidia-cuda-mps-control.pid $PIPE/control_lock $EXCHANGE/terminate`)
			a.goesOn(a.as(e2e.UID, a.program, "serve", f.log, "silent"))
		}},
		{"folders where files are", func(a attack, f folders) {
			a.sh(f, `rm -f $LOG/* $PIPE/*; mkdir $LOG/control.log $LOG/server.log $PIPE/control $PIPE/nvidia-cuda-mps-control.pid; mkdir -m 0 $EXCHANGE/turn`)
		}},
		{"names that are no names", func(a attack, f folders) {
			a.sh(f, `for d in $PIPE $LOG $EXCHANGE; do cd $d; touch -- "$(printf 'a\nb\n{"level":"error"}')" -rf '...' "$(printf '\377\376')" "$(printf '\033[2J')" '*' "$(printf %0255d 7)"; mkdir -- -r; done`)
		}},
		{"modes that keep others out", func(a attack, f folders) {
			a.sh(f, `mkdir -m 0 $PIPE/none; mkdir -m 7777 $LOG/all; mkdir $LOG/all/x; touch $LOG/all/x/y; chmod 0 $LOG/all/x $EXCHANGE $LOG $PIPE`)
		}},
		{"a folder without a bottom", func(a attack, f folders) {
			if out := a.does(e2e.UID, a.program, "deep", f.exchange, "480"); out != "" {
				a.T.Fatal(out)
			}
			a.withstands(a.Job(7, "0"), "epilog", "prlimit", "--nofile=256:256")
			a.emptied()
		}},
		{"more files than one can count", func(a attack, f folders) {
			if out := a.does(e2e.UID, a.program, "crowd", f.log, "16000"); out != "" {
				a.T.Fatal(out)
			}
			a.withstands(a.Job(7, "0"), "epilog")
			a.emptied()
		}},
		{"processes that hold all of it", func(a attack, f folders) {
			// The process also locks the files below the root that it may read.
			holder := a.goesOn(a.as(e2e.UID, a.program, "hold", f.pipe, f.log, f.exchange, a.Root))
			a.withstands(a.Job(7, "0"), "epilog")
			a.lives(holder.Process.Pid)
		}},
		{"a process that goes on making files", func(a attack, f folders) {
			a.goesOn(a.as(e2e.UID, a.program, "refill", f.exchange))
		}},
		{"a process that swaps folders for links", func(a attack, f folders) {
			a.goesOn(a.as(e2e.UID, a.program, "swap", f.exchange, a.secret))
			a.goesOn(a.as(e2e.UID, a.program, "swap", f.log, "/"))
		}},
		{"file systems of the user's own in it", func(a attack, f folders) {
			if out, err := a.as(e2e.UID, "unshare", "-Urm", "true").CombinedOutput(); err != nil {
				a.T.Skipf("no mounts for users here: %v: %s", err, out)
			}
			script := `mkdir $0/a $0/b; mount -t tmpfs x $0/a; mount --bind $1 $0/b; mount -t tmpfs y $2; echo ready; exec sleep 900`
			a.goesOn(a.as(e2e.UID, "unshare", "-Urm", "/bin/sh", "-ec", script, f.exchange, a.secret, f.log))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAttack(t, "", 1)
			f := a.opens(a.Job(7, "0"))
			c.act(a, f)
			a.closes(a.Job(7, "0"))
		})
	}
}

// emptied lets mpsctl reap free what was in use at the end of an epilog, until nothing is left.
func (a attack) emptied() {
	a.T.Helper()
	a.Until("empty folder", func() bool { a.MpsctlAs(0, "reap"); return len(a.Leftovers()) == 0 })
}

// If root may not mount file systems, the job's folders are on a file system of the node. The epilog removes them
// too.
func TestHostileFoldersOfANodeWithoutMounts(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	bound := []string{"setpriv", "--inh-caps", "-sys_admin", "--bounding-set", "-sys_admin"}
	a.withstands(job, "prolog", bound...)
	ticket := a.Ticket(7)
	f := folders{ticket.Daemons[0].PipeDir, ticket.Daemons[0].LogDir, ticket.ExchangeDir}
	if strings.Contains(e2e.Read(t, "/proc/self/mountinfo"), a.Root) {
		t.Fatal("the prolog has mounted a file system, so the test checks nothing")
	}
	if out := a.does(e2e.UID, a.program, "deep", f.exchange, "600") + a.does(e2e.UID, a.program, "crowd", f.log, "500"); out != "" {
		t.Fatal(out)
	}
	a.sh(f, `mkdir -m 0 $EXCHANGE/none; ln -s $SECRET $LOG/secret; ln -s $SECRET/precious $EXCHANGE/d/precious`)
	a.goesOn(a.as(e2e.UID, a.program, "hold", f.pipe, f.log, f.exchange))
	a.goesOn(a.as(e2e.UID, a.program, "swap", f.pipe, a.secret))
	a.withstands(job, "epilog", append([]string{"prlimit", "--nofile=256:256"}, bound...)...)
	a.Clean()
}

// A prolog in its own mount namespace makes the job's folders in the namespace of the node.
func TestAPrologInAMountNamespace(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	a.withstands(job, "prolog", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "/bin/sh", "-c", `unshare -m "$@"; exit $?`, "sh")
	if _, err := os.Stat(a.Ticket(7).Daemons[0].PipeDir); err != nil {
		t.Errorf("seen from outside of the namespace: %v", err)
	}
	a.closes(job)
}

// lives checks that a process is alive. It is the same process as before, because the test has not reaped this child.
func (a attack) lives(pid int) {
	a.T.Helper()
	stat, err := proc.ReadStat(pid)
	if err != nil || stat.State == 'Z' || stat.State == 'X' {
		a.T.Errorf("process %d was ended: %+v, %v", pid, stat, err)
	}
}

// A user cannot make a hard link to a file of root, because the job's folders are on another file system. This also
// holds if the kernel does not protect hard links (fs.protected_hardlinks=0). Root makes the links here, because root
// may do so with any setting of the kernel.
func TestHostileHardLinks(t *testing.T) {
	a := newAttack(t, "", 1)
	f := a.opens(a.Job(7, "0"))
	a.needsBox(f)
	for _, victim := range []string{filepath.Join(a.Paths().Run(), "leases/7.json"), filepath.Join(a.secret, "precious/file"), a.Paths().Policy()} {
		if err := os.Link(victim, filepath.Join(f.log, "linked")); !strings.Contains(fmt.Sprint(err), "cross-device") {
			t.Errorf("a link to %s: %v", victim, err)
		}
	}
	a.closes(a.Job(7, "0"))
}

// needsBox checks that the job has its own file system. It skips the test if file systems cannot be mounted.
func (a attack) needsBox(f folders) {
	a.T.Helper()
	var own, above unix.Stat_t
	must.OK(a.T, unix.Stat(f.exchange, &own))
	must.OK(a.T, unix.Stat(a.Paths().Run(), &above))
	if own.Dev != above.Dev {
		var box unix.Statfs_t
		must.OK(a.T, unix.Statfs(f.exchange, &box))
		if wanted := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); box.Flags&wanted != wanted {
			a.T.Errorf("the job's file system has flags %#x, and lacks nosuid, nodev or noexec", box.Flags)
		}
		return
	}
	place := e2e.PublicDir(a.T)
	if err := unix.Mount("none", place, "tmpfs", 0, ""); err != nil {
		a.T.Skipf("file systems may not be mounted here: %v", err)
	}
	_ = unix.Unmount(place, unix.MNT_DETACH)
	a.T.Fatal("the job has no file system of its own")
}

// If the start of a daemon fails, the end of its log is a part of the error. If the policy then runs jobs without
// MPS, it is also a part of the ticket. The log may be any file, because here the user controls the control program.
func TestHostileLogOfAFailedStart(t *testing.T) {
	t.Parallel()
	const words = "the words of a user"
	for _, c := range []struct{ name, script, want string }{
		{"its own", `echo ` + words + ` >$CUDA_MPS_LOG_DIRECTORY/control.log`, words},
		{"a link to root's", `ln -s SECRET $CUDA_MPS_LOG_DIRECTORY/control.log`, ""},
		{"a file of root's", `for i in 1 2 3 4 5 6 7 8 9 0; do test -e $CUDA_MPS_LOG_DIRECTORY/control.log && exit 1; sleep 0.2; done`, ""},
		{"a fifo", `mkfifo $CUDA_MPS_LOG_DIRECTORY/control.log`, ""},
		{"a folder", `mkdir $CUDA_MPS_LOG_DIRECTORY/control.log`, ""},
		{"a file on lease", `cd $CUDA_MPS_LOG_DIRECTORY; echo ` + words +
			` >control.log; PROGRAM lease control.log >said & until grep -q . said; do sleep 0.05; done; grep -q ready said || exec sleep 60`, ""},
		{"one line without an end", `yes ` + words + ` | tr -d '\n' | head -c 3000000 >$CUDA_MPS_LOG_DIRECTORY/control.log`, words},
		{"escapes", `printf '\033[2J\302\23331m\n' >$CUDA_MPS_LOG_DIRECTORY/control.log`, `\\x1b[2J`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAttack(t, testnode.Default(`on_failure = "run_without"`), 1)
			secret := filepath.Join(e2e.PublicDir(t), "words") // only root may read it
			must.OK(t, os.WriteFile(secret, []byte(words+"\n"), 0o600))
			a.ControlIs("#!/bin/sh\n" + strings.NewReplacer("SECRET", secret, "PROGRAM", a.program).Replace(c.script) + "\nexit 1\n")
			if c.name == "a file of root's" {
				go a.linkInPlaceOf("jobs/7/0/log/control.log", words)
			}
			a.withstands(a.Job(7, "0"), "prolog")
			refused := a.Ticket(7).RefusalReason
			if c.want == "" && strings.Contains(refused+a.Log(), words) || !strings.Contains(refused+a.Log(), c.want) {
				t.Errorf("the ticket has %q", refused)
			}
			a.closes(a.Job(7, "0"))
		})
	}
}

// linkInPlaceOf writes a file of root into a folder as soon as the folder exists. It replaces a hard link to such a
// file.
func (a attack) linkInPlaceOf(path, content string) {
	path = filepath.Join(a.Paths().Run(), path)
	for os.WriteFile(path, []byte(content+"\n"), 0o644) != nil && wait.Sleep(a.Ctx, time.Millisecond) {
	}
}

// Two users with a job each try every operation on every path below the root, except on the driver's files. A user
// may change only the three folders of the own job. A user may read only the own ticket and report, the files that all
// users may read, and the machine's /proc and /sys, to which the root has links.
func TestHostileHandsOnRootsFiles(t *testing.T) {
	a := newAttack(t, "", 2)
	seven, eight := a.Job(7, "0"), a.Job(8, "1")
	eight.UID, eight.GID = e2e.OtherUID, e2e.OtherUID
	folders := map[uint32]folders{e2e.UID: a.opens(seven), e2e.OtherUID: a.opens(eight)}
	own := map[uint32][]string{e2e.UID: {"tickets/7.json", "jobs/7/report.json"}, e2e.OtherUID: {"tickets/8.json", "jobs/8/report.json"}}
	for _, names := range own { // the recorder starts after the prolog
		a.Until(names[1], func() bool {
			_, err := os.Stat(filepath.Join(a.Paths().Run(), names[1]))
			return err == nil
		})
	}
	before := a.account(filepath.Join(a.Root, "etc")) + a.account(filepath.Join(a.Paths().Run(), "leases")) + a.account(filepath.Join(a.Paths().Run(), "tickets"))
	for user, f := range folders {
		out := a.does(user, a.program, "probe", a.Root, filepath.Join(a.Root, "dev"), filepath.Join(a.Root, "tmp"), f.pipe, f.log, f.exchange)
		var want []string
		readable := []string{a.Paths().Policy(), a.Paths().ConfigFile()}
		for _, name := range own[user] {
			readable = append(readable, filepath.Join(a.Paths().Run(), name))
		}
		for _, path := range readable {
			want = append(want, "read "+path, "flock "+path) // root does not lock a file that a user may read
		}
		for _, link := range []string{filepath.Join(a.Root, "proc"), filepath.Join(a.Root, "sys")} {
			want = append(want, "read "+link, "flock "+link)
		}
		got := strings.Split(strings.TrimSpace(out), "\n")
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("uid %d can\n%s\nwant\n%s", user, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if after := a.account(filepath.Join(a.Root, "etc")) + a.account(filepath.Join(a.Paths().Run(), "leases")) +
		a.account(filepath.Join(a.Paths().Run(), "tickets")); after != before {
		t.Errorf("was\n%sis\n%s", before, after)
	}
	a.withstands(eight, "epilog")
	a.closes(seven)
}

// A rank finds only the ticket that root has written for its own job.
func TestHostileTickets(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	a.opens(job)
	forged := filepath.Join(e2e.PublicDir(t), "forged")
	tickets := filepath.Join(forged, "run/slurm-mps/tickets")
	a.Write(filepath.Join(tickets, "7.json"), e2e.Read(t, filepath.Join(a.Paths().Run(), "tickets/7.json")))
	for _, path := range []string{tickets, filepath.Join(tickets, "7.json")} {
		must.OK(t, os.Chown(path, int(e2e.UID), int(e2e.GID)))
	}
	must.OK(t, os.Symlink(filepath.Join(a.Paths().Run(), "tickets/7.json"), filepath.Join(tickets, "8.json")))
	const none = `mpirun-wrap: cannot find ticket of job \d+ on this node: the job did not ask for MPS: .*`
	number := func(shown string) string {
		return `mpirun-wrap: cannot read task: SLURM_JOB_ID is ` + regexp.QuoteMeta(shown) + `, want a job's number from 1 to \d+.*`
	}
	for _, c := range []struct {
		name, id, root string
		user           uint32
		want           string
	}{
		{"of another user", "7", a.Root, e2e.OtherUID, `mpirun-wrap: cannot read \S+/tickets/7.json: permission denied: it is another user's job`},
		{"forged", "7", forged, e2e.UID, `mpirun-wrap: cannot read \S+/tickets/7.json: not root's own: its owner is uid ` + fmt.Sprint(e2e.UID)},
		{"a link to root's", "8", forged, e2e.UID, `mpirun-wrap: cannot read \S+/tickets/8.json: not root's own: it is a symbolic link`},
		{"of a job that is none", "8", a.Root, e2e.UID, none},
		{"a negative job", "-7", a.Root, e2e.UID, number(`"-7"`)},
		{"a huge job", "18446744073709551623", a.Root, e2e.UID, number(`"18446744073709551623"`)},
		{"a job with a path", "../tickets/7", a.Root, e2e.UID, number(`"../tickets/7"`)},
		{"a job with a line", "7\n8", a.Root, e2e.UID, number(`"7\n8"`)},
		{"a job in another spelling", "0x7", a.Root, e2e.UID, number(`"0x7"`)},
		{"a job with escapes", "7\x1b[2J\u009b\xff", a.Root, e2e.UID, number(`"7\x1b[2J\u009b\xff"`)},
	} {
		cmd := a.as(c.user, filepath.Join(a.Bin, "mpirun-wrap"), "--root", c.root, "echo", "ran")
		cmd.Env = append(cmd.Env, "SLURM_JOB_ID="+c.id, "SLURM_STEP_ID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_NODEID=0")
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 125 {
			t.Errorf("%s: code %d: %s", c.name, cmd.ProcessState.ExitCode(), out)
		}
		e2e.Says(t, string(out), c.want)
	}
	a.closes(job)
}

// Slurm executes the lines that a TaskProlog prints. A user's variable gets into these lines only as a number.
func TestHostileWordsToTheTaskProlog(t *testing.T) {
	a := newAttack(t, testnode.Default(`memory = "even"`), 1)
	job := a.Job(7, "0")
	a.opens(job)
	line := regexp.MustCompile(`^(export CUDA_[A-Z_]+=[A-Za-z0-9,./=:_-]+|export SLURM_MPS_TOLD=[0-9a-f]{16}|unset CUDA_[A-Z_]+|print slurm-mps: [ -~…]{1,520})$`)
	words := []string{
		"50%", "8G", "low", "block", "even\nexport LD_PRELOAD=/tmp/x.so", "none\nprint owned", "$(id)", "`id`", "50%;id", "3:1\x1b[2J", "8G\nunset PATH",
		"low\nexport PATH=/tmp", "0\n1", "1e309", "-1", "NaN%", "99999999999999999999", strings.Repeat("9", 100_000), "\xff\xfe", "\u009b31m",
	}
	task := []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_TASK_PID=1", "SLURM_NODEID=0"}
	linesOf := func(env []string) string {
		cmd := a.as(e2e.UID, filepath.Join(a.Bin, "task-prolog"), "--root", a.Root)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v", env, err)
		}
		return string(out)
	}
	placed := 0
	for _, name := range []string{"", "_SHARE", "_MEM", "_GPU", "_SIGNALS", "_LOCAL_RANK", "_LOCAL_SIZE", "_REPORT"} {
		for _, word := range words {
			env := append(slices.Clone(task), "SLURM_MPS"+name+"="+word)
			out := linesOf(env)
			for text := range strings.Lines(out) {
				placed++
				if !line.MatchString(strings.TrimSuffix(text, "\n")) {
					t.Errorf("SLURM_MPS%s=%q: the line %q", name, word, text)
				}
			}
		}
	}
	for _, name := range []string{"SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_STEP_GPUS", "SLURM_HET_JOB_ID",
		"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_GPUS_PER_TASK"} {
		env := e2e.With(task, name, "0\nexport LD_PRELOAD=/tmp/x.so")
		if out := linesOf(env); strings.Contains(out, "LD_PRELOAD") {
			t.Errorf("%s: %q", name, out)
		}
	}
	if placed == 0 {
		t.Error("no task had a placement, so the test checks nothing")
	}
	a.closes(job)
}

// The name that a launcher gives a launch becomes no file's name in the exchange folder.
func TestHostileNamesOfALaunch(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	f := a.opens(job)
	for _, name := range []string{"../../../../evil", "/tmp/evil", "a\nb", strings.Repeat("evil", 5000), "\xff"} {
		var ranks []*exec.Cmd
		for rank := range 2 {
			cmd := a.as(e2e.UID, filepath.Join(a.Bin, "mpirun-wrap"), "--root", a.Root, "true")
			cmd.Env = append(cmd.Env, "SLURM_JOB_ID=7", "OMPI_COMM_WORLD_LOCAL_SIZE=2", fmt.Sprint("OMPI_COMM_WORLD_LOCAL_RANK=", rank), "OMPI_MCA_ess_base_jobid="+name, "SLURM_MPS_UNKNOWN=1")
			cmd.Stderr = os.Stderr
			must.OK(t, cmd.Start())
			ranks = append(ranks, cmd)
		}
		for _, rank := range ranks {
			if err := rank.Wait(); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(f.exchange, "printed")); err != nil {
		t.Errorf("the ranks have no table of what they have printed: %v", err)
	}
	_ = filepath.WalkDir(filepath.Dir(a.Root), func(path string, _ fs.DirEntry, _ error) error {
		if strings.Contains(path, "evil") {
			t.Errorf("a file at %s", path)
		}
		return nil
	})
	a.closes(job)
}

// If root runs a rank in a user's job, the wrapper uses files in a folder where that user can make links and fifos.
func TestHostileTrapsForAWrapperOfRoots(t *testing.T) {
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	f := a.opens(job)
	ranks := func(args ...string) {
		var ranks []*exec.Cmd
		for rank := range 2 {
			cmd := exec.CommandContext(a.Ctx, filepath.Join(a.Bin, "mpirun-wrap"), append([]string{"--root", a.Root}, args...)...)
			cmd.Env = []string{"PATH=/usr/bin:/bin", "SLURM_JOB_ID=7", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
				fmt.Sprint("OMPI_COMM_WORLD_LOCAL_RANK=", rank), "PMIX_NAMESPACE=x", "SLURM_MPS_UNKNOWN=1"}
			must.OK(t, cmd.Start())
			ranks = append(ranks, cmd)
		}
		began := time.Now()
		for _, rank := range ranks {
			_ = rank.Wait() // the wrapper may refuse, but it must not write or wait
		}
		if took := time.Since(began); took > tooLong {
			t.Errorf("%q took %v", args, took)
		}
	}
	a.sh(f, `for n in turn terminate printed; do ln -s $SECRET/precious/file "$EXCHANGE/$n"; done`)
	ranks("true")
	a.sh(f, `rm -rf $EXCHANGE/*; mkfifo $EXCHANGE/turn; mkdir $EXCHANGE/printed`)
	ranks("true")
	slots := []string{"--slots=2", "--slots-wait=0", "true"}
	a.sh(f, `rm -rf $EXCHANGE/*; for n in slots slot.0 slot.1; do ln -s $SECRET/precious/file $EXCHANGE/$n; done`)
	ranks(slots...)
	a.sh(f, `rm -rf $EXCHANGE/*; ln -s $SECRET/precious/file $EXCHANGE/slot.0`)
	ranks(slots...)
	a.sh(f, `rm -rf $EXCHANGE/*; mkfifo $EXCHANGE/slots $EXCHANGE/slot.0 $EXCHANGE/slot.1`)
	ranks(slots...)
	a.sh(f, `rm -rf $EXCHANGE/*; touch $EXCHANGE/slots $EXCHANGE/slot.0; ln $EXCHANGE/slot.0 $EXCHANGE/slot.1`)
	ranks(slots...)
	a.closes(job)
}

// victim starts a process of root.
func (a attack) victim() int {
	a.T.Helper()
	cmd := exec.Command("sleep", "100")
	must.OK(a.T, cmd.Start())
	a.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// Root ends the job's daemon and its servers, and no other process.
//
// Contract: I2, I3
func TestHostileProcesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		act  func(a attack, f folders) (lives []int)
	}{
		{"a pid file that names another's process", func(a attack, f folders) []int {
			victim := a.victim()
			a.sh(f, fmt.Sprintf("rm -f $PIPE/*.pid; echo %d >$PIPE/nvidia-cuda-mps-control.pid", victim))
			return []int{victim}
		}},
		{"a pid that is another's by now", func(a attack, f folders) []int {
			victim := a.victim()
			daemon := a.Ticket(7).Daemons[0].Proc
			path := filepath.Join(a.Paths().Run(), "leases/7.json")
			a.Rewrite(path, strings.Replace(e2e.Read(a.T, path), fmt.Sprintf(`"pid": %d`, daemon.PID), fmt.Sprintf(`"pid": %d`, victim), 1))
			return []int{victim}
		}},
		{"another user's process that looks like the daemon", func(a attack, f folders) []int {
			return []int{a.mimics(e2e.OtherUID, f)}
		}},
		{"a program with the set-user-id bit under the daemon's name", func(a attack, f folders) []int {
			path := filepath.Join(e2e.PublicDir(a.T), "nvidia-cuda-mps-server")
			content := e2e.Read(a.T, "/bin/sleep")
			must.OK(a.T, node.WriteProgram(path, []byte(content)))
			must.OK(a.T, os.Chmod(path, 0o755|fs.ModeSetuid))
			cmd := a.as(e2e.UID, path, "100")
			cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + f.pipe}
			must.OK(a.T, cmd.Start())
			a.T.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			if status := e2e.Read(a.T, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)); !strings.Contains(status, fmt.Sprintf("Uid:\t%d\t0\t0\t0\n", e2e.UID)) {
				a.T.Skip("programs get no other uid here")
			}
			return []int{cmd.Process.Pid}
		}},
		{"a daemon of another job of the user's", func(a attack, f folders) []int {
			a.opens(a.Job(8, "1"))
			a.T.Cleanup(func() { a.closes(a.Job(8, "1")) })
			return []int{a.Ticket(8).Daemons[0].Proc.PID}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAttack(t, "", 2)
			f := a.opens(a.Job(7, "0"))
			daemon := a.Ticket(7).Daemons[0].Proc
			lives := c.act(a, f)
			a.withstands(a.Job(7, "0"), "epilog")
			for _, pid := range lives {
				a.lives(pid)
			}
			if daemon.Running() {
				t.Errorf("the daemon %v is alive", daemon)
			}
		})
	}
}

// mimics starts a process with the name, the command line and the environment of the job's daemon.
func (a attack) mimics(user uint32, f folders) int {
	cmd := a.as(user, a.named("nvidia-cuda-mps-server"), "look")
	cmd.Args[0] = "nvidia-cuda-mps-control"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + f.pipe, "CUDA_MPS_LOG_DIRECTORY=" + f.log}
	return a.goesOn(cmd).Process.Pid
}

// The epilog ends a process of the user that looks like the daemon, because it claims to belong to the job. The
// process delays the end at most until the deadline for the daemon's quit.
func TestHostileMimicOfTheDaemon(t *testing.T) {
	a := newAttack(t, "", 1)
	a.Facts(`epilog_deadline = "6s"`)
	f := a.opens(a.Job(7, "0"))
	mimic := a.mimics(e2e.UID, f)
	a.closes(a.Job(7, "0"))
	if stat, err := proc.ReadStat(mimic); err == nil && stat.State != 'Z' {
		t.Errorf("the process is alive: %+v", stat)
	}
}

// New processes that look like the daemon start all the time. The epilog ends the daemon and does not drain the node.
func TestHostileMimicsWithoutEnd(t *testing.T) {
	user := stormy
	a := newAttack(t, "", 1)
	a.Facts(`epilog_deadline = "6s"`)
	job := a.Job(7, "0")
	job.UID, job.GID = user, user
	f := a.opens(job)
	daemon := a.Ticket(7).Daemons[0].Proc
	shell := filepath.Join(e2e.PublicDir(t), "nvidia-cuda-mps-server")
	must.OK(t, os.Symlink("/bin/dash", shell))
	// Every process starts its own successor and ends. There are always ten processes, but soon they are ten others.
	cmd := a.as(user, shell, "-c", `r() { r & }; i=0; while [ $i -lt 10 ]; do r & i=$((i+1)); done; echo ready; sleep 900`)
	cmd.Env = append(cmd.Env, "CUDA_MPS_PIPE_DIRECTORY="+f.pipe)
	a.goesOn(cmd)
	t.Cleanup(func() { a.does(user, a.program, "end") })
	a.withstands(job, "epilog")
	if daemon.Running() || a.Modes() != "0" {
		t.Errorf("daemon alive %v, modes %s", daemon.Running(), a.Modes())
	}
	a.does(user, a.program, "end")
	a.Clean()
}

// A daemon that the user controls ends its first thread. The daemon looks like a zombie, but other threads run.
func TestHostileDaemonThatLooksDead(t *testing.T) {
	a := newAttack(t, "", 1)
	control := a.named("nvidia-cuda-mps-control")
	a.Write(a.Paths().ConfigFile(), fmt.Sprintf("nvml_library = %q\nmps_control = %q\nepilog_deadline = \"6s\"\n", a.Sim.NVML(), control))
	a.opens(a.Job(7, "0"))
	daemon := a.Ticket(7).Daemons[0].Proc
	a.does(e2e.UID, "kill", "-USR1", strconv.Itoa(daemon.PID))
	a.Until("daemon that looks dead", func() bool {
		stat, _ := proc.ReadStat(daemon.PID)
		return stat.State == 'Z'
	})
	if !a.works(daemon.PID) {
		t.Fatal("the attack itself fails: no thread runs")
	}
	a.withstands(a.Job(7, "0"), "epilog")
	if a.works(daemon.PID) {
		t.Error("threads of the daemon run")
	}
	a.Clean()
}

// fileSystem mounts a file system of the user until the test ends. The file system answers this many reads with an
// error, and no read after that. stop ends the file system, and the processes that wait for it.
func (a attack) fileSystem(errors int) (dir string, stop func()) {
	a.T.Helper()
	return a.fileSystemOf(e2e.UID, errors, fileSystemLife)
}

// fileSystemOf mounts a file system of any user, which ends by itself after a time.
func (a attack) fileSystemOf(user uint32, errors int, life time.Duration) (dir string, stop func()) {
	a.T.Helper()
	dir = e2e.PublicDir(a.T)
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		a.T.Skipf("users have no file systems of their own here: %v", err)
	}
	defer device.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", device.Fd(), user, user)
	if err := unix.Mount("hostile", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		a.T.Skipf("users have no file systems of their own here: %v", err)
	}
	a.T.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	cmd := a.as(user, a.program, "fuse", strconv.Itoa(errors), strconv.Itoa(int(life.Seconds())))
	cmd.ExtraFiles = []*os.File{device}
	a.goesOn(cmd)
	return dir, func() { _ = cmd.Process.Kill() }
}

// A process that looks like the daemon delays every reader of its environment as long as its user likes. It can do so
// because the kernel reads the environment from the process's memory. No program waits longer for it than for an
// answer.
func TestHostileMemoryThatDoesNotCome(t *testing.T) {
	a := newAttack(t, "", 1)
	a.Facts(`epilog_deadline = "6s"`)
	job := a.Job(7, "0")
	f := a.opens(job)
	dir, stop := a.fileSystem(2)
	mimic := a.as(e2e.UID, a.named("nvidia-cuda-mps-server"), "stuck", dir)
	mimic.Env = append(mimic.Env, "CUDA_MPS_PIPE_DIRECTORY="+f.pipe)
	environment := fmt.Sprintf("/proc/%d/environ", a.goesOn(mimic).Process.Pid)
	t.Cleanup(stop) // this runs before the cleanup of the mimic, which cannot end without it
	for tries := 0; a.comes(environment); tries++ {
		if tries == 20 {
			t.Skip("this kernel delays no reader")
		}
	}
	a.withstands(job, "epilog")
	if a.Modes() != "0" {
		t.Errorf("modes %s", a.Modes())
	}
}

// A process looks like the daemon, and SIGKILL does not end it, because it waits for a file system of its user. The
// epilog does not drain the node.
//
// Contract: I3
func TestHostileMimicThatDoesNotGo(t *testing.T) {
	a := newAttack(t, "", 1)
	a.Facts(`epilog_deadline = "6s"`)
	job := a.Job(7, "0")
	f := a.opens(job)
	daemon := a.Ticket(7).Daemons[0].Proc
	dir, stop := a.fileSystem(0)
	mimic := a.as(e2e.UID, a.named("nvidia-cuda-mps-server"), "unkillable", dir)
	mimic.Env = append(mimic.Env, "CUDA_MPS_PIPE_DIRECTORY="+f.pipe)
	pid := a.goesOn(mimic).Process.Pid
	t.Cleanup(stop)
	a.withstands(job, "epilog")
	if !a.works(pid) { // its first thread may be another than the one that waits
		t.Fatal("the mimic was ended, so this test checks nothing")
	}
	if daemon.Running() || a.Modes() != "0" {
		t.Errorf("daemon alive %v, modes %s", daemon.Running(), a.Modes())
	}
}

// comes reports whether a file can be read within half a second.
func (a attack) comes(path string) bool {
	came := make(chan struct{})
	go func() {
		_, _ = os.ReadFile(path)
		close(came)
	}()
	select {
	case <-came:
		return wait.Sleep(a.Ctx, 50*time.Millisecond)
	case <-time.After(500 * time.Millisecond):
		return false
	}
}

// works reports whether any thread of a process is alive.
func (a attack) works(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return slices.ContainsFunc(threads, func(path string) bool {
		content, err := os.ReadFile(path)
		return err == nil && !bytes.Contains(content, []byte(") Z ")) && !bytes.Contains(content, []byte(") X "))
	})
}

// The helpers of root run as the user. The user may send them any signal at any time, also just before they execute a
// program. A stopped helper holds nothing that root needs, so the next job of the same user opens.
func TestHostileSignals(t *testing.T) {
	t.Parallel()
	for i, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			a := newAttack(t, "", 1)
			a.Facts(`prolog_deadline = "6s"`, `epilog_deadline = "6s"`)
			user := stormy + 1 + uint32(i)
			job, next := a.Job(7, "0"), a.Job(8, "0")
			job.UID, job.GID, next.UID, next.GID = user, user, user, user
			t.Cleanup(func() { a.does(user, a.program, "end") })
			storm := a.goesOn(a.as(user, a.program, "storm", strconv.Itoa(int(signal))))
			a.withstands(job, "prolog")
			a.withstands(job, "epilog")
			if got := a.Modes(); got != "0" {
				t.Errorf("modes %s", got)
			}
			_ = storm.Process.Kill()
			_ = storm.Wait()
			// A stopped process stays stopped.
			a.withstands(next, "prolog")
			if ticket := a.Ticket(8); ticket.RefusalReason != "" {
				t.Errorf("the next job is refused: %s", ticket.RefusalReason)
			}
			a.withstands(next, "epilog")
			a.does(user, a.program, "end")
			a.Clean()
		})
	}
}

// A process of the user answers at the daemon's socket. Root waits a bounded time, and uses the answers only for the
// user's own daemon. Root finds the daemon to end by what the kernel reports.
func TestHostileAnswersToTheEpilog(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"silent", "drip", "endless", "reset", "escapes", "refuses", "names", "thousands"} {
		t.Run(kind, func(t *testing.T) {
			a := newAttack(t, testnode.Default(`drain_grace = "100ms"`), 1)
			a.Facts(`epilog_deadline = "6s"`)
			f := a.opens(a.Job(7, "0"))
			daemon, victim := a.Ticket(7).Daemons[0].Proc, a.victim()
			a.goesOn(a.as(e2e.UID, a.program, "serve", f.pipe, fmt.Sprint(kind, " ", victim)))
			a.closes(a.Job(7, "0"))
			a.lives(victim)
			if daemon.Running() {
				t.Error("the daemon is alive")
			}
		})
	}
}

// A process of the user runs before the job starts. It answers instead of the daemon, or tells the daemon to end, as
// soon as the daemon runs. The prolog may then refuse the job. It does not drain the node, because the control
// program works without that process.
func TestHostileAnswersToTheProlog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, verb, answers, deadline, slow string }{
		{"answers that are none", "usurp", "escapes", "12s", ""},
		{"no answer", "usurp", "silent", "12s", ""},
		{"no answer, and no time left for a trial and a second try", "usurp", "silent", "2s", "800"},
		{"a refusal", "usurp", "refuses", "12s", ""},
		{"quit", "quit", "", "12s", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAttack(t, "", 1)
			a.Facts(fmt.Sprintf("prolog_deadline = %q", c.deadline), `epilog_deadline = "6s"`)
			if c.slow != "" {
				a.Fault("slow_ms", c.slow)
			}
			pipe := filepath.Join(a.Paths().Run(), "jobs/7/0/pipe")
			a.goesOn(a.as(e2e.UID, a.program, c.verb, pipe, c.answers))
			a.withstands(a.Job(7, "0"), "prolog")
			ticket := a.Ticket(7)
			t.Logf("refused: %q", ticket.RefusalReason)
			if want := map[bool]string{true: "0", false: "3"}[ticket.RefusalReason != ""]; a.Modes() != want {
				t.Errorf("modes %s, want %s", a.Modes(), want)
			}
			plain(t, ticket.RefusalReason)
			if len(ticket.RefusalReason) > 4096 {
				t.Errorf("the ticket has %d bytes", len(ticket.RefusalReason))
			}
			a.closes(a.Job(7, "0"))
		})
	}
}

// The socket is a link to a service of root. The service gets calls from the user and no call from root.
func TestHostileLinkToAServiceOfRoots(t *testing.T) {
	a := newAttack(t, "", 1)
	a.Facts(`epilog_deadline = "6s"`)
	f := a.opens(a.Job(7, "0"))
	path := filepath.Join(e2e.PublicDir(t), "service")
	listener := must.Get(net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}))(t)
	defer listener.Close()
	must.OK(t, os.Chmod(path, 0o777))
	callers := make(chan uint32, 100)
	go func() {
		defer close(callers)
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			raw, _ := conn.SyscallConn()
			_ = raw.Control(func(fd uintptr) {
				if who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
					callers <- who.Uid
				}
			})
			conn.Close()
		}
	}()
	a.sh(f, "rm $PIPE/control; ln -s "+path+" $PIPE/control")
	a.closes(a.Job(7, "0"))
	listener.Close()
	calls := 0
	for caller := range callers {
		if calls++; caller != e2e.UID {
			t.Errorf("uid %d called", caller)
		}
	}
	if calls == 0 {
		t.Error("no process called, so the test checks nothing")
	}
}

// A user's texts about a job are only data for root. They are bounded and printable, and do not drain the node.
func TestHostileWords(t *testing.T) {
	t.Parallel()
	const policy = "version = 1\nrule \"no\" {\n  when = job.partition == \"main\" && contains(job.requested, \"deny\")\n  deny = \"not with ${job.comment} and ${job.option}\"\n}\n" +
		"rule \"mps\" {\n  when = contains(job.requested, \"mps\") && !startswith(job.comment, \"a\")\n  allow = [\"share\"]\n  grant {}\n}\n"
	words := []string{
		"\n{\"level\":\"error\",\"message\":\"forged\"}\n", "\x1b[2J\x1b]0;owned\x07", "\u009b31m\u202eevil\u2028", "\xff\xfe\xc0\x80",
		"${file(\"/etc/shadow\")} %{ for x in y }", "$(reboot) `reboot` ; reboot | reboot", strings.Repeat("A", 100_000), "mps:share=\n\x1b", "--", "(null)",
	}
	for _, features := range []string{"mps", "mps&deny"} {
		t.Run(features, func(t *testing.T) {
			a := newAttack(t, policy, 1)
			for i, word := range words {
				job := a.Job(uint32(100+i), "0")
				job.Features = features
				job.Extra = []string{
					"SLURM_JOB_COMMENT=" + word, "SPANK_MPS=" + word, "SPANK_LD_PRELOAD=/tmp/x.so",
					"SLURM_JOB_WORK_DIR=" + word, "SLURM_JOB_STDIN=" + word, "SLURM_JOB_STDOUT=" + word,
				}
				a.withstands(job, "prolog")
				rank := a.AsUser(job.ID, a.Command("mpirun-wrap", "true"))
				out, _ := rank.CombinedOutput()
				plain(t, string(out))
				if denied := strings.Contains(features, "deny"); denied && !strings.Contains(string(out), "this job has no MPS: not with") || len(out) > 4096 {
					t.Errorf("%.50q: the rank prints %q", word, out)
				}
				a.closes(job)
			}
			for i, word := range words {
				job := a.Job(uint32(200+i), "0")
				job.Features = word
				a.withstands(job, "prolog")
				a.closes(job)
			}
		})
	}
}

// No variable of the prolog's environment reaches the programs that it starts, because it builds their environment.
func TestHostileEnvironment(t *testing.T) {
	a := newAttack(t, "", 1)
	evil := e2e.PublicDir(t)
	a.Write(filepath.Join(evil, "nvidia-cuda-mps-control"), "#!/bin/sh\ntouch "+a.secret+"/run\n")
	must.OK(t, os.Chmod(filepath.Join(evil, "nvidia-cuda-mps-control"), 0o755))
	job := a.Job(7, "0")
	job.Extra = []string{
		"PATH=" + evil, "LD_LIBRARY_PATH=" + evil, "IFS=/", "LC_ALL=tr_TR.UTF-8", "LANG=../../../../" + evil, "TMPDIR=" + evil, "HOME=" + evil, "ENV=" + evil,
		"BASH_ENV=" + evil, "CUDA_MPS_PIPE_DIRECTORY=/etc", "CUDA_MPS_LOG_DIRECTORY=/etc",
		"__NVML_DBG_FILE=" + evil + "/nvml", "GODEBUG=execerrdot=0", "SPANK_PATH=" + evil, "SPANK_LD_PRELOAD=" + evil, "__NV_PRELOAD=" + evil,
	}
	a.Open(job)
	a.HoldsDaemon(a.Ticket(7).Daemons[0])
	a.closes(job)
	if _, err := os.Lstat(filepath.Join(evil, "nvml")); err == nil {
		t.Error("NVML has written as root a file that a variable names")
	}
}

// A program that root starts as the user has three open files, none of them root's, and no right to other files.
//
// Contract: D1
func TestHostileDescriptors(t *testing.T) {
	a := newAttack(t, "", 1)
	a.ControlIs(fmt.Sprintf("#!/bin/sh\nfor f in /proc/$$/fd/*; do readlink $f; done >>$CUDA_MPS_LOG_DIRECTORY/files\ncat /proc/$$/status >>$CUDA_MPS_LOG_DIRECTORY/status\nexec %s \"$@\"\n", a.Sim.Program("nvidia-cuda-mps-control")))
	// Root has the file open when the prolog starts: at the first number, and at one above all numbers that the
	// prolog uses.
	secret := must.Get(os.Open(filepath.Join(a.secret, "precious/file")))(t)
	defer secret.Close()
	line := a.Command("prolog")
	cmd := exec.CommandContext(a.Ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Env = "/", a.Job(7, "0").Environment("prolog_slurmd")
	cmd.ExtraFiles = make([]*os.File, 200)
	cmd.ExtraFiles[0], cmd.ExtraFiles[199] = secret, secret
	e2e.Runs(t, cmd)
	daemon := a.Ticket(7).Daemons[0]
	f := folders{daemon.PipeDir, daemon.LogDir, a.Ticket(7).ExchangeDir}
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", daemon.Proc.PID))
	if err != nil || len(open) < 3 {
		t.Fatalf("files of the daemon: %q, %v", open, err)
	}
	for _, link := range open {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, a.secret) {
			t.Errorf("the daemon has %s open", target)
		}
	}
	files, status := e2e.Read(t, filepath.Join(f.log, "files")), e2e.Read(t, filepath.Join(f.log, "status"))
	for file := range strings.Lines(files) {
		file = strings.TrimSpace(file)
		if !strings.HasPrefix(file, "pipe:") && file != filepath.Join(filepath.Dir(a.Root), "control") && file != filepath.Join(f.log, "files") {
			t.Errorf("another file is open: %s", file)
		}
	}
	if strings.Count(files, "pipe:") < 6 {
		t.Errorf("the program was started less than twice, so the test checks too little:\n%s", files)
	}
	for _, want := range append(slices.Clone(e2e.UsersStatus), "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n") {
		if strings.Count(status, want) != strings.Count(status, "Name:") {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	a.closes(a.Job(7, "0"))
}

// A user who writes until the job's file system is full takes no space from other users.
func TestHostileExhaustion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, verb, argument string }{{"bytes", "fill", ""}, {"files", "crowd", "10000000"}} {
		t.Run(c.name, func(t *testing.T) {
			a := newAttack(t, "", 2)
			seven, eight := a.Job(7, "0"), a.Job(8, "1")
			eight.UID, eight.GID = e2e.OtherUID, e2e.OtherUID
			f := a.opens(seven)
			a.needsBox(f)
			for _, dir := range []string{f.pipe, f.log, f.exchange} {
				if out := a.does(e2e.UID, a.program, c.verb, dir, c.argument); out != "" {
					t.Fatal(out)
				}
			}
			if err := os.WriteFile(filepath.Join(f.exchange, "one"), make([]byte, 1<<20), 0o600); err == nil {
				t.Error("the file system is not full, so the test checks nothing")
			}
			a.opens(eight)
			a.withstands(eight, "epilog")
			a.withstands(seven, "prolog") // the prolog adopts the daemon, or reports why it does not
			a.closes(seven)
		})
	}
}

// Other processes of the user have reached the user's limit of processes, so the daemon cannot start. The prolog
// refuses the job and does not drain the node.
func TestHostileLimits(t *testing.T) {
	user := stormy + 9
	a := newAttack(t, "", 1)
	job := a.Job(7, "0")
	job.UID, job.GID = user, user
	limit := []string{"prlimit", "--nproc=100:100"}
	a.goesOn(a.as(user, "/bin/sh", "-c", `i=0; while [ $i -lt 100 ]; do sleep 900 & i=$((i+1)); done; echo ready; wait`))
	t.Cleanup(func() { a.does(user, a.program, "end") })
	a.withstands(job, "prolog", limit...)
	if refused := a.Ticket(7).RefusalReason; !strings.Contains(refused, "resource temporarily unavailable") {
		t.Errorf("the ticket has %q", refused)
	}
	a.withstands(job, "epilog", limit...)
	a.Clean()
	a.opens(job)
	a.withstands(job, "epilog", limit...)
	a.Clean()
}

// Another user's daemon cannot be asked, told to quit, or made to end a client. That holds for another user of the
// node and for a member of the same group.
func TestHostileNeighbour(t *testing.T) {
	a := newAttack(t, "", 1)
	f := a.opens(a.Job(7, "0"))
	daemon := a.Ticket(7).Daemons[0]
	for _, group := range []uint32{e2e.OtherUID, e2e.GID} {
		cmd := a.as(e2e.OtherUID, a.Sim.Program("nvidia-cuda-mps-control"))
		cmd.Env = append(cmd.Env, "CUDA_MPS_PIPE_DIRECTORY="+f.pipe)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: e2e.OtherUID, Gid: group, Groups: []uint32{group}}
		cmd.Stdin = strings.NewReader("get_server_list\nterminate_client 1 1\nquit\n")
		if out, _ := cmd.CombinedOutput(); string(out) != "Cannot find MPS control daemon process\n" {
			t.Errorf("group %d: the control program prints %q", group, out)
		}
	}
	if !e2e.Alive(daemon.Proc) {
		t.Error("the daemon does not run")
	}
	if _, err := lease.OpenReadOnly(a.Paths().Run(), e2e.Boot(t)).ReadTicket(7); err != nil {
		t.Error(err)
	}
	a.closes(a.Job(7, "0"))
}

// The folder of all state, and each folder in it, must belong to root. The prolog fails if a user owns one of them.
func TestHostileFolderOfState(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"", "leases", "tickets", "locks", "jobs"} {
		t.Run("/"+dir, func(t *testing.T) {
			a := newAttack(t, "", 1)
			path := filepath.Join(a.Paths().Run(), dir)
			must.OK(t, os.MkdirAll(path, 0o755))
			must.OK(t, os.Chown(path, int(e2e.UID), int(e2e.GID)))
			e2e.Says(t, a.Must(1, a.Job(7, "0"), "prolog"), fmt.Sprintf("prolog: cannot make state folder: %s is uid %d's: give it to root", path, e2e.UID))
			if a.Modes() != "0" {
				t.Errorf("modes %s", a.Modes())
			}
		})
	}
}
