// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// testLimit bounds every test that has a cluster.
const testLimit = 50 * time.Second

// needLab skips a test if no cluster can run here. If REQUIRE_LAB is set, needLab fails the test instead.
func needLab(t *testing.T) {
	t.Helper()
	needed(t, Unfit())
	t.Parallel()
}

func needed(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("REQUIRE_LAB") != "" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// scene is a cluster with a user.
type scene struct {
	*Cluster
	ctx  context.Context
	user User
}

func newDir(t *testing.T) string {
	t.Helper()
	// Not t.TempDir: its parents are 0700, and the jobs' user must pass them.
	dir := must.Get(os.MkdirTemp("/tmp", "lab-test-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.OK(t, os.Chmod(dir, 0o755))
	return dir
}

// up starts a cluster, and stops it at the test's end. If SLURM_BUNDLE is set, it names the Slurm to use. After the
// stop, nothing of the cluster may be left.
func up(t *testing.T, o Options) scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	user := must.Get(EnsureUser("hpc1", 2001))(t)
	o.Dir = newDir(t)
	if o.Bundle == "" {
		o.Bundle = os.Getenv("SLURM_BUNDLE")
	}
	begun := time.Now()
	c := must.Get(Start(ctx, o))(t)
	t.Logf("up in %s", time.Since(begun).Round(time.Millisecond))
	t.Cleanup(func() {
		begun := time.Now()
		must.Note(t, c.Stop())
		t.Logf("down in %s", time.Since(begun).Round(time.Millisecond))
	})
	return scene{c, ctx, user}
}

// script writes an executable file that every user may run.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must.OK(t, node.WriteProgram(path, []byte(text)))
	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

// must runs a command as the user and fails the test if the exit code is not 0.
func (s scene) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	r, err := s.Run(s.ctx, s.user, name, args...)
	if err != nil || r.Exit != 0 {
		t.Fatalf("%s %s: exit code %d, %v\n%s%s", name, strings.Join(args, " "), r.Exit, err, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

func (s scene) wait(t *testing.T, id int) Job {
	t.Helper()
	j := must.Get(s.WaitJob(s.ctx, id))(t)
	return j
}

// file waits until a job has written a complete line to a file, and returns the file's text.
func (s scene) file(t *testing.T, path string) string {
	t.Helper()
	var text []byte
	err := until(s.ctx, 10*time.Millisecond, func() (bool, error) {
		var err error
		text, err = os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return bytes.HasSuffix(text, []byte("\n")), err
	})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return string(text)
}

func wantVariables(t *testing.T, what string, env, want map[string]string) {
	t.Helper()
	if env == nil {
		t.Fatalf("no %s ran", what)
	}
	for name, value := range want {
		if env[name] != value {
			t.Errorf("the %s has %s=%q, want %q", what, name, env[name], value)
		}
	}
}
