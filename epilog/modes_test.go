// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/fakenode"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// If one mode cannot be restored, the lease is kept. Everything else is undone, and the other mode is restored.
// Another epilog finishes the undo.
//
// Contract: R1
func TestAModeThatCannotBeRestoredKeepsTheLease(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	stuck := errors.New("the driver refuses the mode")
	n.Fail["set mode of a to default"] = stuck
	n.keepsTheLease(n.close(), "lease closing", stuck)
	if n.Modes[fakenode.GPUA] != site.ModeExclusiveProcess || n.Modes[fakenode.GPUB] != site.ModeDefault {
		t.Errorf("modes: %v", n.Modes)
	}
	if line := n.logged(SummaryStep); line == nil || line["closed"] != false {
		t.Errorf("summary: %v", line)
	}
	n.works("set mode of a to default")
	must.Note(t, n.close())
	n.IsAsBefore()
}

// A mode that cannot be read may be the job's mode, so the lease is kept.
func TestAModeThatCannotBeReadKeepsTheLease(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	hung := errors.New("the driver does not answer")
	n.Fail["read mode of b"] = hung
	n.keepsTheLease(n.close(), "lease closing", hung)
}

// Contract: M1
func TestAModeThatIsAcceptedAndNotRestoredKeepsTheLease(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	n.pretend = true
	err := n.close()
	n.keepsTheLease(err, "lease closing")
	want := "cannot restore compute mode of " + string(fakenode.GPUA) + ": set to default, and it reads exclusive_process"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, and should have %q", err, want)
	}
}

// The epilog restores the mode from before the job, whatever it was. If an admin has set another mode since, that
// mode stays.
//
// Contract: M2
func TestTheModeBeforeTheJobIsRestored(t *testing.T) {
	n := newNode(t)
	n.Modes[fakenode.GPUA] = site.ModeExclusiveThread
	n.leased(nil)
	n.Modes[fakenode.GPUB] = site.ModeProhibited // set by an admin
	must.Note(t, n.close())
	if n.Modes[fakenode.GPUA] != site.ModeExclusiveThread || n.Modes[fakenode.GPUB] != site.ModeProhibited {
		t.Errorf("modes: %v", n.Modes)
	}
	if left := n.Files(); len(left) > 0 {
		t.Errorf("the store has %q", left)
	}
}

// If another job holds a GPU by now, its mode is not changed.
//
// Contract: M2, R6
func TestTheModeOfAGPUOfAnotherJobStays(t *testing.T) {
	n := newNode(t)
	n.leased(nil)
	l, err := n.Store.Read(7)
	must.OK(t, err)
	other := lease.Lease{Job: lease.Job{ID: 8}, Phase: lease.Opened, GPUs: l.GPUs[1:]}
	err = errors.Join(n.Store.Delete(t.Context(), l), n.Store.Create(t.Context(), other), n.Store.Save(l))
	must.OK(t, err)
	must.Note(t, n.close())
	if n.Modes[fakenode.GPUA] != site.ModeDefault || n.Modes[fakenode.GPUB] != site.ModeExclusiveProcess {
		t.Errorf("modes: %v", n.Modes)
	}
	if job, held, err := n.Store.HeldByAnother(fakenode.GPUB, 7); job != 8 || !held || err != nil {
		t.Errorf("GPU b is job %d's: %t, %v", job, held, err)
	}
}

// A mode that the prolog did not set is not restored, and the driver is not asked for it.
func TestAModeThatWasNotSetIsNotRestored(t *testing.T) {
	n := newNode(t)
	n.leased(func(l *lease.Lease) { l.GPUs[1].OriginalMode, l.GPUs[1].NewMode = "", "" })
	n.Fail["read mode of b"] = errors.New("the driver does not answer")
	must.Note(t, n.close())
	if n.Modes[fakenode.GPUA] != site.ModeDefault || n.Modes[fakenode.GPUB] != site.ModeExclusiveProcess {
		t.Errorf("modes: %v", n.Modes)
	}
}

// The epilog removes the job files that the lease names, and what a killed prolog left of them. A file of another job
// stays.
//
// Contract: R13
func TestJobFiles(t *testing.T) {
	for _, c := range []struct {
		name   string
		before map[string]string
		after  []string
		warns  bool
	}{
		{"both", map[string]string{"0": "7\n", "1": "7\n"}, nil, false},
		{"none", nil, nil, false},
		{"a draft", map[string]string{".0.new": "7", "1": "7\n"}, nil, false},
		{"another job's", map[string]string{"0": "8\n", "1": "7\n"}, []string{"0"}, false},
		{"a folder in place of a file", map[string]string{"0/x": "7\n", "1": "7\n"}, []string{"0"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("/run", "mps")
			must.OK(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			n := newNode(t)
			n.leased(func(l *lease.Lease) {
				l.GPUs[0].JobFile, l.GPUs[1].JobFile = filepath.Join(dir, "0"), filepath.Join(dir, "1")
			})
			for name, content := range c.before {
				_ = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
				must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
			}
			for range 2 { // closing twice is the same as closing once
				must.OK(t, n.close())
				if c.warns != strings.Contains(n.log.String(), "still names the job") {
					t.Errorf("the log: %s", n.log.String())
				}
				c.warns = false
			}
			var left []string
			files, _ := os.ReadDir(dir)
			for _, file := range files {
				left = append(left, file.Name())
			}
			if strings.Join(left, " ") != strings.Join(c.after, " ") {
				t.Errorf("left: %q, want %q", left, c.after)
			}
		})
	}
}

// A folder that does not belong to root is not touched, and the job closes all the same.
func TestJobFilesInAFolderOfOthers(t *testing.T) {
	n, dir := newNode(t), t.TempDir() // below /tmp, where each user may write
	path := filepath.Join(dir, "0")
	must.OK(t, os.WriteFile(path, []byte("7\n"), 0o644))
	n.leased(func(l *lease.Lease) { l.GPUs[0].JobFile = path })
	must.OK(t, n.close())
	if _, err := os.Lstat(path); err != nil || !strings.Contains(n.log.String(), "not root's own") {
		t.Errorf("%v\n%s", err, n.log.String())
	}
}

// If another job holds a GPU by now, the GPU's file belongs to that job, whatever the file contains.
func TestJobFileOfAGPUThatAnotherJobHolds(t *testing.T) {
	dir, err := os.MkdirTemp("/run", "mps")
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	n, path := newNode(t), filepath.Join(dir, "0")
	must.OK(t, os.WriteFile(path, []byte("7\n"), 0o644))
	n.leased(func(l *lease.Lease) { l.GPUs[0].JobFile = path })
	l, err := n.Store.Read(7)
	other := lease.Lease{Job: lease.Job{ID: 8}, Phase: lease.Opened, GPUs: l.GPUs}
	err = errors.Join(err, n.Store.Delete(t.Context(), l), n.Store.Create(t.Context(), other), n.Store.Save(l))
	must.OK(t, err)
	must.OK(t, n.close())
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}
