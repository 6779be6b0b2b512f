// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/sim/control/wire"
)

// errUnsent means that the daemon closed the connection before it had read the command.
var errUnsent = errors.New("the daemon did not take the command")

// converse sends each line of stdin to the daemon and prints the answers in order. It returns the exit code of the
// last command. It returns 1 if the daemon cannot be reached or rejects the caller. An error text in an answer does
// not change the exit code.
func converse(pipe string, stdin io.Reader, stdout, stderr io.Writer) int {
	conn, err := wire.Dial(filepath.Join(pipe, "control"))
	if err != nil {
		fmt.Fprintln(stderr, "Cannot find MPS control daemon process")
		return 1
	}
	defer conn.Close()
	code, err := 0, conn.Send("ui")
	for lines := bufio.NewScanner(stdin); err == nil && lines.Scan(); {
		code, err = ask(conn, lines.Text(), stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "Cannot send command to MPS control daemon process")
		return 1
	}
	return code
}

// ask sends one command and prints its answer. If the daemon closes the connection without an answer, nothing is
// printed and the exit code is 0.
func ask(conn wire.Conn, command string, stdout io.Writer) (code int, err error) {
	if err := conn.Send("command " + command); err != nil {
		return 1, errUnsent
	}
	for {
		packet, _, err := conn.Receive()
		if wire.Reset(err) {
			return 1, errUnsent
		}
		if err != nil {
			return 0, nil
		}
		word, rest, _ := strings.Cut(packet, " ")
		if word == "end" {
			return strconv.Atoi(rest)
		}
		fmt.Fprintln(stdout, rest)
	}
}
