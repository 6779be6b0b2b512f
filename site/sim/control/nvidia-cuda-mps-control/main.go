// SPDX-License-Identifier: Apache-2.0

// Command nvidia-cuda-mps-control is the MPS control daemon of a simulated node, and the program that talks to the
// daemon.
//
// A caller sees here what a caller of driver 580.159.04 was measured to see: answers, exit codes, files, log lines,
// and hangs. The difference is that there is no GPU. README.md in the folder above lists what was measured and what
// is assumed.
package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"

	"github.com/slurm-mps/slurm-mps/site/sim/control/dispositions"
)

//go:embed help.txt
var help string

const version = "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\nCopyright (C) 2003 - 2025 NVIDIA Corporation.\n\n"

func main() {
	dispositions.Restore(quitsOn)
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run reads only the first option. A command given as an argument is ignored, because the real program ignores it.
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
