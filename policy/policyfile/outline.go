// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"slices"
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
func (l *Compiled) Changes(later *Compiled) []Change {
	was, is := l.outline(), later.outline()
	var changes []Change
	for _, block := range was.blocks {
		if !slices.Contains(is.blocks, block) {
			changes = append(changes, Change{How: Removed, What: block})
		}
	}
	for _, block := range is.blocks {
		if slices.Contains(was.blocks, block) {
			continue
		}
		changes = append(changes, Change{How: Added, What: block})
		for _, e := range is.entries {
			if e.block == block {
				changes = append(changes, Change{How: Added, What: e.path(), Is: e.text})
			}
		}
	}
	for _, e := range was.entries {
		text, has := is.text[e.path()]
		switch {
		case !slices.Contains(is.blocks, e.block):
		case !has:
			changes = append(changes, Change{How: Removed, What: e.path(), Was: e.text})
		case text != e.text:
			changes = append(changes, Change{Changed, e.path(), e.text, text})
		}
	}
	for _, e := range is.entries {
		if _, had := was.text[e.path()]; slices.Contains(was.blocks, e.block) && !had {
			changes = append(changes, Change{How: Added, What: e.path(), Is: e.text})
		}
	}
	if before, after := order(was.rules, is.rules), order(is.rules, was.rules); !slices.Equal(before, after) {
		changes = append(changes, Change{Changed, "order of the rules", strings.Join(before, ", "), strings.Join(after, ", ")})
	}
	return changes
}

// order returns the rules that the other policy has too, in this policy's order.
func order(some, others []string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(rule string) bool { return !slices.Contains(others, rule) })
}

// outline is a policy as a list of blocks and of attributes, in the words of its files.
type outline struct {
	blocks  []string
	rules   []string
	entries []entry
	text    map[string]string // by path
}

type entry struct{ block, name, text string }

func (e entry) path() string { return e.block + ": " + e.name }

func (l *Compiled) outline() outline {
	o := outline{text: map[string]string{}}
	for _, f := range l.files {
		body := f.hcl.Body.(*hclsyntax.Body) // compile has read it
		for _, block := range body.Blocks {
			name := block.Type
			if len(block.Labels) > 0 {
				name = fmt.Sprintf("%s %q", block.Type, block.Labels[0])
				o.rules = append(o.rules, name)
			}
			if !slices.Contains(o.blocks, name) { // a policy may have many locals blocks
				o.blocks = append(o.blocks, name)
			}
			o.add(name, f.source, block.Body)
			for _, inner := range block.Body.Blocks { // grant
				o.add(name, f.source, inner.Body)
			}
		}
	}
	return o
}

func (o *outline) add(block string, source []byte, body *hclsyntax.Body) {
	for _, name := range sortedKeys(body.Attributes) {
		e := entry{block, name, strings.Join(strings.Fields(string(body.Attributes[name].Expr.Range().SliceBytes(source))), " ")}
		o.entries = append(o.entries, e)
		o.text[e.path()] = e.text
	}
}
