// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"slices"
)

// Phase is the state of a lease.
type Phase string

// A lease begins in Opening.
const (
	Opening Phase = "opening" // the prolog makes it, and no rank knows it
	Opened  Phase = "open"    // the prolog has done all but write the ticket
	Closing Phase = "closing" // an undo has begun
)

// nextPhases lists the phases that may follow each phase. SetPhase refuses any other phase.
var nextPhases = map[Phase][]Phase{
	Opening: {Opened, Closing}, // the prolog succeeds, or it fails and its lease is undone
	Opened:  {Closing},         // the epilog begins, or a prolog that cannot adopt the lease
	Closing: {Closing},         // an undo that failed, or that was killed, is tried again
}

// mayFollow reports whether next may follow p. An undo needs only the changes that a lease lists. So an undo may
// begin in a phase that this program does not know.
func (p Phase) mayFollow(next Phase) bool {
	after, known := nextPhases[p]
	return slices.Contains(after, next) || !known && next == Closing
}

// SetPhase changes the phase of a lease, here and on file. If next may not follow, nothing changes. If the file
// cannot be written, the lease in memory still gets its new phase.
func (s *Store) SetPhase(l *Lease, next Phase) error {
	if !l.Phase.mayFollow(next) {
		return fmt.Errorf("cannot change phase of lease of job %d: %q may not follow %q", l.Job.ID, next, l.Phase)
	}
	l.Phase = next
	return s.Save(*l)
}
