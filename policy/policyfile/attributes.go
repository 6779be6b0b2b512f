// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// attribute is a row of a table of attributes. set takes a value of its type and returns the mistake in the
// value. Constants are set when the file is read, other values when a job comes.
type attribute[T any] struct {
	name string
	typ  cty.Type
	set  func(*T, cty.Value) (summary, detail string)
}

// grantAttributes is the grant block, made from the table of package policy.
var grantAttributes = grantTable()

func grantTable() (table []attribute[policy.Grant]) {
	for _, a := range policy.Attributes() {
		table = append(table, grantAttribute(a))
	}
	return table
}

// grantAttribute reads a value as package policy does, so that a mistake says what is wanted.
func grantAttribute(a policy.Attribute) attribute[policy.Grant] {
	typ, decimals := cty.String, -1
	switch a.Kind {
	case policy.Number:
		typ, decimals = cty.Number, 6
	case policy.Count:
		typ = cty.Number
	}
	return attribute[policy.Grant]{a.Name, typ, func(g *policy.Grant, v cty.Value) (summary, detail string) {
		text, written := "", ""
		if typ == cty.Number {
			text, written = strconv.FormatFloat(float(v), 'f', decimals, 64), decimal(float(v))
		} else {
			text, written = v.AsString(), strconv.Quote(v.AsString())
		}
		if err := a.Read(text, g); err != nil {
			detail = a.Name + ": " + err.Error() + "." + suggest(text, append(slices.Clone(a.Words), "none", "even"))
			return "Unusable value " + written, strings.TrimSuffix(detail, ".")
		}
		return "", ""
	}}
}

// duration is an attribute whose value is a duration, or 0 for never if the lowest is negative.
func duration[T any](name string, lowest, highest time.Duration, set func(*T, time.Duration)) attribute[T] {
	never := ""
	if lowest < 0 {
		lowest, never = -lowest, ", or 0s for never"
	}
	return attribute[T]{name, cty.String, func(into *T, v cty.Value) (summary, detail string) {
		d, err := time.ParseDuration(v.AsString())
		switch {
		case err != nil:
			return "Not a duration", fmt.Sprintf("%s is written like \"10s\" or \"1m30s\", not %q", name, v.AsString())
		case (d < lowest || d > highest) && (d != 0 || never == ""):
			return "Out of range", fmt.Sprintf("%s is %v to %v, not %v%s", name, lowest, highest, d, never)
		}
		set(into, d)
		return "", ""
	}}
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func switched[T any](name string, set func(*T, bool)) attribute[T] {
	return attribute[T]{name, cty.Bool, func(into *T, v cty.Value) (summary, detail string) {
		set(into, v.True())
		return "", ""
	}}
}

// stringAttribute is an attribute whose value is a string. check returns the mistake in a string.
func stringAttribute[T any](name string, check func(string) string, set func(*T, string)) attribute[T] {
	return attribute[T]{name, cty.String, func(into *T, v cty.Value) (summary, detail string) {
		if detail = check(v.AsString()); detail != "" {
			return "Unusable value", name + " " + detail
		}
		set(into, v.AsString())
		return "", ""
	}}
}

// schemaOf returns the schema of a block with the attributes of a table and no inner block.
func schemaOf[T any](table []attribute[T]) *hcl.BodySchema {
	schema := &hcl.BodySchema{}
	for _, a := range table {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: a.name})
	}
	return schema
}

type setting[T any] struct {
	attribute[T]
	expr hclsyntax.Expression
}

// settings checks the attributes of a block, in the order of the table.
func settings[T any](c *typeChecker, table []attribute[T], body hcl.Body) []setting[T] {
	content, diags := body.Content(schemaOf(table))
	for _, d := range diags {
		if strings.Contains(d.Detail, `"overlap"`) {
			d.Detail = `overlap is a form of share: write share = "overlap:F".`
		}
	}
	c.wrong = append(c.wrong, diags...)
	var all []setting[T]
	for _, a := range table {
		attr := content.Attributes[a.name]
		if attr == nil || !c.typed(expression(attr), a.typ, a.name+" is") {
			continue
		}
		c.checkBranches(expression(attr), func(v cty.Value) (summary, detail string) { return a.set(new(T), v) })
		all = append(all, setting[T]{a, expression(attr)})
	}
	return all
}

// checkBranches checks the value of a constant expression, and each constant that ?: chooses from.
func (c *typeChecker) checkBranches(e hclsyntax.Expression, check func(cty.Value) (summary, detail string)) {
	switch e := e.(type) {
	case *hclsyntax.ParenthesesExpr:
		c.checkBranches(e.Expression, check)
		return
	case *hclsyntax.ConditionalExpr:
		c.checkBranches(e.TrueResult, check)
		c.checkBranches(e.FalseResult, check)
		return
	}
	if v, ok := c.constant(e); ok {
		if summary, detail := check(v); summary != "" {
			c.mistake(e.Range(), summary, "%s", detail)
		}
	}
}

// constants sets the attributes of a block that may not depend on the job.
func constants[T any](c *typeChecker, table []attribute[T], body hcl.Body, into *T) {
	for _, s := range settings(c, table, body) {
		if v, ok := c.mustBeConstant(s.expr, s.name); ok {
			s.set(into, v)
		}
	}
}

// expression returns an attribute's expression. In HCL's native syntax its type is always of hclsyntax.
func expression(attr *hcl.Attribute) hclsyntax.Expression { return attr.Expr.(hclsyntax.Expression) }

// word refuses a string that does not fit on one line, is empty or is very long.
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
