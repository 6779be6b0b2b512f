// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

func TestAFlagCountsBeforeItsVariable(t *testing.T) {
	o, err := ReadOptions(slurm.NewEnv([]string{"SLURM_MPS_SHARE=50%", "SLURM_MPS_GPU=block", "SLURM_MPS_DRY_RUN=1"}))
	if err != nil || o.Share.String() != "50%" || o.GPU != blockGPU || !o.DryRun || o.ShareFlag {
		t.Fatalf("%+v, %v", o, err)
	}
	must.OK(t, errors.Join(o.Set("share", "even"), o.Set("gpu", "block"), o.Set("dry-run", "false")))
	if o.Share.String() != "even" || o.GPU != blockGPU || o.DryRun || !o.ShareFlag {
		t.Errorf("%+v", o)
	}
}

// For every environment, the result is options with which a rank can be placed, or one printable line.
func FuzzReadOptions(f *testing.F) {
	for _, s := range Settings {
		f.Add(s.Variable(), "even", "1")
		f.Add(s.Variable(), "off", "3")
	}
	f.Add("SLURM_MPS_MEM", "8G", "x")
	f.Add("SLURM_MPS_SHARE", "3:1e-9\x1b", "70000")
	f.Fuzz(func(t *testing.T, name, value, rank string) {
		o, err := ReadOptions(slurm.Env{name: value, "SLURM_MPS_LOCAL_RANK": rank, "SLURM_MPS_LOCAL_SIZE": "2"})
		if err == nil {
			err = o.check()
		}
		switch {
		case err != nil && strings.ContainsAny(err.Error(), "\n\x00\x1b"):
			t.Errorf("an error that breaks a log: %q", err)
		case err == nil && !o.Off && (o.LocalRank < 0 || o.LocalSize > 0 && o.LocalRank >= o.LocalSize):
			t.Errorf("rank %d of %d is accepted", o.LocalRank, o.LocalSize)
		}
	})
}

// Every invalid value of an option, with its complete message: as a variable, and as a flag.
func TestBadOptions(t *testing.T) {
	const wantShare = "want none, even, overlap:F, PCT% or a list like 3:1"
	for _, c := range []struct{ variable, flag, value, want string }{
		{"SLURM_MPS_GPU", "gpu", "best", "want auto, block, cyclic, all or inherit"},
		{"SLURM_MPS_LOCAL_RANK", "local-rank", "-1", "want a whole number"},
		{"SLURM_MPS_REPORT", "report", "maybe", "want true or false"},
		{"SLURM_MPS_SHARE", "share", "0%", `want a percentage above 0 and up to 100, with at most six decimals, like 12.5%`},
		{"SLURM_MPS_SHARE", "share", "want ", wantShare},
		{"SLURM_MPS_SHARE", "share", "evn", wantShare + ": did you mean even?"},
		{"SLURM_MPS_SHARE", "share", "overlp:2", wantShare + ": did you mean overlap:2?"},
		{"SLURM_MPS_SHARE", "share", "60./app", wantShare +
			" (in a file for srun --multi-prog write 60pct, because Slurm replaces the percent sign)"},
		{"SLURM_MPS_SHARE", "share", "overlp", wantShare + ": did you mean overlap:2?"},
		{"SLURM_MPS_SHARE", "share", "overlap", wantShare + ": did you mean overlap:2?"},
		{"SLURM_MPS_GPU", "gpu", "inhrit", "want auto, block, cyclic, all or inherit: did you mean inherit?"},
		{"SLURM_MPS_MEM", "mem", "evne", "want none, even, or a size of whole MiB, like 8G or 16384M: did you mean even?"},
		{"SLURM_MPS_MEM", "mem", "8", "want none, even, or a size of whole MiB, like 8G or 16384M"},
	} {
		_, err := ReadOptions(slurm.Env{c.variable: c.value})
		if want := "cannot read " + c.variable + `: it is "` + c.value + `": ` + c.want; err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		var o Options
		err = o.Set(c.flag, c.value)
		if want := "cannot read --" + c.flag + `: it is "` + c.value + `": ` + c.want; err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if _, err := ReadOptions(slurm.Env{"SLURM_MPS": "no"}); err == nil || err.Error() != `cannot read SLURM_MPS: it is "no": want on or off` {
		t.Error(err)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{LocalRank: 4, LocalSize: 4}, "cannot place rank 4 of 4: --local-rank counts from 0 and is below --local-size"},
		{Options{LocalRank: 1}, "cannot place rank 1: --local-rank needs --local-size"},
	} {
		if err := c.o.check(); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// For 1 to 8 GPUs and 1 to 64 ranks, every rank is placed once. Cyclic and block placements agree on the ranks of
// each GPU. Even shares of a GPU add up to all of its SMs if each is at least the driver's minimum.
func TestEveryPlaceIsTakenOnce(t *testing.T) {
	for _, choice := range []choice{"", cyclicGPU, blockGPU} {
		for gpus := 1; gpus <= 8; gpus++ {
			for ranks := 1; ranks <= 64; ranks++ {
				if (ranks+gpus-1)/gpus > policy.Clients {
					continue // refused: a golden file shows the message
				}
				ticket := ticketOf(gpus, policy.ScopeGPU, 1)
				sums, beside, seen := make([]int, gpus), make([]int, gpus), make([]int, gpus)
				lowest, highest := make([]int, gpus), make([]int, gpus)
				for rank := range ranks {
					placement := must.Get(Place(ticket, Rank{Task: launch.Task{LocalRank: rank, LocalSize: ranks}, Options: Options{GPU: choice}}))(t)
					sums[placement.GPU] += placement.Share.SMs
					highest[placement.GPU] = max(highest[placement.GPU], placement.Share.SMs)
					if lowest[placement.GPU] == 0 || placement.Share.SMs < lowest[placement.GPU] {
						lowest[placement.GPU] = placement.Share.SMs
					}
					beside[placement.GPU] = placement.RanksOnGPU
					seen[placement.GPU]++
				}
				for gpu := range gpus {
					if highest[gpu]-lowest[gpu] > 2 {
						t.Fatalf("%s, %d GPUs, %d ranks: shares of GPU %d are %d to %d SMs", choice, gpus, ranks, gpu, lowest[gpu], highest[gpu])
					}
					if seen[gpu] > 0 && beside[gpu] != seen[gpu] {
						t.Fatalf("%s, %d GPUs, %d ranks: GPU %d has %d ranks, and they count %d", choice, gpus, ranks, gpu, seen[gpu], beside[gpu])
					}
					if n := seen[gpu]; n > 0 && n <= 132/policy.MinSMs && sums[gpu] != 132 {
						t.Fatalf("%s, %d GPUs, %d ranks: GPU %d gives %d SMs to %d ranks", choice, gpus, ranks, gpu, sums[gpu], n)
					}
				}
			}
		}
	}
}

// Whatever a rank requests, and however its GPUs are chosen, it gets at most the ceiling and at least the driver's
// minimum. CUDA's percentage gives exactly its SMs.
func TestNoPlacementIsAboveTheCeiling(t *testing.T) {
	h200 := policy.GPU{SMs: 132, SMsPerTPC: 2}
	for _, ceiling := range []float64{100, 50, 33.333334, 1} {
		highest := h200.SMsAt(policy.PercentFrom(ceiling))
		for _, rule := range []string{"none", "even", "overlap:1.5", "overlap:48", "60%", "100%"} {
			for _, choice := range []choice{autoGPU, blockGPU, cyclicGPU, allGPUs, inheritGPUs} {
				for gpus := 1; gpus <= 8; gpus++ {
					ticket := ticketOf(gpus, policy.ScopeJob, 2)
					ticket.Grant.Ceiling = ceiling
					for ranks := 1; ranks <= 64; ranks += 1 + ranks/8 {
						rank := Rank{Task: launch.Task{LocalRank: ranks - 1, LocalSize: ranks}, Options: Options{GPU: choice}}
						must.OK(t, rank.Options.Set("share", rule))
						placement, err := Place(ticket, rank)
						if err != nil {
							if ranks <= policy.Clients {
								t.Fatalf("%s of %d ranks on %d GPUs, %s: %v", rule, ranks, gpus, choice, err)
							}
							continue
						}
						percent, sms := placement.percent(), placement.Share.SMs
						if sms > highest || sms < policy.MinSMs || percent != 0 && h200.SMsAt(percent) != sms || percent == 0 && sms != min(highest, 132) {
							t.Fatalf("%s of %d ranks on %d GPUs, %s, ceiling %v: %d SMs, %v %%", rule, ranks, gpus, choice, ceiling, sms, percent)
						}
					}
				}
			}
		}
	}
}

func TestTwoLaunchesHaveTwoNames(t *testing.T) {
	parent := proc.Process{PID: 1, Start: 2}
	names := map[string]bool{}
	for _, name := range []string{
		launchID(slurm.Env{}, launch.Task{Source: launch.SourceStepd, StepID: "0"}, parent),
		launchID(slurm.Env{}, launch.Task{Source: launch.SourceStepd, StepID: "1"}, parent),
		launchID(slurm.Env{"PMIX_NAMESPACE": "../../etc"}, launch.Task{}, parent),
		launchID(slurm.Env{"OMPI_MCA_ess_base_jobid": "864944129"}, launch.Task{}, parent),
		launchID(slurm.Env{}, launch.Task{}, parent),
		launchID(slurm.Env{}, launch.Task{}, proc.Process{PID: 1, Start: 3}),
	} {
		if names[name] || strings.ContainsAny(name, "/ ") {
			t.Errorf("launch %q", name)
		}
		names[name] = true
	}
}

// docs/reference.md has a row for every setting, with its variable.
func TestTheSettingsAreDocumented(t *testing.T) {
	content := must.Get(os.ReadFile("../docs/reference.md"))(t)
	for _, s := range Settings {
		if !strings.Contains(string(content), "| `--"+s.Flag) || !strings.Contains(string(content), "`"+s.Variable()+"`") {
			t.Errorf("--%s or %s is not documented", s.Flag, s.Variable())
		}
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // root, GPU, report, version, program
		err  string
	}{
		{nil, `"" "" false false []`, ""},
		{[]string{"a", "--report"}, `"" "" false false ["a" "--report"]`, ""},
		{[]string{"--report", "-gpu", "block", "--root=/x", "a"}, `"/x" "block" true false ["a"]`, ""},
		{[]string{"--report=false", "--", "--gpu"}, `"" "" false false ["--gpu"]`, ""},
		{[]string{"--root", "--", "--version", "-"}, `"--" "" false true ["-"]`, ""},
		{[]string{"--root=a=b", ""}, `"a=b" "" false false [""]`, ""},
		{[]string{"-v", "a"}, `"" "" true false ["a"]`, ""},
		{[]string{"-h"}, "", "help is asked for"},
		{[]string{"--help", "--nonsense"}, "", "help is asked for"},
		{[]string{"--gpu"}, "", "cannot read flags: flag needs an argument: --gpu: see mpirun-wrap --help"},
		{[]string{"--nonsense=1"}, "", "cannot read flags: unknown flag: --nonsense: see mpirun-wrap --help"},
		{[]string{"--shar=even"}, "", "cannot read flags: unknown flag: --shar: did you mean --share?"},
		{[]string{"-dryrun"}, "", "cannot read flags: unknown flag: -dryrun: did you mean --dry-run?"},
		{[]string{"---gpu=block"}, "", "cannot read flags: unknown flag: ---gpu: did you mean --gpu?"},
		{[]string{"--=x"}, "", "cannot read flags: unknown flag: --: see mpirun-wrap --help"},
		{[]string{"--signals=pass"}, "", "cannot read flags: unknown flag: --signals: see mpirun-wrap --help"},
		{[]string{"--report=perhaps"}, "", `cannot read --report: it is "perhaps": want true or false`},
	} {
		var run run
		version, err := parseFlags(c.args, &run, Settings)
		got := fmt.Sprintf("%q %q %v %v %q", run.Paths.Root, run.Options.GPU, run.Options.Report, version, run.Program)
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || err.Error() != c.err) {
			t.Errorf("%q: %s, %v; want %s, %s", c.args, got, err, c.want, c.err)
		}
		if errors.Is(err, cli.ErrHelp) != (c.err == "help is asked for") {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}

// One of 49 processes prints, and the others return after it. A message with another name is printed too.
func TestPrintOnce(t *testing.T) {
	t.Parallel()
	var printed, early atomic.Int32
	var all sync.WaitGroup
	for rank := range 50 {
		all.Go(func() {
			name := fmt.Sprintf("%s %d %v", t.Name(), os.Getpid(), rank == 49)
			printOnce(name, func() { printed.Add(1) })
			if printed.Load() == 0 {
				early.Add(1)
			}
		})
	}
	all.Wait()
	if printed.Load() != 2 || early.Load() != 0 {
		t.Errorf("%d printed, %d returned before", printed.Load(), early.Load())
	}
}

// After a second, a message with the same name is printed again. The test is not parallel, because parallel tests
// would fork processes that hold the socket until their exec.
func TestPrintOnceAgain(t *testing.T) {
	for range 2 {
		printed := false
		printOnce(fmt.Sprintf("%s %d", t.Name(), os.Getpid()), func() { printed = true })
		if !printed {
			t.Error("not printed")
		}
	}
}
