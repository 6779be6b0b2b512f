// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// initialPIDNamespace is the link of every process that is in no pid namespace but the machine's own. Its number is a
// constant of the kernel.
const initialPIDNamespace = "pid:[4026531836]"

// InOwnPIDNamespace reports whether this process is in another pid namespace than the machine's own. Processes outside
// of it have no pid there.
func InOwnPIDNamespace() bool {
	link, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && link != initialPIDNamespace
}

// Listens reports whether a process listens on the socket that was bound to path. Such a process is seen from every pid
// namespace, but from its own network namespace only.
func Listens(path string) (bool, error) {
	file, err := os.Open("/proc/net/unix")
	if err != nil {
		return false, fmt.Errorf("cannot look for socket: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if listens(lines.Text(), path) {
			return true, nil
		}
	}
	return false, lines.Err()
}

// listens reports whether a line of /proc/net/unix is of a listener at path: its flags are __SO_ACCEPTCON.
func listens(line, path string) bool {
	fields := strings.SplitN(line, " ", 8)
	return len(fields) == 8 && fields[3] == "00010000" && strings.TrimLeft(fields[7], " ") == path
}
