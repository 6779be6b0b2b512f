// SPDX-License-Identifier: Apache-2.0

// Package faults are the knobs by which a test makes the simulated MPS programs misbehave: files in SIM/node/faults,
// described in the README.md of site/sim/control. They are read when they matter, so a test may turn them at any time.
package faults

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// Knobs are the knobs of one simulated node.
type Knobs struct{ dir string }

// Of are the knobs of n.
func Of(n node.Node) Knobs { return Knobs{filepath.Join(n.Dir, "faults")} }

// On reports whether the knob is there.
func (k Knobs) On(knob string) bool {
	_, err := os.Stat(filepath.Join(k.dir, knob))
	return err == nil
}

// Text is what the knob's file holds.
func (k Knobs) Text(knob string) (string, bool) {
	text, err := os.ReadFile(filepath.Join(k.dir, knob))
	return string(text), err == nil
}

// Wait is the knob's number of milliseconds, or otherwise where it is not there or no number.
func (k Knobs) Wait(knob string, otherwise time.Duration) time.Duration {
	text, ok := k.Text(knob)
	if !ok {
		return otherwise
	}
	ms, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return otherwise
	}
	return time.Duration(ms) * time.Millisecond
}

// HoldWhile returns once the knob has been taken away.
func (k Knobs) HoldWhile(knob string) {
	for k.On(knob) {
		time.Sleep(20 * time.Millisecond)
	}
}
