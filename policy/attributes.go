// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind is how a policy writes the value of an attribute.
type kind int

// A Number may have decimals, a Count has none. A Text is neither of these and has a form of its own.
const (
	text kind = iota
	word
	Number
	Count
	Duration
)

// Attribute is a row of the table of a grant's attributes. The policy language, users' options, tickets and the checks
// of the documents come from this table.
type Attribute struct {
	Name            string
	Kind            kind
	Words           []string      // of a Word
	Lowest, Highest float64       // of a Number or a Count
	Longest         time.Duration // of a Duration
	SiteOnly        bool          // users cannot set it

	text    func(Grant) string // the value as a policy writes it
	read    func(value string, g *Grant) error
	exceeds func(g, given Grant) bool // nil: the values have no order
}

// attributes is the table, in the order of the documents. A user cannot set what a node does after a failure, because
// that drains nodes or hides a fault. A user who wants no access for unplaced processes need not start any.
var attributes = []Attribute{
	choice("scope", func(g *Grant) *Scope { return &g.Scope }, ScopeJob, ScopeGPU), // both are equally safe for other jobs
	ordered("compute_mode", func(g *Grant) *computeMode { return &g.Compute }, computeExclusive, ComputeUnchanged),
	{Name: "share", text: func(g Grant) string { return g.Share.String() }, read: readShare, exceeds: shareExceeds},
	number("ceiling", func(g *Grant) *float64 { return &g.Ceiling }, 100),
	{Name: "memory", text: func(g Grant) string { return g.Memory.String() }, read: readMemory, exceeds: memoryExceeds},
	number("memory_overlap", func(g *Grant) *float64 { return &g.MemoryOverlap }, maxOverlap),
	priority(),
	count("max_clients", func(g *Grant) *int { return &g.MaxClients }, 1, MaxClients),
	choice("share_gpu", func(g *Grant) *shareGPU { return &g.ShareGPU }, shareTurns, ShareUser), // a user may expose only own jobs
	duration("hold", func(g *Grant) *time.Duration { return &g.Hold }, maxHold),
	duration("pause", func(g *Grant) *time.Duration { return &g.Pause }, maxPause),
	siteOnly(choice("on_failure", func(g *Grant) *onFailure { return &g.OnFailure }, failDrain, FailRunWithout)),
	duration("drain_grace", func(g *Grant) *time.Duration { return &g.DrainGrace }, maxDrainGrace),
	ordered("keep_logs", func(g *Grant) *keepLogs { return &g.KeepLogs }, keepNever, keepOnFailure, keepAlways),
	siteOnly(choice("unplaced", func(g *Grant) *unplaced { return &g.Unplaced }, unplacedShare, UnplacedDeny)),
}

// Attributes returns the table.
func Attributes() []Attribute { return slices.Clone(attributes) }

// Read sets the attribute of g to a value as a policy writes it. The error says what is wanted instead.
func (a Attribute) Read(value string, g *Grant) error { return a.read(value, g) }

// narrow sets the attribute of g to a value. It refuses a value that exceeds the given grant.
func (a Attribute) narrow(value string, given Grant, g *Grant) error {
	if err := a.read(value, g); err != nil {
		return err
	}
	if a.exceeds != nil && a.exceeds(*g, given) {
		return fmt.Errorf("the rule gives %s, and an option can only narrow that", a.text(given))
	}
	return nil
}

func siteOnly(a Attribute) Attribute {
	a.SiteOnly = true
	return a
}

// choice is an attribute with one of some words that have no order.
func choice[W ~string](name string, field func(*Grant) *W, words ...W) Attribute {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = string(word)
	}
	return Attribute{
		Name: name, Kind: word, Words: all,
		text: func(g Grant) string { return string(*field(&g)) },
		read: func(value string, g *Grant) error {
			if !slices.Contains(all, value) {
				return fmt.Errorf("want %s", strings.Join(all, " or "))
			}
			*field(g) = W(value)
			return nil
		},
	}
}

// ordered is a choice whose words go from the narrowest to the widest.
func ordered[W ~string](name string, field func(*Grant) *W, words ...W) Attribute {
	a := choice(name, field, words...)
	a.exceeds = func(g, given Grant) bool {
		return slices.Index(words, *field(&g)) > slices.Index(words, *field(&given))
	}
	return a
}

// number is an attribute from 1 to the highest value, with at most six decimals.
func number(name string, field func(*Grant) *float64, highest float64) Attribute {
	return Attribute{
		Name: name, Kind: Number, Lowest: 1, Highest: highest,
		text: func(g Grant) string { return PercentFrom(*field(&g)).String() },
		read: func(value string, g *Grant) error {
			amount, err := millionths(value)
			f := float64(amount) / one
			if err != nil || f < 1 || f > highest {
				return fmt.Errorf("want a number from 1 to %v", highest)
			}
			*field(g) = f
			return nil
		},
		exceeds: above(field),
	}
}

func count(name string, field func(*Grant) *int, lowest, highest int) Attribute {
	return Attribute{
		Name: name, Kind: Count, Lowest: float64(lowest), Highest: float64(highest),
		text: func(g Grant) string { return strconv.Itoa(*field(&g)) },
		read: func(value string, g *Grant) error {
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || int(n) < lowest || int(n) > highest {
				return fmt.Errorf("want a whole number from %d to %d", lowest, highest)
			}
			*field(g) = int(n)
			return nil
		},
		exceeds: above(field),
	}
}

// duration is an attribute whose value is a time from 0 to the longest.
func duration(name string, field func(*Grant) *time.Duration, longest time.Duration) Attribute {
	return Attribute{
		Name: name, Kind: Duration, Longest: longest,
		text: func(g Grant) string { return field(&g).String() },
		read: func(value string, g *Grant) error {
			d, err := time.ParseDuration(value)
			if err != nil || d < 0 || d > longest {
				return fmt.Errorf("want a time like 10s, up to %v", longest)
			}
			*field(g) = d
			return nil
		},
		exceeds: above(field),
	}
}

func above[T cmp.Ordered](field func(*Grant) *T) func(g, given Grant) bool {
	return func(g, given Grant) bool { return *field(&g) > *field(&given) }
}

// priority is a word in a policy and a bool in a grant.
func priority() Attribute {
	words := []string{"low", "normal"}
	return Attribute{
		Name: "priority", Kind: word, Words: words,
		text: func(g Grant) string { return map[bool]string{true: "low", false: "normal"}[g.Low] },
		read: func(value string, g *Grant) error {
			if !slices.Contains(words, value) {
				return errors.New("want low or normal")
			}
			g.Low = value == "low"
			return nil
		},
		exceeds: func(g, given Grant) bool { return given.Low && !g.Low },
	}
}

// readShare reads a share. overlap:1 is even, so that equal grants are written alike.
func readShare(value string, g *Grant) error {
	rule, err := ParseShare(value)
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), fmt.Sprintf("cannot read share %q: ", value)))
	}
	if rule.kind == shareOverlap && rule.amount == one {
		rule = Overlap(1)
	}
	g.Share = rule
	return nil
}

// shareExceeds orders shares from the widest to the narrowest: overlap by its factor or a percentage. Even and a list
// are overlap 1. Which of even and a percentage is less depends on the number of ranks, so even may replace a
// percentage, but not the reverse. None is no share, which a rank may choose by its flag, too.
func shareExceeds(g, given Grant) bool {
	switch {
	case given.Share.kind == shareNone, g.Share.kind == shareNone:
		return false
	case g.Share.kind == sharePercent:
		return given.Share.kind != sharePercent || g.Share.amount > given.Share.amount
	}
	return g.Share.overlaps() > given.Share.overlaps()
}

func readMemory(value string, g *Grant) error {
	rule, err := ParseMemory(value)
	if err != nil {
		return errors.New(wantMemory)
	}
	g.Memory = rule
	return nil
}

// memoryExceeds has no order between even and a size: which of them is less depends on the GPU and the number of
// ranks.
func memoryExceeds(g, given Grant) bool {
	if g.Memory.None() {
		return !given.Memory.None()
	}
	return given.Memory.mib > 0 && g.Memory.mib > given.Memory.mib
}

// Setting is an attribute of a grant, or a user's option, with its value as a policy writes it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Settings returns the grant's attributes in the order of the documents.
func (g Grant) Settings() (settings []Setting) {
	for _, a := range attributes {
		settings = append(settings, Setting{a.Name, a.text(g)})
	}
	return settings
}

// MarshalJSON writes an object with the settings. Settings that equal those of the zero grant are left out.
func (g Grant) MarshalJSON() ([]byte, error) {
	texts := map[string]string{}
	for _, a := range attributes {
		if text := a.text(g); text != a.text(Grant{}) {
			texts[a.Name] = text
		}
	}
	return json.Marshal(texts)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (g *Grant) UnmarshalJSON(content []byte) error {
	var texts map[string]string
	err := json.Unmarshal(content, &texts)
	if err == nil {
		*g, err = ReadGrant(texts)
	}
	return err
}

// ReadGrant reads settings by their names. Each value must be one that a policy can give. A missing setting is that
// of the zero grant. A name that this version does not know has no meaning.
func ReadGrant(texts map[string]string) (Grant, error) {
	var g Grant
	for _, a := range attributes {
		value, given := texts[a.Name]
		if !given {
			continue
		}
		if err := a.read(value, &g); err != nil {
			return Grant{}, fmt.Errorf("cannot read grant: %s is %s: %w", a.Name, quote(value), err)
		}
	}
	return g, nil
}
