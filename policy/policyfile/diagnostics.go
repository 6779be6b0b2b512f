// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Error is all mistakes in the files of a policy. Its text is the first mistake in one line, for a log. Package lint
// prints all of them with their source, for a person.
type Error struct {
	diagnostics []Diagnostic
}

// Diagnostic is one mistake and its place.
type Diagnostic struct {
	File      string `json:"file"`
	Line      int    `json:"line"`   // from 1
	Column    int    `json:"column"` // from 1, in characters
	EndLine   int    `json:"end_line"`
	EndColumn int    `json:"end_column"` // behind the last character
	Summary   string `json:"summary"`
	Detail    string `json:"detail"`
	In        string `json:"in,omitempty"` // rule "teaching"
	Source    string `json:"source"`       // the line
	Warning   bool   `json:"warning,omitempty"`
}

// Error returns the first mistake in one line.
func (e *Error) Error() string { return e.diagnostics[0].String() }

// Diagnostics returns all mistakes, in the order of the files.
func (e *Error) Diagnostics() []Diagnostic { return slices.Clone(e.diagnostics) }

// String returns file:line:column: summary: detail.
func (d Diagnostic) String() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s", d.File, d.Line, d.Column, d.Summary, d.Detail)
}

// Mistake makes a diagnostic.
func Mistake(where hcl.Range, summary, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: &where}
}

// maxDiagnostics is more than a person reads. hcl finds thousands in a file that is not HCL.
const maxDiagnostics = 100

// Warnings makes warnings of diagnostics about the policy.
func (c *Compiled) Warnings(found hcl.Diagnostics) []Diagnostic {
	all := diagnosticsOf(found, c.files)
	for i := range all {
		all[i].Warning = true
	}
	return all
}

// complain makes an error of diagnostics, nil if there are none.
func complain(diags hcl.Diagnostics, files []file) error {
	if all := diagnosticsOf(diags, files); len(all) > 0 {
		return &Error{all}
	}
	return nil
}

// diagnosticsOf returns diagnostics without repetitions, in the order of the files.
func diagnosticsOf(diags hcl.Diagnostics, files []file) (all []Diagnostic) {
	for _, found := range diags {
		d := diagnosticOf(found, files)
		if len(all) < maxDiagnostics && found.Severity == hcl.DiagError && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	place := func(d Diagnostic) int { return slices.IndexFunc(files, func(f file) bool { return f.name == d.File }) }
	slices.SortStableFunc(all, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return all
}

func diagnosticOf(found *hcl.Diagnostic, files []file) Diagnostic {
	d := Diagnostic{Line: 1, Column: 1, EndLine: 1, EndColumn: 1}
	d.Summary, d.Detail = oneLine(found.Summary), oneLine(found.Detail)
	if found.Subject == nil {
		return d
	}
	where := *found.Subject
	d.File, d.Line, d.Column = where.Filename, where.Start.Line, where.Start.Column
	d.EndLine, d.EndColumn = where.End.Line, where.End.Column
	i := slices.IndexFunc(files, func(f file) bool { return f.name == where.Filename })
	if i < 0 {
		return d
	}
	d.Source = lineOf(files[i].source, where.Start.Line)
	if f := files[i].hcl; f != nil && where.End.Byte > 0 {
		if nav, ok := f.Nav.(interface{ ContextString(int) string }); ok {
			d.In = nav.ContextString(where.Start.Byte)
		}
	}
	return d
}

// lineOf returns a line of a file, "" if the file has fewer lines.
func lineOf(source []byte, number int) string {
	lines := bytes.SplitN(source, []byte("\n"), number+1)
	if len(lines) < number {
		return ""
	}
	line := lines[number-1]
	const limit = 500
	return strings.TrimSuffix(string(line[:min(len(line), limit)]), "\r")
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
