// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
)

// The kinds of findings in docs/operator.md are those of the source.
func TestTheKindsOfFindingsAreMade(t *testing.T) {
	const page = "../../../docs/operator.md"
	ofNode := kinds(t, `Kind += "([a-z-]+)"`, "finding.go", "../../state/*.go")
	ofDoctor := kinds(t, `\.(?:fault|warning|unreadable)\("([a-z-]+)"`, "judge", "../../doctor/*.go")
	ofDoctor = append(ofDoctor, "gres-mps", "gres-shard") // "gres-" and the name of the resource
	slices.Sort(ofDoctor)
	ofDoctor = slices.DeleteFunc(slices.Compact(ofDoctor), func(kind string) bool { return slices.Contains(ofNode, kind) })
	if len(ofNode) < 30 || len(ofDoctor) < 30 {
		t.Fatalf("%d kinds of the node and %d of doctor are found", len(ofNode), len(ofDoctor))
	}
	text := fmt.Sprintf("* `status` and `audit`: %s.\n* `doctor` alone: %s.\n",
		strings.Join(ofNode, ", "), strings.Join(ofDoctor, ", "))
	list := regexp.MustCompile(`(?s)(<!-- made: kinds -->\n).*?(<!-- made -->)`)
	golden.Compare(t, page, list.ReplaceAllString(e2e.Read(t, page), "${1}"+text+"${2}"))
}

// kinds are what a pattern finds in the shipped files of a folder with a part of a name, sorted.
func kinds(t *testing.T, pattern, named, folder string) (found []string) {
	files, err := filepath.Glob(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || !strings.Contains(filepath.Base(file), named) {
			continue
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(e2e.Read(t, file), -1) {
			found = append(found, m[1])
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
