// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// With PrologFlags=RunInJob the job's limit of memory holds for prolog, guard and daemon. Slurm sets 30 MiB at least.
// That is enough, also for the epilog. A prolog that the kernel kills for its memory leaves what its epilog undoes, in
// the same group.
func TestLittleMemory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		mib  int64
		code int // of the prolog; -1 if it is killed
	}{
		{"Slurm's minimum", 30, 0},
		{"too little", 4, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAttack(t, "", 1)
			inside := e2e.NewMemoryGroup(t, c.mib<<20).Inside()
			prolog := a.runHook(a.Job(7, "0"), "prolog", inside...)
			if prolog.code != c.code {
				t.Errorf("prolog: code %d, want %d: %s\n%s", prolog.code, c.code, prolog.output, a.Log())
			}
			if c.code == 0 && a.Ticket(7).RefusalReason != "" {
				t.Errorf("refused: %s", a.Ticket(7).RefusalReason)
			}
			a.withstands(a.Job(7, "0"), "epilog", inside...)
			a.Quiet() // the killed prolog's guard may begin after the epilog
		})
	}
}

// Slurm gives tasks the limits of the shell that submitted the job. The wrapper and the task prolog need little.
func TestLimitsOfASubmitter(t *testing.T) {
	a := newAttack(t, "", 1)
	a.opens(a.Job(7, "0"))
	limits := []string{"fsize=0", "nofile=10", "core=0", "stack=131072", "memlock=0", "sigpending=0", "as=4000000000"}
	for _, limit := range limits {
		for _, line := range [][]string{a.Command("mpirun-wrap", "--", "/bin/echo", "runs"), a.Command("task-prolog")} {
			cmd := a.AsUser(7, append([]string{"/usr/bin/prlimit", "--" + limit}, line...))
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Contains(line[0], "mpirun-wrap") && string(out) != "runs\n" {
				t.Errorf("%s under %s: %v: %s", filepath.Base(line[0]), limit, err, out)
			}
		}
	}
	slots := a.Command("mpirun-wrap", "--slots=2", "--", "/bin/echo", "runs")
	out, err := a.AsUser(7, append([]string{"/usr/bin/prlimit", "--fsize=0"}, slots...)).CombinedOutput()
	must.Hold(t, err != nil && strings.Contains(string(out), "the limit of a file's size is 0 bytes: raise it"),
		"--slots without files: %v: %s", err, out)
	a.closes(a.Job(7, "0"))
}

// A file system of root's has too little room from the start, or is filled while the job runs. Only that of /run fails
// a prolog, with a sentence that names it. No epilog fails, and nothing is left.
func TestFileSystemsWithoutRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ folder, room, want string }{
		{"run", "nr_inodes=10", "no inode left: the file system at "},
		{"run", "size=12k", "no space left on device: the file system at "},
		{"run", "size=40k", ""},
		{"var/log", "nr_inodes=2", ""},
		{"var/lib", "size=4k", ""},
	} {
		t.Run(strings.ReplaceAll(c.folder, "/", "-")+" "+c.room, func(t *testing.T) {
			a := newAttack(t, "", 1)
			folder := filepath.Join(a.Root, c.folder)
			must.OK(t, os.MkdirAll(folder, 0o755))
			if err := unix.Mount("none", folder, "tmpfs", 0, "mode=755,"+c.room); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
			code := min(len(c.want), 1)
			if out := a.Must(code, a.Job(7, "0"), "prolog"); code == 1 && !strings.Contains(out, c.want+folder) {
				t.Errorf("the prolog prints %q, want %q", out, c.want+folder)
			}
			filler := filepath.Join(folder, "filler")
			must.Hold(t, os.WriteFile(filler, make([]byte, 1<<17), 0o600) != nil || !strings.HasPrefix(c.room, "size"),
				"the file system is not full")
			a.withstands(a.Job(7, "0"), "epilog")
			a.Clean()
		})
	}
}

// What a prolog inherits from slurmd gives the job's user nothing, and opens no file of root's to others.
func TestWhatAPrologInherits(t *testing.T) {
	t.Parallel()
	for _, before := range [][]string{
		{"/bin/sh", "-c", `umask 0; exec "$@"`, "sh"},
		{"choom", "-n", "500", "--"},
		{"nohup"},
		{"/bin/sh", "-c", `exec "$@" <&- >&- 2>&-`, "sh"},
	} {
		t.Run(fmt.Sprint(before[:min(3, len(before))]), func(t *testing.T) {
			a := newAttack(t, "", 1)
			a.withstands(a.Job(7, "0"), "prolog", before...)
			daemon := a.Ticket(7).Daemons[0].Proc.PID
			status := e2e.Read(t, fmt.Sprintf("/proc/%d/status", daemon))
			for _, field := range []string{"CapEff", "CapPrm", "CapInh", "SigIgn"} {
				if want := field + ":\t0000000000000000\n"; !strings.Contains(status, want) {
					t.Errorf("the daemon's status lacks %q:\n%s", want, status)
				}
			}
			if score := e2e.Read(t, fmt.Sprintf("/proc/%d/oom_score_adj", daemon)); strings.HasPrefix(score, "-") {
				t.Errorf("the kernel spares the user's daemon: %s", score)
			}
			for _, path := range a.writableByOthers() {
				t.Errorf("others may write %s", path)
			}
			a.withstands(a.Job(7, "0"), "epilog", before...)
			a.Clean()
		})
	}
}

// writableByOthers returns root's files and folders below the state, the logs and the reports that others may change.
func (a attack) writableByOthers() (found []string) {
	for _, top := range []string{"run", "var"} {
		_ = filepath.WalkDir(filepath.Join(a.Root, top), func(path string, entry os.DirEntry, err error) error {
			var st unix.Stat_t
			if err != nil || unix.Lstat(path, &st) != nil || st.Uid != 0 || st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return nil
			}
			if st.Mode&0o022 != 0 {
				found = append(found, fmt.Sprintf("%s %o", path, st.Mode))
			}
			return nil
		})
	}
	return found
}
