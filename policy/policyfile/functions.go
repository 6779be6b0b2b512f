// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// builtin is a function of the language: how it is called, what it does with values, and what it does with shapes.
type builtin struct {
	takes []kind // its arguments; nothing takes every kind
	more  bool   // the last may be repeated
	run   function.Function
	// shapes is what comes of arguments of the right kinds.
	shapes func(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType
}

var builtins = map[string]builtin{
	"contains":    {[]kind{list, nothing}, false, stdlib.ContainsFunc, containsType},
	"startswith":  {[]kind{text, text}, false, textTest(strings.HasPrefix), boolType},
	"endswith":    {[]kind{text, text}, false, textTest(strings.HasSuffix), boolType},
	"strcontains": {[]kind{text, text}, false, textTest(strings.Contains), boolType},
	"regex":       {[]kind{text, text}, false, regexFunction, regexType},
	"lower":       {[]kind{text}, false, stdlib.LowerFunc, mapped(strings.ToLower)},
	"upper":       {[]kind{text}, false, stdlib.UpperFunc, mapped(strings.ToUpper)},
	"join":        {[]kind{text, list}, false, joinFunction, joinType},
	"min":         {[]kind{number}, true, stdlib.MinFunc, minType},
	"max":         {[]kind{number}, true, stdlib.MaxFunc, maxType},
	"floor":       {[]kind{number}, false, rounded(big.ToNegativeInf), roundedType(math.Floor)},
	"ceil":        {[]kind{number}, false, rounded(big.ToPositiveInf), roundedType(math.Ceil)},
	"length":      {[]kind{nothing}, false, lengthFunction, lengthType},
	"coalesce":    {[]kind{text}, true, coalesceFunction, firstType},
	"lookup":      {[]kind{object, text, nothing}, false, lookupFunction, lookupType},
	"try":         {[]kind{nothing}, true, tryfunc.TryFunc, tryType},
	"can":         {[]kind{nothing}, false, tryfunc.CanFunc, canType},
}

// functions are the builtins as hcl calls them.
var functions = sync.OnceValue(func() map[string]function.Function {
	all := map[string]function.Function{}
	for name, b := range builtins {
		all[name] = b.run
	}
	return all
})

// fits says whether a call has the right number of arguments.
func (b builtin) fits(args int) bool {
	return args == len(b.takes) || b.more && args >= len(b.takes)
}

// taken is the kind of argument number i.
func (b builtin) taken(i int) kind { return b.takes[min(i, len(b.takes)-1)] }

// wants is the number of arguments in words.
func (b builtin) wants() string {
	words := fmt.Sprint(len(b.takes))
	if b.more {
		words += " or more"
	}
	return words
}

func argument(name string, t cty.Type) function.Parameter {
	return function.Parameter{Name: name, Type: t}
}

func textTest(test func(s, part string) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{argument("string", cty.String), argument("part", cty.String)},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(test(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

// compiled are the patterns of a policy, which are all constant: as many as the policy has.
var compiled sync.Map

func pattern(source string) (*regexp.Regexp, error) {
	if found, ok := compiled.Load(source); ok {
		return found.(*regexp.Regexp), nil
	}
	expression, err := regexp.Compile(source)
	if err != nil {
		return nil, err
	}
	compiled.Store(source, expression)
	return expression, nil
}

// regexFunction is the part that matches. hcl's own compiles the pattern at every call.
var regexFunction = function.New(&function.Spec{
	Params: []function.Parameter{argument("pattern", cty.String), argument("string", cty.String)},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		expression, err := pattern(args[0].AsString())
		if err != nil {
			return cty.NilVal, err
		}
		found := expression.FindStringIndex(args[1].AsString())
		if found == nil {
			return cty.NilVal, fmt.Errorf("no part of the string matches")
		}
		return cty.StringVal(args[1].AsString()[found[0]:found[1]]), nil
	},
})

var joinFunction = function.New(&function.Spec{
	Params: []function.Parameter{argument("separator", cty.String), argument("list", cty.DynamicPseudoType)},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if !args[1].IsWhollyKnown() { // hcl tries the condition of a for on what is not known
			return cty.UnknownVal(cty.String), nil
		}
		var items []string
		for _, item := range args[1].AsValueSlice() {
			items = append(items, item.AsString())
		}
		return cty.StringVal(strings.Join(items, args[0].AsString())), nil
	},
})

// rounded rounds to a whole number. hcl's own floor shares memory with its argument.
func rounded(mode big.RoundingMode) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{argument("number", cty.Number)},
		Type:   function.StaticReturnType(cty.Number),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			f := args[0].AsBigFloat()
			whole, accuracy := f.Int(nil) // towards zero
			switch {
			case mode == big.ToNegativeInf && accuracy == big.Above:
				whole.Sub(whole, big.NewInt(1))
			case mode == big.ToPositiveInf && accuracy == big.Below:
				whole.Add(whole, big.NewInt(1))
			}
			return cty.NumberVal(new(big.Float).SetInt(whole)), nil
		},
	})
}

// lengthFunction counts the elements of a list or the characters of a string.
var lengthFunction = function.New(&function.Spec{
	Params: []function.Parameter{argument("value", cty.DynamicPseudoType)},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if args[0].Type() == cty.String {
			return cty.NumberIntVal(int64(len([]rune(args[0].AsString())))), nil
		}
		return cty.NumberIntVal(int64(args[0].LengthInt())), nil
	},
})

// coalesceFunction is the first string that is not empty, "" where all are.
var coalesceFunction = function.New(&function.Spec{
	VarParam: &function.Parameter{Name: "strings", Type: cty.String},
	Type:     function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		for _, arg := range args {
			if arg.AsString() != "" {
				return arg, nil
			}
		}
		return cty.StringVal(""), nil
	},
})

// lookupFunction is an object's attribute, or the default.
var lookupFunction = function.New(&function.Spec{
	Params: []function.Parameter{argument("object", cty.DynamicPseudoType), argument("name", cty.String), argument("default", cty.DynamicPseudoType)},
	Type: func(args []cty.Value) (cty.Type, error) {
		if !args[0].IsWhollyKnown() || !args[1].IsKnown() {
			return cty.DynamicPseudoType, nil
		}
		return lookUp(args).Type(), nil
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) { return lookUp(args), nil },
})

func lookUp(args []cty.Value) cty.Value {
	if name := args[1].AsString(); args[0].Type().IsObjectType() && args[0].Type().HasAttribute(name) {
		return args[0].GetAttr(name)
	}
	return args[2]
}

func boolType(*typeChecker, *hclsyntax.FunctionCallExpr, []exprType) exprType { return anyTruth() }

func containsType(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	if elem := *args[0].elem; !same(elem, args[1]) {
		return j.mistake(call.Args[1].Range(), "Never true", "the list is of %s, and this is %s", elem.kind.plural(), args[1].kind)
	}
	if !args[1].single() {
		return j.mistake(call.Args[1].Range(), "Wrong type", "contains looks for one number, string or truth, not for %s", args[1].kind)
	}
	return anyTruth()
}

// regexType holds the pattern to be one that can be compiled now, without groups: what those match would be a list.
func regexType(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	source := j.settled(call.Args[0], args[0])
	if source.kind == nothing {
		return anyText()
	}
	if !source.fixed {
		return j.mistake(call.Args[0].Range(), "Variables not allowed", "the pattern of regex is constant, so that it is known to be one")
	}
	expression, err := pattern(source.known.AsString())
	if err != nil {
		return j.mistake(call.Args[0].Range(), "Not a pattern", "%v", err)
	}
	if expression.NumSubexp() > 0 {
		return j.mistake(call.Args[0].Range(), "Group in a pattern", "regex is the part that matches as a whole: write (?:…) for a group")
	}
	s := anyText()
	s.may = j.mayFail(call.Range(), "the pattern may match no part of the string: ask can(regex(…)), or say with try(regex(…), \"\") what else")
	return s
}

func mapped(change func(string) string) func(*typeChecker, *hclsyntax.FunctionCallExpr, []exprType) exprType {
	return func(_ *typeChecker, _ *hclsyntax.FunctionCallExpr, args []exprType) exprType {
		s := exprType{kind: text, anything: args[0].anything}
		for _, word := range args[0].words {
			s.words = append(s.words, change(word))
		}
		s.words = wordsOf(s.words)
		return s
	}
}

func joinType(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	if elem := *args[1].elem; elem.kind != text && elem.kind != nothing {
		return j.mistake(call.Args[1].Range(), "Wrong type", "join takes a list of strings, not of %s", elem.kind.plural())
	}
	return anyText()
}

func minType(_ *typeChecker, _ *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	return extreme(args, slices.Min[[]float64])
}

func maxType(_ *typeChecker, _ *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	return extreme(args, slices.Max[[]float64])
}

func extreme(args []exprType, of func([]float64) float64) exprType {
	var least, most []float64
	whole := true
	for _, arg := range args {
		if arg.kind == nothing {
			return exprType{kind: number, min: math.Inf(-1), max: math.Inf(1)}
		}
		least, most, whole = append(least, arg.min), append(most, arg.max), whole && arg.integer
	}
	return ranged(whole, of(least), of(most))
}

func roundedType(round func(float64) float64) func(*typeChecker, *hclsyntax.FunctionCallExpr, []exprType) exprType {
	return func(_ *typeChecker, _ *hclsyntax.FunctionCallExpr, args []exprType) exprType {
		return ranged(true, round(args[0].min), round(args[0].max))
	}
}

func lengthType(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	switch args[0].kind {
	case list, text, nothing:
		return numbers(0, math.MaxInt32)
	}
	return j.mistake(call.Args[0].Range(), "Wrong type", "length counts a list or a string, not %s", args[0].kind)
}

func firstType(_ *typeChecker, _ *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	joined := args[0]
	for _, arg := range args[1:] {
		joined = join(joined, arg)
	}
	joined.may = nil
	return joined
}

func lookupType(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	joined := args[2]
	for _, attr := range args[0].attrs {
		if !joinable(attr, joined) {
			return j.mistake(call.Args[2].Range(), "Wrong type", "lookup takes attributes and a default of one kind: the object has %s, and this is %s", attr.kind.plural(), joined.kind)
		}
		joined = join(joined, attr)
	}
	joined.may = nil
	return joined
}

// tryType cannot fail where one of its arguments cannot.
func tryType(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	joined := args[0]
	for i, arg := range args[1:] {
		if !joinable(joined, arg) {
			return j.mistake(call.Args[i+1].Range(), "Wrong type", "try takes arguments of one kind: this is %s, and before it stands %s", arg.kind, joined.kind)
		}
		joined = join(joined, arg)
	}
	joined.may = args[len(args)-1].may
	if slices.ContainsFunc(args, func(arg exprType) bool { return len(arg.may) == 0 }) {
		joined.may = nil
	}
	return joined
}

func canType(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []exprType) exprType {
	if len(args[0].may) == 0 && args[0].kind != nothing {
		return j.mistake(call.Range(), "Always true", "what can asks about cannot fail")
	}
	return anyTruth()
}

// plural is the kind of a list's elements.
func (k kind) plural() string {
	return []string{"nothing", "numbers", "strings", "truths", "lists", "objects"}[k]
}
