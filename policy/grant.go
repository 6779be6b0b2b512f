// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Scope says how many daemons serve a job.
type Scope string

// One daemon for all of the job's GPUs, or one for each. The second keeps a fault on one GPU from the ranks of another
// and costs nothing in NCCL or CUDA IPC (measured); a process can use one daemon only, so ranks with several GPUs need
// the first.
const (
	ScopeJob Scope = "job"
	ScopeGPU Scope = "gpu"
)

// ComputeModePolicy says what becomes of the compute mode of the job's GPUs.
type ComputeModePolicy string

// The mode that makes MPS the only way in, or whatever is there.
const (
	ComputeExclusive ComputeModePolicy = "exclusive_process"
	ComputeUnchanged ComputeModePolicy = "unchanged"
)

// OnFailure says what a node that cannot serve a grant does.
type OnFailure string

// Drain the node and requeue the job, or run the job without MPS and say so in its ticket.
const (
	FailDrain      OnFailure = "drain"
	FailRunWithout OnFailure = "run_without"
)

// ShareMode says how the SMs of a GPU go to its ranks.
type ShareMode string

// Even shares in whole TPCs, or no cap at all. The third mode is a percentage, like "25%".
const (
	ShareEven ShareMode = "even"
	ShareNone ShareMode = "none"
)

// KeepLogs says when the logs of a job's daemons outlive the job.
type KeepLogs string

// From fewest to most.
const (
	KeepNever     KeepLogs = "never"
	KeepOnFailure KeepLogs = "on_failure"
	KeepAlways    KeepLogs = "always"
)

// Unplaced says what a process has that neither a wrapper nor a launcher places: the batch script and what it starts.
type Unplaced string

// The share of one rank on all of the job's GPUs, or no access to MPS.
const (
	UnplacedShare Unplaced = "share"
	UnplacedDeny  Unplaced = "deny"
)

// MaxDrainGrace is the longest that an epilog waits for clients, MaxHold the longest that a guard holds files.
const (
	MaxDrainGrace = 10 * time.Minute
	MaxHold       = 10 * time.Minute
)

// Grant is what a rule gives.
type Grant struct {
	Scope      Scope
	Compute    ComputeModePolicy
	Share      ShareMode
	Overlap    float64 // 1 to 48: how many times over the SMs are dealt; 2 is NVIDIA's 100/(0.5 n)
	Ceiling    float64 // percent of a GPU that no rank can exceed, above 0 to 100: the daemon's own limit
	OnFailure  OnFailure
	DrainGrace time.Duration // how long the epilog lets clients finish before it ends them
	Hold       time.Duration // how long the guard holds files of a dead client although another may need the memory; 0: no guard
	KeepLogs   KeepLogs
	Unplaced   Unplaced

	// What a rank has where its user says nothing else.
	Memory        MemoryRule
	MemoryOverlap float64 // 1 to 48: how many times over memory is promised
	Low           bool    // priority below that of other jobs' clients
	MaxClients    int     // 1 to 60: how many ranks may share a GPU, if MPS serves so many there
}

// DefaultGrant is what a grant has where its block says nothing. Overlap 2 measured best on real programs
// (docs/rationale.md).
func DefaultGrant() Grant {
	return Grant{
		Scope: ScopeJob, Compute: ComputeExclusive, Share: ShareEven, Overlap: 2, Ceiling: 100,
		OnFailure: FailDrain, DrainGrace: 10 * time.Second, Hold: 30 * time.Second, KeepLogs: KeepNever, Unplaced: UnplacedShare, MemoryOverlap: 1, MaxClients: MaxClients,
	}
}

// Setting is an attribute of a grant, or an option of a user's, and its value as a policy spells it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// attribute is a row of the table of a grant's attributes.
type attribute struct {
	name string
	text func(Grant) string // the value as a policy spells it
	// narrow sets the attribute to a value. The error says why the value is none, or why it is more than what the rule
	// gives.
	narrow func(value string, given Grant, g *Grant) error
}

// attributes is the table, in the order of the documents. Share comes before overlap, since it says an overlap too.
var attributes = []attribute{
	{"scope", func(g Grant) string { return string(g.Scope) }, func(value string, _ Grant, g *Grant) (err error) {
		g.Scope, err = oneOf(value, ScopeJob, ScopeGPU) // no order: either is as safe for others
		return err
	}},
	{"compute_mode", func(g Grant) string { return string(g.Compute) }, func(value string, given Grant, g *Grant) (err error) {
		g.Compute, err = atMost(value, given.Compute, ComputeExclusive, ComputeUnchanged)
		return err
	}},
	{"share", func(g Grant) string { return string(g.Share) }, narrowShare},
	{"overlap", func(g Grant) string { return number(g.Overlap) }, func(value string, given Grant, g *Grant) (err error) {
		most := given.Overlap
		if given.Share == ShareNone {
			most = maxOverlap
		}
		g.Overlap, err = factorUpTo(value, maxOverlap, most)
		return err
	}},
	{"ceiling", func(g Grant) string { return number(g.Ceiling) }, func(value string, given Grant, g *Grant) (err error) {
		g.Ceiling, err = factorUpTo(value, 100, given.Ceiling)
		return err
	}},
	{"memory", func(g Grant) string { return g.Memory.String() }, narrowMemory},
	{"memory_overlap", func(g Grant) string { return number(g.MemoryOverlap) }, func(value string, given Grant, g *Grant) (err error) {
		g.MemoryOverlap, err = factorUpTo(value, maxOverlap, given.MemoryOverlap)
		return err
	}},
	{"priority", func(g Grant) string { return Priority(g.Low) }, func(value string, given Grant, g *Grant) error {
		word, err := atMost(value, Priority(given.Low), "low", "normal")
		g.Low = word == "low"
		return err
	}},
	{"max_clients", func(g Grant) string { return fmt.Sprint(g.MaxClients) }, narrowClients},
	{"hold", func(g Grant) string { return g.Hold.String() }, func(value string, given Grant, g *Grant) (err error) {
		g.Hold, err = durationUpTo(value, MaxHold, given.Hold)
		return err
	}},
	{"on_failure", func(g Grant) string { return string(g.OnFailure) }, func(value string, _ Grant, g *Grant) (err error) {
		g.OnFailure, err = oneOf(value, FailDrain, FailRunWithout)
		return err
	}},
	{"drain_grace", func(g Grant) string { return g.DrainGrace.String() }, func(value string, given Grant, g *Grant) (err error) {
		g.DrainGrace, err = durationUpTo(value, MaxDrainGrace, given.DrainGrace)
		return err
	}},
	{"keep_logs", func(g Grant) string { return string(g.KeepLogs) }, func(value string, given Grant, g *Grant) (err error) {
		g.KeepLogs, err = atMost(value, given.KeepLogs, KeepNever, KeepOnFailure, KeepAlways)
		return err
	}},
	{"unplaced", func(g Grant) string { return string(g.Unplaced) }, func(value string, _ Grant, g *Grant) (err error) {
		g.Unplaced, err = oneOf(value, UnplacedShare, UnplacedDeny)
		return err
	}},
}

// isOption reports whether a user can set the attribute. What a node does that fails is no user's to say: it drains
// nodes, or hides that they should be. A user who wants no access for unplaced processes need not start any.
func (a attribute) isOption() bool { return a.name != "on_failure" && a.name != "unplaced" }

// Settings are the grant's attributes in the order of the documents.
func (g Grant) Settings() []Setting {
	settings := make([]Setting, len(attributes))
	for i, a := range attributes {
		settings[i] = Setting{a.name, a.text(g)}
	}
	return settings
}

// MarshalJSON writes an object of the settings. Those that are as in the zero grant are left out.
func (g Grant) MarshalJSON() ([]byte, error) {
	texts := map[string]string{}
	for _, a := range attributes {
		if text := a.text(g); text != a.text(Grant{}) {
			texts[a.name] = text
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

// ReadGrant reads settings by their names. Each value must be one that a policy can give. A setting that is not there is
// as in the zero grant, and a name that this version does not know has no meaning.
func ReadGrant(texts map[string]string) (Grant, error) {
	var g Grant
	for _, a := range attributes {
		value, given := texts[a.name]
		if !given {
			continue
		}
		if err := a.narrow(value, widestGrant, &g); err != nil {
			return Grant{}, fmt.Errorf("cannot read grant: %s is %s: %w", a.name, quote(value), err)
		}
	}
	return g, nil
}

// number is a factor or a percentage as ParseOptions reads it: with six decimals at most.
func number(f float64) string { return PercentFrom(f).String() }

// Priority is how a policy spells Grant.Low.
func Priority(low bool) string {
	if low {
		return "low"
	}
	return "normal"
}

// widestGrant is a grant that every value that can be read is within.
var widestGrant = Grant{
	Compute: ComputeUnchanged, Share: ShareNone, Overlap: maxOverlap, Ceiling: 100, DrainGrace: MaxDrainGrace,
	Hold: MaxHold, KeepLogs: KeepAlways, MemoryOverlap: maxOverlap, MaxClients: MaxClients,
}

// wider says that an option asks for more than the rule gives.
func wider(given string) error {
	return fmt.Errorf("the rule gives %s, and an option can only narrow that", given)
}

const wantShare = "want none, even, overlap:F or PCT%"

// SetShare sets the share as a policy or an option writes it.
func (g *Grant) SetShare(value string) error { return narrowShare(value, widestGrant, g) }

// narrowShare takes none, even, overlap:F and PCT%, with the meaning that they have for mpirun-wrap: even is overlap:1.
// From the widest to the narrowest they are none, then overlap by its factor, or a percentage. Which of the last two is
// less depends on the ranks: overlap replaces a percentage, but not the reverse.
func narrowShare(value string, given Grant, g *Grant) error {
	rule, err := ParseShare(value)
	if err != nil {
		return errors.New(wantShare)
	}
	granted := given.Rule()
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
	case sharePercent:
		if given.Share != ShareNone && (granted.kind != sharePercent || rule.amount > granted.amount) {
			return wider(granted.String())
		}
		g.Share = ShareMode(rule.String())
		return nil
	default:
		return errors.New(wantShare + "; one rank's own share is set by mpirun-wrap --share")
	}
	factor := float64(rule.amount) / one
	if given.Share != ShareNone && factor > given.Overlap {
		return wider(granted.String())
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
	if err != nil || n < 1 || n > MaxClients {
		return fmt.Errorf("want a whole number from 1 to %d", MaxClients)
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
