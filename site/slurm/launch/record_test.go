// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// recording reads an environment that Slurm 22.05.8 passed to one of its scripts (testdata/*/README.md).
func recording(t *testing.T, path string) slurm.Env {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, line := range strings.Split(string(data), "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return slurm.NewEnv(lines)
}

// recordings lists the files that match. It fails if there are fewer than atLeast.
func recordings(t *testing.T, pattern string, atLeast int) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("../testdata", pattern))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < atLeast {
		t.Fatalf("%d recordings match %s, want at least %d", len(paths), pattern, atLeast)
	}
	return paths
}

// with returns a copy of env with values set. The value "-" removes the name.
func with(env slurm.Env, set slurm.Env) slurm.Env {
	out := slurm.Env{}
	for name, value := range env {
		out[name] = value
	}
	for name, value := range set {
		if out[name] = value; value == "-" {
			delete(out, name)
		}
	}
	return out
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
