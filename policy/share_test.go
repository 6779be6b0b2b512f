// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestParseShare(t *testing.T) {
	for given, want := range map[string]string{
		"none": "none", "even": "even",
		"overlap:1": "overlap:1", "overlap:2.50": "overlap:2.5", "overlap:48": "overlap:48",
		"3:1": "3:1", "3,1": "3:1", "0.000001:1000000": "0.000001:1000000", "1.50:1:1": "1.5:1:1",
		"70%,30%": "70%,30%", "70%:30%": "70%,30%", "70pct,20pct": "70%,20%", "99.999999%,0.000001%": "99.999999%,0.000001%",
		"60%": "60%", "33.333334%": "33.333334%", "100%": "100%", "0.000001%": "0.000001%",
		"60pct": "60%", "12.5pct": "12.5%", // Slurm's --multi-prog uses % itself
	} {
		rule, err := ParseShare(given)
		must.Hold(t, err == nil && rule.String() == want, "%q is read as %q, %v, want %q", given, rule, err, want)
		if again, err := ParseShare(rule.String()); err != nil || again != rule {
			t.Errorf("%q reads back as %q, %v", rule, again, err)
		}
	}
}

func TestParseShareRefuses(t *testing.T) {
	const (
		rule    = "want none, even, overlap:F, PCT% or a list like 3:1"
		list    = "want a list of at most 60 ratios, like 3:1, or of percentages, like 70%,30%, each above 0 and with at most six decimals"
		factor  = "want a factor from 1 to 48, with at most six decimals, like overlap:2"
		percent = "want a percentage above 0 and up to 100, with at most six decimals, like 12.5%"
		unit    = "want a unit behind the number, like 25%"
	)
	for given, want := range map[string]string{
		"": rule, "Even": rule, "even ": rule, "2": unit, "12.5": unit, "-2": rule, "2.": rule, "overlap": rule, "overlap=2": rule, "half": rule, "25 ": rule,
		"overlap:": factor, "overlap:0.999999": factor, "overlap:48.000001": factor, "overlap:x": factor, "overlap:-2": factor,
		"overlap:1e1": factor, "overlap:2.": factor, "overlap:2.0000001": factor, "overlap:0x2": factor, "overlap:+2": factor,
		"overlap:NaN": factor, "overlap:Inf": factor, "overlap:1.-5": factor, "overlap:1.2.3": factor,
		"3:": list, "3:0": list, "3::1": list, "3:1%": list, "70%,30": list, "3:x": list, "1:1000001": list, "3:-1": list, "3 : 1": list,
		strings.Repeat("1:", 60) + "1": list, "60%,50%": "it adds up to 110 %: want at most 100 %",
		"0%": percent, "100.000001%": percent, "%": percent, "101%": percent, "-5%": percent, "12,5%": list, "33.3333334%": percent, "1_0%": percent, "pct": percent, "0pct": percent, "5%pct": percent,
		"0sm": rule, "20sm": rule, "sm": rule,
	} {
		r, err := ParseShare(given)
		if want := fmt.Sprintf("cannot read share %q: %s", given, want); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		must.Equal(t, fmt.Sprintf("%q leaves the rule", given), r, ShareRule{})
	}
}

func FuzzParseShare(f *testing.F) {
	for _, seed := range []string{"none", "even", "overlap:2", "3:1", "70%,30%", "33.333334%", "%", "sm", "overlap:1.-5"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		rule, err := ParseShare(s)
		if err != nil {
			return
		}
		if again, err := ParseShare(rule.String()); err != nil || again != rule {
			t.Errorf("%q is read as %q, which reads back as %q, %v", s, rule, again, err)
		}
		ranks := max(rule.List(), 2)
		if shares, err := SplitSMs(h200, rule, ranks, 100*one); err == nil {
			checkShares(t, h200, rule, ranks, 100*one, shares)
		}
	})
}

func mustRule(t testing.TB, text string) ShareRule { return mustRules(t, text)[0] }

func mustRules(t testing.TB, text string) []ShareRule {
	t.Helper()
	var rules []ShareRule
	for word := range strings.FieldsSeq(text) {
		rule := must.Get(ParseShare(word))(t)
		rules = append(rules, rule)
	}
	return rules
}

func written(shares []Share) string {
	var words []string
	for _, s := range shares {
		percent, _ := s.Percent.MarshalJSON()
		words = append(words, fmt.Sprintf("%d/%s", s.SMs, percent))
	}
	return strings.Join(words, " ")
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name, rule string
		ranks      int
		ceiling    Percent
		want       string
	}{
		{"by ratio", "2:1", 2, 100 * one, "88/66.666667 44/33.333334"},
		{"the order of the ranks is the list's", "1:2", 2, 100 * one, "44/33.333334 88/66.666667"},
		{"a list of equal ratios is even", "7:7:7", 3, 100 * one, "44/33.333334 44/33.333334 44/33.333334"},
		{"the largest remainder", "1:1.2:1", 3, 100 * one, "42/31.818182 50/37.878788 40/30.303031"},
		{"ties to the first", "1:1:1:1", 4, 100 * one, "34/25.757576 34/25.757576 32/24.242425 32/24.242425"},
		{"a ratio below the driver's minimum is raised, the others divide the rest", "10:0.1", 2, 100 * one, "124/93.939394 8/6.060607"},
		{"raising one raises the next", "20:1.4:0.1", 3, 100 * one, "116/87.878788 8/6.060607 8/6.060607"},
		{"percentages add up to the GPU", "70%,30%", 2, 100 * one, "92/69.696970 40/30.303031"},
		{"percentages of less than the GPU", "50%,10%", 2, 100 * one, "66/50 12/9.090910"},
		{"a percentage below the driver's minimum", "99%,1%", 2, 100 * one, "124/93.939394 8/6.060607"},
		{"a list under a ceiling", "3:1", 2, 50 * one, "66/50 32/24.242425"},
		{"one rank has all", "even", 1, 100 * one, "132/null"},
		{"overlap above the GPU is the GPU", "overlap:4", 2, 100 * one, "132/null 132/null"},
		{"overlap of a half", "overlap:1.5", 4, 100 * one, "50/37.878788 50/37.878788 50/37.878788 48/36.363637"},
		{"none", "none", 2, 100 * one, "132/null 132/null"},
		{"none under a ceiling", "none", 2, 30 * one, "38/28.787879 38/28.787879"},
		{"a percentage under a ceiling", "90%", 2, 50 * one, "66/50 66/50"},
		{"a share below the driver's minimum is raised", "1%", 1, 100 * one, "8/6.060607"},
		{"the whole GPU needs no percentage", "100%", 1, 100 * one, "132/null"},
		{"percentages of more than the GPU", "80%", 2, 100 * one, "104/78.787879 104/78.787879"},
		{"a ceiling below the driver's minimum gives the minimum", "even", 2, 1 * one, "8/6.060607 8/6.060607"},
	} {
		t.Run(c.name, func(t *testing.T) {
			shares := must.Get(SplitSMs(h200, mustRule(t, c.rule), c.ranks, c.ceiling))(t)
			want := shortest(c.want)
			if got := written(shares); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// shortest removes zeros at the end of a percentage.
func shortest(want string) string {
	words := strings.Fields(want)
	for i, w := range words {
		if strings.Contains(w, ".") {
			words[i] = strings.TrimRight(w, "0")
		}
	}
	return strings.Join(words, " ")
}

func TestSplitRefuses(t *testing.T) {
	half := GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 2)}
	for _, c := range []struct {
		gpu     GPU
		rule    string
		ranks   int
		ceiling Percent
		want    string
	}{
		{GPU{SMs: 0, SMsPerTPC: 2}, "even", 1, 100 * one, "cannot divide GPU of 0 SMs in units of 2"},
		{GPU{SMs: 1, SMsPerTPC: 2}, "even", 1, 100 * one, "cannot divide GPU of 1 SMs in units of 2"},
		{h200, "even", 0, 100 * one, "cannot divide GPU among 0 ranks"},
		{h200, "even", -1, 100 * one, "cannot divide GPU among 0 ranks"},
		{h200, "even", 1, 0, "cannot divide GPU under a ceiling of 0 %: want above 0 and up to 100"},
		{h200, "even", 1, 100*one + 1, "cannot divide GPU under a ceiling of 100.000001 %: want above 0 and up to 100"},
		{h200, "", 2, 100 * one, "cannot divide GPU among 2 ranks: there is no rule"},
		{h200, "3:1", 3, 100 * one, "cannot give share 3:1: the list is for 2 ranks on a GPU, and this GPU has 3: give as many entries as ranks"},
		{h200, "50%,30%,20%", 2, 100 * one, "cannot give share 50%,30%,20%: the list is for 3 ranks on a GPU, and this GPU has 2: give as many entries as ranks"},
		{half, "70%,30%", 2, 100 * one, "cannot give share 70%,30%: it adds up to 100 % of the GPU, and the job's part of the GPU is 50 %: give ratios, like 3:1"},
	} {
		var rule ShareRule
		if c.rule != "" {
			rule = mustRule(t, c.rule)
		}
		if _, err := SplitSMs(c.gpu, rule, c.ranks, c.ceiling); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

var (
	someGPUs     = []GPU{{SMs: 132, SMsPerTPC: 2}, {SMs: 108, SMsPerTPC: 2}, {SMs: 80, SMsPerTPC: 2}, {SMs: 40, SMsPerTPC: 2}, {SMs: 142, SMsPerTPC: 2}, {SMs: 114, SMsPerTPC: 2}, {SMs: 148, SMsPerTPC: 2}, {SMs: 56, SMsPerTPC: 2}, {SMs: 16, SMsPerTPC: 2}, {SMs: 57, SMsPerTPC: 2}, {SMs: 9, SMsPerTPC: 2}, {SMs: 7, SMsPerTPC: 2}, {SMs: 60, SMsPerTPC: 4}}
	someCeilings = []Percent{100 * one, 75 * one, 50 * one, 33_333_334, 10 * one, 1 * one, 1}
	everyRule    = "none even overlap:1 overlap:1.5 overlap:2 overlap:48 1% 12.1212% 12.121213% 33.333334% 100%"
)

// checkShares checks what is true of every split.
func checkShares(t *testing.T, g GPU, rule ShareRule, ranks int, ceiling Percent, shares []Share) {
	t.Helper()
	must.Have(t, len(shares) == ranks, "%d shares for %d ranks", len(shares), ranks)
	for i, s := range shares {
		all := s.SMs == g.SMs
		switch {
		case s.SMs > g.SMsAt(ceiling) && g.SMsAt(ceiling) < g.SMs-g.SMs%g.SMsPerTPC:
			t.Errorf("%v, ceiling %s: rank %d of %v has %d SMs, the ceiling gives %d", g, ceiling, i, rule, s.SMs, g.SMsAt(ceiling))
		case s.SMs < g.minShare():
			t.Errorf("%v: rank %d of %v has %d SMs, the driver gives %d", g, i, rule, s.SMs, g.minShare())
		case !all && s.SMs%g.SMsPerTPC != 0:
			t.Errorf("%v: rank %d of %v has %d SMs: no whole TPCs", g, i, rule, s.SMs)
		case all != (s.Percent == 0):
			t.Errorf("%v: rank %d of %v has %d SMs and the percentage %s", g, i, rule, s.SMs, s.Percent)
		case !all && g.SMsAt(s.Percent) != s.SMs:
			t.Errorf("%v: rank %d of %v: %s %% gives %d SMs, want %d", g, i, rule, s.Percent, g.SMsAt(s.Percent), s.SMs)
		}
	}
}

// SplitSMs is right for every rule alone: 1 to 64 ranks on a GPU, every kind of GPU and every ceiling.
func TestSplitOfOneRule(t *testing.T) {
	for _, g := range someGPUs {
		for _, rule := range mustRules(t, everyRule) {
			for _, ceiling := range someCeilings {
				for ranks := 1; ranks <= 64; ranks++ {
					shares := must.Get(SplitSMs(g, rule, ranks, ceiling))(t)
					checkShares(t, g, rule, ranks, ceiling, shares)
				}
			}
		}
	}
}

// assignedEvenly calculates even shares with an overlap a second time, independently of the code. It divides the TPCs by
// the ranks, and gives the remainder to the first ranks.
func assignedEvenly(g GPU, ranks int, overlap float64, ceiling Percent) []Share {
	units := int(math.Floor(float64(g.SMs/g.SMsPerTPC) * overlap))
	shares := make([]Share, ranks)
	for i := range shares {
		own := units / ranks
		if i < units%ranks {
			own++
		}
		shares[i] = g.share(own*g.SMsPerTPC, g.SMsAt(ceiling))
	}
	return shares
}

func TestEqualRulesAreDealtEvenly(t *testing.T) {
	for _, g := range someGPUs {
		for rule, overlap := range map[string]float64{"even": 1, "overlap:1": 1, "overlap:1.25": 1.25, "overlap:1.5": 1.5, "overlap:2": 2, "overlap:48": 48} {
			for _, ceiling := range someCeilings {
				for ranks := 1; ranks <= 64; ranks++ {
					got, err := SplitSMs(g, mustRule(t, rule), ranks, ceiling)
					if want := assignedEvenly(g, ranks, overlap, ceiling); err != nil || !slices.Equal(got, want) {
						t.Fatalf("%v, %d ranks of %s, ceiling %s: %v\ngot  %v\nwant %v", g, ranks, rule, ceiling, err, got, want)
					}
				}
			}
		}
	}
}

// Random lists: the shares add up to the GPU or the part of it if each rank can have the driver's minimum. A greater
// ratio never gets less. Each share differs from its part by less than a TPC, except if a rank was raised.
func TestSplitOfLists(t *testing.T) {
	random := rand.New(rand.NewPCG(132, 2))
	full := 0
	for range 20000 {
		g := someGPUs[random.IntN(len(someGPUs))]
		g.Part = []Percent{0, PartOf(1, 2), PartOf(2, 3)}[random.IntN(3)]
		ratios := make([]int64, 2+random.IntN(12))
		texts := make([]string, len(ratios))
		for i := range ratios {
			ratios[i] = 1 + random.Int64N(20*one)
		}
		slices.SortFunc(ratios, func(a, b int64) int { return int(b - a) })
		for i, ratio := range ratios {
			texts[i] = Percent(ratio).String()
		}
		rule := mustRule(t, strings.Join(texts, ":"))
		shares := must.Get(SplitSMs(g, rule, len(ratios), 100*one))(t)
		checkShares(t, g, rule, len(ratios), 100*one, shares)
		must.Hold(t, slices.IsSortedFunc(shares, func(a, b Share) int { return b.SMs - a.SMs }), "%v get %v", rule, shares)
		units := g.partSMs() / g.SMsPerTPC
		if units < len(ratios)*g.minShare()/g.SMsPerTPC {
			continue
		}
		full++
		given, raised := 0, false
		for _, s := range shares {
			given, raised = given+s.SMs/g.SMsPerTPC, raised || s.SMs == g.minShare()
		}
		must.Hold(t, given == units, "%v, %v: %d TPCs given of %d: %v", g, rule, given, units, shares)
		for i, s := range shares {
			part := float64(units) * float64(ratios[i]) / float64(sum(ratios))
			must.Hold(t, raised || math.Abs(float64(s.SMs/g.SMsPerTPC)-part) < 1,
				"%v, %v: rank %d has %d SMs, its part is %v TPCs", g, rule, i, s.SMs, part)
		}
	}
	must.Hold(t, full >= 500, "only %d lists could be checked against the whole GPU: want 500 or more", full)
}

// No rule of a user gives more than the site's ceiling.
func TestTheCeilingBoundsEachRule(t *testing.T) {
	for _, rule := range mustRules(t, "none even overlap:4 3:1:1 30% 90%") {
		shares := must.Get(SplitSMs(h200, rule, 3, 40*one))(t)
		if got, highest := shares[0].SMs, h200.SMsAt(40*one); got > highest {
			t.Errorf("a user who gives %s has %d SMs, the ceiling gives %d", rule, got, highest)
		}
	}
}

func BenchmarkSplit48(b *testing.B) {
	rule := mustRule(b, strings.Repeat("3:2:1:", 15)+"3:2:1")
	for b.Loop() {
		if _, err := SplitSMs(h200, rule, 48, 100*one); err != nil {
			b.Fatal(err)
		}
	}
}

func TestRemark(t *testing.T) {
	for _, c := range []struct {
		rule        string
		ranks, rank int
		ceiling     Percent
		want        string
	}{
		{"60%", 2, 0, 25 * one, "share 60% asks for 78 of 132 SMs, and the site's ceiling of 25 % allows 32"},
		{"none", 2, 1, 50 * one, "share none asks for 132 of 132 SMs, and the site's ceiling of 50 % allows 66"},
		{"even", 2, 0, 25 * one, "share even asks for 66 of 132 SMs, and the site's ceiling of 25 % allows 32"},
		{"overlap:3", 2, 0, 50 * one, "share overlap:3 asks for 132 of 132 SMs, and the site's ceiling of 50 % allows 66"},
		{"3:1", 2, 0, 50 * one, "share 3:1 asks for 98 of 132 SMs, and the site's ceiling of 50 % allows 66"},
		{"3:1", 2, 1, 50 * one, ""},
		{"1%", 2, 0, 100 * one, "share 1% is less than a client can have: it gets 8 of 132 SMs"},
		{"2%", 1, 0, 100 * one, "share 2% is less than a client can have: it gets 8 of 132 SMs"},
		{"even", 20, 3, 100 * one, "share even is less than a client can have: it gets 8 of 132 SMs"},
		{"overlap:2", 40, 3, 100 * one, "share overlap:2 is less than a client can have: it gets 8 of 132 SMs"},
		{"1%", 1, 0, 1 * one, "share 1% is less than a client can have: it gets 8 of 132 SMs"},
		{"16%", 2, 0, 100 * one, ""}, // rounded to whole TPCs
		{"33%", 2, 1, 100 * one, ""},
		{"even", 5, 4, 100 * one, ""},
		{"25%", 2, 0, 25 * one, ""},
		{"none", 1, 0, 100 * one, ""},
		{"1000:1", 2, 1, 100 * one, "share 1000:1 is less than a client can have: it gets 8 of 132 SMs"},
	} {
		rule := mustRule(t, c.rule)
		shares := must.Get(SplitSMs(h200, rule, c.ranks, c.ceiling))(t)
		if got := Remark(h200, rule, c.ranks, c.rank, c.ceiling, shares[c.rank]); got != c.want {
			t.Errorf("rank %d of %d by %s under %s:\n got  %s\n want %s", c.rank, c.ranks, c.rule, c.ceiling, got, c.want)
		}
	}
}

// A job with a part of a GPU divides that part, and its percentages are those of the GPU. The driver makes the same SMs
// of them.
func TestSplitSMsOfAPart(t *testing.T) {
	half := GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 2)}
	for _, c := range []struct {
		gpu  GPU
		rule string
		want []int
	}{
		{half, "even", []int{34, 32}},
		{half, "3:1", []int{50, 16}},
		{half, "30%,20%", []int{40, 26}},
		{half, "none", []int{66}},
		{half, "overlap:2", []int{44, 44, 44}},
		{half, "80%", []int{66}},
		{half, "25%", []int{32, 32}},
		{half, "30.303031%", []int{40}},
		{GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 3)}, "even", []int{44}},
		{GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 100)}, "even", []int{8, 8}},
		{GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(8, 8)}, "none", []int{132}},
	} {
		shares := must.Get(SplitSMs(c.gpu, mustRule(t, c.rule), len(c.want), 100*one))(t)
		for i, share := range shares {
			made := share.SMs
			if share.Percent != 0 {
				made = GPU{SMs: 132, SMsPerTPC: 2}.SMsAt(share.Percent)
			}
			if share.SMs != c.want[i] || made != c.want[i] {
				t.Errorf("%v of a part of %s %%: rank %d has %+v, and the driver makes %d of it; want %v", c.rule, c.gpu.Part, i, share, made, c.want)
			}
		}
	}
}

// What a part cuts is remarked upon. What asks for the part only is not.
func TestRemarkOfAPart(t *testing.T) {
	half := GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 2)}
	for text, want := range map[string]string{
		"80%": "share 80% asks for 104 of 132 SMs, and the job's part of the GPU has 66", "even": "", "none": "", "50%": "",
	} {
		rule, _ := ParseShare(text)
		shares := must.Get(SplitSMs(half, rule, 1, 100*one))(t)
		must.Equal(t, text, Remark(half, rule, 1, 0, 100*one, shares[0]), want)
	}
}

// The driver's reserve is not divided, so the parts of all jobs add up to what CUDA has.
func TestPartMiB(t *testing.T) {
	must.Equal(t, "a quarter has", PartMiB(143771, PartOf(1, 4))-ReserveMiB, (143771-ReserveMiB)/4)
	must.Equal(t, "the whole GPU has", PartMiB(143771, 0), 143771)
}
