// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// mustRules reads shares in the form in which users write them.
func mustRules(t *testing.T, texts ...string) []policy.ShareRule {
	t.Helper()
	rules := must.Get(readRules(texts))(t)
	return rules
}

// The report names another share than the site's only if the test proves it, or if the site's share fails.
func TestChoose(t *testing.T) {
	rules := mustRules(t, "none", "even", "overlap:2")
	const tie = "the site's own share, because no other is proved to be faster"
	for name, c := range map[string]struct {
		rates  [3][]float64 // in the order of the rules; none for a rule that failed
		use    string
		proved bool
		why    string
	}{
		"one is far ahead": {[3][]float64{{10, 11, 12, 11}, {20, 21, 22, 20}, {15, 15, 15, 15}},
			"even", true, "it is proved to be faster than the site's own share, overlap:2, by 37 %"},
		"ahead by little, and in every run": {[3][]float64{{100, 100, 100}, {102, 102.1, 102.2}, {100, 100, 100.1}},
			"even", true, "it is proved to be faster than the site's own share, overlap:2, by 2 %"},
		"ahead by less than is worth a flag":      {[3][]float64{{100, 100, 100}, {100.5, 100.5, 100.5}, {100, 100, 100}}, "overlap:2", false, tie},
		"the ranges overlap":                      {[3][]float64{{10, 10, 10}, {20, 21, 22}, {20.5, 20.6, 21.5}}, "overlap:2", false, tie},
		"ahead in the median, with noise":         {[3][]float64{{94, 80, 95, 94, 85}, {100, 90, 104, 99, 80}, {87, 86, 95, 90, 88}}, "overlap:2", false, tie},
		"noise, and the site's rule is far below": {[3][]float64{{20, 20.3, 25}, {20, 20.5, 21}, {10, 15, 30}}, "overlap:2", false, tie},
		"far ahead, but in one run each": {[3][]float64{{10}, {20}, {15}}, "overlap:2", false,
			"the site's own share: one run of each share proves nothing, so no share has won: --repeats 5 measures again"},
		"the site's rule failed": {[3][]float64{{10, 10}, {12, 12}, nil}, "even", false,
			"the site's own share failed, and this one was the fastest of the others"},
		"all failed": {[3][]float64{}, "", false, "no share could be run: the reasons are above"},
	} {
		t.Run(name, func(t *testing.T) {
			var samples []sample
			for i, rates := range c.rates {
				for _, rate := range rates {
					samples = append(samples, sample{rule: rules[i], rate: rate})
				}
				if rates == nil {
					samples = append(samples, sample{rule: rules[i], err: errors.New("exit status 3")})
				}
			}
			q := question{rules: rules, site: rules[2], line: []string{"srun", "-n4", "/usr/bin/mpirun-wrap", "./app", "it's"}}
			r := newReport(q, samples)
			must.Hold(t, r.Use == c.use && r.Proved == c.proved && r.Why == c.why,
				"use %q, proved %v: %s; want %q: %s", r.Use, r.Proved, r.Why, c.use, c.why)
			text := r.text(command.Screen{Columns: 80})
			flag := map[bool]string{true: " --share=" + c.use}[c.use != "overlap:2"]
			if use := "\nuse: srun -n4 /usr/bin/mpirun-wrap" + flag + ` ./app 'it'\''s'` + "\n"; strings.Contains(text, use) != (c.use != "") ||
				strings.Contains(text, "failed: exit status 3") != (c.rates[2] == nil) {
				t.Errorf("the text of the report is\n%s\nwant %s", text, use)
			}
		})
	}
}

// Without a wrapper in the command, the share is a variable, which TaskProlog obeys.
func TestCommandWithoutAWrapper(t *testing.T) {
	q := question{line: []string{"srun", "./app"}}
	if got, want := q.command("25%", "even"), "env SLURM_MPS_SHARE=25% srun ./app"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := q.command("even", "even"); got != "srun ./app" {
		t.Error(got)
	}
}

func TestCheck(t *testing.T) {
	good := question{rules: mustRules(t, "even"), repeats: 1, within: time.Minute}
	good.line = strings.Fields("srun mpirun-wrap -v ./app --share=own")
	must.Note(t, good.check())
	for want, change := range map[string]func(*question){
		"the command has a share of its own, --share=none: leave it out": func(q *question) { q.line = strings.Fields("srun mpirun-wrap -v --share=none ./app") },
		"own, -share=even: leave it out": func(q *question) {
			q.line = strings.Fields("mpirun-wrap --mem 8G -share=even ./app")
		},
		"there is nothing to compare":              func(q *question) { q.rules = nil },
		"cannot repeat 0 times":                    func(q *question) { q.repeats = 0 },
		"cannot end runs after 5s: without --rate": func(q *question) { q.lasts = 5 * time.Second },
		"cannot run for 1ms":                       func(q *question) { q.lasts, q.rate = time.Millisecond, regexp.MustCompile("(1)") },
		"cannot tune within 0s":                    func(q *question) { q.within = 0 },
	} {
		q := good
		if change(&q); q.check() == nil || !strings.Contains(q.check().Error(), want) {
			t.Errorf("%v, want %s", q.check(), want)
		}
	}
	for _, pattern := range []string{"speed", "(a)(b)", "("} {
		if _, err := readRate(pattern); err == nil || !strings.HasPrefix(err.Error(), "cannot read --rate ") {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

func TestUntilJobEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	for end, want := range map[string]time.Duration{"": time.Hour, "x": time.Hour, "9000": time.Hour, "1360": 5 * time.Minute, "1050": 0} {
		if got, err := untilJobEnds(time.Hour, end, now); got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %v, %v", end, got, err)
		}
	}
}

// The mean of the second half counts, even if lines are long, broken, or end with a carriage return.
func TestListener(t *testing.T) {
	pattern := regexp.MustCompile(`rate ([0-9.eE+]+)`)
	for said, want := range map[string]float64{
		"rate 1\nrate 2\nrate 5\nrate 7\nbye\n":               6,
		"rate 1\nrate 2\nrate 6\n":                            4,
		"rate 1e3, rate 2e3":                                  2000,
		strings.Repeat("x", 3*maxLine) + "\nrate 7\n":         7,
		"rate 7\nrate 1.2.3\nrate 1e999\nrate 0\n":            7,
		"rate 3\r\n\x1b[31mrate 4\x00\n" + "\n\n\n\nrate .\n": 4,
		"rate 3\rrate 5\r":                                    5,
	} {
		l := &listener{rate: pattern}
		w := l.stream(&l.out)
		_, _ = io.WriteString(w, said)
		w.Close()
		l.readers.Wait()
		if got, err := l.result(); err != nil || got != want {
			t.Errorf("%.40q: %v, %v, want %v", said, got, err, want)
		}
	}
}

// If the first run fails, the reason is printed once and nothing else is tried.
func TestMeasureStopsAtTheFirstFailure(t *testing.T) {
	rate := regexp.MustCompile("rate ([0-9]+)")
	for _, c := range []struct {
		script string
		rate   *regexp.Regexp
		want   string
	}{
		{"exit 3", nil, "exit status 3, and it printed nothing"},
		{"echo no; exit 3", nil, `exit status 3: "no"`},
		{"echo a >&2; echo why >&2; echo out; exit 3", nil, `exit status 3: "why"`},
		{"echo slow", rate, `--rate found no number; the last line of stdout is "slow": correct the pattern, or give a longer --seconds`},
		{"echo slow; exec sleep 9", rate, `--rate found no number; the last line of stdout is "slow": correct the pattern, or give a longer --seconds`},
	} {
		q := question{rules: mustRules(t, "none", "even"), repeats: 3, rate: c.rate, lasts: 0, within: time.Minute, line: []string{"sh", "-c", c.script}}
		if c.rate != nil {
			q.lasts = time.Second
		}
		var out bytes.Buffer
		_, err := q.measure(t.Context(), &out)
		if want := "cannot tune: the first run failed (none): " + c.want; err == nil || err.Error() != want || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%v, told %q, want %s", err, out.String(), want)
		}
	}
}

// Numbers of ranks that print one each are a rate, and the first line tells which of them count.
func TestMeasureTakesOneNumberOfEachRank(t *testing.T) {
	q := question{rules: mustRules(t, "none", "even"), repeats: 1, within: time.Minute,
		rate: regexp.MustCompile("rate ([0-9]+)"), line: []string{"sh", "-c", "for n in 1 2 4 6; do echo rate $n; done"}}
	var out bytes.Buffer
	samples, err := q.measure(t.Context(), &out)
	const want = "\nnone: 5, the mean of the last 2 of 4 numbers, to warm up: it does not count\n"
	if err != nil || len(samples) != 2 || samples[0].rate != 5 || !strings.Contains(out.String(), want) {
		t.Errorf("%+v, %v, %q, want %q", samples, err, out.String(), want)
	}
}

// A share that fails later is not tried again, and the others go on. The number of runs is printed first.
func TestMeasureGoesOn(t *testing.T) {
	q := question{rules: mustRules(t, "none", "even", "25%"), repeats: 2, within: time.Minute, site: mustRules(t, "none")[0],
		line: []string{"sh", "-c", `[ $SLURM_MPS_SHARE = even ] && exit 3; sleep 0.05`}}
	var out bytes.Buffer
	samples, err := q.measure(t.Context(), &out)
	if err != nil || len(samples) != 5 || !strings.HasPrefix(out.String(), "7 runs: 3 shares, 2 times each, and one to warm up; 1m0s at most (--within)\n") {
		t.Fatalf("%d samples, %q, %v", len(samples), out.String(), err)
	}
	for _, s := range samples {
		failed := s.rule == q.rules[1]
		must.Hold(t, (s.err != nil) == failed && (failed || s.rate > 0 && s.rate <= 3600/0.05), "%+v", s)
	}
	if r := newReport(q, samples); !slices.ContainsFunc(r.Rules, func(w row) bool { return w.Failed == "exit status 3, and it printed nothing" }) {
		t.Errorf("%+v", r)
	}
}

// When the time is over, the runs that have ended count. The run that was interrupted does not count.
func TestMeasureEndsInTime(t *testing.T) {
	q := question{rules: mustRules(t, "none", "even"), repeats: 1, within: time.Second,
		line: []string{"sh", "-c", "[ $SLURM_MPS_SHARE = none ] || exec sleep 60"}}
	began := time.Now()
	samples, err := q.measure(t.Context(), io.Discard)
	if err != nil || len(samples) > 1 || time.Since(began) > 20*time.Second {
		t.Errorf("%v, %v, %v", samples, err, time.Since(began))
	}
	q.line, q.within = []string{"sh", "-c", "exec sleep 60"}, 50*time.Millisecond
	if _, err := q.measure(t.Context(), io.Discard); err == nil || !strings.HasPrefix(err.Error(), "cannot tune: the first run did not end within 50ms: ") {
		t.Error(err)
	}
}

// A run with --seconds ends the command with all its processes, and its rate counts, whatever its exit code is.
func TestMeasureEndsTheCommand(t *testing.T) {
	q := question{rules: mustRules(t, "none", "even"), repeats: 1, within: time.Minute, lasts: time.Second, rate: regexp.MustCompile("rate ([0-9]+)"),
		line: []string{"sh", "-c", "(trap 'exit 4' TERM; while :; do echo rate 7; sleep 0.1; done) & wait; exit 5"}}
	samples, err := q.measure(t.Context(), io.Discard)
	must.Hold(t, err == nil && len(samples) == 2 && samples[0].err == nil && samples[0].rate == 7, "%+v, %v", samples, err)
}
