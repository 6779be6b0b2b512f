// SPDX-License-Identifier: Apache-2.0

// Package lint tells the author of a policy what it does: why a job has its grant, which parts have no effect, and whether
// the policy's own tests pass. The prolog needs none of this.
package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/zclconf/go-cty/cty"
)

// Explanation is a verdict and how it was reached.
type Explanation struct {
	Asked   bool             `json:"asked"` // as policy.Requested returns it
	How     string           `json:"how"`   // how the job asks, or the ways to ask
	Verdict policy.Decision  `json:"verdict"`
	Grant   []AttributeTrace `json:"grant,omitempty"` // of the verdict, if it has a grant
	Options policy.Options   `json:"options,omitempty"`
	Rules   []RuleTrace      `json:"rules,omitempty"` // in order, up to the rule that decides
}

// AttributeTrace is an attribute of a grant, with the values that it was computed from.
type AttributeTrace struct {
	policy.Setting
	With    []variableValue `json:"with,omitempty"`
	Default bool            `json:"default,omitempty"` // it has its default value
}

// RuleTrace is a rule, and whether it matched the request.
type RuleTrace struct {
	Rule  string         `json:"rule"`
	File  string         `json:"file"`
	Line  int            `json:"line"`
	Holds bool           `json:"holds"`
	When  conditionTrace `json:"when"`
}

// conditionTrace is a condition or an operand of one. The operands of &&, || and ! are Parts. Any other expression is
// a leaf, with the values that it was computed from.
type conditionTrace struct {
	Op     string           `json:"op,omitempty"` // "&&", "||", "!", or "" for a leaf
	Source string           `json:"source"`       // in one line
	Value  string           `json:"value"`        // "true", "false", or why there is no value
	With   []variableValue  `json:"with,omitempty"`
	Parts  []conditionTrace `json:"parts,omitempty"`
}

// variableValue is a variable and its value as a policy writes it.
type variableValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Leaves returns the leaves of a condition in their order.
func (c conditionTrace) Leaves() []conditionTrace {
	if c.Op == "" {
		return []conditionTrace{c}
	}
	var leaves []conditionTrace
	for _, part := range c.Parts {
		leaves = append(leaves, part.Leaves()...)
	}
	return leaves
}

// Explain answers a request and gives the reasons.
func Explain(c *policyfile.Compiled, r policy.Request) Explanation {
	how, asked := c.Policy().Requested(r)
	x := Explanation{Asked: asked, How: how, Verdict: c.Policy().Decide(r)}
	if !asked {
		return x
	}
	if options, err := c.Policy().OptionsOf(r); err == nil {
		x.Options = options
	}
	e := c.Bind(r.Truncated())
	for _, rule := range c.Rules() {
		v, err := e.Value(rule.When, cty.Bool)
		holds := err == nil && v.True()
		x.Rules = append(x.Rules, RuleTrace{rule.Name, rule.File, rule.Line, holds, trace(c, rule.When, e)})
		if rule.Name == x.Verdict.Rule { // it holds, or it fails and denies
			if x.Verdict.Granted() {
				x.Grant = attributes(rule, x.Verdict.Grant, e)
			}
			break
		}
	}
	return x
}

func attributes(rule policyfile.Rule, g policy.Grant, e *policyfile.Evidence) (all []AttributeTrace) {
	usual := policy.DefaultGrant().Settings()
	for i, setting := range g.Settings() {
		a := AttributeTrace{Setting: setting, Default: setting == usual[i]}
		if expr := rule.Setting(a.Name); expr != nil {
			a.With = variablesIn(expr, e.Context)
		}
		all = append(all, a)
	}
	return all
}

// trace explains a condition with its values. It splits the condition at &&, || and !.
func trace(c *policyfile.Compiled, expr hclsyntax.Expression, e *policyfile.Evidence) conditionTrace {
	if parentheses, ok := expr.(*hclsyntax.ParenthesesExpr); ok {
		return trace(c, parentheses.Expression, e)
	}
	p := conditionTrace{Source: lineBreaks.ReplaceAllString(sourceOf(c, expr), " ")}
	if v, err := e.Value(expr, cty.DynamicPseudoType); err != nil {
		p.Value = err.Error()
	} else {
		p.Value = spell(v)
	}
	var operands []hclsyntax.Expression
	switch expr := expr.(type) {
	case *hclsyntax.UnaryOpExpr:
		p.Op, operands = "!", []hclsyntax.Expression{expr.Val}
	case *hclsyntax.BinaryOpExpr:
		if p.Op = logical[expr.Op]; p.Op != "" {
			operands = chain(expr, expr.Op)
		}
	}
	if p.Op == "" {
		p.With = variablesIn(expr, e.Context)
	}
	for _, operand := range operands {
		p.Parts = append(p.Parts, trace(c, operand, e))
	}
	return p
}

var logical = map[*hclsyntax.Operation]string{hclsyntax.OpLogicalAnd: "&&", hclsyntax.OpLogicalOr: "||"}

var lineBreaks = regexp.MustCompile(`[ \t\r]*\n\s*`)

// chain returns the operands of a && b && c, which hcl stores as (a && b) && c.
func chain(e hclsyntax.Expression, op *hclsyntax.Operation) []hclsyntax.Expression {
	if binary, ok := e.(*hclsyntax.BinaryOpExpr); ok && binary.Op == op {
		return append(chain(binary.LHS, op), binary.RHS)
	}
	return []hclsyntax.Expression{e}
}

func sourceOf(c *policyfile.Compiled, e hclsyntax.Expression) string {
	where := e.Range()
	for _, f := range c.Sources() {
		if source := []byte(f.Text); f.Name == where.Filename && where.CanSliceBytes(source) {
			return string(where.SliceBytes(source))
		}
	}
	return ""
}

// variablesIn returns the variables that an expression names, each once, with their values.
func variablesIn(e hclsyntax.Expression, ctx *hcl.EvalContext) (all []variableValue) {
	for _, n := range policyfile.NamesOf(e) {
		space, known := ctx.Variables[n.Root]
		if !known || !space.Type().HasAttribute(n.Attribute) {
			continue
		}
		v := variableValue{Name: n.Root + "." + n.Attribute, Value: spell(space.GetAttr(n.Attribute))}
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

const maxSpelled = 200

func spell(v cty.Value) string {
	switch t := v.Type(); {
	case v.IsNull() || !v.IsWhollyKnown():
		return "nothing"
	case t == cty.String:
		return words.Quote(v.AsString(), maxSpelled)
	case t == cty.Number:
		return v.AsBigFloat().Text('g', 15)
	case t == cty.Bool:
		return fmt.Sprint(v.True())
	}
	var items []string
	for key, item := range v.Elements() {
		name := ""
		if v.Type().IsObjectType() {
			name = key.AsString() + " = "
		}
		items = append(items, name+spell(item))
	}
	if v.Type().IsObjectType() {
		return bracketed("{", items, "}")
	}
	return bracketed("[", items, "]")
}

func bracketed(open string, items []string, end string) string {
	shown := 0
	for i, item := range items {
		if shown += len(item); shown > maxSpelled && i > 0 {
			return open + strings.Join(items[:i], ", ") + ", … " + strconv.Itoa(len(items)-i) + " more" + end
		}
	}
	return open + strings.Join(items, ", ") + end
}
