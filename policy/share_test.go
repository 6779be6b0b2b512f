// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestParseShare(t *testing.T) {
	for given, want := range map[string]string{
		"none": "none", "even": "even",
		"overlap:1": "overlap:1", "overlap:2.50": "overlap:2.5", "overlap:48": "overlap:48",
		"weight:1": "weight:1", "weight:0.000001": "weight:0.000001", "weight:1000000": "weight:1000000",
		"60%": "60%", "33.333334%": "33.333334%", "100%": "100%", "0.000001%": "0.000001%",
		"60pct": "60%", "12.5pct": "12.5%", // Slurm's --multi-prog uses % itself
		"1sm": "1sm", "18sm": "18sm", "132sm": "132sm", "10000sm": "10000sm",
	} {
		rule, err := ParseShare(given)
		if err != nil || rule.String() != want {
			t.Errorf("%q is read as %q, %v, want %q", given, rule, err, want)
		}
		if again, err := ParseShare(rule.String()); err != nil || again != rule {
			t.Errorf("%q reads back as %q, %v", rule, again, err)
		}
	}
}

func TestParseShareRefuses(t *testing.T) {
	const (
		rule    = "want none, even, overlap:F, weight:W, PCT% or Nsm"
		factor  = "want a factor from 1 to 48, with at most six decimals, like overlap:2"
		weight  = "want a weight above 0 and up to 1000000, with at most six decimals, like weight:2"
		percent = "want a percentage above 0 and up to 100, with at most six decimals, like 12.5%"
		unit    = "want a unit behind the number, like 25% or 20sm"
		sms     = "want a whole number of SMs from 1 to 10000, like 18sm"
	)
	for given, want := range map[string]string{
		"": rule, "Even": rule, "even ": rule, "2": unit, "12.5": unit, "-2": rule, "2.": rule, "overlap": rule, "overlap=2": rule, "half": rule, "25 ": rule,
		"overlap:": factor, "overlap:0.999999": factor, "overlap:48.000001": factor, "overlap:x": factor, "overlap:-2": factor,
		"overlap:1e1": factor, "overlap:2.": factor, "overlap:2.0000001": factor, "overlap:0x2": factor, "overlap:+2": factor,
		"overlap:NaN": factor, "overlap:Inf": factor, "overlap:1.-5": factor, "overlap:1.2.3": factor,
		"weight:0": weight, "weight:0.0": weight, "weight:1000000.000001": weight, "weight:99999999999999999999": weight, "weight:-1": weight,
		"0%": percent, "100.000001%": percent, "%": percent, "101%": percent, "-5%": percent, "12,5%": percent, "33.3333334%": percent, "1_0%": percent, "pct": percent, "0pct": percent, "5%pct": percent,
		"0sm": sms, "sm": sms, "-8sm": sms, "18.5sm": sms, "10001sm": sms, "99999999999sm": sms, "0x8sm": sms,
	} {
		r, err := ParseShare(given)
		if want := fmt.Sprintf("cannot read share %q: %s", given, want); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if r != (ShareRule{}) {
			t.Errorf("%q leaves the rule %q", given, r)
		}
	}
}

func FuzzParseShare(f *testing.F) {
	for _, seed := range []string{"none", "even", "overlap:2", "weight:0.5", "33.333334%", "18sm", "%", "sm", "overlap:1.-5"} {
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
		if shares, err := SplitSMs(h200, []ShareRule{rule, rule}, 100*one); err == nil {
			checkShares(t, h200, []ShareRule{rule, rule}, 100*one, shares)
		}
	})
}

func mustRules(t testing.TB, text string) []ShareRule {
	t.Helper()
	var rules []ShareRule
	for word := range strings.FieldsSeq(text) {
		rule, err := ParseShare(word)
		if err != nil {
			t.Fatal(err)
		}
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
		name, rules string
		ceiling     Percent
		want        string
	}{
		{"one rank of 60 %, three divide the rest", "60% even even even", 100 * one, "78/59.090910 18/13.636364 18/13.636364 18/13.636364"},
		{"the order of the ranks is theirs", "even 60% even even", 100 * one, "18/13.636364 78/59.090910 18/13.636364 18/13.636364"},
		{"what does not divide goes to the first", "60% even even", 100 * one, "78/59.090910 28/21.212122 26/19.696970"},
		{"by weight", "weight:2 weight:1", 100 * one, "88/66.666667 44/33.333334"},
		{"even weighs 1", "weight:3 even even even", 100 * one, "66/50 22/16.666667 22/16.666667 22/16.666667"},
		{"the largest remainder", "weight:1 weight:1.2 weight:1", 100 * one, "42/31.818182 50/37.878788 40/30.303031"},
		{"ties to the first", "weight:1 weight:1 weight:1 weight:1", 100 * one, "34/25.757576 34/25.757576 32/24.242425 32/24.242425"},
		{"a weight below the driver's minimum is raised, the others divide the rest", "weight:10 weight:0.1", 100 * one, "124/93.939394 8/6.060607"},
		{"raising one raises the next", "weight:20 weight:1.4 weight:0.1", 100 * one, "116/87.878788 8/6.060607 8/6.060607"},
		{"overlap multiplies its own part", "overlap:2 even even", 100 * one, "88/66.666667 44/33.333334 44/33.333334"},
		{"an overlapped rank that is raised takes less than it gets", "weight:30 overlap:1.5", 100 * one, "126/95.454546 8/6.060607"},
		{"fixed shares above the GPU leave the driver's minimum", "80% 80% even weight:3", 100 * one, "104/78.787879 104/78.787879 8/6.060607 8/6.060607"},
		{"overlap above the GPU is the GPU", "overlap:4 even", 100 * one, "132/null 66/50"},
		{"overlap of a half", "overlap:1.5 overlap:1.5 overlap:1.5 overlap:1.5", 100 * one, "50/37.878788 50/37.878788 50/37.878788 48/36.363637"},
		{"none takes nothing", "none even even", 100 * one, "132/null 66/50 66/50"},
		{"none under a ceiling", "none even even", 30 * one, "38/28.787879 38/28.787879 38/28.787879"},
		{"a fixed share is bounded before the others divide the rest", "90% even", 50 * one, "66/50 66/50"},
		{"SMs are rounded down to a TPC", "19sm even", 100 * one, "18/13.636364 114/86.363637"},
		{"SMs below the driver's minimum are raised", "1sm 1% even", 100 * one, "8/6.060607 8/6.060607 116/87.878788"},
		{"all SMs need no percentage", "132sm 100%", 100 * one, "132/null 132/null"},
		{"fixed shares may be more than the GPU", "80% 80%", 100 * one, "104/78.787879 104/78.787879"},
		{"a rank has the driver's minimum if nothing is left", "100% even overlap:2 weight:5", 100 * one, "132/null 8/6.060607 8/6.060607 8/6.060607"},
		{"a ceiling below the driver's minimum gives the minimum", "even none 50% 40sm", 1 * one, "8/6.060607 8/6.060607 8/6.060607 8/6.060607"},
	} {
		t.Run(c.name, func(t *testing.T) {
			shares, err := SplitSMs(h200, mustRules(t, c.rules), c.ceiling)
			if err != nil {
				t.Fatal(err)
			}
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
	even := mustRules(t, "even")
	for _, c := range []struct {
		gpu     GPU
		rules   []ShareRule
		ceiling Percent
		want    string
	}{
		{GPU{SMs: 0, SMsPerTPC: 2}, even, 100 * one, "cannot divide GPU of 0 SMs in units of 2"},
		{GPU{SMs: 1, SMsPerTPC: 2}, even, 100 * one, "cannot divide GPU of 1 SMs in units of 2"},
		{h200, nil, 100 * one, "cannot divide GPU among 0 ranks"},
		{h200, even, 0, "cannot divide GPU under a ceiling of 0 %: want above 0 and up to 100"},
		{h200, even, 100*one + 1, "cannot divide GPU under a ceiling of 100.000001 %: want above 0 and up to 100"},
		{h200, append(mustRules(t, "even"), ShareRule{}), 100 * one, "cannot divide GPU among 2 ranks: rank 1 of it has no rule"},
		{h200, mustRules(t, "even 133sm"), 100 * one, "cannot give share 133sm: the GPU has 132 SMs: ask for 132sm or less"},
	} {
		if _, err := SplitSMs(c.gpu, c.rules, c.ceiling); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

var (
	someGPUs     = []GPU{{SMs: 132, SMsPerTPC: 2}, {SMs: 108, SMsPerTPC: 2}, {SMs: 80, SMsPerTPC: 2}, {SMs: 40, SMsPerTPC: 2}, {SMs: 142, SMsPerTPC: 2}, {SMs: 114, SMsPerTPC: 2}, {SMs: 148, SMsPerTPC: 2}, {SMs: 56, SMsPerTPC: 2}, {SMs: 16, SMsPerTPC: 2}, {SMs: 57, SMsPerTPC: 2}, {SMs: 9, SMsPerTPC: 2}, {SMs: 7, SMsPerTPC: 2}, {SMs: 60, SMsPerTPC: 4}}
	someCeilings = []Percent{100 * one, 75 * one, 50 * one, 33_333_334, 10 * one, 1 * one, 1}
	everyRule    = "none even overlap:1 overlap:1.5 overlap:2 overlap:48 weight:1 weight:0.001 weight:3.7 weight:1000000 1% 12.1212% 12.121213% 33.333334% 100% 1sm 7sm"
)

// checkShares checks what is true of every split.
func checkShares(t *testing.T, g GPU, rules []ShareRule, ceiling Percent, shares []Share) {
	t.Helper()
	if len(shares) != len(rules) {
		t.Fatalf("%d shares for %d ranks", len(shares), len(rules))
	}
	for i, s := range shares {
		all := s.SMs == g.SMs
		switch {
		case s.SMs > g.SMsAt(ceiling) && g.SMsAt(ceiling) < g.SMs-g.SMs%g.SMsPerTPC:
			t.Errorf("%v, ceiling %s: rank %d of %v has %d SMs, the ceiling gives %d", g, ceiling, i, rules, s.SMs, g.SMsAt(ceiling))
		case s.SMs < g.minShare():
			t.Errorf("%v: rank %d of %v has %d SMs, the driver gives %d", g, i, rules, s.SMs, g.minShare())
		case !all && s.SMs%g.SMsPerTPC != 0:
			t.Errorf("%v: rank %d of %v has %d SMs: no whole TPCs", g, i, rules, s.SMs)
		case all != (s.Percent == 0):
			t.Errorf("%v: rank %d of %v has %d SMs and the percentage %s", g, i, rules, s.SMs, s.Percent)
		case !all && g.SMsAt(s.Percent) != s.SMs:
			t.Errorf("%v: rank %d of %v: %s %% gives %d SMs, want %d", g, i, rules, s.Percent, g.SMsAt(s.Percent), s.SMs)
		}
	}
}

// SplitSMs is right for every rule alone: 1 to 64 ranks on a GPU, every kind of GPU and every ceiling.
func TestSplitOfOneRule(t *testing.T) {
	for _, g := range someGPUs {
		for _, rule := range mustRules(t, everyRule) {
			if rule.kind == shareSMs && rule.amount > int64(g.SMs) {
				continue
			}
			for _, ceiling := range someCeilings {
				for ranks := 1; ranks <= 64; ranks++ {
					rules := slices.Repeat([]ShareRule{rule}, ranks)
					shares, err := SplitSMs(g, rules, ceiling)
					if err != nil {
						t.Fatal(err)
					}
					checkShares(t, g, rules, ceiling, shares)
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
		for rule, overlap := range map[string]float64{"even": 1, "weight:7": 1, "weight:0.3": 1, "overlap:1": 1, "overlap:1.25": 1.25, "overlap:1.5": 1.5, "overlap:2": 2, "overlap:48": 48} {
			for _, ceiling := range someCeilings {
				for ranks := 1; ranks <= 64; ranks++ {
					rules := slices.Repeat(mustRules(t, rule), ranks)
					got, err := SplitSMs(g, rules, ceiling)
					if want := assignedEvenly(g, ranks, overlap, ceiling); err != nil || !slices.Equal(got, want) {
						t.Fatalf("%v, %d ranks of %s, ceiling %s: %v\ngot  %v\nwant %v", g, ranks, rule, ceiling, err, got, want)
					}
				}
			}
		}
	}
}

// Ranks with any rules share a GPU. The shares of the rules that divide the GPU add up to what the fixed shares leave
// of it. Each such share differs from its part by weight by less than a TPC.
func TestSplitOfMixedRules(t *testing.T) {
	every := mustRules(t, everyRule)
	dividing := mustRules(t, "even even weight:0.001 weight:0.4 weight:1 weight:1.3 weight:3.7 weight:9 none 12.121213% 10sm")
	random := rand.New(rand.NewPCG(132, 2))
	full := 0
	for range 20000 {
		g := someGPUs[random.IntN(len(someGPUs))]
		rules := make([]ShareRule, 1+random.IntN(64))
		from := every
		if random.IntN(2) == 0 {
			rules, from = rules[:1+len(rules)/6], dividing
		}
		for i := range rules {
			rules[i] = from[random.IntN(len(from))]
		}
		if slices.ContainsFunc(rules, func(r ShareRule) bool { return r.kind == shareSMs && r.amount > int64(g.SMs) }) {
			continue
		}
		ceiling := someCeilings[random.IntN(len(someCeilings))]
		shares, err := SplitSMs(g, rules, ceiling)
		if err != nil {
			t.Fatal(err)
		}
		checkShares(t, g, rules, ceiling, shares)
		if ceiling == 100*one && checkDealt(t, g, rules, shares) {
			full++
		}
	}
	if full < 500 {
		t.Errorf("only %d splits could be checked against the whole GPU: want 500 or more", full)
	}
}

// checkDealt reports whether there was enough for all ranks that divide the GPU. If so, it checks that all TPCs were
// given, by weight.
func checkDealt(t *testing.T, g GPU, rules []ShareRule, shares []Share) bool {
	t.Helper()
	free, given, divide := g.SMs/g.SMsPerTPC, 0, 0
	weights, rest := 0.0, 0
	for i, r := range rules {
		units := shares[i].SMs / g.SMsPerTPC
		switch r.kind {
		case shareSMs, sharePercent:
			free -= units
		case shareEven, shareWeight:
			divide++
			given += units
			if shares[i].SMs > g.minShare() {
				weights, rest = weights+weightOf(r), rest+units
			}
		case shareOverlap:
			return false
		}
	}
	if divide == 0 || free < divide*(g.minShare()/g.SMsPerTPC) {
		return false
	}
	if given != free {
		t.Errorf("%v, %v: %d TPCs given, %d are free: %v", g, rules, given, free, shares)
	}
	for i, r := range rules {
		if units := float64(shares[i].SMs / g.SMsPerTPC); (r.kind == shareEven || r.kind == shareWeight) && shares[i].SMs > g.minShare() {
			// Ranks at the driver's minimum are not checked. They were raised to it, or have it by their weight to
			// less than a TPC each.
			if part := float64(rest) * weightOf(r) / weights; math.Abs(units-part) >= 1+float64(divide)*weightOf(r)/weights {
				t.Errorf("%v, %v: rank %d has %v TPCs, its part is %v", g, rules, i, units, part)
			}
		}
	}
	return true
}

func weightOf(r ShareRule) float64 {
	if r.kind == shareWeight {
		return float64(r.amount) / one
	}
	return 1
}

// A rank with more weight never gets less of the GPU.
func TestWeightsAreInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		rules := make([]ShareRule, 2+random.IntN(10))
		for i := range rules {
			rules[i] = ShareRule{shareWeight, 1 + random.Int64N(20*one)}
		}
		slices.SortFunc(rules, func(a, b ShareRule) int { return int(b.amount - a.amount) })
		shares, err := SplitSMs(h200, rules, 100*one)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(shares, func(a, b Share) int { return b.SMs - a.SMs }) {
			t.Errorf("%v get %v", rules, shares)
		}
	}
}

func TestLower(t *testing.T) {
	policyRule, unsaid := mustRules(t, "overlap:2")[0], ShareRule{}
	if got := EffectiveRule(policyRule, unsaid); got != policyRule {
		t.Errorf("a user who gives no rule has %q", got)
	}
	for _, user := range mustRules(t, "none even overlap:4 weight:3 30% 90% 100sm") {
		rule := EffectiveRule(policyRule, user)
		if rule != user {
			t.Errorf("a user who gives %s has %s", user, rule)
		}
		shares, err := SplitSMs(h200, []ShareRule{rule, policyRule, policyRule}, 40*one)
		if err != nil {
			t.Fatal(err)
		}
		if got, highest := shares[0].SMs, h200.SMsAt(40*one); got > highest {
			t.Errorf("a user who gives %s has %d SMs, the ceiling gives %d", user, got, highest)
		}
	}
	if shares, _ := SplitSMs(h200, mustRules(t, "10% overlap:2"), 40*one); shares[0].SMs != 12 {
		t.Errorf("a user of 10 %% has %d SMs: the share is not lowered", shares[0].SMs)
	}
}

func TestGrantRule(t *testing.T) {
	for _, c := range []struct {
		grant Grant
		want  string
	}{
		{DefaultGrant(), "overlap:2"},
		{Grant{Share: ShareEven, Overlap: 1}, "even"},
		{Grant{Share: ShareEven}, "even"},
		{Grant{Share: ShareEven, Overlap: 1.5}, "overlap:1.5"},
		{Grant{Share: ShareNone, Overlap: 2}, "none"},
		{Grant{Share: "25%", Overlap: 2}, "25%"},
	} {
		if got := c.grant.Rule().String(); got != c.want {
			t.Errorf("%+v has the rule %s, want %s", c.grant, got, c.want)
		}
	}
}

func BenchmarkSplit48(b *testing.B) {
	rules := mustRules(b, strings.Repeat("weight:3 even overlap:2 ", 16))
	for b.Loop() {
		if _, err := SplitSMs(h200, rules, 100*one); err != nil {
			b.Fatal(err)
		}
	}
}

func TestRemark(t *testing.T) {
	for _, c := range []struct {
		rules   string
		rank    int
		ceiling Percent
		want    string
	}{
		{"60% 60%", 0, 25 * one, "share 60% asks for 78 of 132 SMs, and the site's ceiling of 25 % allows 32"},
		{"none none", 1, 50 * one, "share none asks for 132 of 132 SMs, and the site's ceiling of 50 % allows 66"},
		{"even even", 0, 25 * one, "share even asks for 66 of 132 SMs, and the site's ceiling of 25 % allows 32"},
		{"overlap:3 overlap:3", 0, 50 * one, "share overlap:3 asks for 132 of 132 SMs, and the site's ceiling of 50 % allows 66"},
		{"60% even even", 1, 10 * one, "share even asks for 26 of 132 SMs, and the site's ceiling of 10 % allows 12"},
		{"weight:3 weight:1", 0, 50 * one, "share weight:3 asks for 98 of 132 SMs, and the site's ceiling of 50 % allows 66"},
		{"1sm 1sm", 0, 100 * one, "share 1sm is less than a client can have: it gets 8 of 132 SMs"},
		{"2%", 0, 100 * one, "share 2% is less than a client can have: it gets 8 of 132 SMs"},
		{strings.Repeat("even ", 20), 3, 100 * one, "share even is less than a client can have: it gets 8 of 132 SMs"},
		{strings.Repeat("overlap:2 ", 40), 3, 100 * one, "share overlap:2 is less than a client can have: it gets 8 of 132 SMs"},
		{"1sm", 0, 1 * one, "share 1sm is less than a client can have: it gets 8 of 132 SMs"},
		{"21sm 33%", 0, 100 * one, ""}, // rounded to whole TPCs
		{"21sm 33%", 1, 100 * one, ""},
		{"even even even even even", 4, 100 * one, ""},
		{"25% 25%", 0, 25 * one, ""},
		{"none", 0, 100 * one, ""},
		{"100% weight:1 weight:1000", 1, 100 * one, "share weight:1 is less than a client can have: it gets 8 of 132 SMs"},
	} {
		rules := mustRules(t, c.rules)
		shares, err := SplitSMs(h200, rules, c.ceiling)
		if err != nil {
			t.Fatal(err)
		}
		if got := Remark(h200, rules, c.rank, c.ceiling, shares[c.rank]); got != c.want {
			t.Errorf("rank %d of %s under %s:\n got  %s\n want %s", c.rank, c.rules, c.ceiling, got, c.want)
		}
	}
}

// A job with a part of a GPU divides that part, and its percentages are those of the GPU. The driver makes the same SMs
// of them.
func TestSplitSMsOfAPart(t *testing.T) {
	half := GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 2)}
	for _, c := range []struct {
		gpu   GPU
		rules []string
		want  []int
	}{
		{half, []string{"even", "even"}, []int{34, 32}},
		{half, []string{"none"}, []int{66}},
		{half, []string{"overlap:2", "overlap:2", "overlap:2"}, []int{44, 44, 44}},
		{half, []string{"80%"}, []int{66}},
		{half, []string{"25%", "even"}, []int{32, 34}},
		{half, []string{"40sm"}, []int{40}},
		{GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 3)}, []string{"even"}, []int{44}},
		{GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(1, 100)}, []string{"even", "even"}, []int{8, 8}},
		{GPU{SMs: 132, SMsPerTPC: 2, Part: PartOf(8, 8)}, []string{"none"}, []int{132}},
	} {
		rules := make([]ShareRule, len(c.rules))
		for i, text := range c.rules {
			rules[i], _ = ParseShare(text)
		}
		shares, err := SplitSMs(c.gpu, rules, 100*one)
		if err != nil {
			t.Fatal(err)
		}
		for i, share := range shares {
			made := share.SMs
			if share.Percent != 0 {
				made = GPU{SMs: 132, SMsPerTPC: 2}.SMsAt(share.Percent)
			}
			if share.SMs != c.want[i] || made != c.want[i] {
				t.Errorf("%v of a part of %s %%: rank %d has %+v, and the driver makes %d of it; want %v", c.rules, c.gpu.Part, i, share, made, c.want)
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
		rules := []ShareRule{rule}
		shares, err := SplitSMs(half, rules, 100*one)
		if err != nil {
			t.Fatal(err)
		}
		if got := Remark(half, rules, 0, 100*one, shares[0]); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// The driver's reserve is not divided, so the parts of all jobs add up to what CUDA has.
func TestPartMiB(t *testing.T) {
	if got, want := PartMiB(143771, PartOf(1, 4))-ReserveMiB, (143771-ReserveMiB)/4; got != want {
		t.Errorf("a quarter has %d MiB, want %d", got, want)
	}
	if got := PartMiB(143771, 0); got != 143771 {
		t.Errorf("the whole GPU has %d MiB", got)
	}
}
