// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ShareRule is how much of its GPU each rank gets. The zero rule means that the user gave no rule. SplitSMs
// refuses it. Rules can be compared with ==.
type ShareRule struct {
	kind shareKind
	// amount is a factor, a percentage or the sum of a list's percentages in millionths, or a number of SMs.
	amount int64
	list   string // the entries of a list, as String writes them
}

type shareKind int

const (
	_ shareKind = iota // the zero rule
	shareNone
	shareEven
	shareOverlap
	sharePercent
	shareRatios   // a list like 3:1
	sharePercents // a list like 70%,30%
)

// The bounds of what ParseShare reads. 48 is the measured limit of clients: with overlap 48 every rank that can
// attach has the whole GPU. The maximum ratio keeps the arithmetic exact in 64 bits.
const (
	maxOverlap = 48
	maxRatio   = 1_000_000
	one        = 1_000_000 // 1 in millionths
)

// ParseShare reads a rule: none, even, overlap:F with F from 1 to 48, PCT% with PCT above 0 and up to 100, or a
// list with an entry for each rank of a GPU: ratios like 3:1, or percentages like 70%,30%. F, PCT and ratios have at
// most six decimals. PCTpct is PCT%, because Slurm's --multi-prog replaces a %.
func ParseShare(s string) (ShareRule, error) {
	factor, overlap := strings.CutPrefix(s, "overlap:")
	percent, percentage := cutPercent(s)
	switch {
	case s == "none":
		return ShareRule{kind: shareNone}, nil
	case s == "even":
		return ShareRule{kind: shareEven}, nil
	case overlap:
		want := "a factor from 1 to 48, with at most six decimals, like overlap:2"
		return shareNumber(s, factor, shareOverlap, one, maxOverlap*one, want)
	case s != "" && s[0] >= '0' && s[0] <= '9' && strings.ContainsAny(s, ":,"):
		return shareList(s)
	case percentage:
		want := "a percentage above 0 and up to 100, with at most six decimals, like 12.5%"
		return shareNumber(s, percent, sharePercent, 1, 100*one, want)
	}
	if _, err := millionths(s); err == nil {
		return ShareRule{}, fmt.Errorf("cannot read share %q: want a unit behind the number, like 25%%", s)
	}
	return ShareRule{}, fmt.Errorf("cannot read share %q: want none, even, overlap:F, PCT%% or a list like 3:1", s)
}

func cutPercent(s string) (number string, found bool) {
	if number, found = strings.CutSuffix(s, "%"); !found {
		number, found = strings.CutSuffix(s, "pct")
	}
	return number, found
}

func shareNumber(s, number string, kind shareKind, least, most int64, want string) (ShareRule, error) {
	amount, err := millionths(number)
	if err != nil || amount < least || amount > most {
		return ShareRule{}, fmt.Errorf("cannot read share %q: want %s", s, want)
	}
	return ShareRule{kind: kind, amount: amount}, nil
}

// shareList reads a list. A colon and a comma mean the same.
func shareList(s string) (ShareRule, error) {
	entries := strings.Split(strings.ReplaceAll(s, ",", ":"), ":")
	_, percents := cutPercent(entries[0])
	rule, separator, unit := ShareRule{kind: shareRatios}, ":", ""
	if percents {
		rule.kind, separator, unit = sharePercents, ",", "%"
	}
	for i, entry := range entries {
		number, percent := cutPercent(entry)
		amount, err := millionths(number)
		if err != nil || percent != percents || amount < 1 || amount > maxRatio*one || len(entries) > MaxClients {
			return ShareRule{}, fmt.Errorf("cannot read share %q: want a list of at most %d ratios, like 3:1, or of percentages, "+
				"like 70%%,30%%, each above 0 and with at most six decimals", s, MaxClients)
		}
		rule.amount += amount
		entries[i] = Percent(amount).String() + unit
	}
	if rule.list = strings.Join(entries, separator); !percents {
		rule.amount = 0
	} else if rule.amount > 100*one {
		return ShareRule{}, fmt.Errorf("cannot read share %q: it adds up to %s %%: want at most 100 %%", s, Percent(rule.amount))
	}
	return rule, nil
}

// List returns the number of a list's entries, 0 for another rule.
func (r ShareRule) List() int { return len(r.entries()) }

// entries returns the entries of a list in millionths.
func (r ShareRule) entries() (amounts []int64) {
	for entry := range strings.FieldsFuncSeq(r.list, func(c rune) bool { return c == ':' || c == ',' }) {
		number, _ := cutPercent(entry)
		amount, _ := millionths(number)
		amounts = append(amounts, amount)
	}
	return amounts
}

var errNoDecimal = errors.New("want digits, and at most one point with one to six digits behind it")

// millionths reads a plain decimal exactly. strconv would also take 1e1, 0x1p3 and Inf, which no user means here.
func millionths(s string) (int64, error) {
	whole, decimals, point := strings.Cut(s, ".")
	if whole == "" || len(whole) > 12 || len(decimals) > 6 || point && decimals == "" {
		return 0, errNoDecimal
	}
	digits := whole + decimals + strings.Repeat("0", 6-len(decimals))
	if strings.Trim(digits, "0123456789") != "" {
		return 0, errNoDecimal
	}
	return strconv.ParseInt(digits, 10, 64)
}

// String returns the rule as ParseShare reads it. The zero rule is empty.
func (r ShareRule) String() string {
	switch amount := Percent(r.amount).String(); r.kind {
	case shareNone:
		return "none"
	case shareEven:
		return "even"
	case shareOverlap:
		return "overlap:" + amount
	case sharePercent:
		return amount + "%"
	}
	return r.list
}

// Overlap returns the rule by which each rank gets factor times an even part, with factor from 1 to 48.
func Overlap(factor float64) ShareRule {
	if factor == 1 {
		return ShareRule{kind: shareEven}
	}
	return ShareRule{kind: shareOverlap, amount: int64(PercentFrom(factor))}
}

// overlaps returns how many times the shares of all ranks of a GPU add up to it, in millionths.
func (r ShareRule) overlaps() int64 {
	if r.kind == shareOverlap {
		return r.amount
	}
	return one
}

// SplitSMs divides g among the ranks of one GPU by a rule: element i of the result is the share of the rank with
// number i on the GPU. It fails if g has no SMs, there is no rank, the rule is the zero rule, asks for more than g has or
// is a list of another length, or the ceiling is not a percentage.
//
// Each rank gets PCT% in whole TPCs, rounded down. The other rules divide the GPU in whole TPCs, by largest
// remainder, and the first rank wins a tie. overlap:F divides F times the GPU. A list of percentages divides their sum.
// A rank whose part would be below the driver's minimum gets the minimum, and the others divide what is left. A rank
// with the rule none has no cap.
//
// No share is above the ceiling, and none is below the driver's minimum. SMs that a ceiling keeps from a rank are not
// given to its neighbours, because a ceiling is a bound only. So the shares of even and of a list of ratios add up to the
// GPU, except with a ceiling, or with more ranks than the GPU has minimum shares. If the job has a part of the GPU, this
// part is divided. A percentage is still one of the GPU.
func SplitSMs(g GPU, rule ShareRule, ranks int, ceiling Percent) ([]Share, error) {
	if err := splittable(g, rule, ranks, ceiling); err != nil {
		return nil, err
	}
	shares, most := make([]Share, ranks), min(g.SMsAt(ceiling), g.partSMs())
	if weights, units := g.division(rule, ranks); weights != nil {
		for i, n := range apportion(weights, units, int64(g.minShare()/g.SMsPerTPC)) {
			shares[i] = g.share(int(n)*g.SMsPerTPC, most)
		}
		return shares, nil
	}
	for i := range shares {
		shares[i] = g.share(g.fixed(rule), most)
	}
	return shares, nil
}

func splittable(g GPU, rule ShareRule, ranks int, ceiling Percent) error {
	switch n := rule.List(); {
	case g.SMs <= 0 || g.SMsPerTPC <= 0 || g.SMsPerTPC > g.SMs:
		return fmt.Errorf("cannot divide GPU of %d SMs in units of %d", g.SMs, g.SMsPerTPC)
	case ranks < 1:
		return errors.New("cannot divide GPU among 0 ranks")
	case ceiling <= 0 || ceiling > 100*one:
		return fmt.Errorf("cannot divide GPU under a ceiling of %s %%: want above 0 and up to 100", ceiling)
	case rule == ShareRule{}:
		return fmt.Errorf("cannot divide GPU among %d ranks: there is no rule", ranks)
	case n != 0 && n != ranks:
		return fmt.Errorf("cannot give share %s: the list is for %d ranks on a GPU, and this GPU has %d: give as many entries as ranks",
			rule, n, ranks)
	case rule.kind == sharePercents && g.Part != 0 && rule.amount > int64(g.Part):
		return fmt.Errorf("cannot give share %s: it adds up to %s %% of the GPU, and the job's part of the GPU is %s %%: "+
			"give ratios, like 3:1", rule, Percent(rule.amount), g.Part)
	}
	return nil
}

// division returns the weights of the ranks, and how many TPCs they divide. There are no weights if the rule fixes the
// share of each rank.
func (g GPU) division(rule ShareRule, ranks int) (weights []int64, units int64) {
	units = int64(g.partSMs() / g.SMsPerTPC)
	switch rule.kind {
	case shareEven:
		return slices.Repeat([]int64{1}, ranks), units
	case shareOverlap:
		return slices.Repeat([]int64{1}, ranks), units * rule.amount / one
	case shareRatios:
		return rule.entries(), units
	case sharePercents:
		return rule.entries(), min(units, int64(g.SMs)*rule.amount/(100*one)/int64(g.SMsPerTPC))
	}
	return nil, 0
}

// fixed returns the share of a rule that fixes it, in whole TPCs.
func (g GPU) fixed(r ShareRule) int {
	if r.kind == sharePercent {
		return g.SMsAt(Percent(r.amount))
	}
	return g.partSMs()
}

// Remark returns how the share that SplitSMs gave the rank with this number on its GPU differs from what the rule asks
// for: cut by the ceiling, or raised to the driver's minimum. It is empty if the share is the rule's, in whole TPCs.
func Remark(g GPU, rule ShareRule, ranks, rank int, ceiling Percent, share Share) string {
	asked := g.asks(rule, ranks, rank)
	switch {
	case share.SMs > asked && share.SMs == g.minShare():
		return fmt.Sprintf("share %s is less than a client can have: it gets %d of %d SMs", rule, share.SMs, g.SMs)
	case share.SMs < asked && share.SMs == g.partSMs():
		return fmt.Sprintf("share %s asks for %d of %d SMs, and the job's part of the GPU has %d", rule, asked, g.SMs, share.SMs)
	case share.SMs < asked && share.SMs == g.SMsAt(ceiling):
		return fmt.Sprintf("share %s asks for %d of %d SMs, and the site's ceiling of %s %% allows %d",
			rule, asked, g.SMs, ceiling, share.SMs)
	}
	return ""
}

// asks returns what a rule asks for a rank, in whole TPCs. The GPU is the only bound.
func (g GPU) asks(rule ShareRule, ranks, rank int) int {
	weights, units := g.division(rule, ranks)
	switch {
	case weights != nil:
		return min(g.partSMs(), int(units*weights[rank]/sum(weights))*g.SMsPerTPC)
	case rule.kind == sharePercent: // fixed raises it to the driver's minimum
		sms := int(int64(g.SMs) * rule.amount / (100 * one))
		return sms - sms%g.SMsPerTPC
	}
	return g.fixed(rule)
}

// apportion distributes units by weight: whole units in proportion, then one each by the largest remainder. First it
// gives the minimum to each rank whose part would be below it. It repeats this, because each such rank leaves less for
// the others.
func apportion(weights []int64, units, least int64) []int64 {
	given := make([]int64, len(weights))
	rest := slices.Clone(weights) // 0 for ranks that have the minimum
	for raised := true; raised; {
		raised = false
		all, before := sum(rest), units
		for i, weight := range rest {
			if weight > 0 && before*weight < least*all {
				given[i], rest[i], raised = least, 0, true
				units -= least
			}
		}
	}
	all := sum(rest)
	if all == 0 {
		return given
	}
	left := units
	byRemainder := make([]int, 0, len(rest))
	for i, weight := range rest {
		if weight > 0 {
			given[i] = units * weight / all
			left -= given[i]
			byRemainder = append(byRemainder, i)
		}
	}
	slices.SortStableFunc(byRemainder, func(a, b int) int { return cmp.Compare(units*rest[b]%all, units*rest[a]%all) })
	for _, i := range byRemainder[:left] {
		given[i]++
	}
	return given
}

func sum(amounts []int64) (all int64) {
	for _, amount := range amounts {
		all += amount
	}
	return all
}
