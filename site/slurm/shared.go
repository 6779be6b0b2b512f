// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"slices"
)

// SharedUnits is a line of gres.conf that makes units of GPUs: shards, or the parts of gres/mps.
type SharedUnits struct {
	Name   string // "shard" or "mps"
	Count  int    // of all files together; -1 if the line is malformed
	Minors []int  // N of the /dev/nvidiaN in File=; nil if the line has no File=
	From   string // file and line
}

// unitsMax is more than any site counts. Slurm's own limit is 64 bits.
const unitsMax = 1 << 30

// SharedCount returns how many units of a GRES, "shard" or "mps", Slurm has made of the GPU in this position of the
// node's list. A line with File= gives each of its files the same number, and a remainder is lost. Without File= the
// node's count is divided among all GPUs, and the last ones get the remainder (slurmd -G of 22.05, 24.11 and 26.05).
func (g Gres) SharedCount(name string, position int) (int, error) {
	n, err := g.sharedCount(name, position)
	if err != nil {
		return 0, fmt.Errorf("cannot count gres/%s of GPU %d of node %s: %w", name, position, g.Node, err)
	}
	return n, nil
}

func (g Gres) sharedCount(name string, position int) (int, error) {
	gpus, err := g.positions()
	if err != nil {
		return 0, err
	}
	if position < 0 || position >= gpus {
		return 0, fmt.Errorf("the node has %d GPUs in %s", gpus, g.Path)
	}
	total, lines, err := g.units(name)
	if err != nil {
		return 0, err
	}
	if len(lines) > 0 && lines[0].Minors != nil {
		return g.ofFiles(lines, position)
	}
	return evenPart(total, gpus, position), nil
}

// positions returns the length of the node's list of GPUs.
func (g Gres) positions() (int, error) {
	kind, err := g.order()
	if err != nil {
		return 0, err
	}
	if kind == ByMinor {
		return len(g.listed()), nil
	}
	if g.Configured == nil {
		return 0, fmt.Errorf("with AutoDetect=%s the number of GPUs is in slurm.conf (not read): set SLURM_CONF", g.Detect)
	}
	return g.count(), nil
}

// units returns the node's units and the lines that make them. slurm.conf decides: slurmd drops what gres.conf has
// more, and does not start if gres.conf has less. With File= the lines that slurmd drops are not known.
func (g Gres) units(name string) (total int, lines []SharedUnits, err error) {
	for _, line := range g.Units {
		if line.Name != name {
			continue
		}
		if line.Count < 0 {
			return 0, nil, fmt.Errorf("its Count= or File= is malformed (%s)", line.From)
		}
		if len(lines) > 0 && (line.Minors == nil || lines[0].Minors == nil) {
			return 0, nil, fmt.Errorf("a line without File= must be its only line (%s): slurmd does not start with it", line.From)
		}
		total += line.Count
		lines = append(lines, line)
	}
	if g.Configured == nil && len(lines) == 0 {
		return 0, nil, fmt.Errorf("%s has no line of it", g.Path)
	}
	if g.Configured == nil {
		return total, lines, nil
	}
	configured, ok := g.ConfiguredUnits[name]
	files := len(lines) > 0 && lines[0].Minors != nil
	switch {
	case !ok:
		return 0, nil, fmt.Errorf("slurm.conf gives the node none")
	case len(lines) > 0 && (total < configured || files && total != configured):
		return 0, nil, fmt.Errorf("slurm.conf has %d and %s %d: make them agree", configured, g.Path, total)
	}
	return configured, lines, nil
}

// ofFiles returns the units that lines with File= make of a GPU. The first line with the GPU's file counts.
func (g Gres) ofFiles(lines []SharedUnits, position int) (int, error) {
	listed := g.listed()
	if kind, _ := g.order(); kind != ByMinor || listed[position].Minor < 0 {
		return 0, fmt.Errorf("its lines have File=, and which file the position has is not certain: use File= lines of the GPUs and no AutoDetect=")
	}
	for _, line := range lines {
		if slices.Contains(line.Minors, listed[position].Minor) {
			return line.Count / len(line.Minors), nil
		}
	}
	return 0, nil
}

// evenPart divides as Slurm does: each GPU in its turn gets an even part of what is left.
func evenPart(total, gpus, position int) int {
	for left := gpus; ; left-- {
		part := total / left
		if position == gpus-left {
			return part
		}
		total -= part
	}
}

// units reads a line of another GRES than gpu. Its mistakes are no errors here, because other jobs do not depend on it.
func (l gresLine) units() SharedUnits {
	units := SharedUnits{Name: l.values["name"], Count: 1, From: l.conf.String()}
	if list, multiple, ok := l.files(); ok {
		minors, err := deviceMinors(list)
		if err != nil || multiple || len(minors) == 0 || slices.Contains(minors, -1) {
			units.Count = -1
			return units
		}
		units.Minors, units.Count = minors, len(minors)
	}
	if value, ok := l.values["count"]; ok {
		units.Count = parseUnits(value)
	}
	return units
}

// parseUnits parses a count of Slurm's, "8" or "1K", and returns -1 for another value.
func parseUnits(value string) int {
	factor := uint64(1)
	if n := len(value); n > 1 {
		switch value[n-1] {
		case 'k', 'K':
			value, factor = value[:n-1], 1<<10
		case 'm', 'M':
			value, factor = value[:n-1], 1<<20
		}
	}
	n, err := Digits(value)
	if err != nil || n > unitsMax/factor {
		return -1
	}
	return int(n * factor)
}

// nodeUnits parses an item of Gres= of slurm.conf behind its name, [type:][no_consume:]count. A missing count is 1.
func nodeUnits(words []string) int {
	if n := len(words); n > 0 {
		if count := parseUnits(words[n-1]); count >= 0 {
			return count
		}
	}
	return 1
}

// ShardsOnNode returns the number of shards that the step or the batch script has on this node, 0 for none. slurmstepd
// sets the variable for a task, after the user's own variables.
func ShardsOnNode(env Env) (int, error) {
	value, ok := env["SLURM_SHARDS_ON_NODE"]
	if !ok {
		return 0, nil
	}
	count, err := Digits(value)
	if err != nil || count < 1 || count > unitsMax {
		return 0, fmt.Errorf("cannot count the shards: SLURM_SHARDS_ON_NODE is %s, want a number from 1 to %d", Quote(value), unitsMax)
	}
	return int(count), nil
}
