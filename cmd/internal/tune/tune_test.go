// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/mpsctl"
	"github.com/slurm-mps/slurm-mps/policy"
)

// rules are read once; a test names them as users do.
func mustRules(t *testing.T, texts ...string) []policy.ShareRule {
	t.Helper()
	rules, err := readRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// A winner is named where the runs show one, and the site's rule where they do not.
func TestChoose(t *testing.T) {
	rules := mustRules(t, "none", "even", "overlap:2")
	for name, c := range map[string]struct {
		rates [3][]float64 // in the order of the rules; none for a rule that failed
		use   string
		why   string
	}{
		"one is far ahead":                        {[3][]float64{{10, 11, 12}, {20, 21, 22}, {15, 15, 15}}, "even", "it is faster than every other rule"},
		"ahead by little, and in every run":       {[3][]float64{{100, 100, 100}, {102, 102.5, 103}, {100, 100, 101}}, "even", "it is faster than every other rule"},
		"the site's rule is as good":              {[3][]float64{{10, 10, 10}, {20, 21, 22}, {20.5, 20.6, 21.5}}, "overlap:2", "the site's own rule; no difference was seen among even, overlap:2"},
		"noise, and the site's rule is far below": {[3][]float64{{20, 20.3, 25}, {20, 20.5, 21}, {10, 15, 30}}, "even", "no difference was seen among none, even"},
		"one run each proves little":              {[3][]float64{{100}, {101}, {100.5}}, "overlap:2", "the site's own rule; no difference was seen among none, even, overlap:2"},
		"the site's rule failed":                  {[3][]float64{{10, 10}, {12, 12}, nil}, "even", "it is faster than every other rule"},
		"all failed":                              {[3][]float64{}, "", "no rule could be run: the reasons are above"},
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
			r := newReport(question{rules: rules}, samples, "overlap:2")
			if r.Use != c.use || r.Why != c.why {
				t.Errorf("use %q: %s; want %q: %s", r.Use, r.Why, c.use, c.why)
			}
			text := r.text(mpsctl.Screen{Columns: 80})
			if strings.Contains(text, "\nuse: ") != (c.use != "") || strings.Contains(text, "failed: exit status 3") != (c.rates[2] == nil) {
				t.Errorf("the text is\n%s", text)
			}
		})
	}
}

// The last number counts, however long or broken the lines are.
func TestListener(t *testing.T) {
	pattern := regexp.MustCompile(`rate ([0-9.eE+]+)`)
	for said, want := range map[string]float64{
		"rate 1\nrate 2.5\nbye\n":                             2.5,
		"rate 1e3, rate 2e3":                                  2000,
		strings.Repeat("x", 3*maxLine) + "\nrate 7\n":         7,
		"rate 7\nrate 1.2.3\nrate 1e999\n":                    7,
		"rate 3\r\n\x1b[31mrate 4\x00\n" + "\n\n\n\nrate .\n": 4,
	} {
		l := &listener{pattern: pattern}
		l.listen(strings.NewReader(said))
		if got, ok := l.rate(); !ok || got != want {
			t.Errorf("%.40q: %v, %v, want %v", said, got, ok, want)
		}
	}
	l := &listener{pattern: pattern}
	l.listen(strings.NewReader("nothing \x1b[31m\n"))
	if _, ok := l.rate(); ok || l.last() != `"nothing \x1b[31m"` {
		t.Errorf("%s", l.last())
	}
}

// A program that fails under two rules fails under all, so the rest is not tried.
func TestMeasureStopsEarly(t *testing.T) {
	rules := mustRules(t, "none", "even", "overlap:2")
	for _, c := range []struct {
		script string
		rate   *regexp.Regexp
		want   string
	}{
		{"exit 3", nil, "exit status 3, and it printed nothing"},
		{"echo no; exit 3", nil, `exit status 3: "no"`},
		{"echo slow", regexp.MustCompile("rate ([0-9]+)"), `the pattern of --rate found no number within 1s; the last words are "slow"`},
	} {
		q := question{ranks: 1, rules: rules, repeats: 3, rate: c.rate, lasts: time.Second, limit: time.Minute, wrapper: []string{"sh", "-c", c.script}}
		var told []string
		_, err := q.measure(t.Context(), func(line string) { told = append(told, line) })
		if want := []string{"run 1 of 9, none: " + c.want, "run 2 of 9, even: " + c.want}; err == nil || !slices.Equal(told, want) {
			t.Errorf("%v, %q, want %q", err, told, want)
		}
	}
}
