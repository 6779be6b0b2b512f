// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// tuned is the JSON output of mps-tune, as the documentation describes it.
type tuned struct {
	Unit  string `json:"unit"`
	Sum   string `json:"sum"`
	Ranks int    `json:"ranks"`
	Rules []struct {
		Ranks  int       `json:"ranks"`
		Rule   string    `json:"rule"`
		Rates  []float64 `json:"rates"`
		Median float64   `json:"median"`
		Failed string    `json:"failed"`
	} `json:"rules"`
	Site    string   `json:"site"`
	Use     string   `json:"use"`
	Proved  bool     `json:"proved"`
	Why     string   `json:"why"`
	Command string   `json:"command"`
	Saved   []string `json:"saved"`
}

// byShare prints a rate that depends on the share from the wrapper. The rate is highest at 50 %.
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

// runs is the time of a run whose program goes on until its end. A program must start and print within this time, also
// on a busy machine.
const runs = "3s"

// tuning is job 7, which has one simulated GPU and the rule "even".
func tuning(t *testing.T) testNode {
	t.Helper()
	p := newTestNode(t, testnode.Default("overlap = 1"), node.H200)
	p.Must(0, p.Job(7, "0"), "prolog")
	p.Write(p.program(), byShare)
	if err := os.Chmod(p.program(), 0o755); err != nil {
		t.Fatal(err)
	}
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

// mps-tune names the rule that makes the program fastest. It runs each rule as often as asked, and leaves nothing
// behind.
func TestTune(t *testing.T) {
	p := tuning(t)
	result := p.tune("--json", "--ranks=4", "--repeats=2", "--seconds="+runs, "--share=none,even,overlap:2", "--rate", "rate ([0-9.]+)", "--", "PROGRAM")
	var r tuned
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || result.Code != 0 {
		t.Fatalf("%v: %+v", err, result)
	}
	if r.Use != "overlap:2" || !r.Proved || r.Site != "even" || r.Ranks != 4 || len(r.Rules) != 3 {
		t.Errorf("%+v", r)
	}
	for i, want := range []float64{8, 20, 40} { // four ranks add up
		if got := r.Rules[i]; got.Median != want || len(got.Rates) != 2 {
			t.Errorf("%s: %+v, want %v", got.Rule, got, want)
		}
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
	if left, _ := exec.Command("pgrep", "-f", p.program()).Output(); len(left) != 0 {
		t.Errorf("left: %s", left)
	}
}

// Without a rate, mps-tune compares times, and a launcher starts its own ranks. A failed run is reported and never
// wins.
func TestTuneOtherwise(t *testing.T) {
	p := tuning(t)
	result := p.tune("--ranks=2", "--repeats=1", "--share=even,overlap:2", "--", "PROGRAM", "ends")
	if result.Code != 0 || !strings.Contains(result.Output, "\nIn runs an hour; ") || !strings.Contains(result.Output, "\nuse: ") {
		t.Errorf("%+v", result)
	}
	result = p.tune("--json", "--launcher=env X='1 2'", "--repeats=2", "--seconds="+runs, "--share=40%,50%", "--rate", "rate ([0-9.]+)", "--", "PROGRAM")
	var r tuned
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || result.Code != 0 || r.Use != "50%" ||
		len(r.Rules) != 3 || r.Rules[0].Rule != "even" || r.Rules[1].Median != 2 || r.Rules[2].Median != 10 {
		t.Errorf("%v: %+v", err, result)
	}
	result = p.tune("--json", "--ranks=1", "--repeats=2", "--seconds="+runs, "--share=25%,50%", "--rate", "rate ([0-9.]+)", "--", "PROGRAM", "never")
	r = tuned{}
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil || r.Use != "25%" || !r.Proved || !strings.HasPrefix(r.Rules[2].Failed, "exit status 4") {
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

// If mps-tune cannot do what is asked, it prints the reason in one sentence before any run.
func TestTuneRefuses(t *testing.T) {
	p := newTestNode(t, "", node.H200)
	for args, want := range map[string]string{
		"--ranks 2":                                 "cannot tune: no program is given: mps-tune -- PROGRAM",
		"--ranks 0 -- true":                         "cannot tune 0 ranks: give --ranks 1 to 1024",
		"--ranks 2 --launcher srun -- true":         "cannot tune: --launcher has a number of ranks of its own: write {ranks} in its place, or leave out --ranks",
		"--save --launcher srun -- true":            "cannot save: --launcher has a number of ranks of its own",
		"--ranks 2 --save-as #x -- true":            `cannot use name "#x": want up to 100 printable bytes without blanks`,
		"--ranks 2 --within 1ms -- true":            "cannot tune within 1ms: give --within 1s or longer",
		"--ranks 1,2,3 --repeats 100 -- true":       "cannot tune with more than 1000 runs: give fewer --ranks, --share or --repeats",
		"--ranks 2 --share evn,none -- true":        `cannot read share "evn": want none, even, overlap:F, weight:W, PCT% or Nsm: did you mean even?`,
		"--ranks 2 --share even -- true":            "cannot tune: there is nothing to compare: give two shares or more with --share, or two numbers with --ranks",
		"--ranks 2 --rate x -- true":                `cannot read --rate "x": it needs one group, around the number, or is one of gromacs, `,
		"--rate gromacs --seconds 5 -- true":        "cannot end gromacs after 5s: it prints its rate at its end only: leave out --seconds",
		"--ranks 2 --one-rate -- true":              "cannot tune with --one-rate: it needs --rate and --launcher",
		"--launcher srun|cat -- true":               `cannot read --launcher "srun|cat": no shell runs it, so | has no effect`,
		"--seconds x -- true":                       `cannot read --seconds: it is "x": want a time like 10s or 5m`,
		"--ranks 2 --rate (x -- true":               `cannot read --rate "(x": error parsing regexp`,
		"--ranks 2 --seconds 5 -- true":             "cannot end runs after 5s: without --rate, a run lasts until the program ends: give --rate, or leave out --seconds",
		"--ranks 2 --seconds 1h --rate (x) -- true": "cannot run for 1h0m0s: give --seconds 1s up to --limit",
		"--ranks 2 --share overlap:99 -- true":      `cannot read share "overlap:99": want a factor from 1 to 48`,
		"--ranks 2 --repeats 0 -- true":             "cannot repeat 0 times: give --repeats 1 to 100",
		"--ranks 2 --bogus -- true":                 "cannot read flags: unknown flag: --bogus: see mps-tune --help",
		"--ranks 2 --share=none,even -- /bin/true":  "cannot tune outside a job: SLURM_JOB_ID is not set",
	} {
		result, err := p.Run(p.Ctx, nil, "mps-tune", strings.Fields(args)...)
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
	job := p.Job(7, "")
	p.Must(0, job, "prolog")
	cmd := p.AsUser(7, p.Command("mps-tune", "--ranks=2", "--", "true"))
	out, _ := cmd.CombinedOutput()
	want := "mps-tune: cannot tune: this job has no MPS: job 7 asks for MPS and has no GPU"
	if cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(string(out), want) {
		t.Errorf("%s\nwant %s", out, want)
	}
	p.Must(0, job, "epilog")
}

// A program that never works ends after one run, and the reason is printed once. A share that the GPUs cannot have is
// not run.
func TestTuneStops(t *testing.T) {
	p := tuning(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--ranks=2,4", "--", "PROGRAM", "fails"}, "first run failed (2 ranks, none): exit status 3, and it printed nothing\n"},
		{[]string{"--ranks=2,4", "--seconds=1s", "--rate", "speed ([0-9]+)", "--", "PROGRAM"},
			`--rate "speed ([0-9]+)" found no number within 1s; the last line of stdout is "rate `},
		{[]string{"--launcher=env X={ranks}", "--ranks=1,2", "--rate", "speed ([0-9]+)", "--", "PROGRAM", "fails"},
			"first run failed (1 rank, none): exit status 3, and it printed nothing\n"},
		{[]string{"--ranks=2,49", "--", "PROGRAM"}, "mps-tune: cannot tune 49 ranks: the GPUs of this job take 48: give --ranks 48 or less"},
		{[]string{"--", "PROGRAM"}, "mps-tune: cannot tune: no number of ranks is given"},
		{[]string{"--ranks=2", "--save", "--", "PROGRAM"}, "mps-tune: cannot save: neither XDG_CONFIG_HOME nor HOME is an absolute path: set HOME\n"},
	} {
		stdout, stderr, code := p.inJob(nil, "mps-tune", c.args...)
		if code != 1 || stdout != "" || strings.Count(stderr, c.want) != 1 || strings.Contains(stderr, "\nrun 1 of") {
			t.Errorf("%q: %d, %s%s\nwant %s", c.args, code, stdout, stderr, c.want)
		}
	}
}

// The best share for each number of ranks is saved, and mpirun-wrap and mpsctl plan use it within the ceiling. The
// user's file comes before the site's file, and a missing share gives one sentence.
func TestTuneRemembers(t *testing.T) {
	p := tuning(t)
	home := filepath.Dir(p.program())
	env := []string{"XDG_CONFIG_HOME=" + filepath.Join(home, "config"), "HOME=" + home}
	if err := os.Mkdir(filepath.Join(home, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(home, "config"), e2e.UID, e2e.GID); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := p.inJob(env, "mps-tune", "--json", "--ranks=4,2", "--repeats=2", "--seconds="+runs, "--share=even,overlap:2",
		"--save", "--rate", "rate ([0-9.]+)", "--", "PROGRAM")
	var r tuned
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 {
		t.Fatalf("%v: %d, %s%s", err, code, stdout, stderr)
	}
	// Two ranks have 50 % each by even, and the whole GPU by overlap:2. So the site's share, even, stays, and is not
	// saved. Four ranks have 24 or 25 % by even, and 50 % by overlap:2.
	if want := []string{"program 4 H200 overlap:2"}; !slices.Equal(r.Saved, want) || r.Ranks != 4 || r.Use != "overlap:2" {
		t.Errorf("%+v, want saved %q", r, want)
	}
	if want := "srun -n4 mpirun-wrap --share=overlap:2 " + p.program(); r.Command != want {
		t.Errorf("use %s, want %s", r.Command, want)
	}
	if !strings.HasPrefix(stderr, "9 runs: 2, 4 ranks × 2 shares × 2 times and one to warm up, 3s each: about 27s, at most 30m0s (--within)\n") {
		t.Error(stderr)
	}
	if !regexp.MustCompile(`(?m)^run 9 of 9, [24] ranks, (even|overlap:2): [0-9]+; about 0s left$`).MatchString(stderr) {
		t.Errorf("no time left: %s", stderr)
	}
	wrap := func(ranks string, args ...string) (string, string) {
		args = append([]string{"--local-rank=0", "--local-size=" + ranks, "--dry-run"}, args...)
		stdout, stderr, _ := p.inJob(env, "mpirun-wrap", append(args, "PROGRAM")...)
		return stdout, stderr
	}
	planned := func(ranks string) string {
		stdout, stderr, _ := p.inJob(env, "mpsctl", "plan", "--gpu", "H200", "--ranks", ranks, "--share", "tuned:program", "--json")
		return stdout + stderr
	}
	for ranks, sms := range map[string]string{"4": "66"} {
		if out, said := wrap(ranks, "--share=tuned", "-v"); !strings.Contains(out, ", "+sms+" of 132 SMs") ||
			!strings.Contains(out, "(tuned: "+home+"/config/slurm-mps/tuned)") {
			t.Errorf("%s ranks: %s%s", ranks, out, said)
		}
		if out := planned(ranks); !strings.Contains(out, `"sms":`+sms) {
			t.Errorf("plan of %s ranks: %s", ranks, out)
		}
	}
	missing := `cannot find the tuned share of "program" with 3 ranks on each H200: no line of ` + home +
		"/config/slurm-mps/tuned or " + p.Root + "/etc/slurm-mps/tuned has it: "
	if out, said := wrap("3", "--share=tuned"); out != "" || !strings.HasPrefix(said, "mpirun-wrap: "+missing) {
		t.Errorf("%s%s\nwant %s", out, said, missing)
	}
	if out := planned("3"); !strings.HasPrefix(out, "mpsctl: "+missing) {
		t.Errorf("%s", out)
	}
	p.Write(filepath.Join(p.Root, "etc/slurm-mps/tuned"), "program 3 H200 25%\nprogram 4 H200 none\nother 1 H200 10sm\n")
	for _, c := range [][3]string{{"3", "tuned", ", 32 of 132 SMs"}, {"4", "tuned", ", 66 of 132 SMs"}, {"1", "tuned:other", ", 10 of 132 SMs"}} {
		if out, said := wrap(c[0], "--share="+c[1]); !strings.Contains(out, c[2]) {
			t.Errorf("%q: %s%s", c, out, said)
		}
	}
	if out := p.Ctl("plan", "--gpu", "H200", "--ranks", "3", "--share", "tuned"); out.Code != 2 ||
		!strings.Contains(out.Output, "a plan has no program: name it: --share tuned:NAME") {
		t.Errorf("%+v", out)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
	p.Clean()
}

// In a job of a real Slurm, srun starts the ranks of each run, and the result is saved in the user's home. The next
// step uses the result with SLURM_MPS_SHARE=tuned, which the task prolog passes on.
func TestTuneUnderSlurm(t *testing.T) {
	c := e2e.NewCluster(t, testnode.Default("overlap = 1"), lab.Options{PrologFlags: "Alloc", SameName: true})
	program := filepath.Join(c.Top, "program")
	if err := node.WriteProgram(program, []byte(byShare)); err != nil {
		t.Fatal(err)
	}
	tune := strings.Join(c.First().Command("mps-tune"), " ")
	id := c.Batch("export XDG_CONFIG_HOME=$(mktemp -d)\n"+
		tune+" --launcher='srun --comment=\"a b\" -n{ranks}' --repeats=2 --seconds=1 --share=even,overlap:2 --save --rate 'rate ([0-9.]+)' -- "+program+"\n"+
		"ln -s "+c.Client()+" $XDG_CONFIG_HOME/program\n"+
		"SLURM_MPS_SHARE=tuned srun -n4 "+filepath.Join(c.Top, "mpirun-wrap")+" $XDG_CONFIG_HOME/program info\n"+
		"srun -n4 "+c.Wrap("info")+"\n"+
		"srun -n3 "+filepath.Join(c.Top, "mpirun-wrap")+" --share=tuned:program true\n", "-n4", "--gres=gpu:1")
	job := c.Ended(id)
	out := c.Output(id)
	for _, want := range []string{
		"13 runs: 1, 2, 4 ranks × 2 shares × 2 times", "the rates of all ranks that print one are added up", "saved: program 4 H200 overlap:2\n",
		"\nbest: 4 ranks, overlap:2: it is proved to be faster than the site's own share, even, by 100 %; 4 ranks are faster than 1, 2\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q: %+v\n%s\n%s", want, job, out, c.Log())
		}
	}
	if got, want := e2e.SMCounts(t, out), []int{32, 32, 34, 34, 66, 66, 66, 66}; !slices.Equal(got, want) {
		t.Errorf("SMs %v, want %v, of the tuned step and of one without\n%s", got, want, out)
	}
	if n := strings.Count(out, `cannot find the tuned share of "program" with 3 ranks on each H200`); n != 1 {
		t.Errorf("%d ranks complain, want one:\n%s", n, out)
	}
	c.Quiet()
}

// mps-tune names no share for a program whose rate does not depend on it: the site's share stays, and nothing is saved.
// The noise is that of cuda-client on this machine. The statistics of many trials are those of TestNoFalseWinner.
func TestTuneNamesNoFalseWinner(t *testing.T) {
	p := newTestNode(t, testnode.Default("overlap = 1"), node.H200)
	p.Must(0, p.Job(7, "0"), "prolog")
	home := filepath.Dir(p.program())
	for trial := range 2 {
		stdout, stderr, code := p.inJob([]string{"XDG_CONFIG_HOME=" + home, "HOME=" + home}, "mps-tune", "--json", "--ranks=2", "--repeats=3", "--seconds=1m",
			"--share=even,overlap:1.5,overlap:2", "--rate", "kernels=([0-9]+)", "--", p.CudaClient(), "spin", "-ms", "5", "-for", "0.5")
		var r tuned
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || r.Proved || r.Use != "even" {
			t.Errorf("trial %d: %v: %d, %s%s", trial, err, code, stdout, stderr)
		}
		t.Log(stdout)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
}

// noisy prints a rate that no share changes. Its logarithm is normal with a spread of 5 %, and it goes up and down by 3 %
// within a minute.
const noisy = `#!/bin/bash
exec awk -v seed=$((RANDOM * 32768 + RANDOM)) -v now=$EPOCHREALTIME 'BEGIN {
	srand(seed); normal = sqrt(-2 * log(1 - rand())) * cos(6.2831853 * rand())
	printf "rate %.6f\n", 100 * (1 + 0.03 * sin(now / 10)) * exp(0.05 * normal)
}'
`

// In trials of the same share twice, mps-tune names at most one winner in a hundred. TUNE_TRIALS=100 makes a hundred
// trials; docs/measurements has the rates of such a run. The first share is the site's, and the second has as many SMs.
func TestTuneOfTheSameShare(t *testing.T) {
	p := tuning(t)
	p.Write(p.program(), noisy)
	trials, won := 5, 0
	if text := os.Getenv("TUNE_TRIALS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		trials = n
	}
	for trial := range trials {
		stdout, stderr, code := p.inJob(nil, "mps-tune", "--json", "--ranks=2", "--seconds=1m",
			"--share=even,overlap:1.01", "--rate", "rate ([0-9.]+)", "--", "PROGRAM")
		var r tuned
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || len(r.Rules) != 2 || len(r.Rules[0].Rates) != 5 {
			t.Fatalf("trial %d: %v: %d, %s%s", trial, err, code, stdout, stderr)
		}
		if r.Proved {
			won++
		}
		t.Logf(`{"proved":%v,"first":%v,"second":%v}`, r.Proved, r.Rules[0].Rates, r.Rules[1].Rates)
	}
	t.Logf("%d of %d trials name a winner", won, trials)
	if won > max(1, trials/100) {
		t.Errorf("%d of %d trials name a winner", won, trials)
	}
	p.Must(0, p.Job(7, "0"), "epilog")
}
