// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are what a user asks for a job beside asking for MPS. One grammar serves --mps=…, --comment=mps:… and
// SPANK_MPS: name=value, separated by commas. The zero value asks for nothing.
type Options struct {
	settings []Setting // in the order of the table below, each name once
}

// option is a row of the table of options.
type option struct {
	name string
	// narrow sets a grant's attribute to a value. The error says why the value is none, or why it is more than what the
	// rule gives.
	narrow func(value string, given Grant, g *Grant) error
}

// wider says that an option asks for more than the rule gives.
func wider(given string) error {
	return fmt.Errorf("the rule gives %s, and an option can only narrow that", given)
}

// options is the table. Share comes before overlap, since it says an overlap too. What a node does that fails (on_failure)
// is no user's to say: it drains nodes, or hides that they should be.
var options = []option{
	{"scope", func(value string, _ Grant, g *Grant) (err error) { // no order: either is as safe for others
		g.Scope, err = oneOf(value, ScopeJob, ScopeGPU)
		return err
	}},
	{"compute_mode", func(value string, given Grant, g *Grant) (err error) {
		g.Compute, err = atMost(value, given.Compute, ComputeExclusive, ComputeUnchanged)
		return err
	}},
	{"share", narrowShare},
	{"overlap", func(value string, given Grant, g *Grant) (err error) {
		most := given.Overlap
		if given.Share == ShareNone {
			most = maxOverlap
		}
		g.Overlap, err = factorUpTo(value, maxOverlap, most)
		return err
	}},
	{"ceiling", func(value string, given Grant, g *Grant) (err error) {
		g.Ceiling, err = factorUpTo(value, 100, given.Ceiling)
		return err
	}},
	{"memory", narrowMemory},
	{"memory_overlap", func(value string, given Grant, g *Grant) (err error) {
		g.MemoryOverlap, err = factorUpTo(value, maxOverlap, given.MemoryOverlap)
		return err
	}},
	{"priority", func(value string, given Grant, g *Grant) error {
		word, err := atMost(value, Priority(given.Low), "low", "normal")
		g.Low = word == "low"
		return err
	}},
	{"max_clients", narrowClients},
	{"hold", func(value string, given Grant, g *Grant) (err error) {
		g.Hold, err = durationUpTo(value, MaxHold, given.Hold)
		return err
	}},
	{"drain_grace", func(value string, given Grant, g *Grant) (err error) {
		g.DrainGrace, err = durationUpTo(value, MaxDrainGrace, given.DrainGrace)
		return err
	}},
	{"keep_logs", func(value string, given Grant, g *Grant) (err error) {
		g.KeepLogs, err = atMost(value, given.KeepLogs, KeepNever, KeepOnFailure, KeepAlways)
		return err
	}},
}

// optionNamed finds a row. "mem" is what mpirun-wrap calls the memory.
func optionNamed(name string) (option, bool) {
	if name == "mem" {
		name = "memory"
	}
	i := slices.IndexFunc(options, func(o option) bool { return o.name == name })
	if i < 0 {
		return option{}, false
	}
	return options[i], true
}

// OptionNames are the names of all options, which a rule's allow can list.
func OptionNames() []string {
	names := make([]string, len(options))
	for i, o := range options {
		names[i] = o.name
	}
	return names
}

// maxOptions bounds the text of options: all of them together are shorter.
const maxOptions = 512

// ParseOptions reads options. A text of a user's own may hold anything; the error is one sentence that can be printed.
func ParseOptions(text string) (Options, error) {
	if len(text) > maxOptions {
		return Options{}, fmt.Errorf("cannot read options %s: %d bytes, want at most %d", quote(text), len(text), maxOptions)
	}
	if strings.Trim(text, " ") == "" {
		return Options{}, nil
	}
	given := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		if err := readOption(strings.Trim(item, " "), given); err != nil {
			return Options{}, fmt.Errorf("cannot read options %s: %w", quote(text), err)
		}
	}
	return inOrder(given), nil
}

func readOption(item string, given map[string]string) error {
	name, value, assigned := strings.Cut(item, "=")
	row, known := optionNamed(name)
	switch {
	case item == "":
		return errors.New("an option is empty: want NAME=VALUE, separated by commas")
	case !known:
		return fmt.Errorf("there is no option %s: want %s", quote(name), strings.Join(OptionNames(), ", "))
	case !assigned || value == "":
		return fmt.Errorf("%s has no value: want %s=VALUE", row.name, row.name)
	}
	if _, twice := given[row.name]; twice {
		return fmt.Errorf("%s is given twice", row.name)
	}
	var scratch Grant
	if err := row.narrow(value, widestGrant, &scratch); err != nil {
		return fmt.Errorf("%s is %s: %w", row.name, quote(value), err)
	}
	given[row.name] = value
	return nil
}

// widestGrant is a grant that every option that can be read is within.
var widestGrant = Grant{
	Compute: ComputeUnchanged, Share: ShareNone, Overlap: maxOverlap, Ceiling: 100, DrainGrace: MaxDrainGrace,
	Hold: MaxHold, KeepLogs: KeepAlways, MemoryOverlap: maxOverlap, MaxClients: Clients,
}

func inOrder(given map[string]string) Options {
	var o Options
	for _, row := range options {
		if value, ok := given[row.name]; ok {
			o.settings = append(o.settings, Setting{row.name, value})
		}
	}
	return o
}

// and is both of two texts' options.
func (o Options) and(other Options) (Options, error) {
	given := map[string]string{}
	for _, s := range slices.Concat(o.settings, other.settings) {
		if value, twice := given[s.Name]; twice && value != s.Value {
			return Options{}, fmt.Errorf("cannot read options: %s is %s in --mps and %s in the comment", s.Name, quote(value), quote(s.Value))
		}
		given[s.Name] = s.Value
	}
	return inOrder(given), nil
}

// Settings are the options one by one.
func (o Options) Settings() []Setting { return slices.Clone(o.settings) }

// String is the options as ParseOptions reads them.
func (o Options) String() string {
	items := make([]string, len(o.settings))
	for i, s := range o.settings {
		items[i] = s.Name + "=" + s.Value
	}
	return strings.Join(items, ",")
}

// Narrow is the grant with the options applied, which must be of those that the rule allows and ask for no more than it
// gives. The error is a sentence for the job's ticket.
func (o Options) Narrow(given Grant, allow []string) (Grant, error) {
	g := given
	for _, s := range o.settings {
		if !slices.Contains(allow, s.Name) {
			return Grant{}, fmt.Errorf("cannot take %s=%s: this site's policy lets this job set %s", s.Name, s.Value, listOr(allow, "no option"))
		}
		row, _ := optionNamed(s.Name)
		if err := row.narrow(s.Value, given, &g); err != nil {
			return Grant{}, fmt.Errorf("cannot take %s=%s: %w", s.Name, s.Value, err)
		}
	}
	return g, nil
}

func listOr(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ") + " alone"
}

// narrowShare takes none, even and overlap:F, with the meaning that they have for mpirun-wrap: even is overlap:1. From
// the widest to the narrowest they are none, then overlap by its factor.
func narrowShare(value string, given Grant, g *Grant) error {
	rule, err := ParseShare(value)
	if err != nil {
		return errors.New("want none, even or overlap:F")
	}
	switch rule.kind {
	case shareNone:
		if given.Share != ShareNone {
			return wider("shares")
		}
		g.Share = ShareNone
		return nil
	case shareEven:
		rule.amount = one
	case shareOverlap:
	default:
		return errors.New("want none, even or overlap:F; one rank's own share is set by mpirun-wrap --share")
	}
	factor := float64(rule.amount) / one
	if given.Share != ShareNone && factor > given.Overlap {
		return wider(given.Rule().String())
	}
	g.Share, g.Overlap = ShareEven, factor
	return nil
}

// narrowMemory puts no order between even and a size: which of them is less depends on the GPU and the ranks.
func narrowMemory(value string, given Grant, g *Grant) error {
	rule, err := ParseMemory(value)
	if err != nil {
		return errors.New("want none, even, or a size like 8G")
	}
	more := rule.None() && !given.Memory.None() || rule.mib > 0 && given.Memory.mib > 0 && rule.mib > given.Memory.mib
	if more {
		return wider(given.Memory.String())
	}
	g.Memory = rule
	return nil
}

func narrowClients(value string, given Grant, g *Grant) error {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n < 1 || n > Clients {
		return fmt.Errorf("want a whole number from 1 to %d", Clients)
	}
	if int(n) > given.MaxClients {
		return wider(fmt.Sprint(given.MaxClients))
	}
	g.MaxClients = int(n)
	return nil
}

// durationUpTo reads a time up to the longest that there is, and holds it to the one that is given.
func durationUpTo(value string, longest, given time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > longest {
		return 0, fmt.Errorf("want a time like 10s, up to %v", longest)
	}
	if d > given {
		return 0, wider(given.String())
	}
	return d, nil
}

// factorUpTo reads a number from 1 to the most that there is, and holds it to the most that is given.
func factorUpTo(value string, most, given float64) (float64, error) {
	amount, err := millionths(value)
	f := float64(amount) / one
	if err != nil || f < 1 || f > most {
		return 0, fmt.Errorf("want a number from 1 to %v", most)
	}
	if f > given {
		return 0, wider(number(given))
	}
	return f, nil
}

func oneOf[T ~string](value string, words ...T) (T, error) {
	if !slices.Contains(words, T(value)) {
		return "", fmt.Errorf("want %s", strings.Join(spell(words), " or "))
	}
	return T(value), nil
}

// atMost reads one of words, which go from the narrowest to the widest, and holds it to the one that is given.
func atMost[T ~string](value string, given T, words ...T) (T, error) {
	word, err := oneOf(value, words...)
	if err == nil && slices.Index(words, word) > slices.Index(words, given) {
		return "", wider(string(given))
	}
	return word, err
}

func spell[T ~string](words []T) []string {
	list := make([]string, len(words))
	for i, word := range words {
		list[i] = string(word)
	}
	return list
}

// quote shows a user's text in a sentence: bounded, without bytes that would break a line, and in ASCII.
func quote(text string) string {
	const most = 64
	if len(text) > most {
		return strconv.QuoteToASCII(text[:most]) + "…"
	}
	return strconv.QuoteToASCII(text)
}
