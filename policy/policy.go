// SPDX-License-Identifier: Apache-2.0

// Package policy is what a site decides: what a job asks, what it is granted, and how a GPU is divided among ranks.
// It is pure: values in, values out, the standard library alone. Where the policy is read from is policyfile's business.
package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Request is what a job asks of a node: what Slurm said of it, and what was looked up because the policy mentions it
// (Needs). Every string in it may be the user's own.
type Request struct {
	JobID       uint32
	User        string
	UID         uint32
	GID         uint32
	Groups      []string // looked up: the names of all of the user's
	Account     string
	Partition   string
	QOS         string
	Reservation string
	Comment     string
	Extra       string
	Requested   []string // whole names out of --constraint
	Option      string   // the value of --mps
	HasOption   bool     // --mps was given, with a value or without
	GPUs        []int    // the job's GPUs, or MIG instances, on this node: positions in Slurm's list
	NTasks      int
	Nodes       int
	Array       uint32 // the array's number, 0 for a job of none
	Restart     int    // times requeued

	Node     string
	Features []string // looked up: the node's own
	NodeGPUs int      // looked up: how many the node has
	Driver   string   // looked up: its version
	GPU      GPUFacts // looked up: the first of the job's
}

// What of a request is looked at where a user wrote it, so that no job can make a node slow.
const (
	maxText  = 4096 // bytes of a string
	maxNames = 256  // of a list of names
)

// Truncated is the request as rules see it: of long texts and lists the beginning.
func (r Request) Truncated() Request {
	for _, text := range []*string{&r.User, &r.Account, &r.Partition, &r.QOS, &r.Reservation, &r.Comment, &r.Extra, &r.Option, &r.Node, &r.Driver} {
		*text = (*text)[:min(len(*text), maxText)]
	}
	for _, names := range []*[]string{&r.Groups, &r.Requested, &r.Features} {
		*names = slices.Clone((*names)[:min(len(*names), maxNames)])
		for i, name := range *names {
			(*names)[i] = name[:min(len(name), maxText)]
		}
	}
	return r
}

// GPUFacts are what rules can ask of a GPU. The zero value is that of a job without one.
type GPUFacts struct {
	Product   string // as NVML says it, "NVIDIA H200"
	SMs       int
	MemoryMiB int
	MIG       bool // a MIG instance
}

// Lookups says which look-ups the policy's rules mention. Each costs time or a driver, so that no other is made.
type Lookups struct {
	Groups, Features, Devices, Driver, GPU bool
}

// Trigger says how a job asks for MPS. Of a job that does not ask, no rule is tried and nothing is looked up.
type Trigger struct {
	Constraint string // the name in --constraint, "" for none
	Comment    string // the word that a comment is, or begins with before a colon, "" for none
	Option     bool   // --mps
}

// requestedBy says how the request asks, "" where it does not.
func (t Trigger) requestedBy(r Request) string {
	_, commented := t.commented(r)
	switch {
	case t.Constraint != "" && slices.Contains(r.Requested, t.Constraint):
		return fmt.Sprintf("--constraint names %q", t.Constraint)
	case t.Option && r.HasOption:
		return "--mps is given"
	case commented:
		return fmt.Sprintf("the comment says %q", t.Comment)
	}
	return ""
}

// commented is what a comment like mps:share=even says behind the colon.
func (t Trigger) commented(r Request) (options string, ok bool) {
	if t.Comment == "" {
		return "", false
	}
	rest, ok := strings.CutPrefix(r.Comment, t.Comment)
	if !ok || rest == "" {
		return "", ok
	}
	return strings.CutPrefix(rest, ":")
}

// howToAsk says how a job can ask.
func (t Trigger) howToAsk() string {
	var ways []string
	if t.Constraint != "" {
		ways = append(ways, "--constraint="+t.Constraint)
	}
	if t.Option {
		ways = append(ways, "--mps")
	}
	if t.Comment != "" {
		ways = append(ways, "--comment="+t.Comment)
	}
	return strings.Join(ways, " or ")
}

// Input is a request in the form that rules look at. It is made once for all of them.
type Input any

// Rule is one clause of the policy. An error of its functions says why the rule fails for this request.
type Rule struct {
	Name  string
	Allow []string // the options that a user may narrow its grant by
	When  func(Input) (bool, error)
	// Gives is the grant, or why the job has none.
	Result func(Input) (grant Grant, denied string, err error)
}

// Policy is a list of rules: the first rule whose condition holds decides.
type Policy struct {
	Trigger *Trigger // nil: the rules alone say who wants MPS
	Lookups Lookups
	Bind    func(Request) Input
	Rules   []Rule
}

// Decision is the answer to a request. Where it was not Asked the job runs as if nothing were installed; where it is
// Denied, the job has no MPS and is told why; else the Grant holds.
type Decision struct {
	Requested bool   `json:"asked"`
	Rule      string `json:"rule,omitempty"` // that decided
	Denied    string `json:"denied,omitempty"`
	Grant     Grant  `json:"-"`
}

// Granted says that there is a grant.
func (v Decision) Granted() bool { return v.Requested && v.Denied == "" }

// noRule is what a job is told that asks and that no rule is for.
const noRule = "no rule of this site's policy is for this job"

// Requested says whether the request asks for MPS, as far as that can be said without the rules, and how: a way of asking, or
// what ways there are.
func (p Policy) Requested(r Request) (how string, asks bool) {
	if p.Trigger == nil {
		return "the policy has no trigger: its rules alone decide", true
	}
	if how := p.Trigger.requestedBy(r); how != "" {
		return how, true
	}
	return "it would by " + p.Trigger.howToAsk(), false
}

// Decide answers a request. It cannot fail: whatever is wrong with a request is a denial that says so.
func (p Policy) Decide(r Request) Decision {
	if _, asks := p.Requested(r); !asks {
		return Decision{}
	}
	evidence := p.Bind(r.Truncated())
	for _, rule := range p.Rules {
		holds, err := rule.When(evidence)
		if err != nil {
			return undecided(rule, err)
		}
		if holds {
			return p.apply(rule, evidence, r)
		}
	}
	if p.Trigger == nil {
		return Decision{}
	}
	return Decision{Requested: true, Denied: noRule}
}

// undecided is the answer to a request that a rule fails for. The node has not failed, so the job is denied.
func undecided(rule Rule, err error) Decision {
	return Decision{Requested: true, Rule: rule.Name, Denied: fmt.Sprintf("this site's policy cannot decide: %v: tell the site's admins", err)}
}

// apply is the verdict of the rule that holds, narrowed by what the user asks.
func (p Policy) apply(rule Rule, evidence Input, r Request) Decision {
	grant, denied, err := rule.Result(evidence)
	if err != nil {
		return undecided(rule, err)
	}
	verdict := Decision{Requested: true, Rule: rule.Name, Denied: denied}
	if denied != "" {
		return verdict
	}
	options, err := p.OptionsOf(r)
	if err == nil {
		verdict.Grant, err = options.Narrow(grant, rule.Allow)
	}
	if err != nil {
		verdict.Denied = err.Error()
	}
	return verdict
}

// OptionsOf are the options of a request: those of --mps, and those of the comment where the policy's trigger looks there.
func (p Policy) OptionsOf(r Request) (Options, error) {
	var given, commented Options
	var err error
	if r.HasOption {
		if given, err = ParseOptions(r.Option); err != nil {
			return Options{}, err
		}
	}
	if p.Trigger != nil {
		if text, ok := p.Trigger.commented(r); ok {
			if commented, err = ParseOptions(text); err != nil {
				return Options{}, err
			}
		}
	}
	return given.and(commented)
}
