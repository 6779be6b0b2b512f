// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

var update = flag.Bool("update", false, "write the table of launchers into docs/reference.md")

// The table of launchers in docs/reference.md is that of the code, row by row.
func TestTheReferenceHasTheLaunchers(t *testing.T) {
	const page, begin, end = "../../../docs/reference.md", "| launcher | rank on the node | ranks on the node |\n|---|---|---|\n", "\n\n"
	code := func(name string) string {
		if name == "" {
			return "–"
		}
		return "`" + name + "`"
	}
	table := ""
	for _, l := range launchers {
		if l.rank == "" { // refused
			continue
		}
		name := l.name
		if l.marker != "" {
			name += " (with " + code(l.marker) + ")"
		}
		size := code(l.size)
		if l.name == "Flux" {
			size = "`FLUX_JOB_SIZE`, if `FLUX_JOB_NNODES` is 1"
		}
		table += fmt.Sprintf("| %s | %s | %s |\n", name, code(l.rank), size)
	}
	content := must.Get(os.ReadFile(page))(t)
	before, rest, found := strings.Cut(string(content), begin)
	shown, after, closed := strings.Cut(rest, end)
	must.Have(t, found && closed, "%s has no table of launchers", page)
	if *update {
		must.OK(t, os.WriteFile(page, []byte(before+begin+strings.TrimSuffix(table, "\n")+end+after), 0o644))
		return
	}
	must.Equal(t, fmt.Sprintf("%s has\n%s\nthe code has", page, shown), shown+"\n", table)
}

// recording reads an environment that Slurm passed to one of its scripts.
func recording(t *testing.T, path string) slurm.Env { return slurm.NewEnv(recorded.Lines(t, path)) }

// recordings lists the recordings that match.
func recordings(t *testing.T, pattern string, atLeast int) []string {
	return recorded.Paths(t, pattern, atLeast)
}
