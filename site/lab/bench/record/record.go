// SPDX-License-Identifier: Apache-2.0

// Package record is the file format that a benchmark on a real GPU writes and the report reads. Each line is a
// complete measurement. If a run is stopped, the next run continues its file.
package record

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
)

// Line is one line. Key names the cell of the result. A cell may have several lines, and is done when all of them are
// in the file. One of the pointers is set.
type Line struct {
	Key        string      `json:"key"`
	Machine    *Machine    `json:"machine,omitempty"`
	Throughput *Throughput `json:"throughput,omitempty"`
	Times      *Times      `json:"times,omitempty"`
	Point      *Point      `json:"point,omitempty"`
	Tune       *Tune       `json:"tune,omitempty"`
	Failed     string      `json:"failed,omitempty"`
}

// Machine is the machine and the date of the measurements in the lines after it.
type Machine struct {
	GPU    string `json:"gpu"`
	Driver string `json:"driver"`
	CPUs   int    `json:"cpus"`           // CPUs for the ranks of a GPU
	GPUs   int    `json:"gpus,omitempty"` // GPUs that were measured at the same time; 0 means one
	Kernel string `json:"kernel"`
	Date   string `json:"date"`
	Real   bool   `json:"real"`
}

// Throughput is the throughput of each rank while all of them ran.
type Throughput struct {
	Program string      `json:"program"`
	Rule    string      `json:"rule"`
	Ranks   int         `json:"ranks"`
	Through string      `json:"through"` // the launcher of the ranks: mpirun, srun
	Round   int         `json:"round"`
	Window  float64     `json:"window_s"`
	Rates   [][]float64 `json:"rates"` // units per second, by rank and window
	SMs     []int       `json:"sms"`   // SMs that CUDA reports, by rank
	First   []float64   `json:"first_call_s"`
	Import  float64     `json:"import_s,omitempty"`
}

// Times are milliseconds, one value for each trial.
type Times struct {
	What string    `json:"what"`
	Way  string    `json:"way"`
	MS   []float64 `json:"ms"`
}

// Point is one share: the value that the wrapper was asked for, the SMs that CUDA reports, and the memory of the
// context.
type Point struct {
	Asked      string `json:"asked"`
	SMs        int    `json:"sms"`
	ContextMiB int    `json:"context_mib"`
}

// Tune is the report of mps-tune --json about a program.
type Tune struct {
	Program string `json:"program"`
	Ranks   int    `json:"ranks"`
	Report  struct {
		Rules []struct {
			Rule   string    `json:"rule"`
			Rates  []float64 `json:"rates"`
			Median float64   `json:"median"`
			Failed string    `json:"failed,omitempty"`
		} `json:"rules"`
		Site string `json:"site"`
		Use  string `json:"use"`
		Why  string `json:"why"`
	} `json:"report"`
}

// Totals returns the sums of all ranks' rates, by window.
func (t Throughput) Totals() []float64 {
	return t.byWindow(func(rates []float64) float64 {
		sum := 0.0
		for _, r := range rates {
			sum += r
		}
		return sum
	})
}

// Slowest returns the rates of the slowest rank, by window.
func (t Throughput) Slowest() []float64 { return t.byWindow(slices.Min[[]float64]) }

func (t Throughput) byWindow(of func([]float64) float64) []float64 {
	var all []float64
	for w := range t.Rates[0] {
		column := make([]float64, len(t.Rates))
		for r := range t.Rates {
			column[r] = t.Rates[r][w]
		}
		all = append(all, of(column))
	}
	return all
}

// Check refuses a result in which a rank or a window is missing, or a rank did nothing.
func (t Throughput) Check() error {
	if len(t.Rates) != t.Ranks || len(t.SMs) != t.Ranks {
		return fmt.Errorf("cannot use %s under %s: %d of %d ranks reported", t.Program, t.Rule, len(t.Rates), t.Ranks)
	}
	for r, rates := range t.Rates {
		if len(rates) == 0 || len(rates) != len(t.Rates[0]) || !(slices.Max(rates) > 0) || math.IsInf(slices.Max(rates), 1) {
			return fmt.Errorf("cannot use %s under %s: rank %d did %v", t.Program, t.Rule, r, rates)
		}
	}
	return nil
}

// Median returns the median of a list that is not empty.
func Median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

// Read reads a file. A missing file has no lines. Read ignores an incomplete last line, because the writer may have
// been killed. Any other incomplete line is an error.
func Read(path string) ([]Line, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []Line
	var torn error
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for n := 1; scanner.Scan(); n++ {
		if torn != nil {
			return nil, torn
		}
		var line Line
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			torn = fmt.Errorf("cannot read line %d of %s: %w", n, path, err)
			continue
		}
		lines = append(lines, line)
	}
	return lines, scanner.Err()
}

// Write writes a whole file: the lines that were read and the new ones. An incomplete line disappears.
func Write(path string, lines []Line) error {
	draft := path + ".draft"
	var content []byte
	for _, line := range lines {
		one, err := json.Marshal(line)
		if err != nil {
			return err
		}
		content = append(append(content, one...), '\n')
	}
	if err := os.WriteFile(draft, content, 0o644); err != nil {
		return err
	}
	return os.Rename(draft, path)
}
