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

// ShareRule is how much of its GPU one rank asks for. The zero rule means that the user gave no rule: EffectiveRule
// replaces it, and SplitSMs refuses it. Rules can be compared with ==.
type ShareRule struct {
	kind shareKind
	// amount is a factor, a weight or a percentage in millionths, or a number of SMs.
	amount int64
}

type shareKind int

const (
	shareUnsaid shareKind = iota
	shareNone
	shareEven
	shareOverlap
	shareWeight
	sharePercent
	shareSMs
)

// The bounds of what ParseShare reads. 48 is the measured limit of clients: with overlap 48 every rank that can
// attach has the whole GPU. The maximum weight keeps the arithmetic exact in 64 bits.
const (
	maxOverlap = 48
	maxWeight  = 1_000_000
	maxSMs     = 10_000
	one        = 1_000_000 // 1 in millionths
)

// ParseShare reads a rule: none, even, overlap:F with F from 1 to 48, weight:W with W above 0, PCT% with PCT above 0
// and up to 100, or Nsm. F, W and PCT have at most six decimals. PCTpct is PCT%, because Slurm's --multi-prog
// replaces a %.
func ParseShare(s string) (ShareRule, error) {
	factor, overlap := strings.CutPrefix(s, "overlap:")
	weight, weighted := strings.CutPrefix(s, "weight:")
	percent, percentage := strings.CutSuffix(s, "%")
	if !percentage {
		percent, percentage = strings.CutSuffix(s, "pct")
	}
	sms, multiprocessors := strings.CutSuffix(s, "sm")
	switch {
	case s == "none":
		return ShareRule{kind: shareNone}, nil
	case s == "even":
		return ShareRule{kind: shareEven}, nil
	case overlap:
		want := "a factor from 1 to 48, with at most six decimals, like overlap:2"
		return shareNumber(s, factor, shareOverlap, one, maxOverlap*one, want)
	case weighted:
		want := "a weight above 0 and up to 1000000, with at most six decimals, like weight:2"
		return shareNumber(s, weight, shareWeight, 1, maxWeight*one, want)
	case percentage:
		want := "a percentage above 0 and up to 100, with at most six decimals, like 12.5%"
		return shareNumber(s, percent, sharePercent, 1, 100*one, want)
	case multiprocessors:
		return shareWhole(s, sms)
	}
	if _, err := millionths(s); err == nil {
		return ShareRule{}, fmt.Errorf("cannot read share %q: want a unit behind the number, like 25%% or 20sm", s)
	}
	return ShareRule{}, fmt.Errorf("cannot read share %q: want none, even, overlap:F, weight:W, PCT%% or Nsm", s)
}

func shareNumber(s, number string, kind shareKind, least, most int64, want string) (ShareRule, error) {
	amount, err := millionths(number)
	if err != nil || amount < least || amount > most {
		return ShareRule{}, fmt.Errorf("cannot read share %q: want %s", s, want)
	}
	return ShareRule{kind, amount}, nil
}

func shareWhole(s, number string) (ShareRule, error) {
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || n < 1 || n > maxSMs {
		return ShareRule{}, fmt.Errorf("cannot read share %q: want a whole number of SMs from 1 to %d, like 18sm", s, maxSMs)
	}
	return ShareRule{shareSMs, int64(n)}, nil
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
	case shareWeight:
		return "weight:" + amount
	case sharePercent:
		return amount + "%"
	case shareSMs:
		return fmt.Sprintf("%dsm", r.amount)
	}
	return ""
}

// Rule returns the grant's rule for each rank of a GPU.
func (g Grant) Rule() ShareRule {
	factor := int64(PercentFrom(max(g.Overlap, 1)))
	fixed, _ := ParseShare(string(g.Share))
	switch {
	case fixed.kind == sharePercent:
		return fixed
	case g.Share == ShareNone:
		return ShareRule{kind: shareNone}
	case factor == one:
		return ShareRule{kind: shareEven}
	}
	return ShareRule{shareOverlap, factor}
}

// EffectiveRule returns the rule for a rank: the user's if there is one, otherwise the policy's.
//
// A user's rule replaces the policy's rule completely, and only the ceiling bounds it (SplitSMs does that). The
// policy's rule is the default of a site and not a limit, because a rank can remove the percentage from its own
// environment. So it would be useless to refuse a user's 30% when the policy's even share is 25%. The limit is the
// ceiling: the daemon enforces it and no client can lift it (measured: a client that asks a daemon with 50 % for 80 %
// gets 50 %).
func EffectiveRule(policyRule, userRule ShareRule) ShareRule {
	if userRule == (ShareRule{}) {
		return policyRule
	}
	return userRule
}

// SplitSMs divides g among the ranks of one GPU: element i of the result is the share of the rank with rules[i]. It
// fails if g has no SMs, there is no rank, a rule is the zero rule or asks for more SMs than g has, or the ceiling is
// not a percentage.
//
// PCT% and Nsm are served first, in whole TPCs, rounded down. The others divide the rest in whole TPCs in proportion
// to their weights (even and overlap have weight 1), by largest remainder, and the first rank wins a tie. Then
// overlap:F multiplies its part by F. A rank whose part would be below the driver's minimum gets the minimum, and the
// others divide what is left. A rank with the rule none has no cap and takes nothing from the others.
//
// No share is above the ceiling, and none is below the driver's minimum. SMs that a ceiling keeps from a rank are not
// given to its neighbours, because a ceiling is a bound only. So the shares add up to the GPU, except with overlap, a
// ceiling, none, fixed shares of more than the GPU, or more ranks than the GPU has minimum shares. If the job has a part
// of the GPU, this part is divided. A percentage is still one of the GPU.
func SplitSMs(g GPU, rules []ShareRule, ceiling Percent) ([]Share, error) {
	if err := splittable(g, rules, ceiling); err != nil {
		return nil, err
	}
	shares, most, free := make([]Share, len(rules)), g.most(ceiling), g.partSMs()/g.SMsPerTPC
	var parts []rankPart
	for i, r := range rules {
		switch r.kind {
		case shareNone:
			shares[i] = g.share(most, most)
		case sharePercent, shareSMs:
			shares[i] = g.share(g.fixed(r), most)
			free -= shares[i].SMs / g.SMsPerTPC
		default:
			parts = append(parts, newRankPart(i, r))
		}
	}
	apportion(parts, free, g.minShare()/g.SMsPerTPC)
	for _, p := range parts {
		shares[p.rank] = g.share(p.units*g.SMsPerTPC, most)
	}
	return shares, nil
}

func splittable(g GPU, rules []ShareRule, ceiling Percent) error {
	if g.SMs <= 0 || g.SMsPerTPC <= 0 || g.SMsPerTPC > g.SMs {
		return fmt.Errorf("cannot divide GPU of %d SMs in units of %d", g.SMs, g.SMsPerTPC)
	}
	if len(rules) == 0 {
		return errors.New("cannot divide GPU among 0 ranks")
	}
	if ceiling <= 0 || ceiling > 100*one {
		return fmt.Errorf("cannot divide GPU under a ceiling of %s %%: want above 0 and up to 100", ceiling)
	}
	for i, r := range rules {
		if r == (ShareRule{}) {
			return fmt.Errorf("cannot divide GPU among %d ranks: rank %d of it has no rule", len(rules), i)
		}
		if r.kind == shareSMs && r.amount > int64(g.SMs) {
			return fmt.Errorf("cannot give share %s: the GPU has %d SMs: ask for %dsm or less", r, g.SMs, g.partSMs())
		}
	}
	return nil
}

// Remark returns how the share that SplitSMs gave a rank differs from what its rule asks for: cut by the ceiling, or
// raised to the driver's minimum. It is empty if the share is the rule's, in whole TPCs.
func Remark(g GPU, rules []ShareRule, rank int, ceiling Percent, share Share) string {
	asked, rule := asks(g, rules, rank), rules[rank]
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

// asks returns what a rank's rule asks for, in whole TPCs. The GPU is the only bound.
func asks(g GPU, rules []ShareRule, rank int) int {
	free, weights := int64(g.partSMs()), int64(0)
	for i, r := range rules {
		switch r.kind {
		case shareNone:
		case sharePercent, shareSMs:
			free -= int64(g.fixed(r))
		default:
			weights += newRankPart(i, r).weight
		}
	}
	sms := int64(g.partSMs())
	switch r := rules[rank]; r.kind {
	case shareNone:
	case sharePercent:
		sms = int64(g.SMs) * r.amount / (100 * one)
	case shareSMs:
		sms = r.amount
	default:
		sms = min(sms, max(free, 0)*newRankPart(rank, r).entitlement()/weights)
	}
	return int(sms) - int(sms)%g.SMsPerTPC
}

// fixed returns the amount of a rule that names one, in whole TPCs.
func (g GPU) fixed(r ShareRule) int {
	if r.kind == sharePercent {
		return g.SMsAt(Percent(r.amount))
	}
	return int(r.amount) - int(r.amount)%g.SMsPerTPC
}

// rankPart is the part of a rank while TPCs are assigned.
type rankPart struct {
	rank   int
	weight int64 // in millionths
	factor int64 // in millionths; either weight or factor is 1, so that their product is exact
	units  int   // TPCs
	raised bool  // to the driver's minimum
}

func newRankPart(rank int, r ShareRule) rankPart {
	p := rankPart{rank: rank, weight: one, factor: one}
	switch r.kind {
	case shareWeight:
		p.weight = r.amount
	case shareOverlap:
		p.factor = r.amount
	}
	return p
}

// entitlement is weight times factor in millionths, at most 10^12. Of u units that ranks with the total weight w
// divide, the rank's part is u·entitlement/w.
func (p rankPart) entitlement() int64 { return p.weight * p.factor / one }

// apportion distributes free units: whole units in proportion, then one each by the largest remainder. First it
// raises ranks whose part is below the minimum. If fixed shares left nothing, that is all ranks.
func apportion(parts []rankPart, free, least int) {
	free = raiseToMinimum(parts, free, least)
	weights := sumWeights(parts)
	var remainders []*rankPart
	var entitled, given int64
	for i := range parts {
		if p := &parts[i]; !p.raised {
			p.units = int(int64(free) * p.entitlement() / weights)
			entitled, given = entitled+p.entitlement(), given+int64(p.units)
			remainders = append(remainders, p)
		}
	}
	if len(remainders) == 0 {
		return
	}
	slices.SortStableFunc(remainders, func(a, b *rankPart) int {
		return cmp.Compare(int64(free)*b.entitlement()%weights, int64(free)*a.entitlement()%weights)
	})
	for _, p := range remainders[:int64(free)*entitled/weights-given] {
		p.units++
	}
}

// raiseToMinimum gives the minimum to each rank whose part of the free units would be below it. It repeats this,
// because each raised rank leaves less for the others. It returns the free units for the ranks that were not raised.
func raiseToMinimum(parts []rankPart, free, least int) int {
	for {
		weights, before := sumWeights(parts), free
		raised := false
		for i := range parts {
			p := &parts[i]
			if p.raised || int64(before)*p.entitlement() >= int64(least)*weights {
				continue
			}
			p.units, p.raised, raised = least, true, true
			// The driver multiplies an overlapped rank's part, so the rank takes less than it gets.
			free -= int((int64(least)*one + p.factor - 1) / p.factor)
		}
		if !raised {
			return free
		}
	}
}

func sumWeights(parts []rankPart) (sum int64) {
	for _, p := range parts {
		if !p.raised {
			sum += p.weight
		}
	}
	return sum
}

// DependsOnOthers reports whether the rule's amount depends on the rules of the other ranks on the GPU.
func (r ShareRule) DependsOnOthers() bool { return r.kind == shareWeight }
