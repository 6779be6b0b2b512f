// SPDX-License-Identifier: Apache-2.0

package slurm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// optionPolicy accepts no request except --mps, so a job with MPS proves that its option arrived.
const optionPolicy = `version = 1
trigger { option = true }
rule "mps" {
  when  = true
  allow = ["share", "scope"]
  grant { share = "overlap:2" }
}
`

// spanked is a cluster with the SPANK plugin, built against the cluster's own Slurm.
type spanked struct {
	*cluster
	plugin string
}

func newSpanked(t *testing.T, o lab.Options) spanked {
	o.PrologFlags = "Alloc"
	c := newCluster(t, optionPolicy, o)
	s := spanked{c, filepath.Join(c.Top, "slurm_mps.so")}
	s.build(slurmHeaders())
	s.plugstack("optional")
	return s
}

// slurmHeaders is the folder with the headers of the cluster's Slurm.
func slurmHeaders() string {
	if bundle := os.Getenv("SLURM_BUNDLE"); bundle != "" {
		return filepath.Join(bundle, "include")
	}
	return "/usr/include"
}

// build builds the plugin with the headers in a folder.
func (s spanked) build(include string) {
	s.T.Helper()
	if out, err := exec.Command("../../../site/spank/build.sh", include, s.plugin).CombinedOutput(); err != nil || len(out) > 0 {
		s.T.Fatalf("%v\n%s", err, out)
	}
}

// plugstack writes plugstack.conf again. Every command and every step reads this file.
func (s spanked) plugstack(need string, arguments ...string) {
	s.T.Helper()
	line := strings.Join(append([]string{need, s.plugin}, arguments...), " ")
	must.OK(s.T, os.WriteFile(filepath.Join(s.Dir(), "etc", "plugstack.conf"), []byte(line+"\n"), 0o644))
}

// run runs a command as the user.
func (s spanked) run(name string, args ...string) lab.Result {
	s.T.Helper()
	return must.Get(s.Run(s.Ctx, s.User, name, args...))(s.T)
}

// script writes a batch script.
func (s spanked) script(lines ...string) string {
	s.T.Helper()
	path := filepath.Join(s.Top, fmt.Sprintf("script%d", len(glob(s.Top, "script*"))))
	must.OK(s.T, node.WriteProgram(path, []byte("#!/bin/bash\n"+strings.Join(lines, "\n")+"\n")))
	return path
}

func glob(dir, pattern string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, pattern))
	return found
}

// ticket is a command line that prints the job's ticket.
func (s spanked) ticket() string {
	return fmt.Sprintf("cat %s/run/slurm-mps/tickets/$SLURM_JOB_ID.json", s.First().Root)
}

// ranks is a command line that prints the job's ticket, and then runs two ranks.
func (s spanked) ranks() string { return s.ticket() + "; srun -n2 " + s.Wrap("info") }

// granted reads the output of ranks: the ticket, and the SMs of the ranks.
func granted(t *testing.T, output string) (lease.Ticket, []int) {
	t.Helper()
	var ticket lease.Ticket
	begin := strings.Index(output, "{")
	if err := json.NewDecoder(strings.NewReader(output[max(begin, 0):])).Decode(&ticket); err != nil {
		t.Fatalf("no ticket: %v\n%s", err, output)
	}
	return ticket, e2e.SMCounts(t, output)
}

// batched submits a job, waits for its end, and returns the job with its output. sbatch --wait would poll only every
// two seconds.
func (s spanked) batched(args ...string) (lab.Job, string) {
	s.T.Helper()
	id := must.Get(s.Submit(s.Ctx, s.User, append([]string{"-o", "%j.0.out"}, args...)...))(s.T)
	job := s.Ended(id)
	if job.State != "COMPLETED" && job.State != "FAILED" { // a held job prints nothing either
		s.T.Errorf("a job that did not run to its end: %+v", job)
	}
	return job, s.Output(id)
}

func TestTheOptionMPS(t *testing.T) {
	s := newSpanked(t, lab.Options{})
	// If srun starts the ranks itself, the first rank prints the ticket.
	step := func(args ...string) string {
		return s.run("srun", append(args, "-Q", "--gres=gpu:1", "bash", "-c", "if [ $SLURM_PROCID = 0 ]; then "+s.ticket()+"; fi; exec "+s.Wrap("info"))...).Stdout
	}
	allocation := func(args ...string) string {
		return s.run("salloc", append(args, "-Q", "--gres=gpu:1", "bash", "-c", s.ranks())...).Stdout
	}
	batch := func(args ...string) string {
		_, output := s.batched(append([]string{"-n2", "--gres=gpu:1"}, args...)...)
		return output
	}
	script, plain := s.script("#SBATCH --mps=share=even,scope=gpu", s.ranks()), s.script(s.ranks())
	for _, given := range []struct {
		name  string
		run   func(...string) string
		args  []string
		scope policy.Scope
		want  []int
	}{
		{"srun", step, []string{"-n2", "--mps"}, "job", []int{132, 132}},
		{"salloc", allocation, []string{"-n2", "--mps=share=even"}, "job", []int{66, 66}},
		{"sbatch", batch, []string{"--mps=scope=gpu", plain}, "gpu", []int{132, 132}},
		{"#SBATCH", batch, []string{script}, "gpu", []int{66, 66}},
		{"the command line over #SBATCH", batch, []string{"--mps", script}, "job", []int{132, 132}},
	} {
		t.Run(given.name, func(t *testing.T) {
			output := given.run(given.args...)
			ticket, sms := granted(t, output)
			if ticket.Grant.Scope != given.scope || !slices.Equal(sms, given.want) {
				t.Errorf("scope %s and SMs %v, want %s and %v:\n%s\n%s", ticket.Grant.Scope, sms, given.scope, given.want, output, s.Log())
			}
		})
	}
	t.Run("more than the policy allows", func(t *testing.T) {
		result := s.run("srun", "-Q", "--mps=keep_logs=always", "--gres=gpu:1", filepath.Join(s.Top, "mpirun-wrap"), "true")
		want := "cannot take keep_logs=always: this site's policy lets this job set share, scope alone"
		must.Hold(t, result.Exit == 125 && strings.Contains(result.Stdout+result.Stderr, want),
			"%+v: want 125 and %q", result, want)
	})
	t.Run("a job from within asks by itself", func(t *testing.T) {
		wrap := "srun " + filepath.Join(s.Top, "mpirun-wrap") + " true"
		inner := s.script("#SBATCH --gres=gpu:1", wrap)
		result := s.run("salloc", "-Q", "--mps", "--gres=gpu:1", "bash", "-c", strings.Join([]string{
			"sbatch --parsable -o /dev/null " + inner,
			"sbatch --parsable -o /dev/null --mps " + inner,
			"env -u SLURM_JOB_ID -u SLURM_JOBID " + strings.Replace(wrap, "srun", "srun -Q --gres=gpu:1", 1) + " 2>/dev/null; echo $?",
			"srun true; echo $?",
		}, "\n"))
		said := strings.Fields(result.Stdout)
		if len(said) != 4 {
			t.Fatalf("%+v\n%s", result, s.Log())
		}
		for i, id := range said[:2] {
			n := must.Get(strconv.Atoi(id))(t)
			said[i] = strconv.Itoa(s.Ended(n).Exit)
		}
		if !slices.Equal(said, []string{"125", "0", "125", "0"}) {
			t.Errorf("codes %q: %+v\n%s", said, result, s.Log())
		}
	})
	s.Quiet()
}

// An option that cannot be passed on is refused by the command that gets it, and nothing is submitted. One that is
// passed on and that the policy cannot read drains no node: the ranks print the message.
func TestAMistakeInTheOption(t *testing.T) {
	s := newSpanked(t, lab.Options{})
	const form = "cannot use --mps=%s: %s: want NAME=VALUE, separated by commas\n"
	long := strings.Repeat("x", 5000)
	for i, c := range []struct{ options, want string }{
		{"a\nb\x1b[31m=\"%s%n", fmt.Sprintf(form, `"a?b?[31m="%s%n"`, "it has a byte that is not printed")},
		{long, fmt.Sprintf(form, `"`+long[:64]+`"…`, "it is longer than 512 bytes")},
		{long[:513], fmt.Sprintf(form, `"`+long[:64]+`"…`, "it is longer than 512 bytes")},
	} {
		command := [][]string{{"srun", "true"}, {"salloc", "true"}, {"sbatch", "--wrap=true"}}[i]
		result := s.run(command[0], "--mps="+c.options, command[1])
		if result.Exit == 0 || result.Stdout != "" || strings.Count(result.Stderr, command[0]+": error: "+c.want) != 1 {
			t.Errorf("%s --mps=%.80q: %+v: want %q", command[0], c.options, result, c.want)
		}
	}
	if jobs := s.run("scontrol", "show", "jobs"); !strings.Contains(jobs.Stdout, "No jobs") {
		t.Errorf("there are jobs: %s", jobs.Stdout)
	}
	for _, options := range []string{"share=odd", long[:512], "é=µ"} {
		_, err := policy.ParseOptions(options)
		result := s.run("srun", "-Q", "--mps="+options, "--gres=gpu:1", filepath.Join(s.Top, "mpirun-wrap"), "true")
		must.Hold(t, err != nil && result.Exit == 125 && strings.Contains(result.Stdout+result.Stderr, err.Error()),
			"--mps=%q: %+v: want 125 and %v", options, result, err)
	}
	s.Quiet()
}

// A mistake in plugstack.conf is reported to the users of the option, and in slurmd's log. No job fails because of
// it.
func TestPlugstackArguments(t *testing.T) {
	s := newSpanked(t, lab.Options{})
	const form = "cannot use %s of slurm_mps in plugstack.conf: %s\n"
	long := "wrapper=" + strings.Repeat("x", 3000)
	cases := []struct{ argument, want string }{
		{"zonk=%s%n", fmt.Sprintf(form, `"zonk=%s%n"`, "want auto_wrap=1, wrapper=/PATH or root=/PATH")},
		{"auto_wrap=yes", fmt.Sprintf(form, `"auto_wrap=yes"`, "want auto_wrap=1 or auto_wrap=0")},
		{"wrapper=bin/x", fmt.Sprintf(form, `"wrapper=bin/x"`, "want an absolute path")},
		{long, fmt.Sprintf(form, `"`+long[:64]+`"…`, "want an absolute path")},
	}
	if s.Release() < "23.11" {
		cases = append(cases, struct{ argument, want string }{"auto_wrap=1",
			fmt.Sprintf(form, `"auto_wrap=1"`, "this Slurm cannot put a program before tasks: Slurm 23.11 and later can")})
	}
	for _, wrong := range cases {
		s.plugstack("required", wrong.argument)
		if result := s.run("srun", "--test-only", "true"); result.Exit != 0 || strings.Contains(result.Stderr, "error") {
			t.Errorf("%.80s: a job without --mps: %+v", wrong.argument, result)
		}
		if result := s.run("srun", "--test-only", "--mps", "true"); result.Exit != 0 || strings.Count(result.Stderr, "srun: error: "+wrong.want) != 1 {
			t.Errorf("%.80s: a job with --mps: %+v: want %q", wrong.argument, result, wrong.want)
		}
	}
	if result := s.run("srun", "-Q", "true"); result.Exit != 0 || result.Stderr != "" {
		t.Errorf("a job without --mps: %+v", result)
	}
	if result := s.run("srun", "-Q", "--mps", "--gres=gpu:1", filepath.Join(s.Top, "mpirun-wrap"), "true"); result.Exit != 0 {
		t.Errorf("a job with --mps: %+v", result)
	}
	s.Quiet() // a slurmd that stops before it was told of a job's end is told again only minutes later
	s.plugstack("required", cases[0].argument)
	must.OK(t, s.StopNode("n1"))
	must.OK(t, s.StartNode("n1"))
	if log := e2e.Read(t, filepath.Join(s.Dir(), "log", "slurmd.n1.log")); !strings.Contains(log, cases[0].want) {
		t.Errorf("slurmd's log does not have %q", cases[0].want)
	}
}

var versionNumber = regexp.MustCompile(`(define SLURM_VERSION_NUMBER )0x([0-9a-f]{6})`)

// otherHeaders are the headers of the cluster's Slurm with another version number. The change is added to the number.
func (s spanked) otherHeaders(change int64) string {
	s.T.Helper()
	dir := s.T.TempDir()
	must.OK(s.T, os.CopyFS(filepath.Join(dir, "slurm"), os.DirFS(filepath.Join(slurmHeaders(), "slurm"))))
	path := filepath.Join(dir, "slurm", "slurm_version.h")
	text := e2e.Read(s.T, path)
	number := versionNumber.FindStringSubmatch(text)
	must.Have(s.T, number != nil, "%s has no version", path)
	version := must.Get(strconv.ParseInt(number[2], 16, 64))(s.T)
	text = versionNumber.ReplaceAllString(text, fmt.Sprintf("${1}0x%06x", version+change))
	must.OK(s.T, os.WriteFile(path, []byte(text), 0o644))
	return dir
}

// A plugin fits all patch levels of its release, and no other release.
func TestThePluginsRelease(t *testing.T) {
	s := newSpanked(t, lab.Options{})
	for _, c := range []struct {
		name   string
		change int64 // of 0xYYMMPP
		fits   bool
	}{{"a patch level before", -1, true}, {"a patch level after", +3, true}, {"a release after", 1 << 8, false}, {"a year before", -1 << 16, false}} {
		t.Run(c.name, func(t *testing.T) {
			s.build(s.otherHeaders(c.change))
			option, without := s.run("srun", "--test-only", "--mps", "true"), s.run("srun", "--test-only", "true")
			if fits := option.Exit == 0; fits != c.fits {
				t.Errorf("--mps: %+v, want %v", option, c.fits)
			}
			must.Hold(t, without.Exit == 0 && strings.Contains(without.Stderr, "Incompatible Slurm plugin") != c.fits,
				"a job without --mps: %+v", without)
			s.plugstack("required")
			if result := s.run("srun", "--test-only", "true"); (result.Exit == 0) != c.fits {
				t.Errorf("required: %+v", result)
			}
			s.plugstack("optional")
		})
	}
}

// If Slurm supports it, every rank of a job with MPS is started below the wrapper, and no other process is.
func TestAutoWrap(t *testing.T) {
	needRelease(t, "23.11")
	s := newSpanked(t, lab.Options{})
	wrapper := filepath.Join(s.Top, "mpirun-wrap")
	s.plugstack("optional", "auto_wrap=1", "wrapper="+wrapper, "root="+s.First().Root)
	programs := filepath.Join(s.Top, "programs")
	must.OK(t, os.WriteFile(programs, []byte("0 "+s.Client()+" info\n1 "+s.Client()+" info\n"), 0o644))
	const report = "# rank "
	for _, started := range []struct {
		name, line string
		mps        bool
		reports    int
	}{
		{"srun", "srun -n2 " + s.Client() + " info", true, 2},
		{"with the wrapper already", "srun -n2 " + s.Wrap("info"), true, 2},
		{"two programs", "srun -n2 --multi-prog " + programs, true, 2},
		{"mpirun, whose ranks are wrapped by hand", "mpirun.openmpi -np 2 " + s.Wrap("info"), true, 2},
		{"the batch script itself", "true", true, 0},
		{"a job without MPS", "srun -n2 true", false, 0},
	} {
		t.Run(started.name, func(t *testing.T) {
			args := []string{"--gres=gpu:1", "-n2", s.script("export SLURM_MPS_REPORT=1 LD_LIBRARY_PATH="+s.First().Sim.Libraries(), started.line)}
			if started.mps {
				args = append([]string{"--mps=share=even"}, args...)
			}
			job, output := s.batched(args...)
			must.Hold(t, job.Exit == 0 && strings.Count(output, report) == started.reports,
				"%+v: want %d reports\n%s", job, started.reports, output)
			if sms := e2e.SMCounts(t, output); started.reports > 0 && !slices.Equal(sms, []int{66, 66}) {
				t.Errorf("SMs %v\n%s", sms, output)
			}
		})
	}
	t.Run("a program at a terminal", func(t *testing.T) {
		line := "export SLURM_MPS_REPORT=1; srun -Q --mps --gres=gpu:1 --pty tty; srun -Q --mps --gres=gpu:1 true"
		result := s.run("script", "-qec", "bash -c '"+line+"'", "/dev/null")
		must.Hold(t, strings.Count(result.Stdout, "/dev/pts/") == 1 && strings.Count(result.Stdout, report) == 1,
			"%+v: want a terminal, and one report, which is from the other step", result)
	})
	t.Run("a wrapper that is not there", func(t *testing.T) {
		s.plugstack("optional", "auto_wrap=1", "wrapper=/nowhere/mpirun-wrap", "root="+s.First().Root)
		result := s.run("srun", "-Q", "--mps", "--gres=gpu:1", "true")
		want := "cannot put /nowhere/mpirun-wrap before this task, which runs as it is: No such file or directory"
		must.Hold(t, result.Exit == 0 && strings.Contains(result.Stderr, want), "%+v: want 0 and %q", result, want)
	})
	s.Quiet()
}

// The daemons by which mpirun reaches the other nodes are no ranks, although srun starts them. They run without the
// wrapper.
func TestAutoWrapLeavesLaunchersAlone(t *testing.T) {
	needRelease(t, "23.11")
	s := newSpanked(t, lab.Options{Nodes: 2, UTSNodes: true})
	s.plugstack("optional", "auto_wrap=1", "wrapper="+filepath.Join(s.Top, "mpirun-wrap"), "root="+s.First().Root)
	// Each rank prints the command lines of the processes above it.
	ancestors := `p=$$; while [ $p -gt 1 ]; do tr '\0' ' ' </proc/$p/cmdline; echo; p=$(awk '/^PPid/ {print $2}' /proc/$p/status); done`
	program := s.script(ancestors)
	job, output := s.batched("--mps", "--gres=gpu:1", "-N2", "--ntasks-per-node=2", s.script("mpirun.openmpi "+program))
	if job.Exit != 0 || strings.Count(output, "bash "+program) != 4 || !strings.Contains(output, "orted ") || strings.Contains(output, "mpirun-wrap") {
		t.Errorf("%+v: want four ranks, orted above two of them, and no mpirun-wrap\n%s\n%s", job, output, s.Log())
	}
	s.Quiet()
}

// ownOption is Slurm's variable for the option of our plugin.
const ownOption = "_SLURM_SPANK_OPTION_slurm_mps_mps"

// Names and values of any length and with any bytes, for the prolog and in the job's environment, drain no node and end
// no daemon of Slurm's beside our plugin. What comes to the policy as the option is one that it can use, or the ranks
// print why not.
//
// Contract: D1
func TestNamesOfSPANKVariables(t *testing.T) {
	s := newSpanked(t, lab.Options{})
	even, x := "MPS=share=even", func(n int) string { return strings.Repeat("x", n) }
	lengths := []string{even, "EMPTY=", "NEWLINE=a\nSLURM_JOB_UID=0\n", "EQUALS==a=b=",
		"=x", "=", "", "noequals", "a\nb=c", "\n=x", "é\xff\x01=x", "SPANK_=x"}
	for _, n := range []int{249, 250, 255, 256, 1017, 1018, 1023, 1024, 1025, 65000} {
		lengths = append(lengths, x(n)+"=x", fmt.Sprintf("V%d=%s", n, x(n)))
	}
	many := []string{even}
	for i := range 10000 {
		many = append(many, fmt.Sprintf("V%d=x", i))
	}
	const prefix = "_SLURM_SPANK_OPTION_"
	environment := []string{ownOption + "=" + x(5000), "SLURM_SPANK_" + ownOption + "=a\nb",
		"SPANK_" + ownOption + "=" + x(5000), prefix + x(900) + "=x"}
	if s.Release() >= "24.11" { // Debian's has the fix of September 2026
		// In older releases slurmstepd ends here, also without our plugin, and its job hangs.
		environment = append(environment, prefix+x(1010)+"=x", prefix+x(100000)+"=x")
	}
	for _, c := range []struct {
		name               string
		spank, environment []string
		want               string // of the output
	}{
		{"lengths and bytes", lengths, nil, "runs\n"},
		{"10,000 variables", many, many, "runs\n"},
		{"an option that the plugin would refuse", []string{even, "MPS=" + x(5000)}, nil, "5000 bytes, want at most 512"},
		{"an option of two lines", []string{"MPS=share=even\nshare=none"}, nil, `share is "even\nshare=none": want `},
		{"Slurm's variables for options", []string{even, ownOption + "=" + x(5000), prefix + x(2000) + "=x"},
			environment, "runs\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			script := filepath.Join(s.Top, "mpirun-wrap") + " echo runs\nsrun true && echo and a step\n"
			job := rawJob{script: "#!/bin/sh\n" + script, environment: c.environment, spank: c.spank, name: "names"}
			id, refused := s.rawSubmit(job)
			if refused != "" {
				t.Fatal(refused)
			}
			ended := s.Ended(id)
			if out := s.Output(id); !strings.Contains(out, c.want) || !strings.Contains(out, "and a step\n") {
				t.Errorf("%+v: want %q\n%s\n%s", ended, c.want, out, s.Log())
			}
		})
	}
	t.Run("commands", func(t *testing.T) {
		for _, value := range []string{x(5000), "a\nb", "", "(null)"} {
			line := []string{"-Q", "--mps=share=even", "--gres=gpu:1", filepath.Join(s.Top, "mpirun-wrap"), "echo", "runs"}
			srun := must.Get(s.Command(s.Ctx, s.User, "srun", line...))(t)
			for _, name := range []string{ownOption, "SLURM_SPANK_" + ownOption, "SPANK_MPS", "SLURM_SPANK_MPS"} {
				srun.Env = append(srun.Env, name+"="+value)
			}
			for _, n := range []int{900, 1024, 1025, 65000} {
				srun.Env = append(srun.Env, "SLURM_SPANK_"+x(n)+"=x", prefix+x(n)+"=x")
			}
			if out, err := srun.CombinedOutput(); err != nil || string(out) != "runs\n" {
				t.Errorf("%.20q: %v\n%.500s", value, err, out)
			}
		}
	})
	s.Quiet()
}
