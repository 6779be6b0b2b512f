// SPDX-License-Identifier: Apache-2.0

// Package policyfile reads an admin's files: the policy and the site's facts, both in HCL. It is the only
// importer of hcl.
//
// A file is used completely or not at all, and every mistake is reported with file, line and column. Names, types and
// constant values are checked when the file is read. A failure for one job is a denial of that job.
// So a policy that loads cannot fail a prolog.
package policyfile

import (
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// Compiled is a policy that was read and checked.
type Compiled struct {
	policy policy.Policy
	files  []file
	rules  []Rule
	fixed  map[string]cty.Value // the locals that do not depend on the job
	locals []*local             // those that depend on the job and that rules name, each after those that it names
}

// Rule is a rule block.
type Rule struct {
	Name   string `json:"name"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Denies bool   `json:"denies"`

	Where hcl.Range            `json:"-"` // of the name
	When  hclsyntax.Expression `json:"-"`
	deny  hclsyntax.Expression
	grant []setting[policy.Grant] // the defaults, then the rule's own: the last one of a name counts
	allow []string
}

// Policy returns the policy in the form that the prolog uses.
func (c *Compiled) Policy() policy.Policy { return c.policy }

// Rules returns the policy's rules in their order.
func (c *Compiled) Rules() []Rule { return slices.Clone(c.rules) }

// Setting returns the expression of an attribute of the grant, nil if the rule and the defaults have none.
func (r *Rule) Setting(name string) (expr hclsyntax.Expression) {
	for _, s := range r.grant {
		if s.name == name {
			expr = s.expr
		}
	}
	return expr
}

// Parse reads a policy of one file. Mistakes are reported under this file name.
//
//	version = 1
//	trigger { constraint = "mps" }
//	rule "teaching" {
//	  when  = job.partition == "edu"
//	  allow = ["share"]
//	  grant { share = "even" }
//	}
func Parse(source []byte, name string) (*Compiled, error) {
	return compile([]file{{name: name, source: source}})
}

// compile makes a policy from files. All mistakes in them are one error.
func compile(files []file) (*Compiled, error) {
	b := builder{typeChecker: newTypeChecker()}
	for i := range files {
		b.read(&files[i])
	}
	b.finish()
	if err := complain(b.wrong, files); err != nil {
		return nil, err
	}
	compiled := &Compiled{files: files, rules: b.rules, fixed: b.fixed, locals: b.order}
	compiled.policy = policy.Policy{
		Trigger: b.trigger, Lookups: b.needs, RecordAll: b.recordAll,
		Bind: func(r policy.Request) policy.Input { return compiled.Bind(r) },
	}
	for _, r := range b.rules {
		pure := policy.Rule{Name: r.Name, Allow: r.allow, When: r.holds, Result: r.gives}
		compiled.policy.Rules = append(compiled.policy.Rules, pure)
	}
	return compiled, nil
}

// builder is a policy while its files are read. Rules are checked after all files are read, because a local may be in
// any file.
type builder struct {
	*typeChecker
	trigger  *policy.Trigger
	triggers []hcl.Range
	defaults *hcl.Block
	blocks   []*hcl.Block // rule
	rules    []Rule

	record    *hcl.Attribute
	recordAll bool
}

var topLevel = &hcl.BodySchema{
	Attributes: []hcl.AttributeSchema{{Name: "version"}, {Name: "record"}},
	Blocks: []hcl.BlockHeaderSchema{
		{Type: "trigger"}, {Type: "locals"}, {Type: "defaults"}, {Type: "rule", LabelNames: []string{"name"}},
	},
}

func (b *builder) read(f *file) {
	if !b.open(f) {
		return
	}
	content, diags := f.hcl.Body.Content(topLevel)
	for _, diag := range diags {
		if strings.Contains(diag.Detail, `"variable"`) { // as in Terraform
			diag.Detail += " Write locals { NAME = VALUE } and local.NAME."
		} else if diag.Summary == "Unsupported block type" {
			diag.Detail += " A policy has trigger, locals, defaults and rule."
		}
	}
	b.wrong = append(b.wrong, diags...)
	if attr := content.Attributes["record"]; attr != nil {
		b.readRecord(attr)
	}
	for _, block := range content.Blocks {
		switch block.Type {
		case "trigger":
			b.triggers = append(b.triggers, block.DefRange)
			b.readTrigger(block)
		case "locals":
			b.readLocals(block)
		case "defaults":
			if b.defaults == nil {
				b.defaults = block
				continue
			}
			b.twice(block, "defaults", b.defaults.DefRange)
		case "rule":
			b.blocks = append(b.blocks, block)
		}
	}
}

var triggerAttributes = []attribute[policy.Trigger]{
	stringAttribute("constraint", word, func(t *policy.Trigger, s string) { t.Constraint = s }),
	stringAttribute("comment", word, func(t *policy.Trigger, s string) { t.Comment = s }),
	switched("option", func(t *policy.Trigger, on bool) { t.Option = on }),
}

func (b *builder) readTrigger(block *hcl.Block) {
	if len(b.triggers) > 1 {
		b.twice(block, "trigger", b.triggers[0])
		return
	}
	b.trigger = &policy.Trigger{}
	wrong := len(b.wrong)
	constants(b.typeChecker, triggerAttributes, block.Body, b.trigger)
	if *b.trigger == (policy.Trigger{}) && len(b.wrong) == wrong {
		b.mistake(block.DefRange, "Nothing triggers",
			"no job could ask for MPS: name a constraint, a comment or option = true")
	}
}

func (b *builder) twice(block *hcl.Block, what string, first hcl.Range) {
	b.mistake(block.DefRange, "Duplicate "+what, "a policy has one %s block, in whichever file: it stands at %s:%d already",
		what, first.Filename, first.Start.Line)
}

// readRecord reads which jobs are recorded: those with MPS, or all that have a GPU.
func (b *builder) readRecord(attr *hcl.Attribute) {
	if first := b.record; first != nil {
		b.mistake(attr.NameRange, "Duplicate record", "a policy has one record, in whichever file: it stands at %s:%d "+
			"already", first.NameRange.Filename, first.NameRange.Start.Line)
		return
	}
	b.record = attr
	v, ok := b.constantOf(attr, cty.String)
	if !ok {
		return
	}
	words := []string{"mps", "all"}
	if b.recordAll = v.AsString() == "all"; !slices.Contains(words, v.AsString()) {
		detail := strings.TrimSuffix("record: want mps or all."+suggest(v.AsString(), words), ".")
		b.mistake(attr.Expr.Range(), "Unusable value", "%s", detail)
	}
}

func (b *builder) readLocals(block *hcl.Block) {
	attributes, diags := block.Body.JustAttributes()
	b.wrong = append(b.wrong, diags...)
	for _, name := range sortedKeys(attributes) {
		attr := attributes[name]
		if first := b.locals[name]; first != nil {
			b.mistake(attr.NameRange, "Duplicate local", "local.%s stands at %s:%d already",
				name, first.where.Filename, first.where.Start.Line)
			continue
		}
		b.locals[name] = &local{name: name, expr: expression(attr), where: attr.NameRange}
	}
}

// finish checks the rules, and then the locals that no rule names. The look-ups and values of those locals are not
// needed.
func (b *builder) finish() {
	var defaults []setting[policy.Grant]
	if b.defaults != nil {
		defaults = settings(b.typeChecker, grantAttributes, b.defaults.Body)
	}
	seen := map[string]hcl.Range{}
	for _, block := range b.blocks {
		name, where := block.Labels[0], block.LabelRanges[0]
		if first, twice := seen[name]; twice {
			b.mistake(where, "Duplicate rule", "a rule named %q stands at %s:%d already; give this one another name",
				name, first.Filename, first.Start.Line)
			continue
		}
		seen[name] = where
		if r, ok := readRule(b.typeChecker, block, defaults); ok {
			b.rules = append(b.rules, r)
		}
	}
	b.checkNeeds()
	needs, order := b.needs, b.order
	for _, name := range sortedKeys(b.locals) {
		b.checkLocal(b.locals[name])
	}
	b.needs, b.order = needs, order
}

// checkNeeds refuses look-ups that every job of the node would pay for, with time and with possible failures.
func (b *builder) checkNeeds() {
	if b.needs == (policy.Lookups{}) || len(b.triggers) > 0 || len(b.blocks) == 0 {
		return
	}
	b.mistake(b.blocks[0].DefRange, "Missing trigger",
		"the rules name job.groups, node.features, node.gpus, node.driver or gpu, which must be looked up: "+
			"write a trigger block, so that only jobs that ask for MPS pay for that")
}

var ruleSchema = &hcl.BodySchema{
	Attributes: []hcl.AttributeSchema{{Name: "when", Required: true}, {Name: "deny"}, {Name: "allow"}},
	Blocks:     []hcl.BlockHeaderSchema{{Type: "grant"}},
}

func readRule(c *typeChecker, block *hcl.Block, defaults []setting[policy.Grant]) (Rule, bool) {
	where := block.LabelRanges[0]
	r := Rule{Name: block.Labels[0], File: where.Filename, Line: where.Start.Line, Where: where}
	if why := word(r.Name); why != "" {
		c.mistake(r.Where, "Unusable name", "the name of a rule %s: it goes into tickets and logs", why)
	}
	content, diags := block.Body.Content(ruleSchema)
	for _, diag := range diags {
		if diag.Summary == "Unsupported block type" {
			diag.Detail += " A rule has grant."
		}
	}
	c.wrong = append(c.wrong, diags...)
	if when := content.Attributes["when"]; when != nil {
		if r.When = expression(when); c.typed(r.When, cty.Bool, "when is") {
			c.constant(r.When) // a condition that always fails is refused now
		}
	}
	if diags.HasErrors() {
		return r, false
	}
	deny := content.Attributes["deny"]
	switch grants := len(content.Blocks); {
	case grants > 1:
		c.mistake(content.Blocks[1].DefRange, "Duplicate grant", "rule %q has a grant already", r.Name)
	case deny != nil && grants > 0:
		c.mistake(deny.NameRange, "Grant and deny", "rule %q grants and denies: do one of them", r.Name)
	case deny != nil:
		r.readDeny(c, deny)
		if allow := content.Attributes["allow"]; allow != nil {
			c.mistake(allow.NameRange, "Nothing to allow", "rule %q grants nothing that a user's options could narrow", r.Name)
		}
	case grants == 1:
		r.grant = slices.Concat(defaults, settings(c, grantAttributes, content.Blocks[0].Body))
		r.readAllow(c, content.Attributes["allow"])
	default:
		c.mistake(block.DefRange, "Neither grant nor deny", "rule %q decides nothing: write a grant block, or deny = \"the reason\"", r.Name)
	}
	return r, true
}

func (r *Rule) readDeny(c *typeChecker, attr *hcl.Attribute) {
	r.deny, r.Denies = expression(attr), true
	if c.typed(r.deny, cty.String, "deny is the reason,") {
		c.checkBranches(r.deny, func(v cty.Value) (summary, detail string) {
			if v.AsString() == "" {
				return "No reason", "deny is the reason, which the job is told"
			}
			return "", ""
		})
	}
}

func (r *Rule) readAllow(c *typeChecker, attr *hcl.Attribute) {
	if attr == nil {
		return
	}
	names, _ := c.constantOf(attr, cty.List(cty.String))
	if names == cty.NilVal {
		return
	}
	for _, item := range names.AsValueSlice() {
		name := item.AsString()
		if !slices.Contains(policy.OptionNames(), name) {
			c.mistake(attr.Expr.Range(), "Unknown option", "a user can set %s, not %q", strings.Join(policy.OptionNames(), ", "), name)
			continue
		}
		r.allow = append(r.allow, name)
	}
}
