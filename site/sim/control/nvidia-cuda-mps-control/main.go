// SPDX-License-Identifier: Apache-2.0

// nvidia-cuda-mps-control of a simulated node: the MPS control daemon, and the program that talks to it.
//
// The promise: whatever a caller of driver 580.159.04 was measured to see, it sees here: answers, exit codes, files,
// log lines, and the ways of hanging. What differs is that no GPU is there. README.md in the folder above says what
// was measured and what is assumed.
package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
)

//go:embed help.txt
var help string

const version = "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\nCopyright (C) 2003 - 2025 NVIDIA Corporation.\n\n"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run looks at the first option only. A command given as an argument is ignored, as the real program ignores it.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	option := ""
	if len(args) > 0 {
		option = args[0]
	}
	switch {
	case option == "-d" || option == "--daemon":
		return background(stdout, stderr)
	case option == "-f" || option == "--forground": // the real program's spelling
		return foreground(stdout, stderr)
	case option == "-v" || option == "--version":
		fmt.Fprint(stdout, version)
	case option == "-h" || option == "--help":
		fmt.Fprint(stdout, help)
	case len(option) > 0 && option[0] == '-':
		fmt.Fprint(stdout, "Unrecognized option  \n"+help)
	default:
		return converse(pipeDirectory(), stdin, stdout, stderr)
	}
	return 0
}

func pipeDirectory() string { return setting("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps") }

func logDirectory() string { return setting("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps") }

func setting(variable, otherwise string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return otherwise
}
