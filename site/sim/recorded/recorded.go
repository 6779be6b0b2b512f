// SPDX-License-Identifier: Apache-2.0

// Package recorded reads the environments that Slurm passed to its scripts, from site/slurm/testdata.
package recorded

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Lines returns the lines NAME=value of a recording (testdata/*/README.md).
func Lines(t *testing.T, path string) (lines []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Paths lists the files that match. It fails if there are fewer than atLeast.
func Paths(t *testing.T, pattern string, atLeast int) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < atLeast {
		t.Fatalf("%d recordings match %s, want at least %d", len(paths), pattern, atLeast)
	}
	return paths
}

// With returns a copy of an environment with values set. The value "-" removes the name.
func With[Env ~map[string]string](env, set Env) Env {
	out := Env{}
	maps.Copy(out, env)
	for name, value := range set {
		if out[name] = value; value == "-" {
			delete(out, name)
		}
	}
	return out
}

// Message is the text of an error, "" for none.
func Message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
