// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// evidence is a request as expressions see it, and why it could not be made, which the judge has ruled out.
type evidence struct {
	ctx    *hcl.EvalContext
	leaves []int8 // what is known of the conditions' leaves
	err    error
}

// bind makes the variables of a request, once for all rules.
func (l *Compiled) bind(r policy.Request) policy.Input {
	variables := map[string]cty.Value{"local": cty.ObjectVal(l.judge.fixed)}
	for root, rows := range namespaces {
		attributes := make(map[string]cty.Value, len(rows))
		for _, row := range rows {
			attributes[row.name] = row.value(&r)
		}
		variables[root] = cty.ObjectVal(attributes)
	}
	e := &evidence{ctx: &hcl.EvalContext{Variables: variables, Functions: l.judge.functions}, leaves: make([]int8, len(l.leaves))}
	locals := map[string]cty.Value{}
	for _, level := range l.locals {
		for _, local := range level {
			v, err := evaluate(local.expr, e.ctx)
			if err != nil {
				e.err = err
				return e
			}
			locals[local.name] = v
		}
		variables["local"] = cty.ObjectVal(union(l.judge.fixed, locals))
	}
	return e
}

func union(a, b map[string]cty.Value) map[string]cty.Value {
	both := make(map[string]cty.Value, len(a)+len(b))
	for _, m := range []map[string]cty.Value{a, b} {
		for name, v := range m {
			both[name] = v
		}
	}
	return both
}

// evaluate is the value of an expression that the judge let pass. The errors, and hcl's panics, are what it rules out:
// they are here so that a fault of ours drains no node.
func evaluate(e hclsyntax.Expression, ctx *hcl.EvalContext) (v cty.Value, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s: %v", at(e), fault)
		}
	}()
	v, diags := e.Value(ctx)
	if diags.HasErrors() {
		return v, fmt.Errorf("%s: %s", at(e), oneLine(diags[0].Summary+": "+diags[0].Detail))
	}
	if v.IsNull() || !v.IsWhollyKnown() {
		return v, errors.New(at(e) + ": no value")
	}
	return v, nil
}

func at(e hclsyntax.Expression) string {
	where := e.Range()
	return fmt.Sprintf("%s:%d:%d", where.Filename, where.Start.Line, where.Start.Column)
}

// compiled is the rule as a policy has it.
func (r *rule) compiled() policy.Rule {
	return policy.Rule{Name: r.name, Allow: r.allow, When: r.holds, Result: r.gives}
}

func (r *rule) holds(given policy.Input) (bool, error) {
	e := given.(*evidence)
	if e.err != nil {
		return false, e.err
	}
	if r.always != cty.NilVal {
		return r.always.True(), nil
	}
	return r.when.holds(e)
}

func (r *rule) gives(given policy.Input) (grant policy.Grant, denied string, err error) {
	e := given.(*evidence)
	if r.deny != nil {
		v, err := evaluate(r.deny, e.ctx)
		if err != nil {
			return policy.Grant{}, "", err
		}
		return policy.Grant{}, sentence(v.AsString()), nil
	}
	grant = r.base
	for _, m := range r.moving {
		v, err := evaluate(m.expr, e.ctx)
		if err != nil {
			return policy.Grant{}, "", err
		}
		m.set(&grant, v)
	}
	return grant, "", nil
}

// sentence is a reason that can be printed: a policy may put into it what a user wrote.
func sentence(s string) string {
	const most = 400
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0xfffd || r == 0x2028 || r == 0x2029 {
			return '?'
		}
		return r
	}, s[:min(len(s), most)])
	if clean == "" {
		return "this site's policy denies it"
	}
	return clean
}
