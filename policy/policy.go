// SPDX-License-Identifier: Apache-2.0

// Package policy decides what a site grants a job, and how a GPU is divided among ranks. It is pure: values in,
// values out, and the standard library alone. Package policyfile reads the policy from files.
//
//	Request ── Trigger: does the job ask? ── no: the job runs as if nothing were installed
//	   │ yes
//	rules in order: the first whose When holds ── none: denied
//	   │
//	Result ── denied, with the reason
//	   │ Grant
//	Options of the user narrow it ── they ask for more, or for what Allow lacks: denied
//	   │ Grant, which goes into the ticket
//	SplitSMs, MemoryPerRank: the share and the memory of each rank
package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Job is Slurm's report of a job to a node. A user can write every string in it.
type Job struct {
	ID          uint32
	User        string
	UID         uint32
	GID         uint32
	Account     string
	Partition   string
	QOS         string // "" if the release of Slurm does not report it
	Reservation string
	Comment     string   // the user's
	Requested   []string // the user's: the feature names in --constraint, in its order, each once
	Option      string   // the user's: the value of the option --mps of the SPANK plugin, "" without a value
	HasOption   bool     // --mps was given, with or without a value
	GPUs        []int    // the job's GPUs, or MIG instances, on this node: positions in Slurm's list (Gres)
	NTasks      int      // ranks of the whole job
	Nodes       int      // of the whole job
	NodeList    string   // of the whole job, as Slurm writes it
	Array       uint32   // the array's number, 0 for a job outside of an array
	Restart     int      // times requeued; the epilog of a requeue counts it already
	Node        string   // NodeName of slurm.conf, which need not be the host's name
}

// Request is what a job asks of a node, with what was looked up because the policy mentions it (Lookups).
type Request struct {
	Job
	Groups   []string // the names of all groups of the user
	Features []string // of the node
	NodeGPUs int      // the number of GPUs of the node
	Driver   string   // its version
	GPU      GPUFacts // the first GPU of the job
}

// These bound the part of a user's text that is read, so that no job can slow a node down.
const (
	maxText  = 4096 // bytes of a string
	maxNames = 256  // of a list of names
)

// Truncated returns the request as rules see it: long texts and lists are cut.
func (r Request) Truncated() Request {
	for _, text := range []*string{
		&r.User, &r.Account, &r.Partition, &r.QOS, &r.Reservation, &r.Comment, &r.Option, &r.Node, &r.Driver,
	} {
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

// GPUFacts is what rules can ask about a GPU. The zero value is for a job without a GPU.
type GPUFacts struct {
	Product   string // from NVML, "NVIDIA H200"
	SMs       int
	MemoryMiB int
	MIG       bool // a MIG instance
}

// Lookups lists the look-ups that the policy's rules mention. Each takes time or needs the driver, so no other is
// made.
type Lookups struct {
	Groups, Features, Devices, Driver, GPU bool
}

// Trigger is how a job asks for MPS. If a job does not ask, no rule is tried and nothing is looked up.
type Trigger struct {
	Constraint string // the name in --constraint, "" for none
	Comment    string // the word that a comment consists of, or begins with before a colon, "" for none
	Option     bool   // --mps
}

// requestedBy returns how the request asks for MPS, "" if it does not.
func (t Trigger) requestedBy(r Request) string {
	_, commented := t.commented(r)
	switch {
	case t.Constraint != "" && slices.Contains(r.Requested, t.Constraint):
		return fmt.Sprintf("--constraint names %q", t.Constraint)
	case t.Option && r.HasOption:
		return "--mps is given"
	case commented:
		return fmt.Sprintf("the comment is %q", t.Comment)
	}
	return ""
}

// commented returns the part of a comment like mps:share=even behind the colon.
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

// Input is a request in the form that rules read. It is made once for all rules.
type Input any

// Rule is one clause of the policy. An error of its functions is the reason why the rule fails for this request.
type Rule struct {
	Name  string
	Allow []string // the options by which a user may narrow the grant
	When  func(Input) (bool, error)
	// Result returns the grant, or the reason why the job has none.
	Result func(Input) (grant Grant, denied string, err error)
}

// Policy is a list of rules. The first rule whose condition holds decides.
type Policy struct {
	Trigger *Trigger // nil: the rules alone decide which job wants MPS
	Lookups Lookups
	Bind    func(Request) Input
	Rules   []Rule
	// RecordAll is true if the use of their GPUs is recorded of jobs without MPS, too. It changes nothing for a job.
	RecordAll bool
}

// Decision is the answer to a request. If Asked is false, the job runs as if nothing were installed. If Denied is
// set, the job has no MPS, and its user gets this reason. Otherwise the Grant holds.
type Decision struct {
	Requested bool   `json:"asked"`
	Rule      string `json:"rule,omitempty"` // the rule that decided
	Denied    string `json:"denied,omitempty"`
	Grant     Grant  `json:"-"`
}

// Granted reports whether there is a grant.
func (d Decision) Granted() bool { return d.Requested && d.Denied == "" }

// Requested reports whether the request asks for MPS, and how. It does not need the rules. If the request does not
// ask, the second result lists the ways to ask.
func (p Policy) Requested(r Request) (how string, asks bool) {
	if p.Trigger == nil {
		return "the policy has no trigger: its rules alone decide", true
	}
	if how := p.Trigger.requestedBy(r); how != "" {
		return how, true
	}
	return "it would by " + p.Trigger.howToAsk(), false
}

// Decide answers a request. It cannot fail: a request with a mistake is denied, and the denial names the mistake.
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
	return Decision{Requested: true, Denied: "no rule of this site's policy is for this job"}
}

// undecided is the answer to a request for which a rule fails. The node is not at fault, so the job is denied.
func undecided(rule Rule, err error) Decision {
	reason := fmt.Sprintf("this site's policy cannot decide: %v: tell the site's admins", err)
	return Decision{Requested: true, Rule: rule.Name, Denied: reason}
}

// apply returns the verdict of the rule that holds, narrowed by the user's options.
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
		verdict.Grant, err = options.narrow(grant, rule.Allow)
	}
	if err != nil {
		verdict.Denied = err.Error()
	}
	return verdict
}

// OptionsOf returns the options of a request: those of --mps, and those of the comment if the policy's trigger reads
// it.
func (p Policy) OptionsOf(r Request) (Options, error) {
	var given, commented Options
	var err error
	if r.HasOption {
		if given, err = ParseOptions(r.Option); err != nil {
			return nil, err
		}
	}
	if p.Trigger != nil {
		if text, ok := p.Trigger.commented(r); ok {
			if commented, err = ParseOptions(text); err != nil {
				return nil, err
			}
		}
	}
	return given.and(commented)
}
