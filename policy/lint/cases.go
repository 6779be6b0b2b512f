// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
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

// Result is the outcome of a case.
type Result struct {
	Name   string   `json:"name"`
	File   string   `json:"file"`
	Line   int      `json:"line"`
	Passed bool     `json:"passed"`
	Rule   string   `json:"rule,omitempty"` // the rule that decided
	Wrong  []string `json:"wrong,omitempty"`
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
	r, body := policyfile.NewReader(source, name)
	var cases []Case
	if body != nil {
		cases = readCases(r, body, name)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return cases, nil
}

func readCases(r *policyfile.Reader, body hcl.Body, name string) (cases []Case) {
	content := r.Content(body, &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "version"}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "case", LabelNames: []string{"name"}}},
	})
	seen := map[string]hcl.Range{}
	for _, block := range content.Blocks {
		c := Case{Name: block.Labels[0], File: name, Line: block.DefRange.Start.Line}
		if first, twice := seen[c.Name]; twice {
			r.Mistake(block.LabelRanges[0], "Duplicate case", "a case named %q stands at line %d already", c.Name, first.Start.Line)
		}
		seen[c.Name] = block.LabelRanges[0]
		c.read(r, block)
		cases = append(cases, c)
	}
	if len(content.Blocks) == 0 && r.Err() == nil {
		r.Mistake(body.MissingItemRange(), "No case", "a file of tests has case blocks")
	}
	return cases
}

func (c *Case) read(r *policyfile.Reader, block *hcl.Block) {
	content := r.Content(block.Body, &hcl.BodySchema{
		Blocks: []hcl.BlockHeaderSchema{{Type: "job"}, {Type: "node"}, {Type: "gpu"}, {Type: "expect"}},
	})
	seen := map[string]bool{}
	for _, part := range content.Blocks {
		switch {
		case seen[part.Type]:
			r.Mistake(part.DefRange, "Duplicate "+part.Type, "case %q has a %s block already", c.Name, part.Type)
		case part.Type == "expect":
			c.expect.read(r, part)
		default:
			r.Request(part.Type, part.Body, &c.Request)
		}
		seen[part.Type] = true
	}
	if !seen["expect"] {
		r.Mistake(block.DefRange, "Nothing expected", "case %q has no expect block", c.Name)
	}
}

func (e *expectation) read(r *policyfile.Reader, block *hcl.Block) {
	content := r.Content(block.Body, &hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "rule"}, {Name: "asked"}, {Name: "denied"}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "grant"}},
	})
	for name, attr := range content.Attributes {
		want := map[string]cty.Type{"rule": cty.String, "asked": cty.Bool, "denied": cty.DynamicPseudoType}[name]
		v, ok := r.Constant(attr, want)
		switch {
		case !ok:
		case name == "rule":
			e.rule = new(v.AsString())
		case v.Type() == cty.String:
			e.reason = new(v.AsString())
		case v.Type() != cty.Bool:
			r.Mistake(attr.Expr.Range(), "Wrong type", "denied is true, false or a part of the reason")
		case name == "asked":
			e.asked = new(v.True())
		default:
			e.denied = new(v.True())
		}
	}
	for _, block := range content.Blocks {
		var grant policy.Grant
		given := r.Grant(block.Body, &grant)
		for _, s := range grant.Settings() {
			if given[s.Name] != nil {
				e.grant = append(e.grant, s)
			}
		}
	}
	if len(content.Attributes)+len(content.Blocks) == 0 && r.Err() == nil {
		r.Mistake(block.DefRange, "Nothing expected", "expect names rule, asked, denied or a grant")
	}
}

// Run runs cases against the policy.
func Run(c *policyfile.Compiled, cases []Case) []Result {
	results := make([]Result, len(cases))
	for i, test := range cases {
		decision := c.Policy().Decide(test.Request)
		wrong := test.expect.differences(decision)
		if how, asks := c.Policy().Requested(test.Request); !asks && len(wrong) > 0 && test.expect.asked == nil {
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
