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

// Case is a test of a policy: a request and the expected verdict.
type Case struct {
	Name    string
	File    string
	Line    int
	Request policy.Request
	expect  expectation
}

// expectation is what a case's expect block names. The rest of the verdict is not compared, except a denial.
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

// LoadCases reads a file of cases of any owner.
func LoadCases(path string) ([]Case, error) {
	source, err := readAny(path)
	if err != nil {
		return nil, err
	}
	return ParseCases(source, path)
}

// ParseCases reads cases. Mistakes are reported under this file name.
func ParseCases(source []byte, name string) ([]Case, error) {
	f := file{name: name, source: source}
	j := newTypeChecker()
	cases := readCases(j, &f)
	if err := complain(j.wrong, []file{f}); err != nil {
		return nil, err
	}
	return cases, nil
}

func readCases(j *typeChecker, f *file) []Case {
	if !j.open(f) {
		return nil
	}
	content, diags := f.hcl.Body.Content(&hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "version"}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "case", LabelNames: []string{"name"}}},
	})
	j.wrong = append(j.wrong, diags...)
	var cases []Case
	seen := map[string]hcl.Range{}
	for _, block := range content.Blocks {
		c := Case{Name: block.Labels[0], File: f.name, Line: block.DefRange.Start.Line}
		if first, twice := seen[c.Name]; twice {
			j.mistake(block.LabelRanges[0], "Duplicate case", "a case named %q stands at line %d already", c.Name, first.Start.Line)
		}
		seen[c.Name] = block.LabelRanges[0]
		c.read(j, block)
		cases = append(cases, c)
	}
	if len(content.Blocks) == 0 && len(j.wrong) == 0 {
		j.mistake(f.hcl.Body.MissingItemRange(), "No case", "a file of tests has case blocks")
	}
	return cases
}

func (c *Case) read(j *typeChecker, block *hcl.Block) {
	content, diags := block.Body.Content(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "job"}, {Type: "node"}, {Type: "gpu"}, {Type: "expect"}}})
	j.wrong = append(j.wrong, diags...)
	seen := map[string]bool{}
	for _, part := range content.Blocks {
		if seen[part.Type] {
			j.mistake(part.DefRange, "Duplicate "+part.Type, "case %q has a %s block already", c.Name, part.Type)
			continue
		}
		seen[part.Type] = true
		if part.Type == "expect" {
			c.readExpect(j, part)
			continue
		}
		constants(j, requestAttributes(part.Type), part.Body, &c.Request)
	}
	if !seen["expect"] {
		j.mistake(block.DefRange, "Nothing expected", "case %q has no expect block", c.Name)
	}
}

// requestAttributes are the variables of a namespace in the form in which a case sets them.
func requestAttributes(root string) (table []attribute[policy.Request]) {
	for _, v := range namespaces[root] {
		table = append(table, v.attribute)
	}
	return table
}

func (c *Case) readExpect(j *typeChecker, block *hcl.Block) {
	content, diags := block.Body.Content(&hcl.BodySchema{
		Attributes: []hcl.AttributeSchema{{Name: "rule"}, {Name: "asked"}, {Name: "denied"}},
		Blocks:     []hcl.BlockHeaderSchema{{Type: "grant"}},
	})
	if j.wrong = append(j.wrong, diags...); diags.HasErrors() {
		return
	}
	e := &c.expect
	if attr := content.Attributes["rule"]; attr != nil {
		if v, ok := j.constantOf(attr, cty.String); ok {
			rule := v.AsString()
			e.rule = &rule
		}
	}
	if attr := content.Attributes["asked"]; attr != nil {
		if v, ok := j.constantOf(attr, cty.Bool); ok {
			asked := v.True()
			e.asked = &asked
		}
	}
	if attr := content.Attributes["denied"]; attr != nil {
		e.readDenied(j, attr)
	}
	for _, grant := range content.Blocks {
		e.readGrant(j, grant)
	}
	if len(content.Attributes) == 0 && len(content.Blocks) == 0 {
		j.mistake(block.DefRange, "Nothing expected", "expect names rule, asked, denied or a grant")
	}
}

// readDenied takes true, false, or a part of the reason.
func (e *expectation) readDenied(j *typeChecker, attr *hcl.Attribute) {
	v, _ := j.constantOf(attr, anyType)
	switch {
	case v == cty.NilVal:
	case v.Type() == cty.Bool:
		denied := v.True()
		e.denied = &denied
	case v.Type() == cty.String:
		reason := v.AsString()
		e.reason = &reason
	default:
		j.mistake(attr.Expr.Range(), "Wrong type", "denied is true, false or a part of the reason")
	}
}

func (e *expectation) readGrant(j *typeChecker, block *hcl.Block) {
	var grant policy.Grant
	constants(j, grantAttributes, block.Body, &grant)
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
func (l *Compiled) Run(cases []Case) []Result {
	results := make([]Result, len(cases))
	for i, c := range cases {
		verdict := l.Decide(c.Request)
		wrong := c.expect.differences(verdict)
		if how, asks := l.policy.Requested(c.Request); !asks && len(wrong) > 0 && c.expect.asked == nil {
			wrong = append(wrong, "the job does not ask for MPS: "+how)
		}
		results[i] = Result{c.Name, c.File, c.Line, len(wrong) == 0, verdict.Rule, wrong}
	}
	return results
}

// differences returns how a verdict differs from the expected one, a sentence for each difference.
func (e expectation) differences(v policy.Decision) []string {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if e.asked != nil && *e.asked != v.Requested {
		add("asked is %v, expected %v", v.Requested, *e.asked)
	}
	if e.rule != nil && *e.rule != v.Rule {
		add("the rule that decides is %s, expected %q", orNone(v.Rule), *e.rule)
	}
	denied := v.Denied != ""
	switch {
	case e.reason != nil && !strings.Contains(v.Denied, *e.reason):
		add("denied is %s, expected %q", orNone(v.Denied), *e.reason)
	case e.denied != nil && *e.denied != denied:
		add("denied is %s, expected %v", orNone(v.Denied), *e.denied)
	case denied && e.reason == nil && e.denied == nil:
		add("denied is %q, and the case expects no denial", v.Denied)
	}
	if len(e.grant) > 0 && !v.Granted() {
		add("nothing is granted")
		return wrong
	}
	got := v.Grant.Settings()
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
