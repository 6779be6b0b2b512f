// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

var h200 = policy.GPU{SMs: 132, SMsPerTPC: 2}

func TestEveryRuleIsMeasuredAtEveryNumberOfRanks(t *testing.T) {
	keys := map[string]bool{}
	for _, batch := range batches {
		for _, c := range batch.cells(h200) {
			if keys[c.key()] {
				t.Errorf("%s is in the plan twice", c.key())
			}
			keys[c.key()] = true
		}
	}
	for _, n := range []int{1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 48} {
		for _, r := range record.Rules {
			if c := (cell{kind: "kernels", ranks: n, rule: r.Twin(h200, n), round: 1}); !keys[c.key()] {
				t.Errorf("%d ranks under %s: neither this nor its twin %s is in the plan", n, r.Name, c.rule.Name)
			}
		}
	}
}

func TestTwinsHaveTheSameSMs(t *testing.T) {
	for _, c := range []struct {
		rule  string
		ranks int
		twin  string
	}{
		{"time-slicing", 1, "time-slicing"}, {"even", 1, "uncapped"}, {"integer 100/n", 2, "even"}, {"overlap 2", 2, "uncapped"},
		{"integer 100/n", 3, "integer 100/n"}, {"integer 100/n", 4, "integer 100/n"}, {"integer 100/n", 24, "even"},
		{"overlap 1.5", 32, "even"}, {"overlap 2", 48, "even"}, {"overlap 3", 48, "overlap 3"},
	} {
		if got := record.FindRule(c.rule).Twin(h200, c.ranks).Name; got != c.twin {
			t.Errorf("%d ranks under %s have the twin %s, want %s", c.ranks, c.rule, got, c.twin)
		}
	}
	if got := record.FindRule("even").Shares(h200, 48); !slices.Equal(got, slices.Repeat([]int{8}, 48)) {
		t.Errorf("48 even shares are %v", got)
	}
}

// TestARunGoesOnWhereItStopped tests a run on the simulation, with the production binaries, real MPI ranks and a
// replacement for the kernels.
func TestARunGoesOnWhereItStopped(t *testing.T) {
	needsLab(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("/tmp", "gpubt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := settings{results: filepath.Join(dir, "results.jsonl"), minutes: 2, windows: 2, window: 0.05, warm: 0.05, gpus: 2,
		ranks: filepath.Join(dir, "ranks"), library: filepath.Join(dir, "spin.so")}
	compile(t, "mpicc.openmpi", "-O2", "-o", s.ranks, "ranks/ranks.c", "-ldl")
	compile(t, "gcc", "-shared", "-fPIC", "-O2", "-o", s.library, "ranks/spin.c", "-ldl")
	cells := []cell{}
	for _, name := range []string{"time-slicing", "uncapped", "even"} {
		cells = append(cells, cell{kind: "kernels", ranks: 2, rule: record.FindRule(name), round: 1, programs: "fma,halo"})
	}
	measureAll(ctx, t, s, dir, cells[:2])
	tear(t, s.results)
	measureAll(ctx, t, s, dir, cells)
	lines, err := record.Read(s.results)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cells {
		found := 0
		for _, line := range lines {
			if line.Key != c.key() {
				continue
			}
			found++
			if line.Failed != "" {
				t.Fatalf("%s failed: %s", line.Key, line.Failed)
			}
			want := c.rule.Shares(h200, 2)
			if want == nil {
				want = []int{132, 132}
			}
			if got := line.Throughput; !slices.Equal(got.SMs, want) || got.Check() != nil {
				t.Errorf("%s: %+v, want %v SMs", line.Key, got, want)
			}
		}
		if found != 2 {
			t.Errorf("%s has %d lines in the file, want one for each program", c.key(), found)
		}
	}
}

// measureAll makes one run. The run must not measure cells again that are in the file, and must leave nothing behind.
func measureAll(ctx context.Context, t *testing.T, s settings, dir string, cells []cell) {
	t.Helper()
	run, err := os.MkdirTemp(dir, "r")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(run, 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := newBench(ctx, s, run)
	if err != nil {
		t.Fatal(err)
	}
	err = sideBySide(b, cells, func(l *lane, c cell) error {
		return b.attempt(ctx, c.key(), 1, func(ctx context.Context) ([]record.Line, error) { return l.measure(ctx, c) })
	})
	if err != nil {
		t.Error(err)
	}
	if err := b.close(); err != nil {
		t.Error(err)
	}
}

// TestFailuresAreOnFileAndBounded checks that a failing cell is tried a second time, is recorded in the file, and
// does not affect other cells. A cell must not start if the remaining time is too short.
func TestFailuresAreOnFileAndBounded(t *testing.T) {
	b := &bench{settings: settings{results: filepath.Join(t.TempDir(), "results.jsonl")}, until: time.Now().Add(time.Minute)}
	calls := 0
	broken := func(context.Context) ([]record.Line, error) { calls++; return nil, errors.New("it broke") }
	for range 4 {
		if err := b.attempt(context.Background(), "broken", 1, broken); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.attempt(context.Background(), "too long", 90, broken); err != nil {
		t.Fatal(err)
	}
	lines, err := record.Read(b.results)
	if err != nil || calls != maxTries || len(lines) != maxTries || lines[0].Failed != "it broke" {
		t.Errorf("%d calls, %+v in the file, %v; want %d tries, each in the file", calls, lines, err, maxTries)
	}
}

// tear ends the file in the middle of a line, as a killed writer does that writes the file directly.
func tear(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(`{"key":"kernels/2/even/1","thr`)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

func compile(t *testing.T, args ...string) {
	t.Helper()
	if printed, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, printed)
	}
}

// needsLab skips a test if Slurm or MPI is missing, unless REQUIRE_LAB is set.
func needsLab(t *testing.T) {
	t.Helper()
	_, noSlurm := lab.Release(context.Background(), "")
	_, noMPI := exec.LookPath("mpicc.openmpi")
	err := errors.Join(noSlurm, noMPI)
	if os.Geteuid() != 0 {
		err = errors.New("it needs root")
	}
	if err != nil && os.Getenv("REQUIRE_LAB") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
}
