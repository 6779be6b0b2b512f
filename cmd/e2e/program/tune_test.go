// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// tuned is the JSON output of mps-tune, as the documentation describes it.
type tuned struct {
	Unit  string `json:"unit"`
	Rules []struct {
		Rule   string    `json:"rule"`
		Rates  []float64 `json:"rates"`
		Median float64   `json:"median"`
		Failed string    `json:"failed"`
	} `json:"rules"`
	Site    string `json:"site"`
	Use     string `json:"use"`
	Proved  bool   `json:"proved"`
	Why     string `json:"why"`
	Command string `json:"command"`
}

// byShare prints a rate that depends on the share from the wrapper. The rate is highest at 50 %.
const byShare = `#!/bin/bash
p=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-100}
[ "$1" != fails ] || exit 3
if [ "$1" = never ] && [ "$p" = 50 ]; then exit 4; fi
case $p in 24*|25*) echo "rate 5.0";; 50*) echo "rate 10.0";; *) echo "rate 2.0";; esac
[ "$1" = stays ] || exit 0
trap 'exit 0' TERM
while :; do sleep 0.05; done
`

// longEnough are times of one run, one after the other, until the ranks of each run have printed in that time. noNumber
// is what mps-tune reports if they have not.
var longEnough = []string{"2s", "8s", "30s"}

const noNumber = "found no number"

// tuning is job 7, which has one simulated GPU and the rule "even".
func tuning(t *testing.T) testNode {
	t.Helper()
	p := newTestNode(t, testnode.Default(`share = "even"`), node.H200)
	p.Must(0, p.Job(7, "0"), "prolog")
	p.Write(p.program(), byShare)
	must.OK(t, os.Chmod(p.program(), 0o755))
	return p
}

func (p testNode) program() string { return filepath.Join(filepath.Dir(p.Root), "program") }

// tune runs mps-tune in job 7. In its arguments, PROGRAM is replaced by the path of the program.
func (p testNode) tune(args ...string) testnode.Result {
	p.T.Helper()
	stdout, _, code := p.inJob(nil, "mps-tune", args...)
	return testnode.Result{Code: code, Output: stdout}
}

// inJob runs one of our programs in job 7, as the user, with more variables. It replaces PROGRAM as tune does.
func (p testNode) inJob(env []string, program string, args ...string) (stdout, stderr string, code int) {
	p.T.Helper()
	line := p.Command(program, args...)
	for i := range line {
		line[i] = strings.ReplaceAll(line[i], "PROGRAM", p.program())
	}
	cmd := p.AsUser(7, line)
	cmd.Env = append(cmd.Env, env...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, _ := cmd.Output()
	return string(out), complaint.String(), cmd.ProcessState.ExitCode()
}

// four is a command that starts four ranks under the wrapper, without a launcher.
func (p testNode) four(args string) []string {
	wrapper := strings.Join(p.Command("mpirun-wrap", "--local-size=4"), " ")
	return []string{"sh", "-c", fmt.Sprintf("for i in 0 1 2 3; do %s --local-rank=$i PROGRAM %s & all=\"$all $!\"; done; for r in $all; do wait $r || exit; done", wrapper, args)}
}

// mps-tune names the share that makes a command fastest. It runs each share as often as asked, and leaves nothing
// behind.
func TestTune(t *testing.T) {
	p := tuning(t)
	var result testnode.Result
	var r tuned
	for _, seconds := range longEnough {
		args := []string{"--json", "--repeats=2", "--seconds=" + seconds, "--share=none,even,overlap:2", "--rate", "rate ([0-9.]+)", "--"}
		if result = p.tune(append(args, p.four("stays")...)...); !strings.Contains(result.Output, noNumber) {
			break
		}
	}
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || result.Code != 0 {
		t.Fatalf("%v: %+v", err, result)
	}
	if r.Use != "overlap:2" || !r.Proved || r.Site != "even" || len(r.Rules) != 3 || !strings.HasPrefix(r.Command, "env SLURM_MPS_SHARE=overlap:2 sh -c ") {
		t.Errorf("%+v", r)
	}
	medians := []float64{r.Rules[0].Median, r.Rules[1].Median, r.Rules[2].Median}
	must.Hold(t, slices.Equal(medians, []float64{2, 5, 10}), "medians %v", medians)
	p.Close(p.Job(7, "0"))
	if left, _ := exec.Command("pgrep", "-f", p.program()).Output(); len(left) != 0 {
		t.Errorf("left: %s", left)
	}
}

// In a job of a real Slurm, srun starts the ranks of each run.
func TestTuneUnderSlurm(t *testing.T) {
	c := e2e.NewCluster(t, testnode.Default(`share = "even"`), lab.Options{PrologFlags: "Alloc", SameName: true})
	program := filepath.Join(c.Top, "program")
	must.OK(t, node.WriteProgram(program, []byte(byShare)))
	tune := strings.Join(c.First().Command("mps-tune"), " ")
	line := "srun --comment='a b' -n4 " + filepath.Join(c.Top, "mpirun-wrap") + " " + program
	var job lab.Job
	var out string
	for _, seconds := range longEnough {
		id := c.Batch(tune+" --repeats=2 --seconds="+seconds+" --share=even,overlap:2 --rate 'rate ([0-9.]+)' -- "+line+" stays\n", "-n4", "--gres=gpu:1")
		job = c.Ended(id)
		if out = c.Output(id); !strings.Contains(out, noNumber) {
			break
		}
	}
	for _, want := range []string{
		"5 runs: 2 shares, 2 times each", "\nbest: overlap:2: it is proved to be faster than the site's own share, even, by ",
		"\nuse: srun '--comment=a b' -n4 " + filepath.Join(c.Top, "mpirun-wrap") + " --share=overlap:2 ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q: %+v\n%s\n%s", want, job, out, c.Log())
		}
	}
	c.Quiet()
}

// mps-tune prints in one sentence before any run why it cannot tune. TestCheck of package tune has all reasons.
func TestTuneRefuses(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	job := p.Job(7, "")
	p.Must(0, job, "prolog")
	for want, args := range map[string][]string{
		"cannot read flags: unknown flag: --bogus: see mps-tune --help":                  {"--bogus", "--", "true"},
		"cannot tune: this job has no MPS: job 7 asks for MPS and has no GPU":            {"--", "true"},
		`cannot read share "evn": want none, even, overlap:F, PCT% or a list like 3:1: `: {"--share", "evn,none", "--", "true"},
	} {
		if out, err := p.AsUser(7, p.Command("mps-tune", args...)).CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "mps-tune: "+want) {
			t.Errorf("%q: %v: %s\nwant %s", args, err, out, want)
		}
	}
	p.Must(0, job, "epilog")
}
