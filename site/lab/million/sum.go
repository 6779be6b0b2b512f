// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
)

// run is a line of runs.tsv: date, commit, pairs, false drains, seconds.
type run struct {
	date, commit           string
	pairs, drains, seconds int
}

func (r run) String() string {
	return fmt.Sprintf("%s\t%s\t%d\t%d\t%d\n", r.date, r.commit, r.pairs, r.drains, r.seconds)
}

func appendRun(path string, r run) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(r.String())
	return errors.Join(err, file.Close())
}

// sumOf adds the lines of the file. Lines that begin with # are notes.
func sumOf(path string) (sum run, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return sum, err
	}
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var r run
		_, err := fmt.Sscanf(line, "%s\t%s\t%d\t%d\t%d\n", &r.date, &r.commit, &r.pairs, &r.drains, &r.seconds)
		if err != nil || r.pairs < r.drains || r.drains < 0 || r.String() != line {
			return sum, fmt.Errorf("cannot read %s: it has the line %q", path, line)
		}
		sum.pairs += r.pairs
		sum.drains += r.drains
		sum.seconds += r.seconds
	}
	if sum.pairs == 0 {
		return sum, fmt.Errorf("cannot read %s: it has no run", path)
	}
	return sum, nil
}

// bound is the number of false drains in a million pairs that 95 % of such series would exceed if it were the true one:
// 3/n after none in n pairs (the rule of three).
func bound(pairs, drains int) float64 {
	// The mean m of a Poisson distribution of which at most so many drains have the chance 0.05.
	low, high := 0.0, 10.0+3*float64(drains)
	for range 60 {
		m := (low + high) / 2
		term, chance := math.Exp(-m), 0.0
		for k := range drains + 1 {
			chance += term
			term *= m / float64(k+1)
		}
		if chance > 0.05 {
			low = m
		} else {
			high = m
		}
	}
	return low / float64(pairs) * 1e6
}

// sentence is the sum in the page. The bound is rounded up to two digits.
func (r run) sentence() string {
	most := bound(r.pairs, r.drains)
	unit := math.Pow(10, math.Floor(math.Log10(most))-1)
	text := fmt.Sprintf("%.2g", math.Ceil(most/unit)*unit)
	if most >= 10 {
		text = thousands(int(math.Round(math.Ceil(most/unit) * unit)))
	}
	return fmt.Sprintf("%d false drains in %s pairs of hooks (`make million`): %s in a million at most, by 95 %%",
		r.drains, thousands(r.pairs), text)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

var sumLine = regexp.MustCompile("[0-9,]+ false drains in [0-9,]+ pairs of hooks \\(`make million`\\): " +
	"[0-9.,]+ in a million at most, by 95 %")

// replaceSum puts the sum into a page, which has one such sentence.
func replaceSum(text string, sum run) (string, error) {
	if n := len(sumLine.FindAllString(text, -1)); n != 1 {
		return text, fmt.Errorf("cannot write the sum into %s: it has %d such sentences, not one", page, n)
	}
	return sumLine.ReplaceAllLiteralString(text, sum.sentence()), nil
}
