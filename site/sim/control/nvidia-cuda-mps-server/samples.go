// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// What NVML says of a server's utilisation it reads from a file that the server keeps (node/README.md). All its
// clients' time on the GPU is booked on it (measured), that of dead ones too.
const (
	samplePeriod = 200 * time.Millisecond // measured on an H200, of an idle server as well
	samplesKept  = 120
)

// samples is such a file: a ring of lines of the same length, each written at once.
type samples struct {
	file    *os.File
	written int64
}

func (g *gpu) samplesPath() string {
	return filepath.Join(g.GPU.Dir, "samples", strconv.Itoa(os.Getpid()))
}

// startSamples makes the files and fills them for as long as the server lives.
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
		for range time.Tick(samplePeriod) {
			t := now()
			for _, g := range s.devices {
				g.samples.add(s.utilization(g, before, t))
			}
			before = t
		}
	}()
	return nil
}

// utilization is the part of a time that the GPU had work for, in percent; work of any length is 1 at least.
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
