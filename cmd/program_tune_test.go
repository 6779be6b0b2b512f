// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// tuned is the JSON of tune, as somebody reads it who has the documentation.
type tuned struct {
	Unit  string `json:"unit"`
	Ranks int    `json:"ranks"`
	Rules []struct {
		Rule   string    `json:"rule"`
		Rates  []float64 `json:"rates"`
		Median float64   `json:"median"`
		Failed string    `json:"failed"`
	} `json:"rules"`
	Site string `json:"site"`
	Use  string `json:"use"`
	Why  string `json:"why"`
}

// byShare prints a rate that follows from the share that the wrapper gave it: most at 50 %.
const byShare = `#!/bin/bash
p=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-100}
[ "$1" != fails ] || exit 3
if [ "$1" = never ] && [ "$p" = 50 ]; then exit 4; fi
echo "rate 1"
case $p in 24*|25*) echo "rate 5.0";; 50*) echo "rate 10.0";; *) echo "rate 2.0";; esac
[ "$1" = ends ] && exit 0
trap 'exit 0' TERM
while :; do sleep 0.05; done
`

// tuning is job 7, which has one simulated GPU and the rule "even".
func tuning(t *testing.T) play {
	t.Helper()
	p := newPlay(t, testnode.Default("overlap = 1"), node.H200)
	p.must(0, p.job(7, "0"), "prolog")
	p.write(p.program(), byShare)
	if err := os.Chmod(p.program(), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p play) program() string { return filepath.Join(filepath.Dir(p.Root), "program") }

// tune calls it in job 7; PROGRAM stands for the program.
func (p play) tune(args ...string) testnode.Result {
	p.t.Helper()
	line := p.Command("mps-tune", args...)
	for i := range line {
		line[i] = strings.ReplaceAll(line[i], "PROGRAM", p.program())
	}
	cmd := p.asUser(7, line)
	out, _ := cmd.Output()
	return testnode.Result{Code: cmd.ProcessState.ExitCode(), Output: string(out)}
}

// The rule that makes the program fastest is named, each was run as often as asked, and nothing is left.
func TestTune(t *testing.T) {
	p := tuning(t)
	result := p.tune("--json", "--ranks=4", "--repeats=2", "--seconds=1s", "--share=none,even,overlap:2", "--rate", "rate ([0-9.]+)", "--", "PROGRAM")
	var r tuned
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || result.Code != 0 {
		t.Fatalf("%v: %+v", err, result)
	}
	if r.Use != "overlap:2" || r.Site != "even" || r.Ranks != 4 || len(r.Rules) != 3 {
		t.Errorf("%+v", r)
	}
	for i, want := range []float64{8, 20, 40} { // four ranks add up
		if got := r.Rules[i]; got.Median != want || len(got.Rates) != 2 {
			t.Errorf("%s: %+v, want %v", got.Rule, got, want)
		}
	}
	p.must(0, p.job(7, "0"), "epilog")
	p.clean()
	if left, _ := exec.Command("pgrep", "-f", p.program()).Output(); len(left) != 0 {
		t.Errorf("left: %s", left)
	}
}

// Without a rate the time counts; a launcher's ranks are its own; what fails says how, and is no winner.
func TestTuneOtherwise(t *testing.T) {
	p := tuning(t)
	result := p.tune("--ranks=2", "--repeats=1", "--share=even,overlap:2", "--", "PROGRAM", "ends")
	if result.Code != 0 || !strings.Contains(result.Output, "in runs/h") || !strings.Contains(result.Output, "\nuse: ") {
		t.Errorf("%+v", result)
	}
	result = p.tune("--json", "--launcher=env X=1", "--repeats=1", "--seconds=1s", "--share=40%,50%", "--rate", "rate ([0-9.]+)", "--", "PROGRAM")
	var r tuned
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || result.Code != 0 || r.Use != "50%" || r.Rules[0].Median != 2 || r.Rules[1].Median != 10 {
		t.Errorf("%v: %+v", err, result)
	}
	result = p.tune("--json", "--ranks=1", "--repeats=2", "--seconds=1s", "--share=25%,50%", "--rate", "rate ([0-9.]+)", "--", "PROGRAM", "never")
	r = tuned{}
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || r.Use != "25%" || !strings.HasPrefix(r.Rules[1].Failed, "exit status 4") {
		t.Errorf("%v: %+v", err, result)
	}
	for _, args := range [][]string{
		{"--ranks=2", "--repeats=1", "--share=even,none", "--", "PROGRAM", "fails"},
		{"--ranks=2", "--repeats=1", "--share=even,none", "--seconds=1s", "--rate", "speed ([0-9]+)", "--", "PROGRAM", "ends"},
	} {
		result := p.tune(args...)
		if result.Code != 1 || result.Output != "" {
			t.Errorf("%q: %+v", args, result)
		}
	}
}

// What cannot be asked is said in a sentence, before anything is run.
func TestTuneRefuses(t *testing.T) {
	p := newPlay(t, "", node.H200)
	for args, want := range map[string]string{
		"--ranks 2":                                "cannot tune: no program is given: mps-tune -- PROGRAM",
		"-- true":                                  "cannot tune: give either --ranks, or a --launcher that says how many there are",
		"--ranks 2 --launcher srun -- true":        "cannot tune: give either --ranks, or a --launcher that says how many there are",
		"--ranks 2 --share evn,none -- true":       `cannot read share "evn"`,
		"--ranks 2 --share even -- true":           "cannot tune: give two rules or more with --share",
		"--ranks 2 --rate x -- true":               `cannot read --rate "x": it needs one group, around the number`,
		"--ranks 2 --rate (x -- true":              `cannot read --rate "(x": error parsing regexp`,
		"--ranks 2 --seconds 1h -- true":           "cannot run for 1h0m0s: give --seconds 1s up to --limit",
		"--ranks 2 --repeats 0 -- true":            "cannot repeat 0 times: give --repeats 1 to 100",
		"--ranks 2 --bogus -- true":                "cannot read flags: unknown flag: --bogus: see mps-tune --help",
		"--ranks 2 --share=none,even -- /bin/true": "cannot tune outside a job: SLURM_JOB_ID is not set",
	} {
		result, err := p.Run(p.ctx, nil, "mps-tune", strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		code := 2
		if strings.Contains(want, "outside") {
			code = 1
		}
		if result.Code != code || !strings.HasPrefix(result.Output, "mps-tune: "+want) {
			t.Errorf("%s: %+v\nwant %d %s", args, result, code, want)
		}
	}
	job := p.job(7, "")
	p.must(0, job, "prolog")
	cmd := p.asUser(7, p.Command("mps-tune", "--ranks=2", "--", "true"))
	out, _ := cmd.CombinedOutput()
	want := "mps-tune: cannot tune: this job has no MPS: job 7 asks for MPS and has no GPU"
	if cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(string(out), want) {
		t.Errorf("%s\nwant %s", out, want)
	}
	p.must(0, job, "epilog")
}
