// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// pipes are the ends on one side of four pipes. Each connection of a client has these pipes beside its socket (seen
// on an H200). No data goes through them here. But /proc/PID/fd shows by them which client belongs to which server.
type pipes [4]int

// withPipes answers a client and gives it its ends of the pipes. If no descriptor is free, it gives none.
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
