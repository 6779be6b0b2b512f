// SPDX-License-Identifier: Apache-2.0

// Command driver makes a simulated driver with two H200s in a folder, for walk.sh: `driver BUILT FOLDER`.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "driver: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("cannot make a driver: usage: driver BUILT FOLDER")
	}
	if err := sim.Build(args[0]); err != nil {
		return err
	}
	_, err := sim.New(args[1], args[0], node.H200, node.H200)
	return err
}
