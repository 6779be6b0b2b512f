// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// mustRules reads shares in the form in which users write them.
func mustRules(t *testing.T, texts ...string) []policy.ShareRule {
	t.Helper()
	rules, err := readRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// h200 returns a ticket of a job with this number of GPUs. The job's share is overlap:2.
func h200(gpus int) lease.Ticket {
	device := lease.TicketDevice{Device: site.Device{Name: "NVIDIA H200"}}
	return lease.Ticket{
		Grant: policy.Grant{Share: policy.ShareEven, Overlap: 2, MaxClients: 48}, Devices: slices.Repeat([]lease.TicketDevice{device}, gpus),
	}
}

func mustRate(t *testing.T, text string) *rate {
	t.Helper()
	r, err := readRate(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
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
			"the site's own share, because one run of each proves nothing: --repeats 5 measures again"},
		"the site's rule failed": {[3][]float64{{10, 10}, {12, 12}, nil}, "even", false,
			"the site's own share failed, and this one was the fastest of the others"},
		"all failed": {[3][]float64{}, "", false, "no share could be run: the reasons are above"},
	} {
		t.Run(name, func(t *testing.T) {
			var samples []sample
			for i, rates := range c.rates {
				for _, rate := range rates {
					samples = append(samples, sample{cell: cell{rule: rules[i]}, rate: rate})
				}
				if rates == nil {
					samples = append(samples, sample{cell: cell{rule: rules[i]}, err: errors.New("exit status 3")})
				}
			}
			q := question{counts: []int{unknown}, rules: rules, launcher: []string{"srun", "-n4"}, program: []string{"./app"}, name: "app", nodes: 1}
			r := newReport(q, samples, h200(1))
			if r.Use != c.use || r.Proved != c.proved || r.Why != c.why {
				t.Errorf("use %q, proved %v: %s; want %q: %s", r.Use, r.Proved, r.Why, c.use, c.why)
			}
			saves := c.proved || c.rates[2] == nil && c.use != ""
			if entries := q.entries(r); (len(entries) == 1) != saves {
				t.Errorf("%v is saved", entries)
			}
			text := r.text(command.Screen{Columns: 80})
			if strings.Contains(text, "\nuse: srun -n4 mpirun-wrap ") != (c.use != "") || strings.Contains(text, "failed: exit status 3") != (c.rates[2] == nil) {
				t.Errorf("the text of the report is\n%s", text)
			}
		})
	}
}

// measured returns a question with two numbers of ranks, and its samples. One cell has failed, and one was not run.
func measured(t *testing.T) (question, []sample) {
	t.Helper()
	rules := mustRules(t, "even", "overlap:2", "none")
	q := question{
		counts: []int{4, 8}, rules: rules, repeats: 3, rate: mustRate(t, `<b>([0-9]+)`), nodes: 1, name: "./app",
		program: []string{"./app", "<script>alert(1)</script>", "it's"},
	}
	var samples []sample
	for i, rates := range [][]float64{{16, 16.1, 16.2}, {13, 13, 13.1}, {9}, {20, 21, 22}, {30, 31.5, 33}} {
		for _, rate := range rates {
			samples = append(samples, sample{cell: q.cells()[i], rate: rate})
		}
	}
	samples[6].err = errors.New(`exit status 3: "<no memory> & more"`)
	return q, samples
}

// The table has a row for each cell, and the sentences below name the best.
func TestTheReport(t *testing.T) {
	q, samples := measured(t)
	r := newReport(q, samples, h200(2))
	golden.Compare(t, "testdata/report.txt", r.text(command.Screen{Columns: 80}))
}

// A share that is proved to be faster is saved, by the number of ranks on a GPU. A tie is not saved.
func TestEntries(t *testing.T) {
	q, samples := measured(t)
	var lines []string
	for _, e := range q.entries(newReport(q, samples, h200(2))) {
		lines = append(lines, e.String())
	}
	if want := []string{"app 2 H200 even"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	q.launcher, q.nodes, q.name = []string{"srun", "-n" + ranksMark}, 2, "x"
	r := newReport(q, samples, h200(1))
	if e := q.entries(r); len(e) != 1 || e[0].String() != "x 2 H200 even" {
		t.Errorf("%v", e)
	}
	if want := `srun -n8 mpirun-wrap ./app '<script>alert(1)</script>' 'it'\''s'`; r.Command != want {
		t.Errorf("%s, want %s", r.Command, want)
	}
}

// The numbers of ranks are those of --ranks, or follow from the job's tasks. None is larger than the GPUs allow.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		asked    []int
		launcher string
		tasks    string
		want     []int
		err      string
	}{
		{[]int{8, 4, 8}, "", "", []int{4, 8}, ""},
		{nil, "", "16", []int{4, 8, 16}, ""},
		{nil, "", "3(x2)", []int{1, 3}, ""},
		{nil, "", "200", []int{24, 48, 96}, ""},
		{nil, "srun -n{ranks}", "4(x2)", []int{2, 4, 8}, ""},
		{nil, "srun -n8", "", []int{unknown}, ""},
		{nil, "", "1", nil, "give --ranks, like --ranks=2,4,8"},
		{nil, "", "", nil, "give --ranks, like --ranks=2,4,8"},
		{[]int{4, 97}, "", "", nil, "cannot tune 97 ranks: the GPUs of this job take 96: give --ranks 96 or less"},
	} {
		q := question{counts: c.asked, launcher: strings.Fields(c.launcher), nodes: 1}
		if strings.Contains(c.tasks, "x") && c.launcher != "" {
			q.nodes = 2
		}
		got, err := q.numbers(slurm.Env{"SLURM_TASKS_PER_NODE": c.tasks}, 96*q.onNodes())
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: %v, %v", c, got, err)
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

// The last number counts, even if lines are long, broken, or end with a carriage return.
func TestListener(t *testing.T) {
	pattern := mustRate(t, `rate ([0-9.eE+]+)`)
	for said, want := range map[string]float64{
		"rate 1\nrate 2.5\nbye\n":                             2.5,
		"rate 1e3, rate 2e3":                                  2000,
		strings.Repeat("x", 3*maxLine) + "\nrate 7\n":         7,
		"rate 7\nrate 1.2.3\nrate 1e999\n":                    7,
		"rate 3\r\n\x1b[31mrate 4\x00\n" + "\n\n\n\nrate .\n": 4,
		"rate 3\rrate 5\r":                                    5,
	} {
		l := &listener{rate: pattern}
		l.listen(strings.NewReader(said), false)
		if l.count == 0 || l.total(false) != want {
			t.Errorf("%.40q: %v, want %v", said, l.found, want)
		}
	}
	l := &listener{rate: pattern, keep: 2}
	l.listen(strings.NewReader("nothing\n"), false)
	if l.count != 0 || l.why() != "nothing" {
		t.Errorf("%+v", l)
	}
	l.listen(strings.NewReader("a\nb\rc\n"), true)
	l.listen(strings.NewReader("more\n"), false)
	if l.why() != "b\nc" || l.last != "more" {
		t.Errorf("%+v", l)
	}
}

// The labels of a launcher say which rank has printed a rate. The last rates of all ranks are added up.
func TestLabels(t *testing.T) {
	for _, c := range []struct {
		launcher, said string
		sum, last      float64
		ranks          int
	}{
		{"srun -n2", "0: rate 1\n1: rate 2\n0: rate 3\n", 5, 3, 2},
		{"srun -n12", " 0: rate 1\n11: rate 2\r20: rate 4\n", 5, 4, 2},
		{"timeout 60 /usr/bin/srun -n2", "0: start\n0: rate 7\n1: start\n", 7, 7, 1},
		{"mpirun -np 2", "[1,0]<stdout>:rate 1\rrate 2\n[1,1]<stderr>:rate 5 [1,0]<stdout>:rate 3\n", 8, 3, 2},
		{"mpiexec -n 2", "rate 1\nrate 2\n", 2, 2, 0},
		{"./launch.sh", "0: rate 1\n1: rate 2\n", 2, 2, 0},
		{"srun -n2", "99999999999999999999: rate 1\n", 1, 1, 0},
	} {
		l := &listener{rate: mustRate(t, "rate ([0-9]+)"), labels: labelsOf(strings.Fields(c.launcher))}
		l.listen(strings.NewReader(c.said), false)
		if l.total(false) != c.sum || l.total(true) != c.last || l.ranks() != c.ranks {
			t.Errorf("%s, %q: %v of %d ranks, last %v; want %+v", c.launcher, c.said, l.total(false), l.ranks(), l.total(true), c)
		}
	}
}

// If the first run fails, the reason is printed once and nothing else is tried.
func TestMeasureStopsAtTheFirstFailure(t *testing.T) {
	took := regexp.MustCompile(`after [0-9.]+m?s`)
	rules := mustRules(t, "none", "even", "overlap:2")
	for _, c := range []struct {
		script string
		rate   *rate
		want   string
	}{
		{"exit 3", nil, "exit status 3, and it printed nothing"},
		{"echo no; exit 3", nil, `exit status 3: "no"`},
		{"echo a >&2; echo why >&2; echo out; exit 3", nil, `exit status 3: "why"`},
		{"echo slow", mustRate(t, "rate ([0-9]+)"),
			`--rate "rate ([0-9]+)" found no number before the program ended after TIME; the last line of stdout is "slow": correct the pattern`},
		{"echo slow; exec sleep 9", mustRate(t, "rate ([0-9]+)"),
			`--rate "rate ([0-9]+)" found no number within 1s; the last line of stdout is "slow": correct the pattern, or give a longer --seconds`},
	} {
		q := question{
			counts: []int{2, 4}, rules: rules, repeats: 3, rate: c.rate, lasts: time.Second, limit: time.Minute, within: time.Minute,
			wrapper: []string{"sh", "-c", c.script},
		}
		var out bytes.Buffer
		_, err := q.measure(t.Context(), &out)
		told := strings.Count(out.String(), "\n")
		if want := "cannot tune: the first run failed (2 ranks, none): " + c.want; err == nil ||
			took.ReplaceAllString(err.Error(), "after TIME") != want || told != 1 {
			t.Errorf("%v, told %d lines, want %s", err, told, want)
		}
	}
}

// A cell that fails later is not tried again, and the other cells go on. The rate counts all copies. The plan is
// printed first.
func TestMeasureGoesOn(t *testing.T) {
	q := question{
		counts: []int{1, 2}, rules: mustRules(t, "none", "even"), repeats: 2, limit: time.Minute, within: time.Minute,
		wrapper: []string{"sh", "-c", `[ "$4" = 2 ] && [ $SLURM_MPS_SHARE = even ] && exit 3; sleep 0.2`, "sh"},
	}
	var out bytes.Buffer
	samples, err := q.measure(t.Context(), &out)
	told := strings.Split(out.String(), "\n")
	if err != nil || len(samples) != 7 ||
		told[0] != "9 runs: 1, 2 ranks × 2 shares × 2 times and one to warm up, each until the program ends: at most 1m0s (--within)" {
		t.Fatalf("%d samples, %q, %v", len(samples), told, err)
	}
	for _, s := range samples {
		failed := s.ranks == 2 && s.rule == q.rules[1]
		if (s.err != nil) != failed || !failed && (s.rate <= 0 || s.rate > float64(s.ranks)*3600/0.2) {
			t.Errorf("%+v", s)
		}
	}
}

// When the time is over, the runs that have ended count. The run that was interrupted does not count.
func TestMeasureEndsInTime(t *testing.T) {
	q := question{
		counts: []int{1}, rules: mustRules(t, "none", "even"), repeats: 1, limit: time.Minute, within: time.Second,
		wrapper: []string{"sh", "-c", "[ $SLURM_MPS_SHARE = none ] || exec sleep 60"},
	}
	began := time.Now()
	samples, err := q.measure(t.Context(), io.Discard)
	if err != nil || len(samples) > 1 || time.Since(began) > 20*time.Second {
		t.Errorf("%v, %v, %v", samples, err, time.Since(began))
	}
	q.wrapper = []string{"sh", "-c", "exec sleep 60"}
	if _, err := q.measure(t.Context(), io.Discard); err == nil || !strings.HasPrefix(err.Error(), "cannot tune: the first run did not end within 1s: ") {
		t.Error(err)
	}
}

// Each line has the time that is left, which is not more than --within.
func TestProgress(t *testing.T) {
	q := question{counts: []int{4}, rules: mustRules(t, "none", "even"), repeats: 2, within: time.Hour}
	first := q.cells()[0]
	for within, want := range map[time.Duration]string{time.Hour: "2m0s", time.Minute: "1m0s", 0: "0s"} {
		var out bytes.Buffer
		q.within = within
		p := newProgress(&out, q)
		p.did(sample{cell: first, rate: 7.5}, 30*time.Second)
		line := "run 1 of 5, 4 ranks, none: 7.5 runs/h (to warm up: it does not count); about " + want + " left\n"
		if out.String() != line {
			t.Errorf("%q, want %q", out.String(), line)
		}
		p.did(sample{cell: first, err: errors.New("no")}, 30*time.Second)
		if !strings.Contains(out.String(), "\nrun 2 of 5, 4 ranks, none: failed; about ") {
			t.Errorf("%q", out.String())
		}
	}
}

// A program that prints its rate only at its end is not ended before, and its run has a bound.
func TestMeasureWaitsForTheEnd(t *testing.T) {
	q := question{
		counts: []int{2}, rules: mustRules(t, "none", "even"), repeats: 1, limit: time.Minute, within: time.Minute,
		rate: mustRate(t, "gromacs"), lasts: 100 * time.Millisecond,
		wrapper: []string{"sh", "-c", "sleep 0.5; echo 'Performance:      446.590        0.054' >&2"},
	}
	samples, err := q.measure(t.Context(), io.Discard)
	if err != nil || len(samples) != 2 || samples[0].err != nil || samples[0].rate != 2*446.59 {
		t.Errorf("%+v, %v", samples, err)
	}
	q.limit, q.wrapper = time.Second, []string{"sh", "-c", "exec sleep 60"}
	want := "cannot tune: the first run failed (2 ranks, none): it did not end within 1s: give a shorter input"
	if _, err := q.measure(t.Context(), io.Discard); !strings.HasPrefix(fmt.Sprint(err), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// Open MPI labels the ranks if the variable asks for it, so four ranks count more than two. --one-rate takes the last.
func TestOpenMPILabels(t *testing.T) {
	version, err := exec.Command("mpirun", "--version").Output()
	if err != nil || !strings.Contains(string(version), "Open MPI) 4.") {
		t.Skip("needs mpirun of Open MPI 4")
	}
	q := question{
		counts: []int{2, 4}, rules: mustRules(t, "none"), repeats: 1, limit: time.Minute, within: time.Minute,
		rate: mustRate(t, "rate ([0-9]+)"), lasts: 30 * time.Second, launcher: []string{"mpirun", "--oversubscribe", "-np", ranksMark},
		wrapper: []string{"sh", "-c", `printf 'rate 1\rrate 3\r'; echo; echo why >&2`},
		env:     append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
	}
	for _, one := range []bool{false, true} {
		q.oneRate = one
		samples, err := q.measure(t.Context(), io.Discard)
		if err != nil || len(samples) != 2 {
			t.Fatalf("%+v, %v", samples, err)
		}
		for _, s := range samples {
			if want := map[bool]int{false: 3 * s.ranks, true: 3}[one]; s.err != nil || s.rate != float64(want) || s.printed != s.ranks {
				t.Errorf("%+v, want %d", s, want)
			}
		}
	}
}

// The packages install mps-tune as a link to sbin/mpsctl, and mpirun-wrap in bin. The tests have all in one folder.
func TestWrappers(t *testing.T) {
	want := []string{"/opt/mps/sbin/mpirun-wrap", "/opt/mps/bin/mpirun-wrap", "/usr/bin/mpirun-wrap"}
	if got := wrappers("/opt/mps/sbin/mpsctl", nil); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := wrappers("", errors.New("no /proc")); !slices.Equal(got, want[2:]) {
		t.Errorf("without /proc: got %q, want %q", got, want[2:])
	}
}
