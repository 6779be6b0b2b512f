// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// Explanation is a verdict with the way to it.
type Explanation struct {
	Asked   bool             `json:"asked"` // as of Law.Asks
	How     string           `json:"how"`   // the job asks, or what ways of asking there are
	Verdict policy.Decision  `json:"verdict"`
	Grant   []AttributeTrace `json:"grant,omitempty"` // of the verdict, where it has one
	Options []policy.Setting `json:"options,omitempty"`
	Rules   []RuleTrace      `json:"rules,omitempty"` // in order, up to the one that decides
}

// AttributeTrace is an attribute of a grant, with the values that it was computed from.
type AttributeTrace struct {
	policy.Setting
	With    []VariableValue `json:"with,omitempty"`
	Default bool            `json:"default,omitempty"` // it has its default value
}

// RuleTrace is a rule and whether it was for the request.
type RuleTrace struct {
	Rule  string         `json:"rule"`
	File  string         `json:"file"`
	Line  int            `json:"line"`
	Holds bool           `json:"holds"`
	When  ConditionTrace `json:"when"`
}

// ConditionTrace is a condition or an operand of one. What && and || join and ! negates are Parts again; another expression is a
// leaf, and has the values that it is made of.
type ConditionTrace struct {
	Op     string           `json:"op,omitempty"` // "&&", "||", "!", or "" of a leaf
	Source string           `json:"source"`       // in one line
	Value  string           `json:"value"`        // "true", "false", or why there is none
	With   []VariableValue  `json:"with,omitempty"`
	Parts  []ConditionTrace `json:"parts,omitempty"`
}

// VariableValue is a variable and its value as a policy spells it.
type VariableValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Leaves are the leaves of a condition in their order.
func (p ConditionTrace) Leaves() []ConditionTrace {
	if p.Op == "" {
		return []ConditionTrace{p}
	}
	var leaves []ConditionTrace
	for _, part := range p.Parts {
		leaves = append(leaves, part.Leaves()...)
	}
	return leaves
}

// Explain answers a request and says why.
func (l *Compiled) Explain(r policy.Request) Explanation {
	how, asked := l.policy.Requested(r)
	x := Explanation{Asked: asked, How: how, Verdict: l.Decide(r)}
	if !asked {
		return x
	}
	if options, err := l.policy.OptionsOf(r); err == nil {
		x.Options = options.Settings()
	}
	e := l.bind(r.Truncated()).(*evidence)
	for i := range l.rules {
		r := &l.rules[i]
		holds, _ := r.holds(e)
		x.Rules = append(x.Rules, RuleTrace{r.name, r.where.Filename, r.where.Start.Line, holds, l.part(r.when, e)})
		if r.name == x.Verdict.Rule { // it holds, or it fails and denies
			if x.Verdict.Granted() {
				x.Grant = r.attributes(x.Verdict.Grant, e)
			}
			break
		}
	}
	return x
}

// attributes are those of a grant that the rule gives.
func (r *rule) attributes(g policy.Grant, e *evidence) (all []AttributeTrace) {
	usual := policy.DefaultGrant().Settings()
	for i, setting := range g.Settings() {
		a := AttributeTrace{Setting: setting, Default: setting == usual[i]}
		for _, s := range r.grant { // the last one counts
			if s.name == a.Name {
				a.With = variablesIn(s.expr, e.ctx)
			}
		}
		all = append(all, a)
	}
	return all
}

// part is a condition with its values. It is taken apart at &&, || and !.
func (l *Compiled) part(expr hclsyntax.Expression, e *evidence) ConditionTrace {
	if parentheses, ok := expr.(*hclsyntax.ParenthesesExpr); ok {
		return l.part(parentheses.Expression, e)
	}
	p := ConditionTrace{Source: lineBreaks.ReplaceAllString(l.sourceOf(expr), " "), Value: e.rendered(expr)}
	var operands []hclsyntax.Expression
	switch expr := expr.(type) {
	case *hclsyntax.UnaryOpExpr:
		p.Op, operands = "!", []hclsyntax.Expression{expr.Val}
	case *hclsyntax.BinaryOpExpr:
		if expr.Op == hclsyntax.OpLogicalAnd || expr.Op == hclsyntax.OpLogicalOr {
			p.Op, operands = operators[expr.Op].sign, chain(expr, expr.Op)
		}
	}
	if p.Op == "" {
		p.With = variablesIn(expr, e.ctx)
	}
	for _, operand := range operands {
		p.Parts = append(p.Parts, l.part(operand, e))
	}
	return p
}

var lineBreaks = regexp.MustCompile(`[ \t\r]*\n\s*`)

// chain are the operands of a && b && c, which hcl has as (a && b) && c.
func chain(e hclsyntax.Expression, op *hclsyntax.Operation) []hclsyntax.Expression {
	if binary, ok := e.(*hclsyntax.BinaryOpExpr); ok && binary.Op == op {
		return append(chain(binary.LHS, op), binary.RHS)
	}
	return []hclsyntax.Expression{e}
}

// sourceOf is an expression as it is written.
func (l *Compiled) sourceOf(e hclsyntax.Expression) string {
	where := e.Range()
	for _, f := range l.files {
		if f.name == where.Filename && where.CanSliceBytes(f.source) {
			return string(where.SliceBytes(f.source))
		}
	}
	return ""
}

// rendered is the value of an expression, or why it has none.
func (e *evidence) rendered(expr hclsyntax.Expression) string {
	v, err := e.value(expr, anyType)
	if err != nil {
		return err.Error()
	}
	return spell(v)
}

// variablesIn are the variables that an expression names, each once, and what they are.
func variablesIn(e hclsyntax.Expression, ctx *hcl.EvalContext) []VariableValue {
	var all []VariableValue
	for _, traversal := range e.Variables() {
		if len(traversal) < 2 {
			continue
		}
		name, ok := attributeOf(traversal[1])
		if !ok {
			continue
		}
		v, diags := traversal[:2].TraverseAbs(ctx)
		named := VariableValue{Name: traversal.RootName() + "." + name, Value: spell(v)}
		if !diags.HasErrors() && !slices.Contains(all, named) {
			all = append(all, named)
		}
	}
	return all
}

// maxSpelled bounds a value in an explanation.
const maxSpelled = 200

// spell is a value as a policy would have it.
func spell(v cty.Value) string {
	switch t := v.Type(); {
	case v.IsNull() || !v.IsWhollyKnown():
		return "nothing"
	case t == cty.String:
		if s := v.AsString(); len(s) > maxSpelled {
			return strconv.Quote(s[:maxSpelled]) + "…"
		}
		return strconv.Quote(v.AsString())
	case t == cty.Number:
		return v.AsBigFloat().Text('g', 15)
	case t == cty.Bool:
		return fmt.Sprint(v.True())
	case t.IsObjectType() || t.IsMapType():
		var items []string
		for _, name := range sortedKeys(v.AsValueMap()) {
			items = append(items, name+" = "+spell(v.AsValueMap()[name]))
		}
		return bracketed("{", items, "}")
	}
	var items []string
	for _, item := range v.AsValueSlice() {
		items = append(items, spell(item))
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
