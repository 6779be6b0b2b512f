// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"math"
	"slices"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// variable is a row of the tables below: an attribute of job, node or gpu.
type variable struct {
	name    string
	field   func(*policy.Request) any   // a pointer to a string, a bool, a number or a list
	highest float64                     // of a number, and of each number of a list
	needs   func(*policy.Lookups) *bool // the look-up that it needs, nil for none
	shown   func(string) string         // what rules see of a string, nil for the string itself
}

// maxID is the highest number of a Slurm id.
const maxID = math.MaxUint32

// namespaces are the roots of the names in expressions, beside local.
var namespaces = map[string][]variable{
	"job": {
		{name: "id", field: func(r *policy.Request) any { return &r.ID }, highest: maxID},
		{name: "user", field: func(r *policy.Request) any { return &r.User }},
		{name: "uid", field: func(r *policy.Request) any { return &r.UID }, highest: maxID},
		{name: "gid", field: func(r *policy.Request) any { return &r.GID }, highest: maxID},
		{name: "groups", field: func(r *policy.Request) any { return &r.Groups }, needs: func(n *policy.Lookups) *bool { return &n.Groups }},
		{name: "account", field: func(r *policy.Request) any { return &r.Account }},
		{name: "partition", field: func(r *policy.Request) any { return &r.Partition }},
		{name: "qos", field: func(r *policy.Request) any { return &r.QOS }},
		{name: "reservation", field: func(r *policy.Request) any { return &r.Reservation }},
		{name: "comment", field: func(r *policy.Request) any { return &r.Comment }},
		{name: "requested", field: func(r *policy.Request) any { return &r.Requested }},
		{name: "option", field: func(r *policy.Request) any { return &r.Option }},
		{name: "gpus", field: func(r *policy.Request) any { return &r.GPUs }, highest: maxGPUs - 1},
		{name: "ntasks", field: func(r *policy.Request) any { return &r.NTasks }, highest: maxID},
		{name: "nodes", field: func(r *policy.Request) any { return &r.Nodes }, highest: maxID},
		{name: "array", field: func(r *policy.Request) any { return &r.Array }, highest: maxID},
		{name: "restart", field: func(r *policy.Request) any { return &r.Restart }, highest: maxID},
	},
	"node": {
		{name: "name", field: func(r *policy.Request) any { return &r.Node }},
		{name: "features", field: func(r *policy.Request) any { return &r.Features }, needs: func(n *policy.Lookups) *bool { return &n.Features }},
		{name: "gpus", field: func(r *policy.Request) any { return &r.NodeGPUs }, highest: maxGPUs, needs: func(n *policy.Lookups) *bool { return &n.Devices }},
		{name: "driver", field: func(r *policy.Request) any { return &r.Driver }, needs: func(n *policy.Lookups) *bool { return &n.Driver }},
	},
	"gpu": {
		{name: "model", field: func(r *policy.Request) any { return &r.GPU.Product }, needs: ofGPU, shown: policy.ModelName},
		{name: "product", field: func(r *policy.Request) any { return &r.GPU.Product }, needs: ofGPU},
		{name: "sms", field: func(r *policy.Request) any { return &r.GPU.SMs }, highest: 1e6, needs: ofGPU},
		{name: "memory", field: func(r *policy.Request) any { return &r.GPU.MemoryMiB }, highest: 1e12, needs: ofGPU},
		{name: "mig", field: func(r *policy.Request) any { return &r.GPU.MIG }, needs: ofGPU},
	},
}

// maxGPUs is Slurm's bound on the devices of one kind on a node.
const maxGPUs = 1024

func ofGPU(n *policy.Lookups) *bool { return &n.GPU }

func (v variable) typ() cty.Type { return v.value(&policy.Request{}).Type() }

// value returns the value for a request. A number is bounded, whatever the request has.
func (v variable) value(r *policy.Request) cty.Value {
	number := func(n float64) cty.Value { return cty.NumberIntVal(int64(min(max(n, 0), v.highest))) }
	switch field := v.field(r).(type) {
	case *bool:
		return cty.BoolVal(*field)
	case *int:
		return number(float64(*field))
	case *uint32:
		return number(float64(*field))
	case *[]string:
		return listValue(cty.String, *field, cty.StringVal)
	case *[]int:
		return listValue(cty.Number, (*field)[:min(len(*field), maxGPUs)], func(n int) cty.Value { return number(float64(n)) })
	case *string:
		if v.shown != nil {
			return cty.StringVal(v.shown(*field))
		}
		return cty.StringVal(*field)
	}
	return cty.NilVal
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

func variableNamed(root, name string) (v variable, known bool) {
	i := slices.IndexFunc(namespaces[root], func(v variable) bool { return v.name == name })
	if i >= 0 {
		v = namespaces[root][i]
	}
	return v, i >= 0
}

func variableNames(root string) (names []string) {
	for _, v := range namespaces[root] {
		names = append(names, v.name)
	}
	return names
}
