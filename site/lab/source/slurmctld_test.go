// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// askers are the commands of Slurm that ask slurmctld. A program that runs one has its name as a whole text.
var askers = regexp.MustCompile("[\"`](?:[^\"`\\s]*/)?" +
	"(?:scontrol|squeue|sinfo|sacct|sacctmgr|sstat|sprio|sdiag|scancel)[\"`]")

// No shipped program asks slurmctld, which a site of 10,000 nodes has once (docs/scale.md).
func TestNoProgramAsksSlurmctld(t *testing.T) {
	for text, asks := range map[string]bool{`exec.Command("/usr/bin/scontrol", "show")`: true, "run(`squeue`)": true,
		`"requeue the job: scontrol requeue %d"`: false} {
		if askers.MatchString(text) != asks {
			t.Errorf("%s: it is not seen that it asks: %v", text, asks)
		}
	}
	files := 0
	for _, line := range list(t, "-f", "{{.ImportPath}} {{.Dir}}", e2e.Module+"...") {
		pkg, folder, _ := strings.Cut(line, " ")
		if tool(strings.TrimPrefix(pkg, e2e.Module)) {
			continue
		}
		sources, _ := filepath.Glob(filepath.Join(folder, "*.go"))
		for _, file := range sources {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			files++
			if found := askers.FindString(e2e.Read(t, file)); found != "" {
				t.Errorf("%s has %s: it would ask slurmctld", file, found)
			}
		}
	}
	if files < 150 {
		t.Errorf("only %d files found", files)
	}
}
