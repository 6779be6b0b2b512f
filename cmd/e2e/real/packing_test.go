// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/usage"
)

// TestPackingTurn measures the programs of packing.py on a simulated GPU, with modules that stand for PyTorch and JAX.
// Each rank has a line, and rank 0 the figures that the GPU's counters have. A report gives it the recorder's.
func TestPackingTurn(t *testing.T) {
	byNight(t)
	p := pythonLab(t)
	for name, percent := range map[string]string{"gpm/1": "96", "gpm/2": "31", "gpm/10": "12.5"} {
		if err := p.Sim.Node.GPU(0).Set(name, percent); err != nil {
			t.Fatal(err)
		}
	}
	packing := func(env ...string) string {
		codes := filepath.Join(p.folder, "codes")
		env = append([]string{"CODES=" + codes, "FIRST_CORE=0", "ONLY_GPU="}, env...)
		return p.run(t, filepath.Join(codes, "packing.sh"), []string{"slices", "3"}, env...)
	}
	turn := packing("PACKING_PART=1", "PACKING_WINDOW=0.2")
	for n := 1; n <= 2; n++ {
		for r := range n {
			rest := "$"
			if r == 0 {
				rest = ` gpm 31.0 -1 12.5 96.0 -1 at \d+\.\d+ \d+\.\d+$`
			}
			for program := range packingPrograms(turn) {
				line := fmt.Sprintf(`(?m)^pack %s n=%d r=%d rate [1-9][0-9.e+]*%s`, program, n, r, rest)
				if !regexp.MustCompile(line).MatchString(turn) {
					t.Errorf("no %q in\n%s", line, turn)
				}
			}
		}
	}
	groups := min(runtime.NumCPU(), 4)/2 + 1 // of 1, 2 and 4 ranks, as far as there are cores
	if strings.Count(turn, "# share none\n") != groups || strings.Contains(turn, "# share overlap:2") != (runtime.NumCPU() >= 8) {
		t.Errorf("not the shares of 1, 2, 4 and 8 ranks:\n%s", turn)
	}
	all := packingPrograms(turn)
	for part := 2; part <= 4; part++ {
		for name := range packingPrograms(packing(fmt.Sprintf("PACKING_PART=%d", part), "PACKING_WINDOW=0.2")) {
			if all[name] {
				t.Errorf("two parts measure %s", name)
			}
			all[name] = true
		}
	}
	failed := packing("PACKING_PART=4", "PACKING_WINDOW=0.2", "GPU_FAILS=1")
	if strings.Contains(failed, "\npack ") || !strings.Contains(failed, "stencil is skipped: EOFError") {
		t.Errorf("programs that fail:\n%s", failed)
	}
	if len(all) < 22 { // those whose modules are missing are skipped
		t.Errorf("%d programs", len(all))
	}
}

func packingPrograms(turn string) map[string]bool {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^pack (\S+) `).FindAllStringSubmatch(turn, -1) {
		names[m[1]] = true
	}
	return names
}

// The recorder's figures are of the samples that lie in the window, each with the weight of its time.
func TestPackingJoins(t *testing.T) {
	begin := time.Date(2026, 11, 28, 12, 0, 0, 123456789, time.FixedZone("", -5*3600))
	r := usage.Report{Begin: begin, GPUs: []usage.GPU{{}}}
	for i, active := range []float64{90, 20, 30, 60, 99} {
		at := begin.Add(time.Duration(i+1) * time.Second)
		if i > 3 {
			at = at.Add(time.Second)
		}
		r.GPUs[0].Samples = append(r.GPUs[0].Samples, usage.Sample{
			At: at, SMActive: active, DRAM: active / 2, SMUtil: 50, UsedMiB: 100 * float64(i), Clients: i})
	}
	content, err := json.Marshal(r)
	path := filepath.Join(t.TempDir(), "report.json")
	if err == nil {
		err = os.WriteFile(path, content, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	at := func(s float64) float64 { return float64(begin.UnixNano())/1e9 + s }
	lines := "# share none\npack md n=2 r=1 rate 5\n" +
		fmt.Sprintf("pack md n=2 r=0 rate 5 gpm 1 2 3 4 5 at %.3f %.3f\n", at(0.9), at(3.1)) +
		fmt.Sprintf("pack md n=4 r=0 rate 5 gpm 1 2 3 4 5 at %.3f %.3f\n", at(3.5), at(4.1))
	cmd := exec.Command("python3", "-B", "../../../site/lab/codes/packing.py", "join", path)
	cmd.Stdin = strings.NewReader(lines)
	out, err := cmd.CombinedOutput()
	want := lines
	for end, own := range map[float64]string{3.1: "25.0 12.5 50.0 200 2 2", 4.1: "-1.0 -1.0 -1.0 -1 -1 0"} {
		text := fmt.Sprintf(" %.3f", at(end))
		want = strings.Replace(want, text+"\n", text+" own "+own+"\n", 1)
	}
	if err != nil || string(out) != want {
		t.Errorf("%v\n%swant\n%s", err, out, want)
	}
}

// LAMMPS writes its lines in blocks if its script does not say otherwise, so that their times would say nothing of the
// steps.
func TestPackingLammps(t *testing.T) {
	p := pythonLab(t)
	codes := filepath.Join(t.TempDir(), "codes")
	lammps := fmt.Sprintf(`#!%s
import sys, time
flush = "thermo_modify flush yes" in open(sys.argv[sys.argv.index("-in") + 1]).read()
print("Step Temp", flush=True)
block = ""
for step in range(0, 10**8, 100):
    block += f"{step} 0.7\n"
    if flush or len(block) > 4096:
        print(end=block, flush=True)
        block = ""
    time.sleep(0.01)
`, p.python)
	err := os.CopyFS(codes, os.DirFS(filepath.Join(p.folder, "codes")))
	for name, text := range map[string]string{"lmp": lammps, "in.lj": "run 100\n", "data.rhodo": "", "Cu_u3.eam": ""} {
		err = errors.Join(err, os.WriteFile(filepath.Join(codes, name), []byte(text), 0o755))
	}
	if err := errors.Join(err, os.Chmod(filepath.Join(codes, "packing.sh"), 0o755)); err != nil {
		t.Fatal(err)
	}
	out := p.run(t, filepath.Join(codes, "packing.sh"), []string{"slices", "1"}, "CODES="+codes, "FIRST_CORE=0", "ONLY_GPU=",
		"PACKING_PART=1", "PACKING_WINDOW=1", "PACKING_ONLY=lammps_.* [12]")
	for n := 1; n <= min(runtime.NumCPU(), 2); n++ {
		m := regexp.MustCompile(fmt.Sprintf(`(?m)^pack lammps_lj n=%d r=0 rate (\S+)`, n)).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("no line of %d ranks in\n%s", n, out)
		}
		if rate, err := strconv.ParseFloat(m[1], 64); err != nil || rate > 10_000 {
			t.Errorf("%d ranks: %s steps a second, and at most 10,000 are made", n, m[1])
		}
	}
	if strings.Contains(out, "resnet18") || strings.Contains(out, "n=4") {
		t.Errorf("more is measured than is wanted:\n%s", out)
	}
}
