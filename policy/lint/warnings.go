// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/zclconf/go-cty/cty"
)

// Missing returns why a variable of a job never has a name on this node, "" if it may.
type Missing func(variable, name string) string

// Warnings returns the parts of the policy that have no effect: rules that are never tried, and names that missing
// knows not to exist. It also returns the rules that deny jobs which never asked for MPS.
func Warnings(c *policyfile.Compiled, missing Missing) []policyfile.Diagnostic {
	found := rules(c)
	for _, body := range c.Bodies() {
		found = append(found, hclsyntax.VisitAll(body, func(n hclsyntax.Node) hcl.Diagnostics {
			return neverEqual(c, n, missing)
		})...)
	}
	return c.Warnings(found)
}

// asks matches a condition that may depend on how a job asks for MPS.
var asks = regexp.MustCompile(`\b(job\.(requested|comment|option)|local)\b`)

// rules returns the rules after a rule that matches every job, and those that deny jobs which never asked for MPS.
func rules(c *policyfile.Compiled) (found hcl.Diagnostics) {
	var last *policyfile.Rule
	for _, r := range c.Rules() {
		if r.Denies && c.Policy().Trigger == nil && !asks.MatchString(sourceOf(c, r.When)) {
			found = append(found, policyfile.Mistake(r.Where, "Denies jobs that do not ask",
				"the policy has no trigger, so this rule also denies jobs that never asked for MPS, and their output has "+
					"the reason: write trigger { constraint = \"mps\" }"))
		}
		if last != nil {
			found = append(found, policyfile.Mistake(r.Where, "Never tried",
				"rule %q at %s:%d is for every job, and the first rule that holds decides: move this one before it",
				last.Name, last.File, last.Line))
			continue
		}
		if always, ok := c.Constant(r.When); ok && always.True() {
			last = &r
		}
	}
	return found
}

// neverEqual returns the names that are missing, in a comparison by ==, != or contains.
func neverEqual(c *policyfile.Compiled, n hclsyntax.Node, missing Missing) (found hcl.Diagnostics) {
	type pair struct{ variable, value hclsyntax.Expression }
	var pairs []pair
	switch e := n.(type) {
	case *hclsyntax.BinaryOpExpr:
		if e.Op == hclsyntax.OpEqual || e.Op == hclsyntax.OpNotEqual {
			pairs = append(pairs, pair{e.LHS, e.RHS}, pair{e.RHS, e.LHS})
		}
	case *hclsyntax.FunctionCallExpr:
		if e.Name == "contains" {
			pairs = append(pairs, pair{e.Args[0], e.Args[1]}, pair{e.Args[1], e.Args[0]})
		}
	}
	for _, p := range pairs {
		value, ok := c.Constant(p.value)
		if !ok {
			continue
		}
		for _, text := range texts(value) {
			if detail := missing(strings.TrimSpace(sourceOf(c, p.variable)), text); detail != "" {
				found = append(found, policyfile.Mistake(p.value.Range(), "Never equal", "%s", detail))
			}
		}
	}
	return found
}

// texts returns a text, or the texts of a list.
func texts(v cty.Value) (all []string) {
	switch {
	case v.Type() == cty.String:
		return []string{v.AsString()}
	case v.Type().IsListType() || v.Type().IsTupleType():
		for _, item := range v.AsValueSlice() {
			all = append(all, texts(item)...)
		}
	}
	return all
}

// Text returns diagnostics with their source lines.
func Text(all []policyfile.Diagnostic, colour bool) string {
	texts := make([]string, len(all))
	for i, d := range all {
		texts[i] = long(d, colour)
	}
	return strings.Join(texts, "\n")
}

// long returns a mistake with its line, and marks the part of the line:
//
//	Error: Unusable value 99
//
//	  on policy.hcl line 5, column 19, in rule "r":
//	   5:     max_clients = 99
//	                        ^^
//
//	  max_clients: want a whole number from 1 to 60
func long(d policyfile.Diagnostic, colour bool) string {
	red, bold, plain, severity, in := "", "", "", "Error", ""
	if d.Warning {
		severity = "Warning"
	}
	if colour {
		red, bold, plain = "\x1b[31m", "\x1b[1m", "\x1b[0m"
	}
	if d.In != "" {
		in = ", in " + d.In
	}
	before, marked, after := parts(d)
	number := fmt.Sprintf("%4d: ", d.Line)
	indent := strings.Repeat(" ", len(number)+utf8.RuneCountInString(before))
	carets := strings.Repeat("^", max(1, utf8.RuneCountInString(marked)))
	return fmt.Sprintf("%s%s%s: %s%s%s\n\n  on %s line %d, column %d%s:\n%s%s\n%s%s%s%s\n\n  %s\n",
		red, severity, plain, bold, d.Summary, plain, d.File, d.Line, d.Column, in,
		number, before+marked+after, indent, red, carets, plain, d.Detail)
}

// parts divides the line for a terminal: the part of the mistake, and the text before and behind it.
func parts(d policyfile.Diagnostic) (before, marked, after string) {
	line := []rune(d.Source)
	start, end := min(d.Column-1, len(line)), min(d.EndColumn-1, len(line))
	if d.EndLine > d.Line {
		end = len(line)
	}
	end = max(start, end)
	shown := func(part []rune) string { return words.Printable(strings.ReplaceAll(string(part), "\t", "    ")) }
	return shown(line[:start]), shown(line[start:end]), shown(line[end:])
}
