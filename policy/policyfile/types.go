// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"slices"

	"github.com/zclconf/go-cty/cty"
)

// The types of the language are cty.Number, cty.String, cty.Bool, lists and objects. There is no null: what Slurm does not
// say is "", 0 or an empty list.
var (
	// anyType is the type of what is wrong already, and of the elements of []. It fits every other.
	anyType   = cty.DynamicPseudoType
	anyList   = cty.List(anyType)
	anyObject = cty.EmptyObject
)

// fits says that a value of one type can stand in the place of another.
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

// join is the type of a value that is of one type or of another that fits it.
func join(a, b cty.Type) cty.Type {
	switch {
	case a == anyType:
		return b
	case a.IsListType() && b.IsListType():
		return cty.List(join(a.ElementType(), b.ElementType()))
	}
	return a
}

// single says that a value is no list and no object.
func single(t cty.Type) bool { return !t.IsListType() && !t.IsObjectType() }

// wording is a type with its article, and the plural of it.
func wording(t cty.Type) (one, many string) {
	switch {
	case t == cty.Number:
		return "a number", "numbers"
	case t == cty.String:
		return "a string", "strings"
	case t == cty.Bool:
		return "true or false", "truths"
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

// instead is a type and the one that stands in its place. Of two lists it tells the elements.
func instead(want, got cty.Type, not string) string {
	if want.IsListType() && got.IsListType() {
		return "a list of " + plural(want.ElementType()) + ", not of " + plural(got.ElementType())
	}
	return aType(want) + not + aType(got)
}

// oneType joins types. It is false when one of them does not fit those before it, and then tells which.
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
