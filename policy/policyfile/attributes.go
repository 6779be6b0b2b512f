// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// attribute is a row of a table of attributes: what is against a value that its expression can have, "" where nothing
// is, and where the value goes. set gets only what wrong lets pass.
type attribute[T any] struct {
	name  string
	wrong func(s exprType) (summary, detail string)
	set   func(*T, cty.Value)
}

type grantAttribute = attribute[policy.Grant]

// grantAttributes is the grant block.
var grantAttributes = []grantAttribute{
	choice("scope", func(g *policy.Grant, v policy.Scope) { g.Scope = v }, policy.ScopeJob, policy.ScopeGPU),
	choice("compute_mode", func(g *policy.Grant, v policy.ComputeModePolicy) { g.Compute = v }, policy.ComputeExclusive, policy.ComputeUnchanged),
	choice("share", func(g *policy.Grant, v policy.ShareMode) { g.Share = v }, policy.ShareEven, policy.ShareNone),
	within("overlap", 1, policy.Clients, func(g *policy.Grant, f float64) { g.Overlap = f }),
	within("ceiling", 1, 100, func(g *policy.Grant, f float64) { g.Ceiling = f }),
	wordAttribute("memory", "Unknown value", policy.ParseMemory, func(g *policy.Grant, m policy.MemoryRule) { g.Memory = m }),
	within("memory_overlap", 1, policy.Clients, func(g *policy.Grant, f float64) { g.MemoryOverlap = f }),
	choice("priority", func(g *policy.Grant, v string) { g.Low = v == "low" }, "normal", "low"),
	wholeWithin("max_clients", 1, policy.Clients, func(g *policy.Grant, n int) { g.MaxClients = n }),
	durationAttribute("hold", 0, policy.MaxHold, func(g *policy.Grant, d time.Duration) { g.Hold = d }),
	choice("on_failure", func(g *policy.Grant, v policy.OnFailure) { g.OnFailure = v }, policy.FailDrain, policy.FailRunWithout),
	durationAttribute("drain_grace", 0, policy.MaxDrainGrace, func(g *policy.Grant, d time.Duration) { g.DrainGrace = d }),
	choice("keep_logs", func(g *policy.Grant, v policy.KeepLogs) { g.KeepLogs = v }, policy.KeepNever, policy.KeepOnFailure, policy.KeepAlways),
}

// ofKind says that an attribute takes another kind of value.
func ofKind(name string, want kind, s exprType) (summary, detail string) {
	if s.kind == want {
		return "", ""
	}
	return "Wrong type", fmt.Sprintf("%s is %s, not %s", name, want, s.kind)
}

// choice is an attribute that is one of some words.
func choice[T any, W ~string](name string, set func(*T, W), words ...W) attribute[T] {
	return attribute[T]{
		name: name,
		wrong: func(s exprType) (summary, detail string) {
			if summary, detail = ofKind(name, text, s); summary != "" {
				return summary, detail
			}
			if s.anything {
				return "Unknown value", fmt.Sprintf("%s is one of %q, and this can be any string: choose with ?: between them", name, words)
			}
			for _, word := range s.words {
				if !slices.Contains(words, W(word)) {
					return fmt.Sprintf("Unknown value %q", word), fmt.Sprintf("%s is one of %q", name, words)
				}
			}
			return "", ""
		},
		set: func(into *T, v cty.Value) { set(into, W(v.AsString())) },
	}
}

// wordAttribute is an attribute that is a word which a parser reads.
func wordAttribute[T, V any](name, summary string, parse func(string) (V, error), set func(*T, V)) attribute[T] {
	return attribute[T]{
		name: name,
		wrong: func(s exprType) (string, string) {
			if summary, detail := ofKind(name, text, s); summary != "" {
				return summary, detail
			}
			if s.anything {
				return summary, fmt.Sprintf("%s can be any string here: choose with ?: between constant ones", name)
			}
			for _, word := range s.words {
				if _, err := parse(word); err != nil {
					return summary, err.Error()
				}
			}
			return "", ""
		},
		set: func(into *T, v cty.Value) {
			if read, err := parse(v.AsString()); err == nil {
				set(into, read)
			}
		},
	}
}

// durationAttribute is an attribute that is a duration.
func durationAttribute[T any](name string, least, most time.Duration, set func(*T, time.Duration)) attribute[T] {
	parse := func(word string) (time.Duration, error) {
		d, err := time.ParseDuration(word)
		if err != nil {
			return 0, fmt.Errorf("%s is written like \"10s\" or \"1m30s\", not %q", name, word)
		}
		return d, nil
	}
	a := wordAttribute(name, "Not a duration", parse, set)
	legible := a.wrong
	a.wrong = func(s exprType) (summary, detail string) {
		if summary, detail = legible(s); summary != "" {
			return summary, detail
		}
		for _, word := range s.words {
			if d, _ := parse(word); d < least || d > most {
				return "Out of range", fmt.Sprintf("%s is %v to %v, not %v", name, least, most, d)
			}
		}
		return "", ""
	}
	return a
}

// slack is what the arithmetic of bounds may be off by; set holds the value to its range all the same.
const slack = 1e-9

// within is an attribute that is a number of a range.
func within[T any](name string, least, most float64, set func(*T, float64)) attribute[T] {
	return attribute[T]{
		name: name,
		wrong: func(s exprType) (summary, detail string) {
			if summary, detail = ofKind(name, number, s); summary != "" {
				return summary, detail
			}
			if s.min >= least-slack && s.max <= most+slack {
				return "", ""
			}
			detail = fmt.Sprintf("%s is %v to %v, not %s", name, least, most, s.span())
			if !s.fixed {
				detail = fmt.Sprintf("%s is %v to %v, and this can be %s: hold it with min(%v, max(%v, …))", name, least, most, s.span(), most, least)
			}
			return "Out of range", detail
		},
		set: func(into *T, v cty.Value) { set(into, min(max(float(v), least), most)) },
	}
}

// wholeWithin is one without decimals.
func wholeWithin[T any](name string, least, most float64, set func(*T, int)) attribute[T] {
	a := within(name, least, most, func(into *T, f float64) { set(into, int(f)) })
	ranged := a.wrong
	a.wrong = func(s exprType) (summary, detail string) {
		if summary, detail = ranged(s); summary == "" && !s.integer {
			return "Not a whole number", fmt.Sprintf("%s has no decimals, and this can be %s: write floor(…)", name, s.span())
		}
		return summary, detail
	}
	return a
}

// switched is an attribute that is true or false.
func switched[T any](name string, set func(*T, bool)) attribute[T] {
	return attribute[T]{
		name:  name,
		wrong: func(s exprType) (summary, detail string) { return ofKind(name, truth, s) },
		set:   func(into *T, v cty.Value) { set(into, v.True()) },
	}
}

// stringAttribute is an attribute that is a string which a check lets pass.
func stringAttribute[T any](name string, check func(string) string, set func(*T, string)) attribute[T] {
	return attribute[T]{
		name: name,
		wrong: func(s exprType) (summary, detail string) {
			if summary, detail = ofKind(name, text, s); summary != "" {
				return summary, detail
			}
			for _, word := range s.words {
				if detail := check(word); detail != "" {
					return "Unusable value", name + " " + detail
				}
			}
			return "", ""
		},
		set: func(into *T, v cty.Value) { set(into, v.AsString()) },
	}
}

// schemaOf is a block with the attributes of a table and no block in it.
func schemaOf[T any](table []attribute[T]) *hcl.BodySchema {
	schema := &hcl.BodySchema{}
	for _, a := range table {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: a.name})
	}
	return schema
}

// setting is an attribute as a block has it.
type setting[T any] struct {
	attribute[T]
	expr  hclsyntax.Expression
	shape exprType
}

// settings judges the attributes of a block, in the order of the table.
func settings[T any](j *typeChecker, table []attribute[T], body hcl.Body) []setting[T] {
	content, diags := body.Content(schemaOf(table))
	j.wrong = append(j.wrong, diags...)
	var all []setting[T]
	for _, a := range table {
		attr := content.Attributes[a.name]
		if attr == nil {
			continue
		}
		s := j.value(expression(attr))
		if s.kind == nothing {
			continue // that is said
		}
		if summary, detail := a.wrong(s); summary != "" {
			j.mistake(attr.Expr.Range(), summary, "%s", detail)
			continue
		}
		all = append(all, setting[T]{a, expression(attr), s})
	}
	return all
}

// constants sets the attributes of a block none of which may depend on a job.
func constants[T any](j *typeChecker, table []attribute[T], body hcl.Body, into *T) {
	for _, s := range settings(j, table, body) {
		if !s.shape.fixed || s.shape.known == cty.NilVal {
			j.mistake(s.expr.Range(), "Variables not allowed", "%s is constant: it cannot depend on a job", s.name)
			continue
		}
		s.set(into, s.shape.known)
	}
}

// constant is the value of one attribute that may not depend on a job. The shape is of no kind where it is wrong.
func constant(j *typeChecker, attr *hcl.Attribute, want kind) exprType {
	s := j.value(expression(attr))
	switch {
	case s.kind == nothing:
		return s
	case s.kind != want:
		return j.mistake(attr.Expr.Range(), "Wrong type", "%s is %s, not %s", attr.Name, want, s.kind)
	case !s.fixed || s.known == cty.NilVal:
		return j.mistake(attr.Expr.Range(), "Variables not allowed", "%s is constant: it cannot depend on a job", attr.Name)
	}
	return s
}

// expression is an attribute's, which in this syntax always has the nodes that the judge knows.
func expression(attr *hcl.Attribute) hclsyntax.Expression { return attr.Expr.(hclsyntax.Expression) }

// word refuses a string that would not stand in one line, or is empty or very long.
func word(s string) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > 128:
		return "has more than 128 bytes"
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }):
		return "has characters that cannot be printed"
	}
	return ""
}
