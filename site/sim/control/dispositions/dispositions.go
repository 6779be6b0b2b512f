// SPDX-License-Identifier: Apache-2.0

//go:build !simulation

// Package dispositions keeps a Go program from losing the signals that it was started to ignore. Go's runtime catches
// nearly every signal at the start, and the programs that it starts then have the default action. The real MPS programs
// are not written in Go.
package dispositions

import "os"

// Restore does nothing in a build for go vet and the like. sim.Build sets the tag simulation.
func Restore(func(os.Signal) bool) {}
