// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestRealCodes runs LAMMPS, or programs in Python, in jobs in turns: without MPS, by a control daemon that the user
// starts, and by slurm-mps with the shipped share (site/lab/codes). CODES is the folder with the programs, CODES_SCRIPT
// the script in it that makes a turn, and PYTHON the interpreter. A line for each run goes into the file CODES_RESULTS;
// no job begins that would outlast CODES_MINUTES.
func TestRealCodes(t *testing.T) {
	codes := os.Getenv("CODES")
	if codes == "" {
		t.Skip("needs programs: site/lab/gpu-codes.sh has them and sets CODES")
	}
	minutes, err := time.ParseDuration(os.Getenv("CODES_MINUTES") + "m")
	if err != nil {
		t.Fatal(err)
	}
	results, err := os.OpenFile(os.Getenv("CODES_RESULTS"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer results.Close()
	p := newPrograms(t)
	if os.Getenv("CODES_SCRIPT") == "packing.sh" { // its windows are of seconds
		p.facts(`usage_interval = "1s"`)
	}
	modes := strings.Fields(os.Getenv("CODES_MODES"))
	line := regexp.MustCompile(`(?m)^(\d+ (slices|bare|ours) \S+ \d+ .*|# share .*|pack .*)$`)
	var slowest time.Duration
	for turn, end := 1, time.Now().Add(minutes); ; turn++ {
		for i := range modes {
			began := time.Now()
			if began.Add(slowest).After(end) {
				return // the last turn may lack a mode, but no mode lacks a number of ranks
			}
			mode := modes[(i+turn)%len(modes)] // no mode is always the first
			var args []string
			if mode == "ours" {
				args = append(args, "--constraint=mps")
			}
			script := "export CODES=" + codes
			for _, name := range []string{"RANKS", "PYTHON", "FIRST_CORE", "ONLY_GPU", "FEEL", "PACKING_PART", "PACKING_ONLY", "PACKING_SECONDS"} {
				script += fmt.Sprintf(" %s=%q", name, os.Getenv(name))
			}
			script += fmt.Sprintf("\n%s/%s %s %d", codes, os.Getenv("CODES_SCRIPT"), mode, turn)
			out, _ := p.run(script, args...)
			lines := line.FindAllString(out, -1)
			if len(lines) == 0 {
				t.Errorf("turn %d of %s has no result", turn, mode)
			}
			for _, result := range lines {
				fmt.Fprintln(results, result)
			}
			slowest = max(slowest, time.Since(began))
		}
	}
}

// withPython is a simulated node, with modules that stand for PyTorch and JAX, and the folder of the lab.
type withPython struct {
	testNode
	folder, python, modules string
}

// run runs a script of the lab on the node, and returns what it prints.
func (l withPython) run(t *testing.T, script string, args []string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(l.Ctx, script, args...)
	cmd.Env = append(os.Environ(), "PYTHON="+l.python, "TMPDIR="+t.TempDir(), "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH="+l.modules+":"+filepath.Join(l.folder, "ends"), "LD_LIBRARY_PATH="+l.Sim.Libraries(),
		"PATH="+filepath.Dir(l.Sim.Program("nvidia-smi"))+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return string(text)
}
