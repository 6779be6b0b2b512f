// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
)

// Case is a test of a policy: a request and the expected decision.
type Case struct {
	Name    string
	File    string
	Line    int
	Request policy.Request
	expect  expectation
}

// expectation has the values of a case's expect block. The rest of the decision is not compared, except a denial.
type expectation struct {
	rule   *string
	asked  *bool
	denied *bool            // whatever the reason is
	reason *string          // a part of the reason
	grant  []policy.Setting // as Grant.Settings writes them
}

var expectAttributes = []attribute[expectation]{
	stringAttribute("rule", anything, func(e *expectation, s string) { e.rule = &s }),
	switched("asked", func(e *expectation, on bool) { e.asked = &on }),
	{"denied", anyType, func(e *expectation, v cty.Value) (summary, detail string) {
		switch v.Type() {
		case cty.Bool:
			denied := v.True()
			e.denied = &denied
		case cty.String:
			reason := v.AsString()
			e.reason = &reason
		default:
			return "Wrong type", "denied is true, false or a part of the reason"
		}
		return "", ""
	}},
}

// Result is the outcome of a case.
type Result struct {
	Name   string   `json:"name"`
	File   string   `json:"file"`
	Line   int      `json:"line"`
	Passed bool     `json:"passed"`
	Rule   string   `json:"rule,omitempty"` // the rule that decided
	Wrong  []string `json:"wrong,omitempty"`
}

// LoadCases reads a file of cases of any owner.
func LoadCases(path string) ([]Case, error) {
	source, err := readAny(path)
	if err != nil {
		return nil, err
	}
	return ParseCases(source, path)
}

// ParseCases reads cases. Mistakes are reported under this file name.
//
//	version = 1
//	case "students share" {
//	  job    { partition = "edu" }
//	  expect {
//	    rule = "teaching"
//	    grant { share = "even" }
//	  }
//	}
func ParseCases(source []byte, name string) ([]Case, error) {
	f := file{name: name, source: source}
	t := newTypeChecker()
	cases := readCases(t, &f)
	if err := complain(t.wrong, []file{f}); err != nil {
		return nil, err
	}
	return cases, nil
}

func readCases(t *typeChecker, f *file) []Case {
	if !t.open(f) {
		return nil
	}
	content, diags := f.hcl.Body.Content(&hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "version"}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "case", LabelNames: []string{"name"}}},
	})
	t.wrong = append(t.wrong, diags...)
	var cases []Case
	seen := map[string]hcl.Range{}
	for _, block := range content.Blocks {
		c := Case{Name: block.Labels[0], File: f.name, Line: block.DefRange.Start.Line}
		if first, twice := seen[c.Name]; twice {
			t.mistake(block.LabelRanges[0], "Duplicate case", "a case named %q stands at line %d already", c.Name, first.Start.Line)
		}
		seen[c.Name] = block.LabelRanges[0]
		c.read(t, block)
		cases = append(cases, c)
	}
	if len(content.Blocks) == 0 && len(t.wrong) == 0 {
		t.mistake(f.hcl.Body.MissingItemRange(), "No case", "a file of tests has case blocks")
	}
	return cases
}

func (c *Case) read(t *typeChecker, block *hcl.Block) {
	content, diags := block.Body.Content(&hcl.BodySchema{
		Blocks: []hcl.BlockHeaderSchema{{Type: "job"}, {Type: "node"}, {Type: "gpu"}, {Type: "expect"}},
	})
	t.wrong = append(t.wrong, diags...)
	seen := map[string]bool{}
	for _, part := range content.Blocks {
		switch {
		case seen[part.Type]:
			t.mistake(part.DefRange, "Duplicate "+part.Type, "case %q has a %s block already", c.Name, part.Type)
		case part.Type == "expect":
			c.expect.read(t, part)
		default:
			constants(t, requestAttributes(part.Type), part.Body, &c.Request)
		}
		seen[part.Type] = true
	}
	if !seen["expect"] {
		t.mistake(block.DefRange, "Nothing expected", "case %q has no expect block", c.Name)
	}
}

// requestAttributes are the variables of a namespace in the form in which a case sets them.
func requestAttributes(root string) (table []attribute[policy.Request]) {
	for _, v := range namespaces[root] {
		table = append(table, v.attribute)
	}
	return table
}

func (e *expectation) read(t *typeChecker, block *hcl.Block) {
	content, rest, diags := block.Body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "grant"}}})
	before := len(t.wrong)
	t.wrong = append(t.wrong, diags...)
	constants(t, expectAttributes, rest, e)
	for _, grant := range content.Blocks {
		e.readGrant(t, grant)
	}
	nothing := e.rule == nil && e.asked == nil && e.denied == nil && e.reason == nil && len(content.Blocks) == 0
	if nothing && len(t.wrong) == before {
		t.mistake(block.DefRange, "Nothing expected", "expect names rule, asked, denied or a grant")
	}
}

func (e *expectation) readGrant(t *typeChecker, block *hcl.Block) {
	var grant policy.Grant
	constants(t, grantAttributes, block.Body, &grant)
	content, _ := block.Body.Content(schemaOf(grantAttributes))
	if content.Attributes["overlap"] != nil && content.Attributes["share"] == nil {
		grant.Share = policy.ShareEven // overlap = F alone expects overlap:F
	}
	for _, s := range grant.Settings() {
		if content.Attributes[s.Name] != nil || s.Name == "share" && grant.Share != "" {
			e.grant = append(e.grant, s)
		}
	}
}

// Run runs cases against the policy.
func (c *Compiled) Run(cases []Case) []Result {
	results := make([]Result, len(cases))
	for i, test := range cases {
		decision := c.Decide(test.Request)
		wrong := test.expect.differences(decision)
		if how, asks := c.policy.Requested(test.Request); !asks && len(wrong) > 0 && test.expect.asked == nil {
			wrong = append(wrong, "the job does not ask for MPS: "+how)
		}
		results[i] = Result{test.Name, test.File, test.Line, len(wrong) == 0, decision.Rule, wrong}
	}
	return results
}

// differences returns how a decision differs from the expected one, a sentence for each difference.
func (e expectation) differences(d policy.Decision) []string {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if e.asked != nil && *e.asked != d.Requested {
		add("asked is %v, expected %v", d.Requested, *e.asked)
	}
	if e.rule != nil && *e.rule != d.Rule {
		add("the rule that decides is %s, expected %q", orNone(d.Rule), *e.rule)
	}
	denied := d.Denied != ""
	switch {
	case e.reason != nil && !strings.Contains(d.Denied, *e.reason):
		add("denied is %s, expected %q", orNone(d.Denied), *e.reason)
	case e.denied != nil && *e.denied != denied:
		add("denied is %s, expected %v", orNone(d.Denied), *e.denied)
	case denied && e.reason == nil && e.denied == nil:
		add("denied is %q, and the case expects no denial", d.Denied)
	}
	if len(e.grant) > 0 && !d.Granted() {
		add("nothing is granted")
		return wrong
	}
	got := d.Grant.Settings()
	for _, want := range e.grant {
		i := slices.IndexFunc(got, func(s policy.Setting) bool { return s.Name == want.Name })
		if got[i].Value != want.Value {
			add("%s is %s, expected %s", want.Name, got[i].Value, want.Value)
		}
	}
	return wrong
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return fmt.Sprintf("%q", s)
}
