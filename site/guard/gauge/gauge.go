// SPDX-License-Identifier: Apache-2.0

// Package gauge is the wire between a guard and the program that asks the driver: gpu-usage, or the reader of nvidia-smi
// of a guard without root. The guard links no NVML, so it runs that program while the job has clients. The program prints
// a line of JSON, a Usage for each GPU of its command line, for each line that the guard writes.
package gauge

import (
	"bufio"
	"encoding/json"

	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Usage is a GPU's free memory and utilisation.
type Usage struct {
	Known    bool        `json:"known"`
	Hung     bool        `json:"hung,omitempty"` // NVML does not answer
	TotalMiB int         `json:"total_mib"`
	FreeMiB  int         `json:"free_mib"`
	Clients  map[int]int `json:"clients,omitempty"` // MiB by pid; a dead client is listed while its files are held
	Samples  []Sample    `json:"samples"`           // since the previous line
	// ContextsUnknown says that Clients is not known. A dead client may then still have a context.
	ContextsUnknown bool `json:"contexts_unknown,omitempty"`
	// Processes are the processes on the GPU that are not clients of an MPS server. Work is what they did since the
	// previous line; the driver may not tell it.
	Processes []int  `json:"processes,omitempty"`
	Work      []Work `json:"work,omitempty"`
	WorkKnown bool   `json:"work_known,omitempty"`
}

// Sample is the SM utilisation of the 200 ms before a time (measured on an H200).
type Sample struct {
	Micros  uint64 `json:"micros"` // since 1970
	Percent int    `json:"percent"`
}

// Work is what the driver saw of a process's work since the previous line. A server has its clients' work.
type Work struct {
	PID     int    `json:"pid"`
	Micros  uint64 `json:"micros"` // the latest sample, since 1970
	Percent int    `json:"percent"`
}

// maxLine limits a line.
const maxLine = 256 << 10

// Gauge is a running gpu-usage.
type Gauge struct {
	*proc.Child              // it ends when its stdin is closed, as at the guard's end
	Lines       chan []Usage // closed when it has ended
}

// Start starts gpu-usage from its command line. nudge is told of each line.
func Start(line []string, nudge func()) (*Gauge, error) {
	p, err := proc.StartPiped(line...)
	if err != nil {
		return nil, err
	}
	g := &Gauge{p, make(chan []Usage, 4)}
	go g.read(nudge)
	return g, nil
}

// read sends on the output of gpu-usage until it has ended.
func (g *Gauge) read(nudge func()) {
	defer nudge()
	defer close(g.Lines)
	defer func() { <-g.Ended }()
	defer g.Out.Close()
	lines := bufio.NewScanner(g.Out)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		var usage []Usage
		if json.Unmarshal(lines.Bytes(), &usage) != nil {
			continue
		}
		select {
		case g.Lines <- usage:
		default: // the guard is busy, and the next line comes soon
		}
		nudge()
	}
}

// Stop ends gpu-usage. It ends when its stdin is closed; the signal is for the case that the driver blocks it.
func (g *Gauge) Stop() {
	g.In.Close()
	g.End()
}
