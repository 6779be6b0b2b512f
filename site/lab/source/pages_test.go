// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// shipped are the files of patterns, without tests.
func shipped(t *testing.T, patterns ...string) (files []string) {
	t.Helper()
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join("../../..", pattern))
		must.Have(t, err == nil && len(found) != 0, "%s: %q, %v", pattern, found, err)
		files = append(files, slices.DeleteFunc(found, func(path string) bool { return strings.HasSuffix(path, "_test.go") })...)
	}
	return files
}

// text is what shipped files have.
func text(t *testing.T, patterns ...string) (all string) {
	t.Helper()
	for _, file := range shipped(t, patterns...) {
		all += e2e.Read(t, file)
	}
	return all
}

// varies matches what differs between two messages of a kind. It also matches where the programs join parts of a
// message.
var varies = regexp.MustCompile(`: | \(pid|/run\S+|GPU-\.\.\.|\.\.\.|\bn1\b|[0-9]+s?`)

// docs/troubleshooting.md quotes messages of mpirun-wrap as the programs print them.
func TestTheMessagesAreThePrograms(t *testing.T) {
	source := text(t, "mpirun-wrap/*.go", "mpirun-wrap/own/*.go", "prolog/*.go", "site/*/*.go", "site/slurm/launch/*.go", "policy/*.go")
	source = regexp.MustCompile(`"\s*\+\s*"`).ReplaceAllString(source, "") // where a text goes on in the next line
	pieces := 0
	quoted := regexp.MustCompile("(?m)^\\* `([^`]+)`:")
	for _, m := range quoted.FindAllStringSubmatch(part(t, e2e.Read(t, "../../../docs/troubleshooting.md"), "Messages of mpirun-wrap"), -1) {
		for _, piece := range varies.Split(m[1], -1) {
			if piece = strings.Trim(piece, " :()"); len(piece) < 8 {
				continue
			}
			pieces++
			must.Hold(t, strings.Contains(source, piece), "no program prints %q, which docs/troubleshooting.md quotes", piece)
		}
	}
	must.Hold(t, pieces >= 15, "only %d pieces of messages found", pieces)
}

// The kinds of findings in docs/operator.md are those of the source.
func TestTheKindsOfFindingsAreMade(t *testing.T) {
	const page = "../../../docs/operator.md"
	ofNode := kinds(`Kind += "([a-z-]+)"`, text(t, "site/state/finding.go"))
	ofDoctor := kinds(`\.(?:fault|warning|unreadable)\("([a-z-]+)"`, text(t, "site/doctor/judge*.go"))
	ofDoctor = append(ofDoctor, "gres-mps", "gres-shard") // "gres-" and the name of the resource
	slices.Sort(ofDoctor)
	ofDoctor = slices.DeleteFunc(ofDoctor, func(kind string) bool { return slices.Contains(ofNode, kind) })
	must.Have(t, len(ofNode) >= 30 && len(ofDoctor) >= 30,
		"%d kinds of the node and %d of doctor are found", len(ofNode), len(ofDoctor))
	list := fmt.Sprintf("* `status` and `audit`: %s.\n* `doctor` alone: %s.\n",
		strings.Join(ofNode, ", "), strings.Join(ofDoctor, ", "))
	made := regexp.MustCompile(`(?s)(<!-- made: kinds -->\n).*?(<!-- made -->)`)
	golden.Compare(t, page, made.ReplaceAllString(e2e.Read(t, page), "${1}"+list+"${2}"))
}

// kinds are what a pattern finds in a source, sorted.
func kinds(pattern, source string) (found []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(source, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Every clause of the contract is cited by a test, as "Contract: R4, R5", and every citation names a clause.
func TestEveryClauseOfTheContractIsTested(t *testing.T) {
	clauses := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\* \*\*([A-Z][0-9]+)\*\* `).FindAllStringSubmatch(e2e.Read(t, "../../../docs/contract.md"), -1) {
		clauses[m[1]] = false
	}
	must.Have(t, len(clauses) >= 20, "only %d clauses found: want 20 or more", len(clauses))
	cites := regexp.MustCompile(`(?m)^// Contract: (.*)\n(?:// .*\n)*func Test`)
	err := filepath.WalkDir("../../..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "../../.." {
			return fs.SkipDir // the folder of built programs
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range cites.FindAllStringSubmatch(e2e.Read(t, path), -1) {
			for clause := range strings.SplitSeq(m[1], ", ") {
				if _, known := clauses[clause]; !known {
					t.Errorf("%s cites %q, which is no clause of docs/contract.md", path, clause)
				}
				clauses[clause] = true
			}
		}
		return nil
	})
	must.Note(t, err)
	for clause, cited := range clauses {
		must.Hold(t, cited, "no test cites clause %s of docs/contract.md", clause)
	}
}

// The workflows name each action of others by the digest of its commit, which no one can move, and by its version.
func TestActionsArePinned(t *testing.T) {
	workflows := text(t, ".github/workflows/*.yml")
	used := regexp.MustCompile(`(?m)^.*uses:.*$`).FindAllString(workflows, -1)
	pinned := regexp.MustCompile(`uses: [a-z/-]+@[0-9a-f]{40} # v[0-9.]+$`)
	for _, line := range used {
		must.Hold(t, pinned.MatchString(line), "%s: want the digest of a commit, and # with its version", line)
	}
	must.Hold(t, len(used) >= 6, "%d actions found: want 6 or more", len(used))
}
