// SPDX-License-Identifier: Apache-2.0

// Package faults reads the knobs by which a test makes the simulated MPS programs misbehave. A knob is a file in
// SIM/node/faults; the README.md of site/sim/control lists them. A program reads a knob when the knob matters, so a
// test may set or remove it at any time.
package faults

import (
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// Knobs are the knobs of one simulated node.
type Knobs struct{ dir string }

// Of returns the knobs of n.
func Of(n node.Node) Knobs { return Knobs{filepath.Join(n.Dir, "faults")} }

// On reports whether the knob is set: its file exists.
func (k Knobs) On(knob string) bool {
	_, err := os.Stat(filepath.Join(k.dir, knob))
	return err == nil
}

// Text returns the content of the knob's file. ok is false if the knob is not set.
func (k Knobs) Text(knob string) (string, bool) {
	text, err := os.ReadFile(filepath.Join(k.dir, knob))
	return string(text), err == nil
}

// Wait returns the knob's number of milliseconds. It returns otherwise if the knob is not set or holds no number.
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

// signals are those that a user or Slurm sends to a program to end it, by the names that knobs hold.
var signals = map[string]os.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP}

// Arrivals returns a channel with the signals that a knob can name, without those that this program ignores.
func Arrivals() <-chan os.Signal {
	arrived := make(chan os.Signal, 1)
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(arrived, s)
		}
	}
	return arrived
}

// Names reports whether the knob's file names a signal, as in "TERM INT".
func (k Knobs) Names(knob string, s os.Signal) bool {
	text, _ := k.Text(knob)
	for _, name := range strings.Fields(text) {
		if signals[name] == s {
			return true
		}
	}
	return false
}

// HoldWhile waits until the knob is removed.
func (k Knobs) HoldWhile(knob string) {
	for k.On(knob) {
		time.Sleep(20 * time.Millisecond)
	}
}
