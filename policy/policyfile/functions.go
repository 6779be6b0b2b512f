// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

type builtin struct {
	takes []cty.Type
	more  bool // the last argument may be repeated
	gives cty.Type
	run   function.Function
	// check returns the result for arguments of the right types if gives cannot compute it. nil: gives can.
	check func(c *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type
}

var builtins = map[string]builtin{
	"contains":    {takes: types{anyList, anyType}, gives: cty.Bool, run: stdlib.ContainsFunc, check: checkContains},
	"startswith":  textTest(strings.HasPrefix),
	"endswith":    textTest(strings.HasSuffix),
	"strcontains": textTest(strings.Contains),
	"regex":       {takes: types{cty.String, cty.String}, gives: cty.String, run: regexFunction, check: checkRegex},
	"lower":       {takes: types{cty.String}, gives: cty.String, run: stdlib.LowerFunc},
	"upper":       {takes: types{cty.String}, gives: cty.String, run: stdlib.UpperFunc},
	"join":        {takes: types{cty.String, cty.List(cty.String)}, gives: cty.String, run: stdlib.JoinFunc},
	"min":         {takes: types{cty.Number}, more: true, gives: cty.Number, run: stdlib.MinFunc},
	"max":         {takes: types{cty.Number}, more: true, gives: cty.Number, run: stdlib.MaxFunc},
	"floor":       {takes: types{cty.Number}, gives: cty.Number, run: rounded(-1)},
	"ceil":        {takes: types{cty.Number}, gives: cty.Number, run: rounded(1)},
	"length":      {takes: types{anyType}, gives: cty.Number, run: lengthFunction, check: checkLength},
	"coalesce":    {takes: types{cty.String}, more: true, gives: cty.String, run: coalesceFunction},
	"lookup":      {takes: types{anyObject, cty.String, anyType}, gives: anyType, run: stdlib.LookupFunc, check: checkLookup},
	"try":         {takes: types{anyType}, more: true, gives: anyType, run: tryfunc.TryFunc, check: checkTry},
	"can":         {takes: types{anyType}, gives: cty.Bool, run: tryfunc.CanFunc},
}

type types []cty.Type

var functions = sync.OnceValue(func() map[string]function.Function {
	all := map[string]function.Function{}
	for name, b := range builtins {
		all[name] = b.run
	}
	return all
})

// fits reports whether a call has the right number of arguments.
func (b builtin) fits(args int) bool {
	return args == len(b.takes) || b.more && args >= len(b.takes)
}

// newFunction makes a function with a fixed number of arguments.
func newFunction(gives cty.Type, run func(args []cty.Value) (cty.Value, error), takes ...cty.Type) function.Function {
	spec := &function.Spec{
		Type: function.StaticReturnType(gives),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) { return run(args) },
	}
	for i, t := range takes {
		spec.Params = append(spec.Params, function.Parameter{Name: fmt.Sprint("argument", i+1), Type: t})
	}
	return function.New(spec)
}

func textTest(test func(s, part string) bool) builtin {
	run := func(args []cty.Value) (cty.Value, error) {
		return cty.BoolVal(test(args[0].AsString(), args[1].AsString())), nil
	}
	takes := types{cty.String, cty.String}
	return builtin{takes: takes, gives: cty.Bool, run: newFunction(cty.Bool, run, takes...)}
}

// regexFunction returns the part of the text that matches. hcl's own function returns a list if the pattern has
// groups.
var regexFunction = newFunction(cty.String, func(args []cty.Value) (cty.Value, error) {
	pattern, err := regexp.Compile(args[0].AsString())
	if err != nil {
		return cty.NilVal, err
	}
	match := pattern.FindStringIndex(args[1].AsString())
	if match == nil {
		return cty.NilVal, errors.New(`no part of the string matches: ask can(regex(…)), or write try(regex(…), "")`)
	}
	return cty.StringVal(args[1].AsString()[match[0]:match[1]]), nil
}, cty.String, cty.String)

// rounded rounds to a whole number, down for -1 and up for 1. hcl's own floor shares memory with its argument.
func rounded(direction int64) function.Function {
	return newFunction(cty.Number, func(args []cty.Value) (cty.Value, error) {
		f := args[0].AsBigFloat()
		if f.IsInf() {
			return cty.NilVal, errors.New("the number is too large")
		}
		whole, _ := f.Int(nil) // towards zero
		if !f.IsInt() && int64(f.Sign()) == direction {
			whole.Add(whole, big.NewInt(direction))
		}
		return cty.NumberVal(new(big.Float).SetInt(whole)), nil
	}, cty.Number)
}

// lengthFunction counts the elements of a list or the characters of a string.
var lengthFunction = newFunction(cty.Number, func(args []cty.Value) (cty.Value, error) {
	if args[0].Type() == cty.String {
		return cty.NumberIntVal(int64(utf8.RuneCountInString(args[0].AsString()))), nil
	}
	return cty.NumberIntVal(int64(args[0].LengthInt())), nil
}, cty.DynamicPseudoType)

// coalesceFunction returns the first string that is not empty, or "".
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

// quotient and remainder fail if the divisor is 0. hcl's own functions return an infinity and the dividend.
var (
	quotient  = dividing(stdlib.Divide)
	remainder = dividing(stdlib.Modulo)
)

func dividing(divide func(a, b cty.Value) (cty.Value, error)) *hclsyntax.Operation {
	return &hclsyntax.Operation{Type: cty.Number, Impl: newFunction(cty.Number, func(args []cty.Value) (cty.Value, error) {
		if args[1].AsBigFloat().Sign() == 0 {
			return cty.NilVal, errors.New("the divisor is 0: write max(1, …)")
		}
		return divide(args[0], args[1])
	}, cty.Number, cty.Number)}
}

func checkContains(c *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	if list, value := args[0], args[1]; list != anyType && !fits(list.ElementType(), value) {
		c.mistake(call.Args[1].Range(), "Never true", "the list is of %s, and this is %s",
			plural(list.ElementType()), aType(value))
	} else if !single(value) {
		c.wrongType(call.Args[1], "contains looks for one number, string or bool, not for %s", aType(value))
	}
	return cty.Bool
}

// checkRegex compiles the pattern. It refuses a group, because the result would be a list.
func checkRegex(c *typeChecker, call *hclsyntax.FunctionCallExpr, _ []cty.Type) cty.Type {
	source, before := call.Args[0], len(c.wrong)
	v, ok := c.constant(source)
	if !ok {
		if len(c.wrong) == before {
			c.mistake(source.Range(), "Variables not allowed", "the pattern of regex is constant, so that it is known to be one")
		}
		return cty.String
	}
	if pattern, err := regexp.Compile(v.AsString()); err != nil {
		c.mistake(source.Range(), "Not a pattern", "%v", err)
	} else if pattern.NumSubexp() > 0 {
		c.mistake(source.Range(), "Group in a pattern",
			"regex is the part that matches as a whole: write (?:…) for a group")
	}
	return cty.String
}

func checkLength(c *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	if t := args[0]; t != anyType && t != cty.String && !t.IsListType() {
		c.wrongType(call.Args[0], "length counts a list or a string, not %s", aType(t))
	}
	return cty.Number
}

func checkLookup(c *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	joined, usual, ok := anyType, args[2], true
	if args[0].IsObjectType() {
		_, attributes := attributesOf(args[0])
		joined, _, ok = oneType(attributes)
	}
	if !ok || !fits(joined, usual) {
		return c.wrongType(call.Args[2], "lookup takes attributes and a default of one kind: the object has %s, and this is %s",
			plural(joined), aType(usual))
	}
	return join(joined, usual)
}

func checkTry(c *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	joined, odd, ok := oneType(args)
	if !ok {
		return c.wrongType(call.Args[odd], "try takes arguments of one kind: this is %s, and before it stands %s",
			aType(args[odd]), aType(joined))
	}
	return joined
}
