// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// hostsMax bounds the expansion of one expression. Slurm's own bound for one range is 65536 (MAX_RANGE).
const hostsMax = 65536

// ExpandHostlist expands a Slurm hostlist such as "n[1-3,05],r[1-2]n[0-1]" in its order. Numbers have the width of
// their range's lower bound. An error names the expression and the fault.
func ExpandHostlist(list string) ([]string, error) {
	items, err := SplitHosts(list)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, item := range items {
		if item == "" {
			continue
		}
		expanded, err := expandHost(item, hostsMax-len(hosts))
		if err != nil {
			return nil, fmt.Errorf("cannot expand %q: %w", list, err)
		}
		hosts = append(hosts, expanded...)
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("cannot expand %q: it names nothing", list)
	}
	return hosts, nil
}

// SplitHosts splits at the commas outside of brackets.
func SplitHosts(list string) ([]string, error) {
	var items []string
	depth, start := 0, 0
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			items = append(items, list[start:i])
			start = i + 1
		}
		if depth < 0 || depth > 1 {
			return nil, fmt.Errorf("cannot expand %q: the brackets do not match", list)
		}
	}
	if depth != 0 {
		return nil, fmt.Errorf("cannot expand %q: the brackets do not match", list)
	}
	return append(items, list[start:]), nil
}

// expandHost expands one item. The numbers of the first bracket vary slowest.
func expandHost(item string, limit int) ([]string, error) {
	prefix, rest, ok := strings.Cut(item, "[")
	if !ok {
		if limit < 1 {
			return nil, fmt.Errorf("it names more than %d", hostsMax)
		}
		return []string{item}, nil
	}
	ranges, suffix, _ := strings.Cut(rest, "]") // SplitHosts has checked the bracket
	numbers, err := expandRanges(ranges, limit)
	if err != nil {
		return nil, err
	}
	tails, err := expandHost(suffix, limit/len(numbers))
	if err != nil {
		return nil, err
	}
	hosts := make([]string, 0, len(numbers)*len(tails))
	for _, number := range numbers {
		for _, tail := range tails {
			hosts = append(hosts, prefix+number+tail)
		}
	}
	return hosts, nil
}

// expandRanges expands "1-3,5" to at least one and at most limit numbers.
func expandRanges(ranges string, limit int) ([]string, error) {
	var numbers []string
	for _, r := range strings.Split(ranges, ",") {
		lo, hi, isRange := strings.Cut(r, "-")
		if !isRange {
			hi = lo
		}
		first, err := Digits(lo)
		if err != nil {
			return nil, fmt.Errorf("range %q: %w", r, err)
		}
		last, err := Digits(hi)
		if err != nil {
			return nil, fmt.Errorf("range %q: %w", r, err)
		}
		if last < first {
			return nil, fmt.Errorf("range %q runs backwards", r)
		}
		if last-first >= uint64(limit-len(numbers)) {
			return nil, fmt.Errorf("it names more than %d", hostsMax)
		}
		for n := first; n <= last; n++ {
			digits := strconv.FormatUint(n, 10)
			numbers = append(numbers, strings.Repeat("0", max(len(lo)-len(digits), 0))+digits)
		}
	}
	return numbers, nil
}

// Digits parses a plain number: only digits, at most 18 of them, without sign or space.
func Digits(s string) (uint64, error) {
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return strconv.ParseUint(s, 10, 64)
}
