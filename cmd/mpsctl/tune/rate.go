// SPDX-License-Identifier: Apache-2.0

package tune

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rate finds the rate of a program in its output.
type rate struct {
	text  string // --rate
	unit  string // "" for a pattern of the user
	forms []form
	atEnd bool // the program prints the rate at its end only, so a run lasts until then
}

// form is one way to print a rate.
type form struct {
	pattern *regexp.Regexp // its first group is a number; a second group is a letter for a power of 1000
	inverse bool           // the number is a time for each step, and the rate is one by it
}

// named are the rates that have a name. testdata/logs has the lines that they were written for, with their sources.
var named = []rate{
	{text: "gromacs", unit: "ns/day", atEnd: true, forms: forms(`\bPerformance:\s+([0-9.]+)\s+[0-9.]+\s*$`)},
	{text: "lammps", unit: "timesteps/s", atEnd: true, forms: forms(`\bPerformance:.*?\s([0-9.]+) timesteps/s`)},
	{text: "namd", unit: "steps/s", atEnd: true, forms: inverse(
		`\bBenchmark time: .*?\s([0-9.e+-]+) s/step`,
		`\bPERFORMANCE: .*?\s([0-9.e+-]+) sec/step`, `\bTIMING: .*\bWall: \S+ ([0-9.e+-]+)/step`)},
	{text: "amber", unit: "ns/day", atEnd: true, forms: forms(`\bns/day\s*=\s*([0-9.]+)`)},
	{text: "tqdm", unit: "iterations/s", forms: bars(`\[[0-9:]+(?:<[0-9:?]+)?,\s*`)},
	{text: "lightning", unit: "batches/s", forms: bars(`\bEpoch [0-9]+.*?(?:,|\s)\s*`)},
}

func forms(patterns ...string) (all []form) {
	for _, p := range patterns {
		all = append(all, form{pattern: regexp.MustCompile(p)})
	}
	return all
}

func inverse(patterns ...string) []form {
	all := forms(patterns...)
	for i := range all {
		all[i].inverse = true
	}
	return all
}

// bars returns the forms of a progress bar: 12.3it/s and, if a step takes more than a second, 4.56s/it.
func bars(before string) []form {
	return slices.Concat(forms(before+`([0-9.]+)([kMGTPEZ]?)[^\s/0-9.,]+/s\b`), inverse(before+`([0-9.]+)s/[^\s/,\]]+`))
}

// readRate reads --rate: a name, or a regular expression with one group.
func readRate(text string) (*rate, error) {
	if text == "" {
		return nil, nil
	}
	var names []string
	for _, r := range named {
		if r.text == text {
			return &r, nil
		}
		names = append(names, r.text)
	}
	pattern, err := regexp.Compile(text)
	if err == nil && pattern.NumSubexp() != 1 {
		err = fmt.Errorf("it needs one group, around the number, or is one of %s", strings.Join(names, ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read --rate %q: %w", text, err)
	}
	return &rate{text: text, forms: []form{{pattern: pattern}}}, nil
}

// in returns the last rate in a line. If there is none, it returns an error.
func (r rate) in(line []byte) (last float64, err error) {
	place := -1
	for _, f := range r.forms {
		for _, match := range f.pattern.FindAllSubmatchIndex(line, -1) {
			if value, ok := f.value(line, match); ok && match[0] > place {
				last, place = value, match[0]
			}
		}
	}
	if place < 0 {
		return 0, errNoRate
	}
	return last, nil
}

var errNoRate = errors.New("no rate")

// value returns the number of a match, and whether it is a rate.
func (f form) value(line []byte, match []int) (float64, bool) {
	if match[2] < 0 {
		return 0, false
	}
	value, err := strconv.ParseFloat(string(line[match[2]:match[3]]), 64)
	if err != nil || value < 0 || f.inverse && value == 0 {
		return 0, false
	}
	if f.inverse {
		value = 1 / value
	}
	if len(match) > 4 && match[4] >= 0 {
		for range 1 + strings.Index("kMGTPEZ", string(line[match[4]:match[5]])) {
			if match[4] < match[5] {
				value *= 1000
			}
		}
	}
	return value, value < 1e300
}
