// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"math"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// variable is a row of the tables below: an attribute of job, node or gpu. set is how a case of a policy's tests sets
// it.
type variable struct {
	attribute[policy.Request]
	value func(*policy.Request) cty.Value
	needs func(*policy.Lookups) *bool // the look-up that it needs, nil for none
}

// maxID is the highest number of a Slurm id.
const maxID = math.MaxUint32

// namespaces are the roots of the names in expressions, beside local.
var namespaces = map[string][]variable{
	"job": {
		count("id", maxID, func(r *policy.Request) *uint32 { return &r.JobID }),
		str("user", func(r *policy.Request) *string { return &r.User }),
		count("uid", maxID, func(r *policy.Request) *uint32 { return &r.UID }),
		count("gid", maxID, func(r *policy.Request) *uint32 { return &r.GID }),
		lookedUp(strs("groups", func(r *policy.Request) *[]string { return &r.Groups }), func(n *policy.Lookups) *bool { return &n.Groups }),
		str("account", func(r *policy.Request) *string { return &r.Account }),
		str("partition", func(r *policy.Request) *string { return &r.Partition }),
		str("qos", func(r *policy.Request) *string { return &r.QOS }),
		str("reservation", func(r *policy.Request) *string { return &r.Reservation }),
		str("comment", func(r *policy.Request) *string { return &r.Comment }),
		strs("requested", func(r *policy.Request) *[]string { return &r.Requested }),
		optionVariable(),
		positions("gpus", func(r *policy.Request) *[]int { return &r.GPUs }),
		count("ntasks", maxID, func(r *policy.Request) *int { return &r.NTasks }),
		count("nodes", maxID, func(r *policy.Request) *int { return &r.Nodes }),
		count("array", maxID, func(r *policy.Request) *uint32 { return &r.Array }),
		count("restart", maxID, func(r *policy.Request) *int { return &r.Restart }),
	},
	"node": {
		str("name", func(r *policy.Request) *string { return &r.Node }),
		lookedUp(strs("features", func(r *policy.Request) *[]string { return &r.Features }), func(n *policy.Lookups) *bool { return &n.Features }),
		lookedUp(count("gpus", maxGPUs, func(r *policy.Request) *int { return &r.NodeGPUs }), func(n *policy.Lookups) *bool { return &n.Devices }),
		lookedUp(str("driver", func(r *policy.Request) *string { return &r.Driver }), func(n *policy.Lookups) *bool { return &n.Driver }),
	},
	"gpu": {
		ofGPU(model()),
		ofGPU(str("product", func(r *policy.Request) *string { return &r.GPU.Product })),
		ofGPU(count("sms", 1e6, func(r *policy.Request) *int { return &r.GPU.SMs })),
		ofGPU(count("memory", 1e12, func(r *policy.Request) *int { return &r.GPU.MemoryMiB })),
		ofGPU(yesOrNo("mig", func(r *policy.Request) *bool { return &r.GPU.MIG })),
	},
}

// maxGPUs is Slurm's bound on the devices of one kind on a node.
const maxGPUs = 1024

func lookedUp(v variable, needs func(*policy.Lookups) *bool) variable {
	v.needs = needs
	return v
}

func ofGPU(v variable) variable {
	return lookedUp(v, func(n *policy.Lookups) *bool { return &n.GPU })
}

// count bounds the value, whatever the request has.
func count[T int | uint32](name string, highest float64, field func(*policy.Request) *T) variable {
	return variable{
		attribute: wholeWithin(name, 0, highest, func(r *policy.Request, n int) { *field(r) = T(n) }),
		value: func(r *policy.Request) cty.Value {
			return cty.NumberIntVal(int64(min(max(float64(*field(r)), 0), highest)))
		},
	}
}

func str(name string, field func(*policy.Request) *string) variable {
	return variable{
		attribute: stringAttribute(name, anything, func(r *policy.Request, s string) { *field(r) = s }),
		value:     func(r *policy.Request) cty.Value { return cty.StringVal(*field(r)) },
	}
}

// optionVariable is the value of --mps. A case that sets it gives the option.
func optionVariable() variable {
	v := str("option", func(r *policy.Request) *string { r.HasOption = true; return &r.Option })
	v.value = func(r *policy.Request) cty.Value { return cty.StringVal(r.Option) }
	return v
}

// model is the short name of the product. A case that sets it may set either.
func model() variable {
	v := str("model", func(r *policy.Request) *string { return &r.GPU.Product })
	v.value = func(r *policy.Request) cty.Value { return cty.StringVal(policy.ModelName(r.GPU.Product)) }
	return v
}

func yesOrNo(name string, field func(*policy.Request) *bool) variable {
	return variable{
		attribute: switched(name, func(r *policy.Request, on bool) { *field(r) = on }),
		value:     func(r *policy.Request) cty.Value { return cty.BoolVal(*field(r)) },
	}
}

func strs(name string, field func(*policy.Request) *[]string) variable {
	return variable{
		attribute: each(str(name, func(r *policy.Request) *string { return added(field(r)) }).attribute),
		value:     func(r *policy.Request) cty.Value { return listValue(cty.String, *field(r), cty.StringVal) },
	}
}

func positions(name string, field func(*policy.Request) *[]int) variable {
	return variable{
		attribute: each(count(name, maxGPUs-1, func(r *policy.Request) *int { return added(field(r)) }).attribute),
		value: func(r *policy.Request) cty.Value {
			return listValue(cty.Number, (*field(r))[:min(len(*field(r)), maxGPUs)], func(n int) cty.Value {
				return cty.NumberIntVal(int64(min(max(n, 0), maxGPUs-1)))
			})
		},
	}
}

// added returns a new element of a list.
func added[T any](list *[]T) *T {
	*list = append(*list, *new(T))
	return &(*list)[len(*list)-1]
}

// each makes a list of an attribute. Setting it sets each element in turn.
func each[T any](elem attribute[T]) attribute[T] {
	return attribute[T]{elem.name, cty.List(elem.typ), func(into *T, v cty.Value) (summary, detail string) {
		for _, item := range v.AsValueSlice() {
			if summary, detail = elem.set(into, item); summary != "" {
				break
			}
		}
		return summary, detail
	}}
}

// listValue returns a list that may be empty. cty needs another call for an empty list.
func listValue[T any](kind cty.Type, items []T, value func(T) cty.Value) cty.Value {
	if len(items) == 0 {
		return cty.ListValEmpty(kind)
	}
	values := make([]cty.Value, len(items))
	for i, item := range items {
		values[i] = value(item)
	}
	return cty.ListVal(values)
}

func float(v cty.Value) float64 {
	f, _ := v.AsBigFloat().Float64()
	return f
}

// variableNamed finds a row.
func variableNamed(root, name string) (variable, bool) {
	for _, v := range namespaces[root] {
		if v.name == name {
			return v, true
		}
	}
	return variable{}, false
}

// IsVariable reports whether job, node or gpu has an attribute.
func IsVariable(root, name string) bool {
	_, known := variableNamed(root, name)
	return known
}

func variableNames(root string) (names []string) {
	for _, v := range namespaces[root] {
		names = append(names, v.name)
	}
	return names
}
