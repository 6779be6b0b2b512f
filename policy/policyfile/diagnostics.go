// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// Error is all mistakes in the files of a policy. Its text is the first mistake in one line, for a log. Write prints
// all mistakes with their source, for a person.
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
func (c Diagnostic) String() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s", c.File, c.Line, c.Column, c.Summary, c.Detail)
}

// Write prints every mistake with its source line, and marks the part of the line.
func (e *Error) Write(w io.Writer, colour bool) error { return WriteAll(w, e.diagnostics, colour) }

// WriteAll writes diagnostics with their source lines.
func WriteAll(w io.Writer, all []Diagnostic, colour bool) error {
	for i, c := range all {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if _, err := io.WriteString(w, c.long(colour)); err != nil {
			return err
		}
	}
	return nil
}

func (c Diagnostic) long(colour bool) string {
	red, bold, plain, severity := "", "", "", "Error"
	if c.Warning {
		severity = "Warning"
	}
	if colour {
		red, bold, plain = "\x1b[31m", "\x1b[1m", "\x1b[0m"
	}
	in := ""
	if c.In != "" {
		in = ", in " + c.In
	}
	number := fmt.Sprintf("%4d: ", c.Line)
	return fmt.Sprintf("%s%s%s: %s%s%s\n\n  on %s line %d, column %d%s:\n%s%s\n%s%s%s%s\n\n  %s\n",
		red, severity, plain, bold, c.Summary, plain, c.File, c.Line, c.Column, in,
		number, printable(c.Source), strings.Repeat(" ", len(number)), red, c.carets(), plain, c.Detail)
}

// carets marks a part of a line, in the line below it.
func (c Diagnostic) carets() string {
	line := []rune(c.Source)
	var out strings.Builder
	for i := range min(c.Column-1, len(line)) {
		if line[i] == '\t' {
			out.WriteByte('\t') // as wide as it is above
			continue
		}
		out.WriteByte(' ')
	}
	end := c.EndColumn
	if c.EndLine > c.Line {
		end = len(line) + 1
	}
	out.WriteString(strings.Repeat("^", max(1, min(end, len(line)+1)-c.Column)))
	return out.String()
}

// printable removes what would move a terminal's cursor.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return '?'
		}
		return r
	}, line)
}

// mistake makes a diagnostic.
func mistake(where hcl.Range, summary, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: &where}
}

// maxDiagnostics is more than a person reads. hcl finds thousands in a file that is not HCL.
const maxDiagnostics = 100

// complain makes an error of diagnostics, nil if there are none. The error lists the files of the diagnostics in
// their order.
func complain(diags hcl.Diagnostics, files []file) error {
	e := &Error{}
	for _, d := range diags {
		if len(e.diagnostics) == maxDiagnostics {
			break
		}
		if c := diagnosticOf(d, files); d.Severity == hcl.DiagError && !slices.Contains(e.diagnostics, c) {
			e.diagnostics = append(e.diagnostics, c)
		}
	}
	if len(e.diagnostics) == 0 {
		return nil
	}
	place := func(c Diagnostic) int {
		return slices.IndexFunc(files, func(f file) bool { return f.name == c.File })
	}
	slices.SortStableFunc(e.diagnostics, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return e
}

func diagnosticOf(d *hcl.Diagnostic, files []file) Diagnostic {
	c := Diagnostic{Summary: oneLine(d.Summary), Detail: oneLine(d.Detail), Line: 1, Column: 1, EndLine: 1, EndColumn: 1}
	if d.Subject == nil {
		return c
	}
	where := *d.Subject
	c.File, c.Line, c.Column, c.EndLine, c.EndColumn = where.Filename, where.Start.Line, where.Start.Column, where.End.Line, where.End.Column
	for _, f := range files {
		if f.name != where.Filename {
			continue
		}
		c.Source = lineOf(f.source, where.Start.Line)
		if f.hcl != nil && where.End.Byte > 0 {
			c.In = contextOf(f.hcl, where.Start.Byte)
		}
	}
	return c
}

// contextOf returns the block that contains a byte of a file.
func contextOf(f *hcl.File, offset int) string {
	if nav, ok := f.Nav.(interface{ ContextString(int) string }); ok {
		return nav.ContextString(offset)
	}
	return ""
}

func lineOf(source []byte, number int) string {
	for range number - 1 {
		_, rest, ok := bytes.Cut(source, []byte("\n"))
		if !ok {
			return ""
		}
		source = rest
	}
	line, _, _ := bytes.Cut(source, []byte("\n"))
	const limit = 500
	return strings.TrimSuffix(string(line[:min(len(line), limit)]), "\r")
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
