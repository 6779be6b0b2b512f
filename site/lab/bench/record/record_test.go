// SPDX-License-Identifier: Apache-2.0

package record

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestOnlyTheLastLineMayBeTorn(t *testing.T) {
	for _, c := range []struct {
		text  string
		lines int
		fails bool
	}{
		{"", 0, false},
		{`{"key":"a"}` + "\n" + `{"key":"b"}` + "\n", 2, false},
		{`{"key":"a"}` + "\n" + `{"key":"b`, 1, false},
		{`{"key":"a` + "\n" + `{"key":"b"}` + "\n", 0, true},
	} {
		path := filepath.Join(t.TempDir(), "results.jsonl")
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if lines, err := Read(path); len(lines) != c.lines || (err != nil) != c.fails {
			t.Errorf("%q: %d lines, %v; want %d, an error: %v", c.text, len(lines), err, c.lines, c.fails)
		}
	}
	if lines, err := Read(filepath.Join(t.TempDir(), "none")); lines != nil || err != nil {
		t.Errorf("a missing file: %v, %v", lines, err)
	}
}

func TestTotalsAndSlowestAreByWindow(t *testing.T) {
	got := Throughput{Ranks: 2, Rates: [][]float64{{1, 20}, {3, 4}}, SMs: []int{8, 8}}
	if totals := got.Totals(); !slices.Equal(totals, []float64{4, 24}) {
		t.Errorf("totals %v", totals)
	}
	if slowest := got.Slowest(); !slices.Equal(slowest, []float64{1, 4}) {
		t.Errorf("slowest %v", slowest)
	}
	if err := got.Check(); err != nil {
		t.Error(err)
	}
}

func TestAResultThatLacksSomethingIsRefused(t *testing.T) {
	whole := func() Throughput {
		return Throughput{Ranks: 2, Rates: [][]float64{{1, 2}, {3, 4}}, SMs: []int{8, 8}}
	}
	for name, spoil := range map[string]func(*Throughput){
		"a rank":              func(r *Throughput) { r.Rates = r.Rates[:1] },
		"a window":            func(r *Throughput) { r.Rates[1] = r.Rates[1][:1] },
		"a rank's SMs":        func(r *Throughput) { r.SMs = r.SMs[:1] },
		"all of a rank's":     func(r *Throughput) { r.Rates[0] = []float64{0, 0} },
		"every window of one": func(r *Throughput) { r.Rates[0] = nil },
	} {
		r := whole()
		spoil(&r)
		if r.Check() == nil {
			t.Errorf("a result without %s passes", name)
		}
	}
}
