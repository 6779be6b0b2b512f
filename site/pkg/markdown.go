// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// marked matches code and bold text in a line of Markdown. link matches a link, of which only the text stays.
var (
	marked = regexp.MustCompile("`[^`]*`|\\*\\*[^*]*\\*\\*")
	link   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// fromMarkdown returns a document of this project as roff. It knows the forms that these documents use: headings,
// paragraphs, lists, tables and blocks of code.
func fromMarkdown(text string) string {
	var b strings.Builder
	code, before := false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch title, heading := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); {
		case strings.HasPrefix(line, "```"):
			b.WriteString(map[bool]string{false: ".PP\n.nf\n", true: ".fi\n"}[code])
			code = !code
		case code:
			b.WriteString(escape(line) + "\n")
		case heading && strings.HasPrefix(line, "#"):
			fmt.Fprintf(&b, ".SH %s\n", quote(strings.ToUpper(title)))
		case strings.HasPrefix(line, "* "):
			b.WriteString(".IP \\(bu 2\n" + inline(line[2:]) + "\n")
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "| ") && strings.HasPrefix(before, "|"):
			cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), "|"), " | ")
			last := len(cells) - 1
			fmt.Fprintf(&b, ".TP\n%s\n%s\n", inline(strings.Join(cells[:last], ", ")), inline(strings.TrimSpace(cells[last])))
		case strings.HasPrefix(line, "| "): // the head of a table
		case line != "":
			b.WriteString(".PP\n" + inline(line) + "\n")
		}
		before = line
	}
	return b.String()
}

// inline returns the text of a line as roff.
func inline(text string) string {
	text = escape(link.ReplaceAllString(text, "$1"))
	text = marked.ReplaceAllStringFunc(text, func(part string) string { return `\fB` + strings.Trim(part, "`*") + `\fR` })
	return cmp.Or(text, `\&`)
}

// section returns the text below a heading of a document, of the second or the third level. It ends at the next heading
// of the second level, and below one of the third level at the next of these too.
func section(text, heading string) (string, error) {
	if _, rest, found := strings.Cut(text, "\n## "+heading+"\n"); found {
		rest, _, _ = strings.Cut(rest, "\n## ")
		return rest, nil
	}
	_, rest, found := strings.Cut(text, "\n### "+heading+"\n")
	if !found {
		return "", fmt.Errorf("cannot find section %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	rest, _, _ = strings.Cut(rest, "\n### ")
	return rest, nil
}
