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

// Scope is the number of daemons that serve a job.
type Scope string

// ScopeJob is one daemon for all of the job's GPUs, ScopeGPU is one daemon for each. With ScopeGPU a fault on one GPU
// does not reach the ranks of another, and NCCL and CUDA IPC are as fast (measured). A process can use one daemon
// only, so ranks with several GPUs need ScopeJob.
const (
	ScopeJob Scope = "job"
	ScopeGPU Scope = "gpu"
)

// ComputeModePolicy is what the prolog does with the compute mode of the job's GPUs.
type ComputeModePolicy string

// ComputeExclusive sets the mode in which a process needs MPS to use the GPU. ComputeUnchanged leaves the mode as it
// is.
const (
	ComputeExclusive ComputeModePolicy = "exclusive_process"
	ComputeUnchanged ComputeModePolicy = "unchanged"
)

// OnFailure is what a node does if it cannot serve a grant.
type OnFailure string

// FailDrain drains the node and requeues the job. FailRunWithout runs the job without MPS, and its ticket has the
// reason.
const (
	FailDrain      OnFailure = "drain"
	FailRunWithout OnFailure = "run_without"
)

// ShareMode is how the SMs of a GPU are divided among its ranks.
type ShareMode string

// ShareEven is even shares in whole TPCs, ShareNone is no cap. The third mode is a percentage, like "25%".
const (
	ShareEven ShareMode = "even"
	ShareNone ShareMode = "none"
)

// KeepLogs is when the logs of a job's daemons outlive the job.
type KeepLogs string

// The order is from no logs to all logs.
const (
	KeepNever     KeepLogs = "never"
	KeepOnFailure KeepLogs = "on_failure"
	KeepAlways    KeepLogs = "always"
)

// Unplaced is what processes get that neither a wrapper nor a launcher places: the batch script and its children.
type Unplaced string

// UnplacedShare is the share of one rank on all of the job's GPUs, UnplacedDeny is no access to MPS.
const (
	UnplacedShare Unplaced = "share"
	UnplacedDeny  Unplaced = "deny"
)

// MaxDrainGrace is the maximum time that an epilog waits for clients. MaxHold is the maximum time that a guard holds
// files, and MaxPause the maximum time that it pauses clients.
const (
	MaxDrainGrace = 10 * time.Minute
	MaxHold       = 10 * time.Minute
	MaxPause      = time.Minute
)

// Grant is what a rule grants a job.
type Grant struct {
	Scope      Scope
	Compute    ComputeModePolicy
	Share      ShareMode
	Overlap    float64 // 1 to 48: how many times the SMs are dealt; 2 is NVIDIA's 100/(0.5 n)
	Ceiling    float64 // the daemon's own limit: no rank exceeds this percentage of a GPU, above 0 to 100
	OnFailure  OnFailure
	DrainGrace time.Duration // how long the epilog lets clients finish before it ends them
	Hold       time.Duration // how long the guard holds a dead client's files when a program may need the room; 0: no guard
	Pause      time.Duration // how long the guard may pause a dead client's neighbours when a program may need the room; 0: never
	KeepLogs   KeepLogs
	Unplaced   Unplaced

	// These apply to a rank whose user sets nothing else.
	Memory        MemoryRule
	MemoryOverlap float64 // 1 to 48: how many times memory is promised
	Low           bool    // a lower priority than other jobs' clients
	MaxClients    int     // 1 to 60: the maximum of ranks on a GPU, if MPS serves that many there
}

// DefaultGrant is the grant of an empty block. Overlap 2 was the fastest with real programs (docs/rationale.md).
func DefaultGrant() Grant {
	return Grant{
		Scope: ScopeJob, Compute: ComputeExclusive, Share: ShareEven, Overlap: 2, Ceiling: 100,
		OnFailure: FailDrain, DrainGrace: 10 * time.Second, Hold: 30 * time.Second, Pause: 5 * time.Second, KeepLogs: KeepNever, Unplaced: UnplacedShare, MemoryOverlap: 1, MaxClients: MaxClients,
	}
}

// Setting is an attribute of a grant, or a user's option, with its value as a policy writes it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// attribute is a row of the table of a grant's attributes.
type attribute struct {
	name string
	text func(Grant) string // the value as a policy writes it
	// narrow sets the attribute to a value. The error is why the value is wrong, or why it exceeds what the rule
	// gives.
	narrow func(value string, given Grant, g *Grant) error
}

// attributes is the table, in the order of the documents. Share comes before overlap, because it can set an overlap
// too.
var attributes = []attribute{
	{"scope", func(g Grant) string { return string(g.Scope) }, func(value string, _ Grant, g *Grant) (err error) {
		g.Scope, err = oneOf(value, ScopeJob, ScopeGPU) // these have no order: both are equally safe for other jobs
		return err
	}},
	{"compute_mode", func(g Grant) string { return string(g.Compute) }, func(value string, given Grant, g *Grant) (err error) {
		g.Compute, err = atMost(value, given.Compute, ComputeExclusive, ComputeUnchanged)
		return err
	}},
	{"share", Grant.shareText, narrowShare},
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
	{"pause", func(g Grant) string { return g.Pause.String() }, func(value string, given Grant, g *Grant) (err error) {
		g.Pause, err = durationUpTo(value, MaxPause, given.Pause)
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

// shareText is the whole rule in one word, so that a policy that contains the default is the default: "even" alone has
// overlap 1.
func (g Grant) shareText() string {
	if g.Share == "" {
		return ""
	}
	return g.Rule().String()
}

// isPartOfShare reports whether the text of share contains the attribute. It stays for older policies and tickets.
func (a attribute) isPartOfShare() bool { return a.name == "overlap" }

// isOption reports whether a user can set the attribute. A user cannot set what a node does after a failure, because
// that drains nodes or hides a fault. A user who wants no access for unplaced processes need not start any.
func (a attribute) isOption() bool { return a.name != "on_failure" && a.name != "unplaced" }

// Settings returns the grant's attributes in the order of the documents. The share contains the overlap.
func (g Grant) Settings() (settings []Setting) {
	for _, a := range attributes {
		if !a.isPartOfShare() {
			settings = append(settings, Setting{a.name, a.text(g)})
		}
	}
	return settings
}

// MarshalJSON writes an object with the settings. Settings that equal those of the zero grant are left out.
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

// ReadGrant reads settings by their names. Each value must be one that a policy can give. A missing setting is that
// of the zero grant. A name that this version does not know has no meaning.
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

// number writes a factor or a percentage as ParseOptions reads it, with at most six decimals.
func number(f float64) string { return PercentFrom(f).String() }

// Priority returns Grant.Low as a policy writes it.
func Priority(low bool) string {
	if low {
		return "low"
	}
	return "normal"
}

// widestGrant is a grant that contains every value that can be read.
var widestGrant = Grant{
	Compute: ComputeUnchanged, Share: ShareNone, Overlap: maxOverlap, Ceiling: 100, DrainGrace: MaxDrainGrace,
	Hold: MaxHold, Pause: MaxPause, KeepLogs: KeepAlways, MemoryOverlap: maxOverlap, MaxClients: MaxClients,
}

// wider is the error of an option that asks for more than the rule gives.
func wider(given string) error {
	return fmt.Errorf("the rule gives %s, and an option can only narrow that", given)
}

const wantShare = "want none, even, overlap:F or PCT%"

// SetShare sets the share from the text of a policy or an option.
func (g *Grant) SetShare(value string) error { return narrowShare(value, widestGrant, g) }

// narrowShare takes none, even, overlap:F and PCT%, with the meaning that they have for mpirun-wrap: even is
// overlap:1. Their order from the widest to the narrowest is none, and then overlap by its factor or a percentage.
// Which of these two is less depends on the number of ranks, so overlap may replace a percentage, but not the
// reverse.
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

// narrowMemory has no order between even and a size: which of them is less depends on the GPU and the number of
// ranks.
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

// durationUpTo reads a time up to the longest that is possible, and refuses one above the given time.
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

// factorUpTo reads a number from 1 to the maximum that is possible, and refuses one above the given maximum.
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

// atMost reads one of the words, which go from the narrowest to the widest, and refuses one that is wider than the
// given word.
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
