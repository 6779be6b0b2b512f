// SPDX-License-Identifier: Apache-2.0

// Package recorded has the environments that Slurm and launchers passed to scripts and ranks. The head of each archive
// says how they were recorded. The recording NAME of an archive KIND.txtar has the path KIND/NAME.
package recorded

import (
	"embed"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/txtar"
)

//go:embed *.txtar
var archives embed.FS

// read returns the text of each recording by its path.
var read = sync.OnceValues(func() (map[string]string, error) {
	entries, err := archives.ReadDir(".")
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, entry := range entries {
		content, err := archives.ReadFile(entry.Name())
		if err != nil {
			return nil, err
		}
		archive, err := txtar.Parse(string(content))
		if err != nil {
			return nil, err
		}
		for name, text := range archive.Files {
			texts[path.Join(strings.TrimSuffix(entry.Name(), ".txtar"), name)] = text
		}
	}
	return texts, nil
})

// Text returns a recording.
func Text(t *testing.T, path string) string {
	t.Helper()
	texts := must.Get(read())(t)
	text, found := texts[path]
	must.Have(t, found, "no recording %s", path)
	return text
}

// Lines returns the lines NAME=value of a recording.
func Lines(t *testing.T, path string) (lines []string) {
	t.Helper()
	for line := range strings.SplitSeq(Text(t, path), "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Paths lists the recordings that match a pattern of path.Match. It fails if there are fewer than atLeast.
func Paths(t *testing.T, pattern string, atLeast int) (paths []string) {
	t.Helper()
	texts := must.Get(read())(t)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		matches := must.Get(path.Match(pattern, name))(t)
		if matches {
			paths = append(paths, name)
		}
	}
	must.Have(t, len(paths) >= atLeast, "%d recordings match %s, want at least %d", len(paths), pattern, atLeast)
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
