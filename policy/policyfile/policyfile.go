// Package policyfile reads what an admin writes: the policy and the site's facts, both in HCL. It is the only importer
// of hcl. A file is taken whole or not at all; every complaint says file, line and column.
package policyfile

import (
	"fmt"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// Version is the version of the policy language that this program reads.
const Version = 1

// Parse reads a policy. The name is what complaints call the file.
func Parse(source []byte, name string) (policy.Policy, error) {
	file, err := parse(source, name)
	if err != nil {
		return policy.Policy{}, err
	}
	if err := checkVersion(file.Body); err != nil {
		return policy.Policy{}, err
	}
	content, diags := file.Body.Content(&hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "version", Required: true}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "rule", LabelNames: []string{"name"}}},
	})
	if diags.HasErrors() {
		return policy.Policy{}, complaint(diags)
	}
	var law policy.Policy
	seen := map[string]hcl.Range{}
	for _, block := range content.Blocks {
		if first, twice := seen[block.Labels[0]]; twice {
			return policy.Policy{}, at(block.LabelRanges[0], "Duplicate rule: a rule named %q stands at line %d already; give this one another name", block.Labels[0], first.Start.Line)
		}
		seen[block.Labels[0]] = block.DefRange
		rule, err := parseRule(block)
		if err != nil {
			return policy.Policy{}, err
		}
		law.Rules = append(law.Rules, rule)
	}
	return law, nil
}

func parse(source []byte, name string) (*hcl.File, error) {
	file, diags := hclsyntax.ParseConfig(source, name, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, complaint(diags)
	}
	return file, nil
}

// checkVersion comes before everything else, so that a newer file is refused for its version and not for a word of it
// that this program does not know.
func checkVersion(body hcl.Body) error {
	content, _, diags := body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "version", Required: true}}})
	if diags.HasErrors() {
		return complaint(diags)
	}
	attr := content.Attributes["version"]
	version, err := numberIn(attr, 0, 1e6)
	if err != nil {
		return err
	}
	if version != Version {
		return at(attr.Expr.Range(), "Unsupported version: this program reads policies of version %d, not %v", Version, version)
	}
	return nil
}

func parseRule(block *hcl.Block) (policy.Rule, error) {
	content, diags := block.Body.Content(&hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "when", Required: true}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "grant"}},
	})
	if diags.HasErrors() {
		return policy.Rule{}, complaint(diags)
	}
	if len(content.Blocks) != 1 {
		return policy.Rule{}, at(block.DefRange, "Wrong number of grant blocks: rule %q has %d; write exactly one", block.Labels[0], len(content.Blocks))
	}
	when, err := condition(content.Attributes["when"].Expr)
	if err != nil {
		return policy.Rule{}, err
	}
	grant, err := parseGrant(content.Blocks[0])
	if err != nil {
		return policy.Rule{}, err
	}
	return policy.Rule{Name: block.Labels[0], When: when, Grant: grant}, nil
}

// grantAttributes is the grant block, an attribute a row: how its value lands in a Grant.
var grantAttributes = map[string]func(*hcl.Attribute, *policy.Grant) error{
	"scope": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.Scope, err = oneOf(a, policy.ScopeJob, policy.ScopeGPU)
		return err
	},
	"compute_mode": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.Compute, err = oneOf(a, policy.ComputeExclusive, policy.ComputeUnchanged)
		return err
	},
	"share": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.Share, err = oneOf(a, policy.ShareEven, policy.ShareNone)
		return err
	},
	"overlap": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.Overlap, err = numberIn(a, 1, 48)
		return err
	},
	"ceiling": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.Ceiling, err = numberIn(a, 1, 100)
		return err
	},
	"on_failure": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.OnFailure, err = oneOf(a, policy.FailDrain, policy.FailRunWithout)
		return err
	},
	"drain_grace": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.DrainGrace, err = durationIn(a, 0, 10*time.Minute)
		return err
	},
	"memory": func(a *hcl.Attribute, g *policy.Grant) error {
		s, err := text(a)
		if err != nil {
			return err
		}
		if g.Memory, err = policy.ParseMemory(s); err != nil {
			return at(a.Expr.Range(), "Unknown value: %v", err)
		}
		return nil
	},
	"memory_overlap": func(a *hcl.Attribute, g *policy.Grant) (err error) {
		g.MemoryOverlap, err = numberIn(a, 1, policy.Clients)
		return err
	},
	"priority": func(a *hcl.Attribute, g *policy.Grant) error {
		s, err := oneOf(a, "normal", "low")
		g.Low = s == "low"
		return err
	},
	"signals": func(a *hcl.Attribute, g *policy.Grant) error {
		s, err := oneOf(a, "protect", "pass")
		g.Pass = s == "pass"
		return err
	},
	"max_clients": func(a *hcl.Attribute, g *policy.Grant) error {
		n, err := numberIn(a, 1, policy.Clients)
		g.MaxClients = int(n)
		return err
	},
}

func parseGrant(block *hcl.Block) (policy.Grant, error) {
	grant := policy.DefaultGrant()
	schema := &hcl.BodySchema{}
	for name := range grantAttributes {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name})
	}
	content, diags := block.Body.Content(schema)
	if diags.HasErrors() {
		return grant, complaint(diags)
	}
	for name, attr := range content.Attributes {
		if err := grantAttributes[name](attr, &grant); err != nil {
			return grant, err
		}
	}
	return grant, nil
}

// value evaluates an attribute that may not refer to anything, as the wanted type.
func value(attr *hcl.Attribute, want cty.Type) (cty.Value, error) {
	v, diags := attr.Expr.Value(nil)
	if diags.HasErrors() {
		return cty.NilVal, complaint(diags)
	}
	v, err := convert.Convert(v, want)
	if err != nil || v.IsNull() {
		return cty.NilVal, at(attr.Expr.Range(), "Wrong type: %s is a %s", attr.Name, want.FriendlyName())
	}
	return v, nil
}

func text(attr *hcl.Attribute) (string, error) {
	v, err := value(attr, cty.String)
	if err != nil {
		return "", err
	}
	return v.AsString(), nil
}

func oneOf[T ~string](attr *hcl.Attribute, allowed ...T) (T, error) {
	s, err := text(attr)
	if err != nil {
		return "", err
	}
	for _, a := range allowed {
		if s == string(a) {
			return a, nil
		}
	}
	return "", at(attr.Expr.Range(), "Unknown value %q: %s is one of %q", s, attr.Name, allowed)
}

func numberIn(attr *hcl.Attribute, least, most float64) (float64, error) {
	v, err := value(attr, cty.Number)
	if err != nil {
		return 0, err
	}
	f, _ := v.AsBigFloat().Float64()
	if f < least || f > most {
		return 0, at(attr.Expr.Range(), "Out of range: %s is %v to %v, not %v", attr.Name, least, most, f)
	}
	return f, nil
}

func durationIn(attr *hcl.Attribute, least, most time.Duration) (time.Duration, error) {
	s, err := text(attr)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, at(attr.Expr.Range(), `Not a duration: %s is written like "10s" or "1m30s", not %q`, attr.Name, s)
	}
	if d < least || d > most {
		return 0, at(attr.Expr.Range(), "Out of range: %s is %v to %v, not %v", attr.Name, least, most, d)
	}
	return d, nil
}

// complaint is the first of the diagnostics in one line: an admin mends one thing at a time.
func complaint(diags hcl.Diagnostics) error {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		if d.Subject == nil {
			return fmt.Errorf("%s: %s", d.Summary, d.Detail)
		}
		return at(*d.Subject, "%s: %s", d.Summary, d.Detail)
	}
	return diags
}

func at(where hcl.Range, format string, args ...any) error {
	return fmt.Errorf("%s:%d:%d: %s", where.Filename, where.Start.Line, where.Start.Column, fmt.Sprintf(format, args...))
}
