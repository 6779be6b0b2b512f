// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"math"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// variable is an attribute of job, node or gpu, a row of the tables below: what values it can have, its value for a
// request, how a case of a policy's tests sets it, and the look-up that it takes.
type variable struct {
	name  string
	shape exprType
	value func(*policy.Request) cty.Value
	set   func(*policy.Request, cty.Value)
	needs func(*policy.Lookups) *bool // nil: none
}

// mostIDs is the highest number that Slurm gives to anything.
const mostIDs = math.MaxUint32

// namespaces are the roots of what an expression can name, beside local.
var namespaces = map[string][]variable{
	"job": {
		count("id", mostIDs, func(r *policy.Request) *uint32 { return &r.JobID }),
		str("user", func(r *policy.Request) *string { return &r.User }),
		count("uid", mostIDs, func(r *policy.Request) *uint32 { return &r.UID }),
		count("gid", mostIDs, func(r *policy.Request) *uint32 { return &r.GID }),
		lookedUp(strs("groups", func(r *policy.Request) *[]string { return &r.Groups }), func(n *policy.Lookups) *bool { return &n.Groups }),
		str("account", func(r *policy.Request) *string { return &r.Account }),
		str("partition", func(r *policy.Request) *string { return &r.Partition }),
		str("qos", func(r *policy.Request) *string { return &r.QOS }),
		str("reservation", func(r *policy.Request) *string { return &r.Reservation }),
		str("comment", func(r *policy.Request) *string { return &r.Comment }),
		str("extra", func(r *policy.Request) *string { return &r.Extra }),
		strs("requested", func(r *policy.Request) *[]string { return &r.Requested }),
		optionVariable(),
		positions("gpus", func(r *policy.Request) *[]int { return &r.GPUs }),
		count("ntasks", mostIDs, func(r *policy.Request) *int { return &r.NTasks }),
		count("nodes", mostIDs, func(r *policy.Request) *int { return &r.Nodes }),
		count("array", mostIDs, func(r *policy.Request) *uint32 { return &r.Array }),
		count("restart", mostIDs, func(r *policy.Request) *int { return &r.Restart }),
	},
	"node": {
		str("name", func(r *policy.Request) *string { return &r.Node }),
		lookedUp(strs("features", func(r *policy.Request) *[]string { return &r.Features }), func(n *policy.Lookups) *bool { return &n.Features }),
		lookedUp(count("gpus", maxGPUs, func(r *policy.Request) *int { return &r.NodeGPUs }), func(n *policy.Lookups) *bool { return &n.Devices }),
		lookedUp(str("driver", func(r *policy.Request) *string { return &r.Driver }), func(n *policy.Lookups) *bool { return &n.Driver }),
	},
	"gpu": {
		ofGPU(str("model", func(r *policy.Request) *string { return &r.GPU.Model })),
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

// count holds the value to its bounds, so that the shape is true whatever a request says.
func count[T int | uint32](name string, most float64, field func(*policy.Request) *T) variable {
	return variable{
		name: name, shape: numbers(0, most),
		value: func(r *policy.Request) cty.Value {
			return cty.NumberIntVal(int64(min(max(float64(*field(r)), 0), most)))
		},
		set: func(r *policy.Request, v cty.Value) { *field(r) = T(float(v)) },
	}
}

func str(name string, field func(*policy.Request) *string) variable {
	return variable{
		name: name, shape: anyText(),
		value: func(r *policy.Request) cty.Value { return cty.StringVal(*field(r)) },
		set:   func(r *policy.Request, v cty.Value) { *field(r) = v.AsString() },
	}
}

// optionVariable is the value of --mps; a case that says one gives the option.
func optionVariable() variable {
	v := str("option", func(r *policy.Request) *string { return &r.Option })
	v.set = func(r *policy.Request, v cty.Value) { r.Option, r.HasOption = v.AsString(), true }
	return v
}

func yesOrNo(name string, field func(*policy.Request) *bool) variable {
	return variable{
		name: name, shape: anyTruth(),
		value: func(r *policy.Request) cty.Value { return cty.BoolVal(*field(r)) },
		set:   func(r *policy.Request, v cty.Value) { *field(r) = v.True() },
	}
}

func strs(name string, field func(*policy.Request) *[]string) variable {
	return variable{
		name: name, shape: listOf(anyText()),
		value: func(r *policy.Request) cty.Value {
			return listValue(cty.String, *field(r), cty.StringVal)
		},
		set: func(r *policy.Request, v cty.Value) {
			*field(r) = nil
			for _, item := range v.AsValueSlice() {
				*field(r) = append(*field(r), item.AsString())
			}
		},
	}
}

func positions(name string, field func(*policy.Request) *[]int) variable {
	return variable{
		name: name, shape: listOf(numbers(0, maxGPUs-1)),
		value: func(r *policy.Request) cty.Value {
			return listValue(cty.Number, (*field(r))[:min(len(*field(r)), maxGPUs)], func(n int) cty.Value {
				return cty.NumberIntVal(int64(min(max(n, 0), maxGPUs-1)))
			})
		},
		set: func(r *policy.Request, v cty.Value) {
			*field(r) = nil
			for _, item := range v.AsValueSlice() {
				*field(r) = append(*field(r), int(float(item)))
			}
		},
	}
}

// listValue is a list that may be empty, which cty writes in another way.
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
