// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

const usablePolicy = `version = 1

trigger {
  constraint = "mps"
}

rule "mps" {
  when = true
  grant {
    share = "25%"
  }
}
`

// keptNode is a node that has kept a policy and a site.hcl, and whose files cannot be used any more.
func keptNode(t *testing.T) site.Paths {
	t.Helper()
	must.Root(t)
	paths := site.Paths{Root: t.TempDir()}
	write := func(path, content string) {
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		err = errors.Join(err, os.WriteFile(path, []byte(content), 0o644))
		must.OK(t, err)
	}
	write(paths.Policy(), usablePolicy)
	write(paths.ConfigFile(), `usage_interval = "7s"`+"\n")
	compiled, status := ReadPolicy(paths)
	if compiled == nil || status.Err != nil {
		t.Fatal(status.Err)
	}
	must.OK(t, errors.Join(KeepPolicy(paths, compiled), KeepConfig(paths)))
	write(paths.Policy(), "broken {")
	write(paths.ConfigFile(), "broken {")
	return paths
}

// The copies of the last usable files are used, unless they may not be root's own.
//
// Contract: R11
func TestACopyThatRootDidNotWrite(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(path string) error
		want   bool
	}{
		{"root's own", func(string) error { return nil }, true},
		{"a user's", func(path string) error { return os.Chown(path, 2001, 2001) }, false},
		{"written by all", func(path string) error { return os.Chmod(path, 0o666) }, false},
		{"a link", func(path string) error {
			return errors.Join(os.Rename(path, path+".other"), os.Symlink(path+".other", path))
		}, false},
		{"torn", func(path string) error { return os.Truncate(path, 5) }, false},
	} {
		paths := keptNode(t)
		for _, name := range []string{keptPolicy, keptConfig} {
			must.OK(t, c.change(filepath.Join(paths.Kept(), name)))
		}
		compiled, status := ReadPolicy(paths)
		must.Hold(t, (compiled != nil) == c.want && status.Err != nil && status.Kept.IsZero() != c.want,
			"%s: a policy %v, %+v", c.name, compiled != nil, status)
		facts, status := ReadConfig(paths)
		must.Hold(t, (facts.UsageInterval == 7*time.Second) == c.want && status.Err != nil,
			"%s: site.hcl %+v, %+v", c.name, facts, status)
	}
}

// A copy is written only if the file has changed.
//
// Contract: R11
func TestACopyIsWrittenOnce(t *testing.T) {
	paths := keptNode(t)
	path := filepath.Join(paths.Kept(), keptPolicy)
	before := must.Get(os.Lstat(path))(t)
	compiled, _ := ReadPolicy(paths)
	must.OK(t, KeepPolicy(paths, compiled))
	after, err := os.Lstat(path)
	must.Hold(t, err == nil && os.SameFile(before, after), "the copy was written again: %v", err)
	must.Equal(t, "mode", after.Mode().Perm(), 0o600)
}
