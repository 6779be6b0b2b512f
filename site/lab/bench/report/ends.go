// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// endsOf is a way to end clients, and the runs that have it.
type endsOf struct {
	name, more, class string
	method            string
	runs              []string // by their names in the column "run" of ends.csv
	endings, harmful  int      // harmful: endings after which a neighbour died
	single            bool     // one client at a time, so that the endings are independent
}

func endings() []endsOf {
	with := []string{"12-h200/ends-1", "12-h200/ends-2", "12-h200/ends-4", "13-h200/ends-7", "13-h200/ends-9", "13-h200/ends-10"}
	second := []string{"13-h200/ends-5", "13-h200/ends-6"}
	all := []string{"12-h200/ends-3", "13-h200/ends-5", "13-h200/ends-7"}
	return []endsOf{
		{name: "guard", more: "first, and last two forms", class: "blue", method: "guard", runs: with},
		{name: "guard, second form", more: "three waves of forty", class: "sky", method: "guard", runs: second},
		{name: "no guard, no wrapper", more: "bare MPS", class: "red", method: "bare", runs: all, single: true},
		{name: "before the guard", more: "a wrapper that drains", class: "orange", method: "old", runs: all, single: true},
	}
}

// readEnds counts the endings of each way, and the endings after which a neighbour died.
func readEnds(measurements string) ([]endsOf, error) {
	path := filepath.Join(measurements, "13-h200", "ends.csv")
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("cannot read %s: it is empty", path)
	}
	column := func(name string) int { return slices.Index(rows[0], name) }
	run, method := column("run"), column("method")
	before, alive := column("neighbours before"), column("neighbours alive 3 s later")
	if min(run, method, before, alive) < 0 {
		return nil, fmt.Errorf("cannot read %s: its first line lacks a column", path)
	}
	ways := endings()
	for i := range ways {
		for _, row := range rows[1:] {
			if row[method] == ways[i].method && slices.Contains(ways[i].runs, row[run]) {
				ways[i].add(row[alive] != row[before])
			}
		}
	}
	return ways, nil
}

// add counts an ending.
func (e *endsOf) add(harmful bool) {
	e.endings++
	if harmful {
		e.harmful++
	}
}

// readTurns counts the endings that site/lab/room made on GPUs, in turns with the guard and on a plain daemon. It reads
// the files room*.jsonl of the measurements. The result is nil if a method has no ending.
func readTurns(measurements string) ([]endsOf, error) {
	ways := []endsOf{
		{name: "with the guard", more: "slurm-mps", class: "blue", method: "guard", single: true},
		{name: "bare MPS", more: "a plain daemon", class: "red", method: "bare", single: true},
	}
	paths, err := filepath.Glob(filepath.Join(measurements, "*", "room*.jsonl"))
	for _, path := range paths {
		err = errors.Join(err, countTurns(path, ways))
	}
	if err != nil || slices.ContainsFunc(ways, func(e endsOf) bool { return e.endings == 0 }) {
		return nil, err
	}
	return ways, nil
}

// countTurns adds the endings of a file. A trial that could not be made does not count.
func countTurns(path string, ways []endsOf) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for lines := json.NewDecoder(bytes.NewReader(text)); ; {
		var trial struct {
			Part, Method, Ranks string
			Valid               bool
			Values              struct{ Alive, Of int }
		}
		if err := lines.Decode(&trial); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("cannot read %s: %w", path, err)
		}
		way := slices.IndexFunc(ways, func(e endsOf) bool { return e.method == trial.Method })
		if way < 0 || trial.Part != "endings" || trial.Ranks != "torch" || !trial.Valid {
			continue
		}
		ways[way].add(trial.Values.Alive < trial.Values.Of)
	}
}

// interval returns Wilson's interval of 95 %. It is wide if there are few endings.
func interval(part, of int) (low, high float64) {
	const z = 1.96
	n, p := float64(of), float64(part)/float64(of)
	middle, by := (p+z*z/(2*n))/(1+z*z/n), z/(1+z*z/n)*math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	return max(0, middle-by), min(1, middle+by)
}

// endsPlot shows how often a neighbour died when a client ended.
func (d data) endsPlot() []byte {
	rows, below := d.ends, "H200s, driver 580.159.04, two neighbours each. Thin line: 95 % interval, if one client ended at a time"
	notes := []string{"The guard's rows: PyTorch, CuPy, JAX and CUDA, one to forty at once. The other rows: one matrix",
		"product in PyTorch at a time. So the rows are no trial of the same endings in turns."}
	if d.turns != nil {
		rows, below = d.turns, "One H200, driver 580.159.04, two neighbours. Thin line: 95 % interval"
		notes = []string{"PyTorch with 0.7 s of matrix products in flight ends in ten ways, in turns with the guard and without."}
	}
	const x0, x1, rowStep = 170.0, 540.0, 52.0
	x := func(part float64) float64 { return x0 + (x1-x0)*part }
	bottom := 54 + rowStep*float64(len(rows))
	pic := beginOf(int(bottom)+38+16*len(notes), "Clients that ended with work in flight, and a neighbour died", below)
	for percent := 0; percent <= 100; percent += 25 {
		at := x(float64(percent) / 100)
		pic.add(`<path class="grid" d="M%.1f 56V%g"/><text x="%.1f" y="%g" text-anchor="middle">%d %%</text>`, at, bottom, at, bottom+16, percent)
	}
	for i, e := range rows {
		y := 84 + rowStep*float64(i)
		part := float64(e.harmful) / float64(e.endings)
		end := x(part)
		pic.add(`<text x="%.1f" y="%.1f" text-anchor="end" font-weight="600">%s</text>`, x0-10, y-1, e.name)
		pic.add(`<text class="weak" x="%.1f" y="%.1f" text-anchor="end">%s</text>`, x0-10, y+13, e.more)
		pic.add(`<rect class="dot %s" x="%.1f" y="%.1f" width="%.1f" height="18"/>`, e.class, x0, y-9, max(x(part)-x0, 1))
		if e.single {
			low, high := interval(e.harmful, e.endings)
			end = x(high)
			pic.add(`<path class="line ink" d="M%.1f %.1fH%.1f"/>`, x(low), y, end)
		}
		pic.add(`<text x="%.1f" y="%.1f">%s of %s</text>`, end+8, y+4, thousands(e.harmful), thousands(e.endings))
	}
	for i, note := range notes {
		pic.add(`<text class="weak" x="12" y="%g">%s</text>`, bottom+42+16*float64(i), note)
	}
	return pic.end()
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
