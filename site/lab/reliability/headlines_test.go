// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// headline is a number that pages have. Each match of form has to be one of want, which are the groups of the
// match, divided by blanks. One page at least has it.
type headline struct {
	name, form string
	want       []string
}

// TestTheHeadlinesAreOneNumber checks that a fact has the same number on all pages that have it, and that it is the
// number of the measurements.
func TestTheHeadlinesAreOneNumber(t *testing.T) {
	module := filepath.Join("..", "..", "..")
	pages := texts(t, module)
	for _, h := range headlines(t, module) {
		form := regexp.MustCompile(`(?m)` + h.form)
		found := false
		for _, path := range sorted(pages) {
			matches := form.FindAllStringSubmatch(pages[path], -1)
			found = found || len(matches) > 0
			for _, m := range matches {
				if got := strings.Join(m[1:], " "); !slices.Contains(h.want, got) {
					t.Errorf("%s: %s: %q has %s, want %q", path, h.name, m[0], got, h.want)
				}
			}
		}
		if !found {
			t.Errorf("%s: no page has it: %s", h.name, h.form)
		}
	}
}

// headlines are made from the measurements, except for times that nothing measures again.
func headlines(t *testing.T, module string) []headline {
	t.Helper()
	jobs, findings := sum(t, module, "Random jobs with random faults under a real Slurm")
	ends, none := sum(t, module, "Ranks end in any way beside two neighbours, with the guard")
	miscounted, harmed := sum(t, module, "Ends with a guard that counted too many clients (corrected)")
	if none != "0" {
		t.Fatalf("%s endings with the guard did harm", none)
	}
	turns := endingsInTurns(t, module)
	body, model := rates(t, module, "nbody"), rates(t, module, "transformer")
	times := fmt.Sprintf("%.1f", float64(body["overlap 2"])/float64(body["time-slicing"]))
	return []headline{
		{"random jobs", `(\d+,\d{3}) jobs, (?:from|simulated)`, []string{jobs}},
		{"findings of random jobs", `(\d+) findings\b`, []string{findings}},
		{"endings with earlier guards", `0 of (\d+,\d{3}) endings`, []string{ends}},
		{"endings with earlier guards, all lived", `(\d+,\d{3}) of (\d+,\d{3}) with earlier guards`, []string{ends + " " + ends}},
		{"endings with the guard that miscounted", `harmed (\d+) of (\d+)`, []string{harmed + " " + miscounted}},
		{"endings in turns", `(\d+ of 30)\b`, []string{turns["bare"] + " of 30", turns["guard"] + " of 30", "30 of 30"}},
		{"n-body in README", `^\| n-body, steps a second \| (.*) \| (.*) \| (.*) \|$`, []string{three(body)}},
		{"transformer in README", `^\| transformer, batches a second \| (.*) \| (.*) \| (.*) \|$`, []string{three(model)}},
		{"n-body in the quick start", `from ([\d,]+) steps a second to ([\d,]+)`, []string{thousands(body["time-slicing"]) + " " + thousands(body["overlap 2"])}},
		{"n-body in the questions, without MPS", `; eight ([\d,]+) by time-slicing`, []string{thousands(body["time-slicing"])}},
		{"n-body in the questions", `by time-slicing, ([\d,]+) with slurm-mps`, []string{thousands(body["overlap 2"])}},
		{"gain of n-body", `(?:\*\*|n-body, 8192 bodies \| )([\d.]+) times`, []string{times}},
		{"what large products lose", `(\d+) % slower`, []string{"13"}},
		{"time of make test", `(\d+) minutes on two cores`, []string{"9"}},
		{"time of make demo", `^(?:make demo|demo:).*?(\d+) s\b`, []string{"20"}},
		{"time of the quick start", `\b(\d+) minutes(?:, a site| ·)`, []string{"15"}},
	}
}

// texts are README, the Makefile and the pages, by name. Measurements and decisions are of their day, and a changelog
// is history.
func texts(t *testing.T, module string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(module, "docs", "*.md"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d pages, %v", len(paths), err)
	}
	all := map[string]string{}
	for _, path := range append(paths, filepath.Join(module, "README.md"), filepath.Join(module, "Makefile")) {
		if filepath.Base(path) == "CHANGELOG.md" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = string(content)
	}
	return all
}

func sorted(pages map[string]string) (names []string) {
	for name := range pages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// sum returns how often something was tried and how often it failed, in the section of the measurements with a title.
func sum(t *testing.T, module, title string) (tried, failed string) {
	t.Helper()
	sections, err := readAll(filepath.Join(module, raw))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(sections, func(s section) bool { return s.title == title })
	if i < 0 {
		t.Fatalf("%s has no section %q", raw, title)
	}
	all, wrong := sections[i].counts()
	return thousands(all), thousands(wrong)
}

// endingsInTurns returns for "guard" and "bare" the number of endings that harmed a neighbour. There are 30 of each.
func endingsInTurns(t *testing.T, module string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(module, "docs/measurements/15-h200/room*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	of, harmed := map[string]int{}, map[string]int{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			var trial struct {
				Part, Method, Ranks string
				Valid               bool
				Values              struct{ Alive, Of any } // numbers in endings
			}
			if err := json.Unmarshal([]byte(line), &trial); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if trial.Part != "endings" || trial.Ranks != "torch" || !trial.Valid {
				continue
			}
			of[trial.Method]++
			if trial.Values.Alive != trial.Values.Of {
				harmed[trial.Method]++
			}
		}
	}
	if of["guard"] != 30 || of["bare"] != 30 {
		t.Fatalf("endings in turns: %v, want 30 of guard and of bare", of)
	}
	return map[string]string{"guard": strconv.Itoa(harmed["guard"]), "bare": strconv.Itoa(harmed["bare"])}
}

// rates are the totals of eight ranks of a program, by the rule of shares.
func rates(t *testing.T, module, program string) map[string]int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(module, "docs/measurements/4-h200/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	head := regexp.MustCompile(`(?m)^\| all eight ranks \| (.*) \|$`).FindStringSubmatch(string(content))
	row := regexp.MustCompile(`(?m)^\| ` + program + `, [a-z/]+ \| (.*) \|$`).FindStringSubmatch(string(content))
	if head == nil || row == nil {
		t.Fatalf("%s: no row of eight ranks", program)
	}
	all, rules := map[string]int{}, strings.Split(head[1], " | ")
	for i, rate := range strings.Split(row[1], " | ") {
		if all[rules[i]], err = strconv.Atoi(rate); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// three are the rates of a row of the README.
func three(rates map[string]int) string {
	return thousands(rates["time-slicing"]) + " " + thousands(rates["integer 100/n"]) + " " + thousands(rates["overlap 2"])
}
