// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// soak is one run of TestSoak, as the test reports it.
type soak struct {
	seed   string
	counts map[string]string // by the names of soakCounts; without a count that the run did not make
	faults map[string]string // how many jobs had each fault
	names  []string          // the faults, in the order of the report
	more   string            // text that a person has added
}

// soakCounts are the numbers before the faults. Each has a name and the expression that finds the number.
var soakCounts = []struct {
	name string
	form *regexp.Regexp
}{
	{"jobs", regexp.MustCompile(`(\d+) of \d+ jobs`)},
	{"jobs planned", regexp.MustCompile(`\d+ of (\d+) jobs`)},
	{"jobs, if each task of an array counts", regexp.MustCompile(`an array being several, (\d+)`)},
	{"neighbours of cancelled and killed ranks", regexp.MustCompile(`(\d+) neighbours of`)},
	{"drained nodes repaired", regexp.MustCompile(`(\d+) drained nodes`)},
	{"faults that came too late", regexp.MustCompile(`(\d+) faults that came`)},
	{"jobs started again", regexp.MustCompile(`(\d+) jobs (?:begun anew|started again)`)},
	{"pairs of jobs of gres/shard", regexp.MustCompile(`(\d+) pairs of jobs`)},
	{"found: left behind", regexp.MustCompile(`left behind (\d+)`)},
	{"found: false drains", regexp.MustCompile(`false drains (\d+)`)},
	{"found: neighbours lost to a cancelled rank", regexp.MustCompile(`lost to a cancelled rank (\d+)`)},
	{"found: jobs that did not end as they should", regexp.MustCompile(`did not end as they should (\d+)`)},
	{"found: drains by prolog or epilog", regexp.MustCompile(`drains by prolog or epilog (\d+)`)},
	{"found: root's processes left", regexp.MustCompile(`root's processes left (\d+)`)},
	{"greatest age of metrics, in seconds", regexp.MustCompile(`([\d.]+) s was the greatest age`)},
	{"takers stuck at most", regexp.MustCompile(`(\d+) takers were stuck`)},
	{"found: ranks without MPS", regexp.MustCompile(`ranks without MPS (\d+)`)},
}

var (
	seedForm = regexp.MustCompile(`^seed (\d+), `)
	lastForm = regexp.MustCompile(` (\d+)$`)
)

// soaksOf reads a test's reports of its runs. It returns none if the test is not TestSoak.
func soaksOf(remarks []string) (all []soak) {
	for _, text := range remarks {
		seed := seedForm.FindStringSubmatch(text)
		before, faults, found := strings.Cut(text, " Faults: ")
		if seed == nil || !found {
			return nil
		}
		s := soak{seed: seed[1], counts: map[string]string{}, faults: map[string]string{}}
		for _, c := range soakCounts {
			if m := c.form.FindStringSubmatch(before); m != nil {
				s.counts[c.name] = m[1]
			}
		}
		faults, s.more, _ = strings.Cut(faults, ". ")
		for _, fault := range strings.Split(strings.TrimSuffix(faults, "."), "; ") {
			if m := lastForm.FindStringSubmatch(fault); m != nil {
				name := strings.TrimSuffix(fault, m[0])
				s.names, s.faults[name] = append(s.names, name), m[1]
			}
		}
		all = append(all, s)
	}
	return all
}

// soakTables returns the counts, the faults and the findings of the runs, with a column for each run.
func soakTables(soaks []soak) string {
	var text strings.Builder
	line := func(name string, value func(soak) string) {
		fmt.Fprintf(&text, "| %s |", name)
		for _, s := range soaks {
			fmt.Fprintf(&text, " %s |", value(s))
		}
		text.WriteString("\n")
	}
	counted := func(values map[string]string, name string) string {
		if value, ok := values[name]; ok {
			return value
		}
		return "–"
	}
	text.WriteString("\nEach column is a run, by its seed. A dash is what a run did not count or have.\n\n")
	line("seed", func(s soak) string { return s.seed })
	text.WriteString(strings.Repeat("|---", len(soaks)+1) + "|\n")
	for _, c := range soakCounts {
		line(c.name, func(s soak) string { return counted(s.counts, c.name) })
	}
	for _, name := range faultsOf(soaks) {
		line("fault: "+name, func(s soak) string { return counted(s.faults, name) })
	}
	for _, s := range soaks {
		if s.more != "" {
			fmt.Fprintf(&text, "\nSeed %s: %s\n", s.seed, s.more)
		}
	}
	return text.String()
}

// faultsOf returns the names of the faults of all runs, in the order in which they first appear.
func faultsOf(soaks []soak) (names []string) {
	for _, s := range soaks {
		for _, name := range s.names {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
