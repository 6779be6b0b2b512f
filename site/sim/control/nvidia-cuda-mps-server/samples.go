// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// The server keeps a file with its utilisation, and the simulated NVML reads this file (node/README.md). The GPU time
// of all clients, also of dead ones, counts as the server's (measured).
//
// The driver samples the whole GPU at once, so all servers write at the same moments.
const (
	samplePeriod = 200 * time.Millisecond // measured on an H200, also for an idle server
	samplesKept  = 120
)

// samples is the file: a ring of lines of equal length. Each line is written at once.
type samples struct {
	file    *os.File
	written int64
}

func (g *gpu) samplesPath() string {
	return filepath.Join(g.GPU.Dir, "samples", strconv.Itoa(os.Getpid()))
}

// startSamples makes the files and fills them while the server lives.
func (s *server) startSamples() error {
	for _, g := range s.devices {
		os.Remove(g.samplesPath()) // of an earlier process
		file, err := os.OpenFile(g.samplesPath(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return fmt.Errorf("cannot keep samples of device %d: %w", g.ordinal, err)
		}
		g.samples.file = file
	}
	go func() {
		before := now()
		for {
			time.Sleep(samplePeriod - time.Duration(time.Now().UnixNano())%samplePeriod)
			t := now()
			for _, g := range s.devices {
				g.samples.add(s.utilization(g, before, t))
			}
			before = t
		}
	}()
	return nil
}

// utilization returns the part of a time in which the GPU had work, in percent. Work of any length gives at least 1.
func (s *server) utilization(g *gpu, from, to uint64) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	g.advance(to)
	busy := g.spent
	g.spent = 0
	for _, c := range g.contexts {
		busy += c.work.within(from, to)
	}
	if busy == 0 {
		return 0
	}
	return int(min(max(1, 100*busy/(to-from)), 100))
}

func (s *samples) add(percent int) {
	line := fmt.Sprintf("%020d %3d\n", time.Now().UnixMicro(), percent)
	s.file.WriteAt([]byte(line), s.written%samplesKept*int64(len(line)))
	s.written++
}
