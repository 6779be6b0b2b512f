// SPDX-License-Identifier: Apache-2.0

package policyfile_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/lint"
	. "github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/golden"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

var fenced = regexp.MustCompile("(?s)```hcl\n(.*?)```")

// Every fenced block of HCL in the documents parses, as a policy or as what its first line names.
func TestTheDocumentsParse(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	must.OK(t, err)
	found := 0
	for _, path := range append(paths, "../../README.md") {
		content, err := os.ReadFile(path)
		must.OK(t, err)
		for _, m := range fenced.FindAllSubmatch(content, -1) {
			found++
			switch first, _, _ := strings.Cut(string(m[1]), "\n"); first {
			case "# site":
				_, err = ParseConfig(m[1], path, site.DefaultConfig())
			default:
				_, err = Parse(m[1], path)
			}
			if err != nil {
				t.Errorf("%v in\n%s", err, m[1])
			}
		}
	}
	if found < 2 {
		t.Errorf("only %d fences found", found)
	}
}

// The table of docs/policy.md has every attribute of a grant and no other.
func TestThePolicyTableIsWhole(t *testing.T) {
	content, err := os.ReadFile("../../docs/policy.md")
	must.OK(t, err)
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllSubmatch(content, -1) {
		rows[string(m[1])] = true
	}
	for name := range GrantTypes() {
		if !rows[name] {
			t.Errorf("%s is not documented", name)
		}
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("%s is documented and is no attribute", name)
	}
	for root, variables := range VariableNames() {
		for _, name := range variables {
			if !strings.Contains(string(content), "`"+root+"."+name+"`") {
				t.Errorf("%s.%s is not documented", root, name)
			}
		}
	}
	for _, name := range FunctionNames() {
		if !strings.Contains(string(content), "`"+name+"(") {
			t.Errorf("%s is not documented", name)
		}
	}
	_, unknown := policy.FindModel("none")
	_, models, _ := strings.Cut(unknown.Error(), ": known are ")
	for model := range strings.SplitSeq(models, ", ") {
		if !strings.Contains(string(content), "`\""+model+"\"`") {
			t.Errorf("the GPU model %s is not documented", model)
		}
	}
	for _, name := range policy.OptionNames() {
		if !strings.Contains(string(content), "`"+name+"=") {
			t.Errorf("the option %s is not documented", name)
		}
	}
}

var madeTable = regexp.MustCompile(`(?s)<!-- made: ([a-z]+) -->\n(.*?)<!-- made -->`)

// The tables of docs/policy.md between markers are made from the code, except their last column. -update writes them
// and keeps that column. A new row has no meaning until a person writes it.
func TestTheTablesAreMadeFromTheCode(t *testing.T) {
	const page = "../../docs/policy.md"
	content, err := os.ReadFile(page)
	must.OK(t, err)
	tables := Tables()
	want := madeTable.ReplaceAllStringFunc(string(content), func(old string) string {
		parts := madeTable.FindStringSubmatch(old)
		rows := tables[parts[1]]
		delete(tables, parts[1])
		return "<!-- made: " + parts[1] + " -->\n" + made(t, rows, parts[2]) + "<!-- made -->"
	})
	for name := range tables {
		t.Errorf("%s has no table of %s", page, name)
	}
	golden.Compare(t, page, want)
}

// made returns a table with the meanings that the old one has.
func made(t *testing.T, rows []string, old string) string {
	meanings := map[string]string{}
	for _, row := range strings.Split(strings.TrimSpace(old), "\n") {
		columns := strings.Split(strings.Trim(row, "|"), " |")
		meanings[columns[0]] = strings.TrimSpace(columns[len(columns)-1])
	}
	var text strings.Builder
	for i, row := range rows {
		meaning := "meaning"
		if i > 0 {
			key, _, _ := strings.Cut(strings.Trim(row, "|"), " |")
			if meaning = meanings[key]; meaning == "" {
				t.Errorf("docs/policy.md does not say what%s means", key)
			}
		}
		text.WriteString(strings.ReplaceAll(row, "|  |", "| |") + " " + meaning + " |\n")
		if i == 0 {
			text.WriteString("|" + strings.Repeat("---|", strings.Count(row, "|")) + "\n")
		}
	}
	return text.String()
}

// docs/policy.md has the defaults, variables, functions and options of the code, and no others.
func TestThePolicyDocumentSaysNoMore(t *testing.T) {
	content, err := os.ReadFile("../../docs/policy.md")
	must.OK(t, err)
	defaults := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| `([^`]+)` \\|").FindAllSubmatch(content, -1) {
		defaults[string(m[1])] = strings.Trim(string(m[2]), `"`)
	}
	for _, setting := range policy.DefaultGrant().Settings() {
		if got, ok := defaults[setting.Name]; !ok || got != setting.Value {
			t.Errorf("the default of %s is %s, and the document has %q", setting.Name, setting.Value, got)
		}
	}
	for _, m := range regexp.MustCompile("`(job|node|gpu)\\.([a-z]+)`").FindAllSubmatch(content, -1) {
		if !slices.Contains(VariableNames()[string(m[1])], string(m[2])) {
			t.Errorf("%s.%s is documented and is no variable", m[1], m[2])
		}
	}
	_, options, _ := strings.Cut(string(content), "| option |")
	options, _, _ = strings.Cut(options, "\n\n")
	for _, m := range regexp.MustCompile("`([a-z_]+)=").FindAllStringSubmatch(options, -1) {
		if !slices.Contains(policy.OptionNames(), m[1]) && m[1] != "mem" {
			t.Errorf("%s is documented and is no option", m[1])
		}
	}
	if len(defaults) < 10 || options == "" {
		t.Errorf("%d defaults; the tables were not found", len(defaults))
	}
}

// The table of shares in docs/policy.md shows what four ranks on an H200 get.
func TestTheSharesOfTheDocument(t *testing.T) {
	content, err := os.ReadFile("../../docs/policy.md")
	must.OK(t, err)
	rows := regexp.MustCompile("(?m)^\\* `(share|ceiling) = \"?([^`\"]+)\"?`[^:]*: ([^:]+) a rank, (\\d+) in all").FindAllStringSubmatch(string(content), -1)
	if len(rows) != 5 {
		t.Fatalf("%d rows of shares, want 5", len(rows))
	}
	h200, err := policy.FindModel("H200")
	must.OK(t, err)
	for _, row := range rows {
		share, ceiling := row[2], "100"
		if row[1] == "ceiling" {
			share, ceiling = "none", row[2]
		}
		rule, err := policy.ParseShare(share)
		limit, err2 := policy.ParsePercent(ceiling)
		shares, err3 := policy.SplitSMs(h200.GPU, rule, 4, limit)
		must.OK(t, errors.Join(err, err2, err3))
		lowest, highest, sum := shares[0].SMs, shares[0].SMs, 0
		for _, s := range shares {
			lowest, highest, sum = min(lowest, s.SMs), max(highest, s.SMs), sum+s.SMs
		}
		want := strconv.Itoa(lowest)
		if highest > lowest {
			want += " or " + strconv.Itoa(highest)
		}
		if row[3] != want || row[4] != strconv.Itoa(sum) {
			t.Errorf("%s: a rank has %s SMs and all %d", row[0], want, sum)
		}
	}
}

// No policy of the document has a warning.
func TestThePoliciesOfTheDocumentHaveNoWarning(t *testing.T) {
	content, err := os.ReadFile("../../docs/policy.md")
	must.OK(t, err)
	for _, m := range fenced.FindAllSubmatch(content, -1) {
		withoutWarnings(t, string(m[1]))
	}
}

// The shipped policies decide requests as testdata/examples.txt has it: a policy and a request in a line, and the
// decision in the next one.
func TestWhatTheShippedPoliciesDecide(t *testing.T) {
	const file = "testdata/examples.txt"
	content, err := os.ReadFile(file)
	must.OK(t, err)
	var got strings.Builder
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, " ") {
			continue
		}
		path, asked, _ := strings.Cut(line, " ")
		source, err := os.ReadFile("../../site/etc/" + path)
		var r policy.Request
		must.OK(t, errors.Join(err, json.Unmarshal([]byte(asked), &r)))
		verdict := withoutWarnings(t, string(source)).Policy().Decide(r)
		fmt.Fprintf(&got, "%s  %s\n", line, optionsCut(decision(verdict)))
	}
	golden.Compare(t, file, got.String())
}

func withoutWarnings(t *testing.T, source string) *Compiled {
	compiled := parsed(t, source)
	if warnings := lint.Warnings(compiled, noneMissing); len(warnings) > 0 {
		t.Errorf("%v in\n%s", warnings, source)
	}
	return compiled
}
