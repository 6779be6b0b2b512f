// SPDX-License-Identifier: Apache-2.0

// Command execs only executes the program in its arguments. It shows the minimum time of a wrapper in Go.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: execs PROGRAM [ARG...]")
		os.Exit(2)
	}
	err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	fmt.Fprintf(os.Stderr, "execs: cannot run %s: %v\n", os.Args[1], err)
	os.Exit(126)
}
