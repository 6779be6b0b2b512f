// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// The chances are those of a printed table of Student's t.
func TestTail(t *testing.T) {
	for _, c := range []struct {
		t       float64
		degrees int
		want    float64
	}{
		{1, 1, 0.25}, {6.314, 1, 0.05}, {63.66, 1, 0.005},
		{2.920, 2, 0.05}, {9.925, 2, 0.005}, {2.353, 3, 0.05}, {10.215, 3, 0.001},
		{4.604, 4, 0.005}, {7.173, 4, 0.001}, {4.032, 5, 0.005}, {4.144, 10, 0.001},
		{2.845, 20, 0.005}, {0, 7, 0.5}, {math.Inf(1), 4, 0},
	} {
		if got := tail(c.t, c.degrees); math.Abs(got-c.want) > 0.002*c.want+1e-12 {
			t.Errorf("t %v, %d degrees: %v, want %v", c.t, c.degrees, got, c.want)
		}
	}
}

type noise func(r *rand.Rand, cell, at int) float64

// noises are models of the noise of a run, as factors of its rate. The index of the cell is that of the share, and at
// is the number of the run in the trial. A trial has its own source.
var noises = map[string]noise{
	"2 %":  func(r *rand.Rand, _, _ int) float64 { return 1 + 0.02*r.NormFloat64() },
	"10 %": func(r *rand.Rand, _, _ int) float64 { return math.Exp(0.1 * r.NormFloat64()) },
	"noisy without a cap": func(r *rand.Rand, c, _ int) float64 {
		return 1 + []float64{0.05, 0.001, 0.001, 0.001, 0.001}[c]*r.NormFloat64()
	},
	"noisy with the site's": func(r *rand.Rand, c, _ int) float64 {
		return 1 + []float64{0.001, 0.001, 0.001, 0.05, 0.001}[c]*r.NormFloat64()
	},
	"a slow run in eight": func(r *rand.Rand, _, _ int) float64 {
		f := 1 + 0.01*r.NormFloat64()
		if r.IntN(8) == 0 {
			f *= 0.8
		}
		return f
	},
	"5 % and slower with time": func(r *rand.Rand, _, at int) float64 {
		return (1 - 0.004*float64(at)) * math.Exp(0.05*r.NormFloat64())
	},
	"slower with time": func(r *rand.Rand, _, at int) float64 {
		return (1 - 0.004*float64(at)) * (1 + 0.005*r.NormFloat64())
	},
	"waves": func(r *rand.Rand, _, at int) float64 {
		return 1 + 0.05*math.Sin(float64(at)/3) + 0.005*r.NormFloat64()
	},
	"digits": func(r *rand.Rand, _, _ int) float64 { return math.Round(90+2*r.NormFloat64()) / 90 },
}

// trial makes the report of a trial on a program whose rate with each share is the given one, times the noise.
func trial(t *testing.T, seed uint64, repeats int, noise noise, rates [5]float64) report {
	return trialOf(mustRules(t, "none", "even", "overlap:1.5", "overlap:2", "overlap:3"), seed, repeats, noise, rates)
}

// trialOf is trial with the first of the rates for each rule. The site's share is overlap:2.
func trialOf(rules []policy.ShareRule, seed uint64, repeats int, noise noise, rates [5]float64) report {
	q := question{rules: rules, repeats: repeats}
	q.site = rules[slices.IndexFunc(rules, func(r policy.ShareRule) bool { return r.String() == "overlap:2" })]
	r := rand.New(rand.NewPCG(seed, 1))
	var samples []sample
	for range repeats {
		for _, i := range r.Perm(len(rules)) {
			samples = append(samples, sample{rule: rules[i], rate: rates[i] * noise(r, i, len(samples))})
		}
	}
	return newReport(q, samples)
}

// A program whose rate does not depend on the share has no winner: at most one in a hundred trials, with any noise.
// A thousand trials: the error rate stays below the one that the help states.
func TestNoFalseWinner(t *testing.T) {
	const many = 1000
	for name, noise := range noises {
		for _, repeats := range []int{2, 3, 5, 10} {
			t.Run(fmt.Sprintf("%s/%d", name, repeats), func(t *testing.T) {
				t.Parallel()
				first, all := 0, 0
				for seed := range uint64(many) {
					if trial(t, seed, repeats, noise, [5]float64{90, 90, 90, 90, 90}).Proved {
						all++
						if seed < 100 {
							first++
						}
					}
				}
				t.Logf("%d of %d", all, many)
				must.Hold(t, first <= 1 && float64(all) <= errorRate*many,
					"%d of 100 trials, %d of %d name a winner", first, all, many)
			})
		}
	}
}

// measuredSpreads returns the spreads of the rates that mps-tune measured on H200s (docs/measurements): for each program
// the standard deviation of the logarithm of a run's rate, by share, in the order of trial.
func measuredSpreads(t *testing.T) (all [][]float64) {
	files := must.Get(filepath.Glob("../../../docs/measurements/*-h200/tune.jsonl"))(t)
	for _, file := range files {
		content := must.Get(os.ReadFile(file))(t)
		for line := range strings.Lines(string(content)) {
			var measured struct {
				Tune struct{ Report report }
			}
			if err := json.Unmarshal([]byte(line), &measured); err != nil {
				t.Fatal(file, err)
			}
			var spreads []float64
			for _, w := range measured.Tune.Report.Rules {
				if w.Failed == "" && len(w.Rates) == 2 {
					spreads = append(spreads, math.Abs(math.Log(w.Rates[0]/w.Rates[1]))/math.Sqrt2)
				}
			}
			if len(spreads) == 5 {
				all = append(all, spreads)
			}
		}
	}
	return all
}

// No share wins if the noise is as measured on H200s: of the default trial (five shares, five times), and of a trial of
// the same share twice.
func TestNoFalseWinnerWithMeasuredNoise(t *testing.T) {
	const many = 10000
	programs := measuredSpreads(t)
	must.Have(t, len(programs) >= 20, "%d programs have the spreads of five shares", len(programs))
	for name, rules := range map[string][]policy.ShareRule{
		"default":    mustRules(t, "none", "even", "overlap:1.5", "overlap:2", "overlap:3"),
		"same share": mustRules(t, "overlap:2", "overlap:2.000001"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			won := 0
			for seed := range uint64(many) {
				spreads := programs[seed%uint64(len(programs))]
				noise := func(r *rand.Rand, cell, _ int) float64 { return math.Exp(spreads[cell] * r.NormFloat64()) }
				if name == "same share" {
					noise = func(r *rand.Rand, _, _ int) float64 { return math.Exp(spreads[3] * r.NormFloat64()) }
				}
				if trialOf(rules, seed, 5, noise, [5]float64{90, 90, 90, 90, 90}).Proved {
					won++
				}
			}
			t.Logf("%d of %d, with the spreads of %d programs", won, many, len(programs))
			must.Hold(t, float64(won) <= errorRate*many, "%d of %d trials name a winner", won, many)
		})
	}
}

// A share that is really faster is found, and the fastest of several.
func TestAWinnerIsFound(t *testing.T) {
	quiet := func(r *rand.Rand, _, _ int) float64 { return 1 + 0.01*r.NormFloat64() }
	for _, c := range []struct {
		gain    float64
		repeats int
		atLeast int
	}{{1.25, 3, 60}, {1.06, 5, 80}, {1.10, 5, 97}, {1.03, 10, 80}} {
		found := 0
		for seed := range uint64(100) {
			r := trial(t, seed, c.repeats, quiet, [5]float64{80, 90, 90, 90, 90 * c.gain})
			if r.Proved && r.Use == "overlap:3" {
				found++
			}
		}
		t.Logf("%+v: %d", c, found)
		must.Hold(t, found >= c.atLeast, "%+v: found in %d of 100 trials", c, found)
	}
}
