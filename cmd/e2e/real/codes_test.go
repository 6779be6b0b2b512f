// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/night"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
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

// TestPythonTurn runs a turn of python.sh on a simulated GPU, with modules that stand for PyTorch and JAX: a line for
// each program and number of processes. Programs whose modules are missing are skipped, and so is a number of processes
// for which there are no cores. If the import of a program starts CUDA, its processes import it themselves.
func TestPythonTurn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, mode, ranks, rate string
		env                     []string
		want                    []string // patterns of what else it prints
	}{
		{name: "no MPS", mode: "slices", ranks: "1 2", rate: `[1-9][0-9.]*`, want: []string{
			"gnn is skipped: No module named 'torch_geometric'",
			"gaussian_process is skipped: No module named 'gpytorch'",
			"9999 processes are skipped: there is no core 9998", `2 processes of \S.*: \S+ s, of them \S+ s measured`}},
		{name: "an import starts CUDA", mode: "slices", ranks: "1", rate: `[1-9][0-9.]*`,
			env: []string{"IMPORT_STARTS_CUDA=transformers"}, want: []string{
				"the imports of gpt2_decode have started CUDA, after the import of transformers",
				`1 processes of resnet18, diffusion, jax_mlp: \S+ s`, `1 processes that import gpt2_decode: \S+ s`}},
		{name: "the import of all starts CUDA", mode: "bare", ranks: "2", rate: `[1-9][0-9.]*`,
			env:  []string{"IMPORT_STARTS_CUDA=torch"},
			want: []string{`2 processes of jax_mlp: \S+ s`, "2 processes that import resnet18, gpt2_decode, diffusion: "}},
		{name: "a process fails", mode: "bare", ranks: "1", rate: "failed", env: []string{"GPU_FAILS=4"},
			want: []string{"a process has ended", "RuntimeError: CUDA out of memory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := pythonTurn(t, c.mode, c.ranks, c.env...)
			for _, n := range strings.Fields(c.ranks) {
				for _, program := range []string{"resnet18", "gpt2_decode", "diffusion", "jax_mlp"} {
					c.want = append(c.want, fmt.Sprintf(`(?m)^3 %s %s %s %s$`, c.mode, program, n, c.rate))
				}
			}
			for _, want := range c.want {
				if !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

// byNight skips a test of a script for a GPU machine, which loads both cores for a minute.
func byNight(t *testing.T) {
	if !night.Whole() && flag.Lookup("test.run").Value.String() == "" {
		t.Skip("it takes a minute: make nightly runs it, and go test -run")
	}
}

// TestCodesLeft rehearses what gpu-left.sh does with programs in Python: a turn with a trainer beside a server, and one
// with the programs of python.py.
func TestCodesLeft(t *testing.T) {
	byNight(t)
	lab := pythonLab(t)
	pack, results := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(pack, "codes"), os.DirFS(filepath.Join(lab.folder, "codes"))); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(lab.folder, "gpu-left.sh")
	out := lab.run(t, script, []string{pack, results}, "LEFT=codes", "LEFT_SIMULATED=1", "RANKS=1")
	for file, want := range map[string]string{
		"feel-0.txt": `(?m)^1 slices server\.all [0-9]`, "python-0.txt": `(?m)^1 slices jax_mlp 1 [1-9][0-9.]*$`,
		"codes-times.txt": "imports and weights: ", "left-machine.txt": "no GPU"} {
		if text, err := os.ReadFile(filepath.Join(results, file)); err != nil || !regexp.MustCompile(want).Match(text) {
			t.Errorf("%s has no %q: %s, %v\n%s", file, want, text, err, out)
		}
	}
}

// pythonTurn returns what a turn prints, with one number of processes more than any machine has cores.
func pythonTurn(t *testing.T, mode, ranks string, env ...string) string {
	t.Helper()
	lab := pythonLab(t)
	codes := filepath.Join(lab.folder, "codes")
	env = append([]string{"CODES=" + codes, "RANKS=" + ranks + " 9999", "FIRST_CORE=0", "ONLY_GPU="}, env...)
	return lab.run(t, filepath.Join(codes, "python.sh"), []string{mode, "3"}, env...)
}

// withPython is a simulated node, with modules that stand for PyTorch and JAX, and the folder of the lab.
type withPython struct {
	testNode
	folder, python, modules string
}

func pythonLab(t *testing.T) withPython {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	lab, err1 := filepath.Abs("../../../site/lab")
	modules, err2 := filepath.Abs("testdata/fake")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return withPython{newTestNode(t, "", node.H200), lab, python, modules}
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
