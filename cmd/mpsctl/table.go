// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// table is the rows of an answer, as lines for people and as CSV for programs.
type table struct {
	gap     int      // spaces between two columns
	columns []column // the last one is not left
	rows    [][]any  // strings and numbers; a float64 that is not known is -1
}

type column struct {
	key, name string // for programs, and for people
	unit      string // of a float64: "%", "h", or "" for a number of jobs
	left      bool   // whether its texts begin or end at the same place
	width     int    // of a text at most, 0 for any
}

func (c column) text(value any) string {
	switch v, isNumber := value.(float64); {
	case isNumber && c.unit == "%":
		return usage.Percent(v)
	case isNumber && c.unit == "h":
		return fmt.Sprintf("%.1f", v)
	case c.width > 0:
		return fmt.Sprintf("%.*s", c.width, value)
	}
	return fmt.Sprint(value)
}

// lines returns the head, which is faint, and a line for each row.
func (t table) lines(screen command.Screen) []string {
	lines := make([]string, len(t.rows)+1)
	for i, c := range t.columns {
		texts, width := []string{c.name}, 0
		for _, row := range t.rows {
			texts = append(texts, c.text(row[i]))
		}
		for _, text := range texts {
			width = max(width, utf8.RuneCountInString(text))
		}
		if c.left {
			width = -width
		}
		for n, text := range texts {
			lines[n] += fmt.Sprintf("%*s%*s", min(i, 1)*t.gap, "", width, text)
		}
	}
	lines[0] = screen.Faint(lines[0])
	return lines
}

func (t table) text(screen command.Screen) string { return strings.Join(t.lines(screen), "\n") + "\n" }

// csv returns the keys and exact values. A value that is not known is empty. No program takes a user's name for a formula.
func (t table) csv() [][]string {
	records := make([][]string, len(t.rows)+1)
	for _, c := range t.columns {
		records[0] = append(records[0], c.key)
	}
	for n, row := range t.rows {
		for _, value := range row {
			text := fmt.Sprint(value)
			if v, isNumber := value.(float64); isNumber {
				text = strings.TrimPrefix(strconv.FormatFloat(v, 'f', -1, 64), "-1")
			} else if strings.ContainsAny(text[:min(1, len(text))], "=+-@") {
				text = "'" + text
			}
			records[n+1] = append(records[n+1], text)
		}
	}
	return records
}

// part returns the first column and those from one to another.
func (t table) part(from, to int) table {
	p := table{gap: t.gap, columns: append(t.columns[:1:1], t.columns[from:to]...)}
	for _, row := range t.rows {
		p.rows = append(p.rows, append(row[:1:1], row[from:to]...))
	}
	return p
}
