// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
)

// exprType is what is known of an expression before any job comes: each value that it can ever have fits it. It is what lets
// types and ranges be checked when a policy is read.
type exprType struct {
	kind kind
	// fixed says that the value depends on no job, and known is it where it was worked out.
	fixed bool
	known cty.Value

	min, max float64 // of a number
	integer  bool    // a number without decimals
	words    []string
	anything bool // a string that is not one of words only

	elem  *exprType // of a list
	attrs map[string]exprType

	// may is how a value can fail to come about: an index out of range, a pattern that matches nothing. Only try and can
	// take it away.
	may hcl.Diagnostics
}

// kind is a type of the language. There is no null: what Slurm does not say is "", 0 or an empty list.
type kind int

const (
	nothing kind = iota // of what is wrong anyway, and of the elements of []: it fits everywhere
	number
	text
	truth
	list
	object
)

// String is the kind with its article.
func (k kind) String() string {
	return []string{"nothing", "a number", "a string", "true or false", "a list", "an object"}[k]
}

func wrongType() exprType { return exprType{kind: nothing} }

func numbers(least, most float64) exprType {
	return exprType{kind: number, min: least, max: most, integer: true}
}

func anyText() exprType  { return exprType{kind: text, anything: true} }
func anyTruth() exprType { return exprType{kind: truth} }

func listOf(elem exprType) exprType { return exprType{kind: list, elem: &elem} }

// typeOfValue is the shape of one value.
func typeOfValue(v cty.Value) exprType {
	s := exprType{fixed: true, known: v}
	switch t := v.Type(); {
	case v.IsNull() || !v.IsWhollyKnown():
		return exprType{kind: nothing, fixed: true}
	case t == cty.Number:
		f, accuracy := v.AsBigFloat().Float64()
		s.kind, s.min, s.max, s.integer = number, f, f, v.AsBigFloat().IsInt()
		if accuracy != big.Exact {
			s.min, s.max = roundOutward(f, f)
		}
	case t == cty.String:
		s.kind, s.words = text, []string{v.AsString()}
	case t == cty.Bool:
		s.kind = truth
	case t.IsTupleType(), t.IsListType(), t.IsSetType():
		elem := wrongType()
		for _, item := range v.AsValueSlice() {
			elem = join(elem, typeOfValue(item))
		}
		s.kind, s.elem = list, &elem
	default:
		s.kind, s.attrs = object, map[string]exprType{}
		for name, item := range v.AsValueMap() {
			s.attrs[name] = typeOfValue(item)
		}
	}
	return s
}

// join is the shape of a value that is of one or of the other. They are joinable.
func join(a, b exprType) exprType {
	if a.kind == nothing {
		a, b = b, a
	}
	joined := exprType{kind: a.kind, may: slices.Concat(a.may, b.may), fixed: a.fixed && b.fixed}
	if b.kind == nothing {
		may, fixed := joined.may, joined.fixed
		joined = a
		joined.may, joined.fixed, joined.known = may, fixed, cty.NilVal
		return joined
	}
	switch a.kind {
	case number:
		joined.min, joined.max, joined.integer = min(a.min, b.min), max(a.max, b.max), a.integer && b.integer
	case text:
		joined.anything = a.anything || b.anything
		joined.words = wordsOf(slices.Concat(a.words, b.words))
	case list:
		elem := join(*a.elem, *b.elem)
		joined.elem = &elem
	}
	return joined.bounded()
}

// wordsOf are the words, each once.
func wordsOf(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}

// maxWords bounds what is remembered of a string that can be one of several.
const maxWords = 64

func (s exprType) bounded() exprType {
	if len(s.words) > maxWords {
		s.words, s.anything = nil, true
	}
	if s.anything {
		s.words = nil
	}
	return s
}

// same says that two values are of one kind, as far as that is known.
func same(a, b exprType) bool {
	return a.kind == b.kind || a.kind == nothing || b.kind == nothing
}

// joinable says that a value can be of one or of the other.
func joinable(a, b exprType) bool {
	switch {
	case a.kind == nothing || b.kind == nothing:
		return true
	case a.kind != b.kind || a.kind == object:
		return false
	}
	return a.kind != list || joinable(*a.elem, *b.elem)
}

// single says that a value is one number, string or truth.
func (s exprType) single() bool { return s.kind != list && s.kind != object }

// ranged is a number between the ends.
func ranged(whole bool, ends ...float64) exprType {
	s := exprType{kind: number, min: slices.Min(ends), max: slices.Max(ends), integer: whole}
	if slices.ContainsFunc(ends, math.IsNaN) {
		s.min, s.max = math.Inf(-1), math.Inf(1)
	}
	return s
}

// computed is ranged for what arithmetic made, of which float64 keeps 53 bits and a policy's own numbers more.
func computed(whole bool, ends ...float64) exprType {
	s := ranged(whole, ends...)
	if whole && max(math.Abs(s.min), math.Abs(s.max)) < 1<<53 {
		return s
	}
	s.min, s.max = roundOutward(s.min, s.max)
	return s
}

func roundOutward(least, most float64) (float64, float64) {
	return math.Nextafter(least, math.Inf(-1)), math.Nextafter(most, math.Inf(1))
}

// span says what a number can be.
func (s exprType) span() string {
	switch {
	case decimal(s.min) == decimal(s.max):
		return decimal(s.min)
	case math.IsInf(s.min, -1) && math.IsInf(s.max, 1):
		return "any number"
	case math.IsInf(s.max, 1):
		return "anything from " + decimal(s.min)
	case math.IsInf(s.min, -1):
		return "anything up to " + decimal(s.max)
	}
	return fmt.Sprintf("anything from %s to %s", decimal(s.min), decimal(s.max))
}

// decimal writes a number as people do.
func decimal(f float64) string {
	if math.Abs(f) < 1e15 {
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.6f", f), "0"), ".")
	}
	return fmt.Sprintf("%g", f)
}
