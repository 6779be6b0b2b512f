// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Change is a difference between two policies, in the words of their files. The attributes of a block that was added
// are changes, too. Those of a block that was removed are not.
type Change struct {
	How  string `json:"how"`  // added, removed or changed
	What string `json:"what"` // rule "a", or rule "a": overlap
	Was  string `json:"was,omitempty"`
	Is   string `json:"is,omitempty"`
}

// The kinds of a change.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Changes returns the differences between the policy and a later one: first blocks that were added or removed, then
// attributes.
func (c *Compiled) Changes(later *Compiled) []Change {
	older, newer := c.outline(), later.outline()
	var changes []Change
	for _, e := range older.entries {
		if e.name == "" && !newer.has(e.block) {
			changes = append(changes, Change{How: Removed, What: e.block})
		}
	}
	for _, e := range newer.entries {
		if !older.has(e.block) {
			changes = append(changes, Change{How: Added, What: e.path(), Is: e.text})
		}
	}
	for _, e := range older.entries {
		text, has := newer.text[e.path()]
		switch {
		case !newer.has(e.block):
		case !has:
			changes = append(changes, Change{How: Removed, What: e.path(), Was: e.text})
		case text != e.text:
			changes = append(changes, Change{Changed, e.path(), e.text, text})
		}
	}
	for _, e := range newer.entries {
		if older.has(e.block) && !older.has(e.path()) {
			changes = append(changes, Change{How: Added, What: e.path(), Is: e.text})
		}
	}
	if first, second := older.rulesIn(newer), newer.rulesIn(older); first != second {
		changes = append(changes, Change{Changed, "order of the rules", first, second})
	}
	return changes
}

// outline is a policy as a list of blocks, each before its attributes, in the words of its files.
type outline struct {
	entries []entry
	text    map[string]string // by path
}

// entry is an attribute, or a block if it has no name.
type entry struct{ block, name, text string }

func (e entry) path() string {
	if e.name == "" {
		return e.block
	}
	return e.block + ": " + e.name
}

func (o *outline) has(path string) bool {
	_, has := o.text[path]
	return has
}

// rulesIn lists the rules that the other policy has too, in this policy's order.
func (o *outline) rulesIn(other *outline) string {
	var rules []string
	for _, e := range o.entries {
		if e.name == "" && strings.HasPrefix(e.block, "rule ") && other.has(e.block) {
			rules = append(rules, e.block)
		}
	}
	return strings.Join(rules, ", ")
}

func (c *Compiled) outline() *outline {
	o := &outline{text: map[string]string{}}
	for _, f := range c.files {
		body := f.hcl.Body.(*hclsyntax.Body) // compile has read it
		for _, block := range body.Blocks {
			name := block.Type
			if len(block.Labels) > 0 {
				name = fmt.Sprintf("%s %q", block.Type, block.Labels[0])
			}
			if !o.has(name) { // a policy may have many locals blocks
				o.add(entry{block: name})
			}
			o.addAttributes(name, f.source, block.Body)
			for _, inner := range block.Body.Blocks { // grant
				o.addAttributes(name, f.source, inner.Body)
			}
		}
	}
	return o
}

func (o *outline) add(e entry) {
	o.entries = append(o.entries, e)
	o.text[e.path()] = e.text
}

func (o *outline) addAttributes(block string, source []byte, body *hclsyntax.Body) {
	for _, name := range sortedKeys(body.Attributes) {
		text := body.Attributes[name].Expr.Range().SliceBytes(source)
		o.add(entry{block, name, oneLine(string(text))})
	}
}
