// SPDX-License-Identifier: Apache-2.0

package policyfile

import "github.com/zclconf/go-cty/cty"

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

var ParseConfig = parseConfig
