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

// shape is what is known of an expression before any job comes: each value that it can ever have fits it. It is what lets
// types and ranges be checked when a policy is read.
type shape struct {
	kind kind
	// fixed says that the value depends on no job, and known is it where it was worked out.
	fixed bool
	known cty.Value

	least, most float64 // of a number
	whole       bool    // a number without decimals
	words       []string
	anything    bool // a string that is not one of words only

	elem  *shape // of a list
	attrs map[string]shape

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

func wrongShape() shape { return shape{kind: nothing} }

func numbers(least, most float64) shape {
	return shape{kind: number, least: least, most: most, whole: true}
}

func anyText() shape  { return shape{kind: text, anything: true} }
func anyTruth() shape { return shape{kind: truth} }

func listOf(elem shape) shape { return shape{kind: list, elem: &elem} }

// shapeOf is the shape of one value.
func shapeOf(v cty.Value) shape {
	s := shape{fixed: true, known: v}
	switch t := v.Type(); {
	case v.IsNull() || !v.IsWhollyKnown():
		return shape{kind: nothing, fixed: true}
	case t == cty.Number:
		f, accuracy := v.AsBigFloat().Float64()
		s.kind, s.least, s.most, s.whole = number, f, f, v.AsBigFloat().IsInt()
		if accuracy != big.Exact {
			s.least, s.most = outward(f, f)
		}
	case t == cty.String:
		s.kind, s.words = text, []string{v.AsString()}
	case t == cty.Bool:
		s.kind = truth
	case t.IsTupleType(), t.IsListType(), t.IsSetType():
		elem := wrongShape()
		for _, item := range v.AsValueSlice() {
			elem = join(elem, shapeOf(item))
		}
		s.kind, s.elem = list, &elem
	default:
		s.kind, s.attrs = object, map[string]shape{}
		for name, item := range v.AsValueMap() {
			s.attrs[name] = shapeOf(item)
		}
	}
	return s
}

// join is the shape of a value that is of one or of the other. They are joinable.
func join(a, b shape) shape {
	if a.kind == nothing {
		a, b = b, a
	}
	joined := shape{kind: a.kind, may: slices.Concat(a.may, b.may), fixed: a.fixed && b.fixed}
	if b.kind == nothing {
		may, fixed := joined.may, joined.fixed
		joined = a
		joined.may, joined.fixed, joined.known = may, fixed, cty.NilVal
		return joined
	}
	switch a.kind {
	case number:
		joined.least, joined.most, joined.whole = min(a.least, b.least), max(a.most, b.most), a.whole && b.whole
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

func (s shape) bounded() shape {
	if len(s.words) > maxWords {
		s.words, s.anything = nil, true
	}
	if s.anything {
		s.words = nil
	}
	return s
}

// same says that two values are of one kind, as far as that is known.
func same(a, b shape) bool {
	return a.kind == b.kind || a.kind == nothing || b.kind == nothing
}

// joinable says that a value can be of one or of the other.
func joinable(a, b shape) bool {
	switch {
	case a.kind == nothing || b.kind == nothing:
		return true
	case a.kind != b.kind || a.kind == object:
		return false
	}
	return a.kind != list || joinable(*a.elem, *b.elem)
}

// single says that a value is one number, string or truth.
func (s shape) single() bool { return s.kind != list && s.kind != object }

// ranged is a number between the ends.
func ranged(whole bool, ends ...float64) shape {
	s := shape{kind: number, least: slices.Min(ends), most: slices.Max(ends), whole: whole}
	if slices.ContainsFunc(ends, math.IsNaN) {
		s.least, s.most = math.Inf(-1), math.Inf(1)
	}
	return s
}

// computed is ranged for what arithmetic made, of which float64 keeps 53 bits and a policy's own numbers more.
func computed(whole bool, ends ...float64) shape {
	s := ranged(whole, ends...)
	if whole && max(math.Abs(s.least), math.Abs(s.most)) < 1<<53 {
		return s
	}
	s.least, s.most = outward(s.least, s.most)
	return s
}

func outward(least, most float64) (float64, float64) {
	return math.Nextafter(least, math.Inf(-1)), math.Nextafter(most, math.Inf(1))
}

// span says what a number can be.
func (s shape) span() string {
	switch {
	case decimal(s.least) == decimal(s.most):
		return decimal(s.least)
	case math.IsInf(s.least, -1) && math.IsInf(s.most, 1):
		return "any number"
	case math.IsInf(s.most, 1):
		return "anything from " + decimal(s.least)
	case math.IsInf(s.least, -1):
		return "anything up to " + decimal(s.most)
	}
	return fmt.Sprintf("anything from %s to %s", decimal(s.least), decimal(s.most))
}

// decimal writes a number as people do.
func decimal(f float64) string {
	if math.Abs(f) < 1e15 {
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.6f", f), "0"), ".")
	}
	return fmt.Sprintf("%g", f)
}
