// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestCommitOf(t *testing.T) {
	const revision = "f3284e1d0c5a1f4b9a7e6d5c4b3a29180716253f"
	stamped := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	for _, c := range []struct {
		name, linked string
		info         debug.BuildInfo
		want         string
	}{
		{"make build", "f3284e1", debug.BuildInfo{Settings: stamped("false")}, "f3284e1"},
		{"go build", unknown, debug.BuildInfo{Settings: stamped("false"), Main: debug.Module{Version: "v0.0.1-0"}}, "f3284e1d0c5a"},
		{"go build with changes", unknown, debug.BuildInfo{Settings: stamped("true")}, "f3284e1d0c5a-dirty"},
		{"go install of a tag", unknown, debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, "v0.1.0"},
		{"go build without git", unknown, debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "unknown"},
		{"no information", unknown, debug.BuildInfo{}, "unknown"},
	} {
		if got := commitOf(c.linked, &c.info); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestPlainBuild checks that a program knows its commit if go build alone has built it. The commit is one of a new
// repository with these sources.
func TestPlainBuild(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	dir := t.TempDir()
	for _, part := range []string{"cmd", "mpirun-wrap", "policy", "site"} {
		must.OK(t, os.CopyFS(filepath.Join(dir, part), os.DirFS("../../"+part)))
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GIT_CONFIG_GLOBAL=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", cmd.Args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("cp", abs(t, "../../go.mod"), abs(t, "../../go.sum"), dir)
	run("git", "init", "-q")
	run("git", "add", ".")
	run("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-q", "-m", "all")
	program := filepath.Join(t.TempDir(), "task-prolog")
	// Without -trimpath the new folder is part of each package, and all are compiled again.
	run("go", "build", "-trimpath", "-buildvcs=true", "-o", program, "./cmd/task-prolog")
	commit := run("git", "rev-parse", "--short=12", "HEAD")
	if got := run(program, "--version"); !strings.HasPrefix(got, "slurm-mps "+commit+" (go") {
		t.Errorf("--version prints %q, want commit %s", got, commit)
	}
}

func abs(t *testing.T, path string) string {
	t.Helper()
	path = must.Get(filepath.Abs(path))(t)
	return path
}
