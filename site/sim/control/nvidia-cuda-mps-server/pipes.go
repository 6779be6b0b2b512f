// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// pipes are the ends on one side of the four pipes that each connection of a client has beside its socket (seen on an
// H200). Nothing goes through them here, but /proc/PID/fd shows to all who is the client of which server.
type pipes [4]int

// withPipes answers a client and gives it its ends; none where no descriptor is left.
func withPipes(conn wire.Conn, answer string) (own pipes) {
	var theirs pipes
	for i := range own {
		ends := [2]int{-1, -1}
		syscall.Pipe2(ends[:], syscall.O_CLOEXEC)
		own[i], theirs[i] = ends[i%2], ends[1-i%2] // two of them go each way
	}
	defer theirs.close()
	if slices.Contains(theirs[:], -1) {
		conn.Send(answer)
		return own
	}
	conn.Send(answer, theirs[:]...)
	return own
}

func (p pipes) close() {
	for _, end := range p {
		syscall.Close(end)
	}
}
