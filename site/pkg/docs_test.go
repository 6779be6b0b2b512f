// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

const top = "../.."

// forSource are the pages that only a person with the source needs. The packages do not contain them.
var forSource = []string{"decisions.md", "development.md", "measurements.md"}

// TestThePackagedDocuments checks that the packages contain every page of docs for users and admins. Each link in
// these pages must lead to a packaged file or to the project's page.
func TestThePackagedDocuments(t *testing.T) {
	s := must.Get(readPackaged(filepath.Join(top, "site/pkg/nfpm.yaml")))(t)
	pages, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	must.Have(t, err == nil && len(pages) >= 5, "%d pages, %v", len(pages), err)
	for _, page := range pages {
		name := filepath.Base(page)
		if _, held := s.built["docs/"+name]; held == slices.Contains(forSource, name) {
			t.Errorf("docs/%s: packaged is %v: write its line in site/pkg/nfpm.yaml, or its name in forSource", name, held)
		}
	}
	out := t.TempDir()
	must.OK(t, copyDocuments(top, out))
	targets := map[string]bool{}
	entries := must.Get(readList(filepath.Join(top, "site/pkg/nfpm.yaml")))(t)
	for _, e := range entries {
		targets[e.Target] = true
	}
	for source, name := range s.built {
		content := must.Get(os.ReadFile(filepath.Join(out, name)))(t)
		for _, m := range docLink.FindAllStringSubmatch(string(content), -1) {
			if place := filepath.Join(filepath.Dir(s.places[source]), m[2]); !strings.Contains(m[2], "://") && !targets[place] {
				t.Errorf("%s: the packages do not hold %s", s.places[source], place)
			}
		}
	}
}

// TestTheLinksOfTheDocuments checks that each relative link of the documents leads to a file of the source, and to a
// heading in that file.
func TestTheLinksOfTheDocuments(t *testing.T) {
	found := 0
	for _, page := range documents(t) {
		for _, m := range anyLink.FindAllStringSubmatch(fences.ReplaceAllString(readFile(t, page), ""), -1) {
			if strings.Contains(m[1], "://") || m[1] == "" && m[2] == "" {
				continue
			}
			found++
			file := page
			if m[1] != "" {
				file = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s: %v", page, m[0], err)
				continue
			}
			if m[2] != "" && !slices.Contains(anchors(readFile(t, file)), m[2][1:]) {
				t.Errorf("%s: %s: %s has no such heading", page, m[0], file)
			}
		}
	}
	must.Hold(t, found >= 50, "only %d links found", found)
}

var (
	fences  = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	anyLink = regexp.MustCompile(`\]\(([^)\s#]*)(#[^)\s]*)?\)`)
	dropped = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors returns GitHub's names of a page's headings.
func anchors(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

func documents(t *testing.T) []string {
	t.Helper()
	all := []string{filepath.Join(top, "README.md")}
	paths, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	must.Have(t, err == nil && len(paths) != 0, "%d pages, %v", len(paths), err)
	return append(all, paths...)
}
