// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// The workflows name each action of others by the digest of its commit, which no one can move, and by its version.
func TestActionsArePinned(t *testing.T) {
	paths, err := filepath.Glob("../../../.github/workflows/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`uses: [a-z/-]+@[0-9a-f]{40} # v[0-9.]+$`)
	named := 0
	for _, path := range paths {
		for line := range strings.Lines(e2e.Read(t, path)) {
			if strings.Contains(line, "uses:") {
				if named++; !pinned.MatchString(strings.TrimRight(line, "\n")) {
					t.Errorf("%s: %s: want the digest of a commit, and # with its version", path, line)
				}
			}
		}
	}
	if named < 6 {
		t.Errorf("%d actions found: want 6 or more", named)
	}
}

// The files in .github name only targets of make that exist, and link only to files that exist. The workflow runs what
// every change must pass.
func TestTheFilesForGitHub(t *testing.T) {
	_, phony, _ := strings.Cut(e2e.Read(t, "../../../Makefile"), "\n.PHONY: ")
	phony, _, _ = strings.Cut(phony, "\n")
	targets := strings.Fields(phony)
	command := regexp.MustCompile(`(?m)(?:^|[\x60 ])make ((?:[a-z-]+ ?)+)(?:[\x60.,]|$)`)
	link := regexp.MustCompile(`\]\(([^):#]+)`)
	named := 0
	err := filepath.WalkDir("../../../.github", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text := e2e.Read(t, path)
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			for _, target := range strings.Fields(m[1]) {
				if named++; !slices.Contains(targets, target) {
					t.Errorf("%s: make %s: there is no such target", path, target)
				}
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		return nil
	})
	if err != nil || named < 6 {
		t.Errorf("%d commands of make found: want 6 or more; %v", named, err)
	}
	workflow := e2e.Read(t, "../../../.github/workflows/tests.yml")
	for _, run := range []string{"make check\n", "make test\n"} {
		if !strings.Contains(workflow, run) {
			t.Errorf("the workflow does not run %q", run)
		}
	}
}
