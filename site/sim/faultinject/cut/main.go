// SPDX-License-Identifier: Apache-2.0

// Command cut runs a program in its own place and kills it once. If FILE exists, it holds a text, and cut removes
// FILE. The program is killed right after the first effect that contains this text, and cut then kills itself in the
// same way. A test puts cut before a hook of slurmd.
//
//	cut FILE PROGRAM [ARGUMENT...]
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/sim/faultinject"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: cut FILE PROGRAM [ARGUMENT...]")
		os.Exit(2)
	}
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = os.Remove(os.Args[1])
	}
	if err != nil {
		err = syscall.Exec(os.Args[2], os.Args[2:], os.Environ())
		fmt.Fprintln(os.Stderr, "cut:", err)
		os.Exit(1)
	}
	os.Exit(cut(strings.TrimSpace(string(text))))
}

func cut(text string) int {
	result, err := faultinject.Run(context.Background(), os.Args[2:], os.Environ(), faultinject.Plan{
		Kill: func(e faultinject.Effect) bool { return strings.Contains(e.String(), text) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "cut:", err)
		return 1
	}
	fmt.Fprint(os.Stderr, result.Output)
	if result.Signal == syscall.SIGKILL {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return result.Code
}
