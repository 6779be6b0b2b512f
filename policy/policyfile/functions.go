// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// builtin is a function of the language.
type builtin struct {
	takes []cty.Type
	more  bool // the last argument may be repeated
	gives cty.Type
	run   function.Function
	// check returns the result for arguments of the right types if gives cannot compute it. nil: gives can.
	check func(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type
}

var builtins = map[string]builtin{
	"contains":    {[]cty.Type{anyList, anyType}, false, cty.Bool, stdlib.ContainsFunc, checkContains},
	"startswith":  {[]cty.Type{cty.String, cty.String}, false, cty.Bool, textTest(strings.HasPrefix), nil},
	"endswith":    {[]cty.Type{cty.String, cty.String}, false, cty.Bool, textTest(strings.HasSuffix), nil},
	"strcontains": {[]cty.Type{cty.String, cty.String}, false, cty.Bool, textTest(strings.Contains), nil},
	"regex":       {[]cty.Type{cty.String, cty.String}, false, cty.String, regexFunction, checkRegex},
	"lower":       {[]cty.Type{cty.String}, false, cty.String, stdlib.LowerFunc, nil},
	"upper":       {[]cty.Type{cty.String}, false, cty.String, stdlib.UpperFunc, nil},
	"join":        {[]cty.Type{cty.String, cty.List(cty.String)}, false, cty.String, stdlib.JoinFunc, nil},
	"min":         {[]cty.Type{cty.Number}, true, cty.Number, stdlib.MinFunc, nil},
	"max":         {[]cty.Type{cty.Number}, true, cty.Number, stdlib.MaxFunc, nil},
	"floor":       {[]cty.Type{cty.Number}, false, cty.Number, rounded(-1), nil},
	"ceil":        {[]cty.Type{cty.Number}, false, cty.Number, rounded(1), nil},
	"length":      {[]cty.Type{anyType}, false, cty.Number, lengthFunction, checkLength},
	"coalesce":    {[]cty.Type{cty.String}, true, cty.String, coalesceFunction, nil},
	"lookup":      {[]cty.Type{anyObject, cty.String, anyType}, false, anyType, stdlib.LookupFunc, checkLookup},
	"try":         {[]cty.Type{anyType}, true, anyType, tryfunc.TryFunc, checkTry},
	"can":         {[]cty.Type{anyType}, false, cty.Bool, tryfunc.CanFunc, nil},
}

// functions returns the builtins in hcl's form.
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

// taken returns the type of argument number i.
func (b builtin) taken(i int) cty.Type { return b.takes[min(i, len(b.takes)-1)] }

// wants returns the number of arguments in words.
func (b builtin) wants() string {
	words := fmt.Sprint(len(b.takes))
	if b.more {
		words += " or more"
	}
	return words
}

func parameters(types ...cty.Type) (all []function.Parameter) {
	for i, t := range types {
		all = append(all, function.Parameter{Name: fmt.Sprint("argument", i+1), Type: t})
	}
	return all
}

func textTest(test func(s, part string) bool) function.Function {
	return function.New(&function.Spec{
		Params: parameters(cty.String, cty.String),
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(test(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

// regexFunction returns the part of the text that matches. hcl's own function returns a list if the pattern has
// groups.
var regexFunction = function.New(&function.Spec{
	Params: parameters(cty.String, cty.String),
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		pattern, err := regexp.Compile(args[0].AsString())
		if err != nil {
			return cty.NilVal, err
		}
		found := pattern.FindStringIndex(args[1].AsString())
		if found == nil {
			return cty.NilVal, fmt.Errorf("no part of the string matches: ask can(regex(…)), or write try(regex(…), \"\")")
		}
		return cty.StringVal(args[1].AsString()[found[0]:found[1]]), nil
	},
})

// rounded rounds to a whole number, down for -1 and up for 1. hcl's own floor shares memory with its argument.
func rounded(direction int64) function.Function {
	return function.New(&function.Spec{
		Params: parameters(cty.Number),
		Type:   function.StaticReturnType(cty.Number),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			f := args[0].AsBigFloat()
			if f.IsInf() {
				return cty.NilVal, fmt.Errorf("the number is too large")
			}
			whole, _ := f.Int(nil) // towards zero
			if !f.IsInt() && int64(f.Sign()) == direction {
				whole.Add(whole, big.NewInt(direction))
			}
			return cty.NumberVal(new(big.Float).SetInt(whole)), nil
		},
	})
}

// lengthFunction counts the elements of a list or the characters of a string.
var lengthFunction = function.New(&function.Spec{
	Params: parameters(cty.DynamicPseudoType),
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if args[0].Type() == cty.String {
			return cty.NumberIntVal(int64(len([]rune(args[0].AsString())))), nil
		}
		return cty.NumberIntVal(int64(args[0].LengthInt())), nil
	},
})

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

func checkContains(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	if args[0] != anyType && !fits(args[0].ElementType(), args[1]) {
		j.mistake(call.Args[1].Range(), "Never true", "the list is of %s, and this is %s", plural(args[0].ElementType()), aType(args[1]))
	} else if !single(args[1]) {
		j.mistake(call.Args[1].Range(), "Wrong type", "contains looks for one number, string or truth, not for %s", aType(args[1]))
	}
	return cty.Bool
}

// checkRegex compiles the pattern. It refuses a group, because the result would be a list.
func checkRegex(j *typeChecker, call *hclsyntax.FunctionCallExpr, _ []cty.Type) cty.Type {
	source, before := call.Args[0], len(j.wrong)
	v, ok := j.constant(source)
	if !ok {
		if len(j.wrong) == before {
			j.mistake(source.Range(), "Variables not allowed", "the pattern of regex is constant, so that it is known to be one")
		}
		return cty.String
	}
	if pattern, err := regexp.Compile(v.AsString()); err != nil {
		j.mistake(source.Range(), "Not a pattern", "%v", err)
	} else if pattern.NumSubexp() > 0 {
		j.mistake(source.Range(), "Group in a pattern", "regex is the part that matches as a whole: write (?:…) for a group")
	}
	return cty.String
}

func checkLength(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	if t := args[0]; t != anyType && t != cty.String && !t.IsListType() {
		j.mistake(call.Args[0].Range(), "Wrong type", "length counts a list or a string, not %s", aType(t))
	}
	return cty.Number
}

func checkLookup(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	var types []cty.Type
	if args[0].IsObjectType() {
		_, types = attributesOf(args[0])
	}
	joined, _, ok := oneType(types)
	if !ok || !fits(joined, args[2]) {
		return j.mistake(call.Args[2].Range(), "Wrong type", "lookup takes attributes and a default of one kind: the object has %s, and this is %s", plural(joined), aType(args[2]))
	}
	return join(joined, args[2])
}

func checkTry(j *typeChecker, call *hclsyntax.FunctionCallExpr, args []cty.Type) cty.Type {
	joined, odd, ok := oneType(args)
	if !ok {
		return j.mistake(call.Args[odd].Range(), "Wrong type", "try takes arguments of one kind: this is %s, and before it stands %s", aType(args[odd]), aType(joined))
	}
	return joined
}
