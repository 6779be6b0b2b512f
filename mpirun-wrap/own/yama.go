// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Yama is a security module of Linux. Its ptrace_scope says which of a user's processes may take files of which others,
// as the guard does: all (0, or no Yama), an ancestor or a process that the other one has named (1, the default of
// Ubuntu), or root alone (2 and 3).
const yamaFile = "/proc/sys/kernel/yama/ptrace_scope"

// A rank that names its guard must do so in its first thread, and become its program there: the kernel keeps the name
// with that thread, and frees it if another thread calls exec (security/yama/yama_lsm.c). Go keeps the first thread for
// main only if it is locked before main begins.
func init() {
	if slices.Contains(os.Args, "--own") || os.Getenv("SLURM_MPS_OWN") != "" {
		runtime.LockOSThread()
	}
}

// scope returns Yama's ptrace_scope, 0 without Yama.
func scope() int {
	text, _ := os.ReadFile(yamaFile)
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// allowGuard lets the guard take this process's files, if Yama would not. The name outlives exec, but processes that the
// program starts do not inherit it. The error says what is not guarded.
func (m *member) allowGuard() error {
	if m.Unguarded != "" {
		return fmt.Errorf("cannot guard these ranks, because %s: the end of a rank may kill its neighbours", m.Unguarded)
	}
	n := scope()
	switch n {
	case 0:
		return nil
	case 1:
		if err := unix.Prctl(unix.PR_SET_PTRACER, uintptr(m.Supervisor), 0, 0, 0); err != nil {
			return fmt.Errorf("cannot guard this rank's neighbours: %w", err)
		}
		return fmt.Errorf("programs that this rank starts are not guarded, because %s is 1: the end of one may kill its neighbours: "+
			"let a script end with exec PROGRAM, or put mpirun-wrap --own before the program in it", yamaFile)
	}
	return fmt.Errorf("cannot guard these ranks, because %s is %d: the end of a rank may kill its neighbours", yamaFile, n)
}
