// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// GrantTypes returns the types of a grant's attributes.
func GrantTypes() map[string]cty.Type {
	types := map[string]cty.Type{}
	for _, a := range grantAttributes {
		types[a.name] = a.typ
	}
	return types
}

// VariableNames returns the attributes of job, node and gpu.
func VariableNames() map[string][]string {
	names := map[string][]string{}
	for root := range namespaces {
		names[root] = variableNames(root)
	}
	return names
}

// FunctionNames returns the functions of the language.
func FunctionNames() []string { return sortedKeys(builtins) }

// Tables are the tables of docs/policy.md without their last column, the meaning, which is written by hand.
func Tables() map[string][]string {
	attributes := []string{"| attribute | default | values |"}
	for i, setting := range policy.DefaultGrant().Settings() {
		usual := setting.Value
		if grantAttributes[i].typ == cty.String {
			usual = fmt.Sprintf("%q", usual)
		}
		attributes = append(attributes, fmt.Sprintf("| `%s` | `%s` | %s |", setting.Name, usual, valuesOf(policy.Attributes()[i])))
	}
	variables := []string{"| variable | type | looked up |"}
	for _, root := range []string{"job", "node", "gpu"} {
		for _, v := range namespaces[root] {
			lookedUp := ""
			if v.needs != nil {
				lookedUp = "yes"
			}
			one, _ := wording(v.typ())
			variables = append(variables, fmt.Sprintf("| `%s.%s` | %s | %s |", root, v.name, one, lookedUp))
		}
	}
	functions := []string{"| function | result |"}
	for _, name := range slices.Sorted(maps.Keys(builtins)) {
		f := builtins[name]
		var takes []string
		for _, typ := range f.takes {
			takes = append(takes, argument(typ))
		}
		if f.more {
			takes = append(takes, "…")
		}
		functions = append(functions, fmt.Sprintf("| `%s(%s)` | %s |", name, strings.Join(takes, ", "), argument(f.gives)))
	}
	return map[string][]string{"attributes": attributes, "variables": variables, "functions": functions}
}

// valuesOf returns the values that a policy can give an attribute, "" for those that the meaning names.
func valuesOf(a policy.Attribute) string {
	switch {
	case len(a.Words) > 0:
		return "`\"" + strings.Join(a.Words, "\"`, `\"") + "\"`"
	case a.Kind == policy.Duration:
		return fmt.Sprintf("`\"0s\"` to `\"%v\"`", a.Longest)
	case a.Highest > 0:
		return fmt.Sprintf("%v to %v", a.Lowest, a.Highest)
	}
	return ""
}

// argument is a type in the call of a function.
func argument(typ cty.Type) string {
	switch {
	case typ == anyType:
		return "value"
	case typ.IsListType():
		return "list"
	case typ.IsObjectType():
		return "object"
	}
	return typ.FriendlyName()
}

var ParseConfig = parseConfig
