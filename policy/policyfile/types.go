// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// The types of the language are cty.Number, cty.String, cty.Bool, lists and objects. There is no null: a value that
// Slurm does not pass is "", 0 or an empty list.
var (
	// anyType is the type of a wrong expression, and of the elements of []. It fits every other type.
	anyType   = cty.DynamicPseudoType
	anyList   = cty.List(anyType)
	anyObject = cty.EmptyObject
)

// fits reports whether a value of one type can replace a value of another.
func fits(want, got cty.Type) bool {
	switch {
	case want == anyType || got == anyType:
		return true
	case want.IsListType() && got.IsListType():
		return fits(want.ElementType(), got.ElementType())
	case want.Equals(anyObject):
		return got.IsObjectType()
	}
	return want.Equals(got)
}

// join returns the type of a value that has one type or another type that fits it.
func join(a, b cty.Type) cty.Type {
	switch {
	case a == anyType:
		return b
	case a.IsListType() && b.IsListType():
		return cty.List(join(a.ElementType(), b.ElementType()))
	}
	return a
}

// single reports whether a value is neither a list nor an object.
func single(t cty.Type) bool { return !t.IsListType() && !t.IsObjectType() }

// wording is a type with its article, and its plural.
func wording(t cty.Type) (one, many string) {
	switch {
	case t == cty.Number:
		return "a number", "numbers"
	case t == cty.String:
		return "a string", "strings"
	case t == cty.Bool:
		return "true or false", "bools"
	case t.IsListType() || t.IsTupleType():
		return "a list", "lists"
	case t.IsObjectType():
		return "an object", "objects"
	}
	return "nothing", "nothing"
}

func aType(t cty.Type) string {
	one, _ := wording(t)
	return one
}

func plural(t cty.Type) string {
	_, many := wording(t)
	return many
}

// instead names a type and the type that is there instead. For two lists it names the elements.
func instead(want, got cty.Type, between string) string {
	if want.IsListType() && got.IsListType() {
		return "a list of " + plural(want.ElementType()) + ", not of " + plural(got.ElementType())
	}
	hint := ""
	if want == cty.Number && got.IsListType() {
		hint = ": length(…) counts a list"
	}
	return aType(want) + between + aType(got) + hint
}

// oneType joins types. It returns false if one of them does not fit those before it, and which.
func oneType(types []cty.Type) (joined cty.Type, odd int, ok bool) {
	joined = anyType
	odd = slices.IndexFunc(types, func(t cty.Type) bool {
		if !fits(joined, t) {
			return true
		}
		joined = join(joined, t)
		return false
	})
	return joined, odd, odd < 0
}
