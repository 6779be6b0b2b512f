// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// rootsFolder is a folder that only root can change. /tmp is not one.
func rootsFolder(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("/run", "mps"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// The job's GPUs have files for dcgm-exporter, and the lease names them.
func TestJobFiles(t *testing.T) {
	n := newNode(t)
	n.jobFiles = rootsFolder(t)
	n.mustOpen(job(0, 1))
	l := must.Get(n.Store.Read(7))(t)
	for i, name := range []string{"0", "1"} {
		path := filepath.Join(n.jobFiles, name)
		if content, err := os.ReadFile(path); err != nil || string(content) != "7\n" || l.GPUs[i].JobFile != path {
			t.Errorf("%s: %q, %v; the lease has %+v", path, content, err, l.GPUs[i])
		}
	}
}

// If a site names no folder, the job gets no file, and the lease names none.
func TestNoJobFiles(t *testing.T) {
	n := newNode(t)
	n.mustOpen(job(0))
	if l, err := n.Store.Read(7); err != nil || l.GPUs[0].JobFile != "" {
		t.Errorf("%+v, %v", l.GPUs, err)
	}
}

// No failure of a job file fails the job.
//
// Contract: R13
func TestJobFilesThatCannotBeWritten(t *testing.T) {
	for _, c := range []struct {
		name, folder string
		plant        func(n *node)
	}{
		{"no folder", "/run/none-of-slurm-mps", func(*node) {}},
		{"a folder of others", t.TempDir(), func(*node) {}}, // below /tmp
		{"a link", rootsFolder(t), func(n *node) {
			must.OK(t, errors.Join(os.RemoveAll(n.jobFiles), os.Symlink("/etc", n.jobFiles)))
		}},
		{"no number", rootsFolder(t), func(n *node) { n.Fail["number of a"] = errors.New("lost") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.jobFiles = c.folder
			c.plant(n)
			n.mustOpen(job(0))
			if files, _ := filepath.Glob(c.folder + "/[0-9.]*"); len(files) > 0 && c.name != "a link" {
				t.Errorf("files %q", files)
			}
			if _, err := os.Lstat("/etc/0"); err == nil {
				t.Error("a link was followed")
			}
		})
	}
}
