// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// data is all data of the report.
type data struct {
	machines  []record.Machine // in the order of their measurements
	rounds    int
	windows   int
	windowMS  float64
	cells     map[point]cell
	slurm     map[string][]record.Throughput // by rule
	times     map[[2]string][]float64        // by what and way
	sweep     []record.Point
	tunes     []tuning // one for each machine
	failed    int
	real      []hooks // prolog and epilog, in the order of the measurements
	simulated hooks
	grown     hooks // only Growth is used
	wrapped   hooks // only Wrapper is used
	ends      []endsOf
	turns     []endsOf                     // nil if they are not measured
	lammps    map[string]map[int][]float64 // steps a second of the front's input, by mode and ranks
}

// tuning is the report of mps-tune on one machine.
type tuning struct {
	machine  record.Machine
	programs []record.Tune
}

// point is a program with a number of ranks under a rule.
type point struct {
	program string
	ranks   int
	rule    string
}

// cell is all measurements at a point: one value for each window.
type cell struct {
	total, slowest []float64
	sms            []int
}

// hooks is the result of site/lab/bench for prolog and epilog.
type hooks struct {
	Date string `json:"date"`
	Sets []struct {
		GPUs       int       `json:"gpus"`
		Leases     int       `json:"leases"`
		Scope      string    `json:"scope"`
		Floor      []float64 `json:"floor_ms"`
		Prolog     []float64 `json:"prolog_ms"`
		Quit       []float64 `json:"quit_ms"`
		Epilog     []float64 `json:"epilog_ms"`
		BashProlog []float64 `json:"bash_prolog_ms"`
		BashEpilog []float64 `json:"bash_epilog_ms"`
		Outside    []float64 `json:"outside_ms"`
	} `json:"sets"`
	Growth struct {
		RankCounts []int                  `json:"rank_counts"`
		Together   map[string][][]float64 `json:"together_ms"`
	} `json:"growth"`
	Wrapper struct {
		Alone    map[string][]float64 `json:"alone_ms"`
		Together map[string][]float64 `json:"together_ms"`
		Ranks    int                  `json:"ranks"`
	} `json:"wrapper"`
}

func readData(measurements string) (d data, err error) {
	d = data{cells: map[point]cell{}, slurm: map[string][]record.Throughput{}, times: map[[2]string][]float64{}}
	for _, path := range []string{"4-h200/throughput.jsonl", "9-h200/moments.jsonl"} {
		lines, err := readLines(filepath.Join(measurements, path))
		if err != nil {
			return d, err
		}
		for _, line := range lines {
			d.take(line)
		}
	}
	if d.tunes, err = readTunings(filepath.Join(measurements, "10-h200/tune.jsonl")); err != nil {
		return d, err
	}
	if d.real, err = readHooks(filepath.Join(measurements, "10-h200/bench.jsonl")); err != nil {
		return d, err
	}
	for path, into := range map[string]*hooks{"hooks-simulated.json": &d.simulated, "growth-simulated.json": &d.grown,
		"wrapper-simulated.json": &d.wrapped} {
		runs, err := readHooks(filepath.Join(measurements, path))
		if err != nil {
			return d, err
		}
		*into = runs[0]
	}
	if d.turns, err = readTurns(measurements); err != nil {
		return d, err
	}
	if d.ends, err = readEnds(measurements); err != nil {
		return d, err
	}
	d.lammps, err = readCodes(filepath.Join(measurements, "23-h100/raw.tar.gz"), frontInput)
	return d, err
}

// readCodes reads the runs of an input from the files codes-*.txt in an archive of raw files: turn, mode, input, ranks,
// steps a second.
func readCodes(path, input string) (map[string]map[int][]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	all := map[string]map[int][]float64{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if match, _ := filepath.Match("*/codes-*.txt", header.Name); !match {
			continue
		}
		for lines := bufio.NewScanner(archive); lines.Scan(); {
			var turn, ranks int
			var mode, name string
			var rate float64
			if n, _ := fmt.Sscan(lines.Text(), &turn, &mode, &name, &ranks, &rate); n == 5 && name == input {
				if all[mode] == nil {
					all[mode] = map[int][]float64{}
				}
				all[mode][ranks] = append(all[mode][ranks], rate)
			}
		}
	}
	if len(all) != 3 {
		return nil, fmt.Errorf("cannot find three modes of %s in %s", input, path)
	}
	return all, nil
}

// readLines reads a file that must exist.
func readLines(path string) ([]record.Line, error) {
	lines, err := record.Read(path)
	if err == nil && len(lines) == 0 {
		err = fmt.Errorf("cannot find measurements in %s", path)
	}
	return lines, err
}

// readTunings reads the results of mps-tune, one for each line that begins a machine.
func readTunings(path string) (all []tuning, err error) {
	lines, err := readLines(path)
	for _, line := range lines {
		if line.Machine != nil {
			all = append(all, tuning{machine: *line.Machine})
		}
		if line.Tune == nil {
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("cannot read %s: it does not begin with a machine", path)
		}
		last := &all[len(all)-1]
		last.programs = append(last.programs, *line.Tune)
	}
	return all, err
}

// readHooks reads the results of make bench, one JSON value for each run. There is at least one.
func readHooks(path string) (all []hooks, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for decoder := json.NewDecoder(file); ; {
		var run hooks
		err := decoder.Decode(&run)
		if errors.Is(err, io.EOF) && len(all) > 0 {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", path, err)
		}
		all = append(all, run)
	}
}

func (d *data) take(line record.Line) {
	switch {
	case line.Machine != nil:
		d.machines = append(d.machines, *line.Machine)
	case line.Failed != "":
		d.failed++
	case line.Point != nil:
		d.sweep = append(d.sweep, *line.Point)
	case line.Times != nil:
		key := [2]string{line.Times.What, line.Times.Way}
		d.times[key] = append(d.times[key], line.Times.MS...)
	case line.Throughput.Through == "srun":
		d.slurm[line.Throughput.Rule] = append(d.slurm[line.Throughput.Rule], *line.Throughput)
	default:
		t := *line.Throughput
		p := point{t.Program, t.Ranks, t.Rule}
		c := d.cells[p]
		c.total, c.slowest, c.sms = append(c.total, t.Totals()...), append(c.slowest, t.Slowest()...), t.SMs
		d.cells[p] = c
		d.rounds, d.windows, d.windowMS = max(d.rounds, t.Round), len(t.Rates[0]), 1000*t.Window
	}
}

// rules are in the order of the tables.
var rules = []string{"time-slicing", "uncapped", "integer 100/n", "even", "overlap 1.5", "overlap 2", "overlap 3"}

// measured is the GPU that was measured.
var measured = policy.GPU{SMs: 132, SMsPerTPC: 2}

// program is a program's name and texts in the tables.
type program struct{ name, title, unit string }

var programs = []program{
	{"fma", "Saturating FMA kernel", "kernels/s"},
	{"small", "Small kernels with CPU work between", "kernels/s"},
	{"nbody", "All-pairs n-body, 8192 bodies", "steps/s"},
	{"halo", "Halo exchange over MPI, Jacobi on 2048 × 2048 a rank", "steps/s"},
	{"triad", "Stream triad, 192 MiB a rank", "passes/s"},
	{"fft", "FFT, 128 × 128 × 128 complex", "transforms/s"},
	{"transformer", "Inference of a transformer in PyTorch", "batches/s"},
	{"cg", "Conjugate gradients, sparse, in PyTorch", "iterations/s"},
}

// at returns a point. If the point was not measured, at returns the point of the twin rule, which gives these ranks
// exactly the same SMs. It also returns the name of that rule.
func (d *data) at(program string, ranks int, rule string) (c cell, as string, ok bool) {
	if c, ok := d.cells[point{program, ranks, rule}]; ok {
		return c, rule, true
	}
	as = record.FindRule(rule).Twin(measured, ranks).Name
	c, ok = d.cells[point{program, ranks, as}]
	return c, as, ok
}

// ranksOf returns the numbers of ranks with which a program was measured.
func (d *data) ranksOf(program string) []int {
	seen := map[int]bool{}
	for p := range d.cells {
		if p.program == program {
			seen[p.ranks] = true
		}
	}
	var all []int
	for n := range seen {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// best returns the rule with the maximum total, and this total.
func (d *data) best(program string, ranks int) (rule string, total float64) {
	for _, r := range rules {
		if c, as, ok := d.at(program, ranks, r); ok && record.Median(c.total) > total {
			rule, total = as, record.Median(c.total)
		}
	}
	return rule, total
}

// standing compares a rule with the best of all rules, over some programs and numbers of ranks. It returns the
// geometric means of the ratios of the totals and of the slowest ranks, and the worst ratio of the totals.
func (d *data) standing(rule string, of []string, ranks []int) (total, slowest, worst float64, points int) {
	worst = 1
	for _, p := range of {
		for _, n := range ranks {
			c, _, ok := d.at(p, n, rule)
			if !ok {
				continue
			}
			points++
			bestTotal, bestSlowest := 0.0, 0.0
			for _, r := range rules {
				if other, _, ok := d.at(p, n, r); ok {
					bestTotal, bestSlowest = max(bestTotal, record.Median(other.total)), max(bestSlowest, record.Median(other.slowest))
				}
			}
			ratio := record.Median(c.total) / bestTotal
			total, slowest, worst = total+math.Log(ratio), slowest+math.Log(record.Median(c.slowest)/bestSlowest), min(worst, ratio)
		}
	}
	return math.Exp(total / float64(points)), math.Exp(slowest / float64(points)), worst, points
}
