package policyfile

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// jobAttributes is the variable job, an attribute a row: its type, and its value for a request. What a user can set is a
// string here and never code.
var jobAttributes = map[string]struct {
	kind  cty.Type
	value func(policy.Request) cty.Value
}{
	"id":          {cty.Number, func(r policy.Request) cty.Value { return cty.NumberUIntVal(uint64(r.JobID)) }},
	"user":        {cty.String, func(r policy.Request) cty.Value { return cty.StringVal(r.User) }},
	"uid":         {cty.Number, func(r policy.Request) cty.Value { return cty.NumberUIntVal(uint64(r.UID)) }},
	"gid":         {cty.Number, func(r policy.Request) cty.Value { return cty.NumberUIntVal(uint64(r.GID)) }},
	"account":     {cty.String, func(r policy.Request) cty.Value { return cty.StringVal(r.Account) }},
	"partition":   {cty.String, func(r policy.Request) cty.Value { return cty.StringVal(r.Partition) }},
	"qos":         {cty.String, func(r policy.Request) cty.Value { return cty.StringVal(r.QOS) }},
	"reservation": {cty.String, func(r policy.Request) cty.Value { return cty.StringVal(r.Reservation) }},
	"comment":     {cty.String, func(r policy.Request) cty.Value { return cty.StringVal(r.Comment) }},
	"requested":   {cty.List(cty.String), func(r policy.Request) cty.Value { return list(cty.String, r.Requested, cty.StringVal) }},
	"gpus":        {cty.List(cty.Number), func(r policy.Request) cty.Value { return list(cty.Number, r.GPUs, intValue) }},
	"ntasks":      {cty.Number, func(r policy.Request) cty.Value { return cty.NumberIntVal(int64(r.NTasks)) }},
	"nodes":       {cty.Number, func(r policy.Request) cty.Value { return cty.NumberIntVal(int64(r.Nodes)) }},
}

var functions = map[string]function.Function{
	"contains":   stdlib.ContainsFunc,
	"length":     stdlib.LengthFunc,
	"lower":      stdlib.LowerFunc,
	"min":        stdlib.MinFunc,
	"max":        stdlib.MaxFunc,
	"startswith": prefixLike(strings.HasPrefix),
	"endswith":   prefixLike(strings.HasSuffix),
}

func prefixLike(test func(s, part string) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "string", Type: cty.String}, {Name: "part", Type: cty.String}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(test(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

// condition makes a rule's when of an expression. It is tried against a request of which nothing but the types is known,
// so that a wrong name or type is found when the file is read and not when a job comes.
func condition(expr hcl.Expression) (policy.Condition, error) {
	unknown := map[string]cty.Value{}
	for name, a := range jobAttributes {
		unknown[name] = cty.UnknownVal(a.kind)
	}
	if _, err := holds(expr, unknown); err != nil {
		return nil, err
	}
	return func(r policy.Request) (bool, error) {
		known := map[string]cty.Value{}
		for name, a := range jobAttributes {
			known[name] = a.value(r)
		}
		v, err := holds(expr, known)
		if err != nil {
			return false, err
		}
		if !v.IsKnown() || v.IsNull() {
			return false, at(expr.Range(), "Undecided condition: when must be true or false")
		}
		return v.True(), nil
	}, nil
}

func holds(expr hcl.Expression, job map[string]cty.Value) (cty.Value, error) {
	v, diags := expr.Value(&hcl.EvalContext{
		Variables: map[string]cty.Value{"job": cty.ObjectVal(job)},
		Functions: functions,
	})
	if diags.HasErrors() {
		return cty.NilVal, complaint(diags)
	}
	truth, err := convert.Convert(v, cty.Bool)
	if err != nil {
		return cty.NilVal, at(expr.Range(), "Wrong type: when is true or false, not a %s", v.Type().FriendlyName())
	}
	return truth, nil
}

func intValue(n int) cty.Value { return cty.NumberIntVal(int64(n)) }

// list is a list that may be empty, which cty writes in another way.
func list[T any](kind cty.Type, items []T, value func(T) cty.Value) cty.Value {
	if len(items) == 0 {
		return cty.ListValEmpty(kind)
	}
	values := make([]cty.Value, len(items))
	for i, item := range items {
		values[i] = value(item)
	}
	return cty.ListVal(values)
}
