// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each named pattern finds the last rate in the logs of its program. The first line of a log has the name and the
// rate, and the second line has the source.
func TestNamedRates(t *testing.T) {
	logs, err := filepath.Glob("testdata/logs/*.log")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, log := range logs {
		content, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		var name string
		var want float64
		if _, err := fmt.Sscanf(string(content), "# %s %g\n# Source: ", &name, &want); err != nil {
			t.Fatal(log, err)
		}
		pattern, err := readRate(name)
		if err != nil {
			t.Fatal(log, err)
		}
		tested[name] = true
		_, output, _ := strings.Cut(string(content), "\n# Source: ")
		l := &listener{rate: pattern}
		l.listen(strings.NewReader(output), false)
		if got := l.total(false); len(l.found) != 1 || math.Abs(got/want-1) > 1e-5 {
			t.Errorf("%s: %v, want %v", log, l.found, want)
		}
	}
	for _, r := range named {
		if !tested[r.text] || r.unit == "" {
			t.Errorf("%s has no log, or no unit", r.text)
		}
	}
}

func TestReadRate(t *testing.T) {
	if r, err := readRate(""); r != nil || err != nil {
		t.Error(r, err)
	}
	if r, err := readRate("gromacs"); err != nil || r.unit != "ns/day" || !r.atEnd {
		t.Error(r, err)
	}
	if r, err := readRate("speed: ([0-9.]+)"); err != nil || r.unit != "" || r.atEnd {
		t.Error(r, err)
	}
	for text, want := range map[string]string{
		"gromac": `cannot read --rate "gromac": it needs one group, around the number, or is one of gromacs, lammps, namd, amber, tqdm, lightning`,
		"(x":     `cannot read --rate "(x": error parsing regexp`,
	} {
		if _, err := readRate(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
