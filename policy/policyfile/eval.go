// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/zclconf/go-cty/cty"
)

// Evidence is a request in the form that expressions read.
type Evidence struct {
	Context *hcl.EvalContext
	failed  map[string]error // locals without a value for this request
}

// Bind makes the variables of a request, once for all rules. A local that fails is left out. So only the rules that
// name it fail, and try can catch the failure.
func (c *Compiled) Bind(r policy.Request) *Evidence {
	locals := maps.Clone(c.fixed)
	variables := map[string]cty.Value{}
	for root, rows := range namespaces {
		attributes := make(map[string]cty.Value, len(rows))
		for _, row := range rows {
			attributes[row.name] = row.value(&r)
		}
		variables[root] = cty.ObjectVal(attributes)
	}
	e := &Evidence{&hcl.EvalContext{Variables: variables, Functions: functions()}, map[string]error{}}
	for _, local := range c.locals {
		variables["local"] = cty.ObjectVal(locals)
		v, err := e.Value(local.expr, anyType)
		if err != nil {
			e.failed[local.name] = err
			continue
		}
		locals[local.name] = v
	}
	variables["local"] = cty.ObjectVal(locals)
	return e
}

// Value evaluates an expression for the request. If a local that it names has failed, the error is the local's.
func (e *Evidence) Value(expr hclsyntax.Expression, want cty.Type) (cty.Value, error) {
	v, failed := evaluate(expr, e.Context)
	if failed == nil {
		if want != anyType && !v.Type().Equals(want) {
			return v, failure(expr.Range(), "Wrong type", instead(want, v.Type(), ", not "))
		}
		return v, nil
	}
	for _, n := range NamesOf(expr) {
		if err := e.failed[n.Attribute]; n.Root == "local" && err != nil {
			return v, err
		}
	}
	return v, failure(*failed.Subject, failed.Summary, failed.Detail)
}

// failure is the reason why an expression has no value for a job. It may contain a user's text.
func failure(where hcl.Range, summary, detail string) error {
	place := fmt.Sprintf("%s:%d:%d", where.Filename, where.Start.Line, where.Start.Column)
	return errors.New(place + ": " + sentence(strings.TrimSuffix(oneLine(summary+": "+detail), ".")))
}

// evaluate returns the value of a checked expression. A panic of hcl becomes an error too, because it must not drain
// a node.
func evaluate(e hclsyntax.Expression, ctx *hcl.EvalContext) (v cty.Value, failed *hcl.Diagnostic) {
	defer func() {
		if fault := recover(); fault != nil {
			failed = Mistake(e.Range(), "Cannot evaluate", "%v", fault)
		}
	}()
	v, diags := e.Value(ctx)
	switch {
	case diags.HasErrors() && diags[0].Subject == nil:
		return v, Mistake(e.Range(), diags[0].Summary, "%s", diags[0].Detail)
	case diags.HasErrors() && diags[0].Summary == "Invalid index":
		return v, Mistake(*diags[0].Subject, "Invalid index", "there is no such element: write try(…, DEFAULT)")
	case diags.HasErrors():
		return v, diags[0]
	case v.IsNull() || !v.IsWhollyKnown():
		return v, Mistake(e.Range(), "Cannot evaluate", "the expression has no value")
	}
	return v, nil
}

func (r *Rule) holds(given policy.Input) (bool, error) {
	v, err := given.(*Evidence).Value(r.When, cty.Bool)
	return err == nil && v.True(), err
}

// gives returns the grant with its values checked, or the reason why the job has none.
func (r *Rule) gives(given policy.Input) (policy.Grant, string, error) {
	e := given.(*Evidence)
	if r.deny != nil {
		v, err := e.Value(r.deny, cty.String)
		if err != nil {
			return policy.Grant{}, "", err
		}
		return policy.Grant{}, sentence(v.AsString()), nil
	}
	grant := policy.DefaultGrant()
	for _, s := range r.grant {
		v, err := e.Value(s.expr, s.typ)
		if err != nil {
			return policy.Grant{}, "", err
		}
		if summary, detail := s.set(&grant, v); summary != "" {
			return policy.Grant{}, "", failure(s.expr.Range(), summary, detail)
		}
	}
	return grant, "", nil
}

// sentence makes a reason printable: a policy may put a user's text into it.
func sentence(s string) string {
	const limit = 400
	clean := words.Printable(strings.ToValidUTF8(s[:min(len(s), limit)], "?"))
	if clean == "" {
		return "this site's policy denies it"
	}
	return clean
}
