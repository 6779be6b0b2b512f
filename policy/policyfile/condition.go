// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// condition is a rule's when, taken apart at &&, || and !. hcl would evaluate both operands of them whatever the first
// says, for each rule anew; of a condition that the judge let pass, all orders come to the same. So it is decided from
// the left as far as need be, and what many rules ask is asked once for a request.
type condition struct {
	op     string // "&&", "||", "!", or "" of a leaf
	source string // in one line
	expr   hclsyntax.Expression
	parts  []condition
	leaf   int // the leaf's place among those of the law: leaves of one wording share it
}

// leaves numbers leaves by their wording.
type leaves map[string]int

func (l leaves) number(source string) int {
	n, known := l[source]
	if !known {
		n = len(l)
		l[source] = n
	}
	return n
}

// newCondition takes an expression apart. The text of an expression is source's.
func newCondition(e hclsyntax.Expression, source func(hclsyntax.Expression) string, all leaves) condition {
	if parentheses, ok := e.(*hclsyntax.ParenthesesExpr); ok {
		return newCondition(parentheses.Expression, source, all)
	}
	c := condition{source: unbroken(source(e)), expr: e}
	var operands []hclsyntax.Expression
	switch e := e.(type) {
	case *hclsyntax.UnaryOpExpr:
		if e.Op == hclsyntax.OpLogicalNot {
			c.op, operands = "!", []hclsyntax.Expression{e.Val}
		}
	case *hclsyntax.BinaryOpExpr:
		if e.Op == hclsyntax.OpLogicalAnd || e.Op == hclsyntax.OpLogicalOr {
			c.op, operands = operators[e.Op].sign, chain(e, e.Op)
		}
	}
	if c.op == "" {
		c.leaf = all.number(source(e))
	}
	for _, operand := range operands {
		c.parts = append(c.parts, newCondition(operand, source, all))
	}
	return c
}

var lineBreaks = regexp.MustCompile(`[ \t\r]*\n\s*`)

// unbroken is a text in one line.
func unbroken(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	return lineBreaks.ReplaceAllString(text, " ")
}

// chain are the operands of a && b && c, which hcl has as (a && b) && c.
func chain(e hclsyntax.Expression, op *hclsyntax.Operation) []hclsyntax.Expression {
	var reversed []hclsyntax.Expression
	for {
		binary, ok := e.(*hclsyntax.BinaryOpExpr)
		if !ok || binary.Op != op {
			break
		}
		reversed = append(reversed, binary.RHS)
		e = binary.LHS
	}
	operands := []hclsyntax.Expression{e}
	for i := len(reversed) - 1; i >= 0; i-- {
		operands = append(operands, reversed[i])
	}
	return operands
}

// holds decides the condition.
func (c *condition) holds(e *evidence) (bool, error) {
	switch c.op {
	case "":
		return c.ask(e)
	case "!":
		holds, err := c.parts[0].holds(e)
		return !holds, err
	}
	for i := range c.parts {
		holds, err := c.parts[i].holds(e)
		if err != nil || holds == (c.op == "||") {
			return holds, err
		}
	}
	return c.op == "&&", nil
}

// What is known of a leaf.
const (
	unasked int8 = iota
	untrue
	isTrue
)

// ask evaluates a leaf, once.
func (c *condition) ask(e *evidence) (bool, error) {
	if known := e.leaves[c.leaf]; known != unasked {
		return known == isTrue, nil
	}
	v, err := evaluate(c.expr, e.ctx)
	if err != nil {
		return false, err
	}
	if v.Type() != cty.Bool {
		return false, errors.New(at(c.expr) + ": neither true nor false")
	}
	e.leaves[c.leaf] = untrue
	if v.True() {
		e.leaves[c.leaf] = isTrue
	}
	return v.True(), nil
}
