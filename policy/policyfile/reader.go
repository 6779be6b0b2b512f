// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// Reader reads a file that has jobs and grants in the words of a policy, and is none: the cases of its tests.
type Reader struct {
	check *typeChecker
	file  file
}

// NewReader parses a file and checks its version. The body is nil if the rest is not to be read.
func NewReader(source []byte, name string) (r *Reader, body hcl.Body) {
	r = &Reader{newTypeChecker(), file{name: name, source: source}}
	if !r.check.open(&r.file) {
		return r, nil
	}
	return r, r.file.hcl.Body
}

// Content returns the attributes and blocks of a body. What the schema lacks is a mistake.
func (r *Reader) Content(body hcl.Body, schema *hcl.BodySchema) *hcl.BodyContent {
	content, diags := body.Content(schema)
	r.check.wrong = append(r.check.wrong, diags...)
	return content
}

// Mistake adds a mistake.
func (r *Reader) Mistake(where hcl.Range, summary, format string, args ...any) {
	r.check.mistake(where, summary, format, args...)
}

// Constant returns the value of an attribute of a type, cty.DynamicPseudoType for any.
func (r *Reader) Constant(attr *hcl.Attribute, want cty.Type) (v cty.Value, ok bool) {
	return r.check.constantOf(attr, want)
}

// Request sets values of a job, a node or a gpu.
func (r *Reader) Request(root string, body hcl.Body, into *policy.Request) {
	var table []attribute[policy.Request]
	for _, v := range namespaces[root] {
		table = append(table, v.attribute())
	}
	constants(r.check, table, body, into)
}

// Grant sets attributes of a grant. It returns the names of those that the body has.
func (r *Reader) Grant(body hcl.Body, into *policy.Grant) (names map[string]*hcl.Attribute) {
	constants(r.check, grantAttributes, body, into)
	content, _ := body.Content(schemaOf(grantAttributes))
	return content.Attributes
}

// Err returns all mistakes as an *Error, nil if there are none.
func (r *Reader) Err() error { return complain(r.check.wrong, []file{r.file}) }
