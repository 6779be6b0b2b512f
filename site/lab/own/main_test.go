// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"testing"
)

// Four ranks by Open MPI get a daemon, are placed and compute, and nothing is left.
func TestOwn(t *testing.T) {
	if _, err := exec.LookPath("mpirun.openmpi"); err != nil || os.Geteuid() != 0 {
		t.Skip("it needs root and Open MPI")
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
}
