// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// If ranks get another share than they ask for, or ask for more memory than the GPU has, one rank prints this.
func TestACutShareIsSaidOnce(t *testing.T) {
	p := sharedGPU(t, `ceiling = 25`)
	const cut = "mpirun-wrap: share 60% asks for 78 of 132 SMs, and the site's ceiling of 25 % allows 32\n"
	for _, c := range []struct{ launch, line, want string }{
		{"flag", "--share=60% true", cut},
		{"pct", "--report --share=60pct --mem=8GB true", cut},
		{"raised", "--share=1% true", "mpirun-wrap: share 1% is less than a client can have: it gets 8 of 132 SMs\n"},
		{"exact", "--share=16% true", ""},
		{"policy", "true", ""},
		{"memory", "--mem=100G true",
			"mpirun-wrap: 4 ranks with 102400M each need more than their GPU has (143155 MiB), so some may get error 2: --mem=even gives each an equal part\n"},
	} {
		ranks := p.LaunchAs(e2e.UID, 4, []string{"PMIX_NAMESPACE=" + c.launch}, strings.Fields(c.line)...)
		codes, said := ranks.End()
		if got := strings.Join(said, ""); got != c.want || codes[0] != 0 {
			t.Errorf("%s: codes %v, printed\n%swant\n%s", c.line, codes, got, c.want)
		}
		if reports := strings.Count(ranks.Out(), "32 of 132 SMs (24.2 %, ceiling 25 %), 8192 MiB, 4 ranks on it\n"); c.launch == "pct" && reports != 4 {
			t.Errorf("%d reports, want 4:\n%s", reports, ranks.Out())
		}
	}
}

// If a variable looks like one of mpirun-wrap and is not, one rank prints this, with the name that was probably meant.
func TestAMisspeltVariableIsPrintedOnce(t *testing.T) {
	p := sharedGPU(t)
	variables := []string{"SLURM_MPS_SHAER=25%", "SLURM_MPS_MEMORY=8G", "SLURM_MPS_REPORT=no", "SLURM_MPS_SITE_NOTE=x", "MPS_SHARE=25%"}
	ranks := p.LaunchAs(e2e.UID, 4, variables, "true")
	codes, lines := ranks.End()
	want := "mpirun-wrap: ignoring variable SLURM_MPS_MEMORY: no flag has it: did you mean SLURM_MPS_MEM?\n" +
		"mpirun-wrap: ignoring variable SLURM_MPS_SHAER: no flag has it: did you mean SLURM_MPS_SHARE?\n" +
		"mpirun-wrap: ignoring variable SLURM_MPS_SITE_NOTE: no flag has it: see mpirun-wrap --help\n"
	slices.Sort(lines)
	if got := strings.Join(lines, ""); got != want || slices.Max(codes) != 0 {
		t.Errorf("codes %v, printed\n%s\nwant\n%s", codes, got, want)
	}
}
