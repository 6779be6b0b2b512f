// SPDX-License-Identifier: Apache-2.0

package epilog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lease"
)

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
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			n := newNode(t)
			n.leased(func(l *lease.Lease) {
				l.GPUs[0].JobFile, l.GPUs[1].JobFile = filepath.Join(dir, "0"), filepath.Join(dir, "1")
			})
			for name, content := range c.before {
				_ = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // closing twice is the same as closing once
				if err := n.close(); err != nil {
					t.Fatal(err)
				}
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
	if err := os.WriteFile(path, []byte("7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.leased(func(l *lease.Lease) { l.GPUs[0].JobFile = path })
	if err := n.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil || !strings.Contains(n.log.String(), "not root's own") {
		t.Errorf("%v\n%s", err, n.log.String())
	}
}

// If another job holds a GPU by now, the GPU's file belongs to that job, whatever the file contains.
func TestJobFileOfAGPUThatAnotherJobHolds(t *testing.T) {
	dir, err := os.MkdirTemp("/run", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n, path := newNode(t), filepath.Join(dir, "0")
	if err := os.WriteFile(path, []byte("7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.leased(func(l *lease.Lease) { l.GPUs[0].JobFile = path })
	l, err := n.Store.Read(7)
	other := lease.Lease{Job: lease.Job{ID: 8}, Phase: lease.Opened, GPUs: l.GPUs}
	err = errors.Join(err, n.Store.Delete(t.Context(), l), n.Store.Create(t.Context(), other), n.Store.Save(l))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}
