// SPDX-License-Identifier: Apache-2.0

//go:build simulation

package dispositions

import (
	"os"
	"os/signal"
	"syscall"
	_ "unsafe" // for linkname
)

// before has the handlers of the time before the runtime replaced them. The linker needs -checklinkname=0 for that.
//
//go:linkname before runtime.fwdSig
var before [65]uintptr

const ignored = 1 // SIG_IGN

// Restore ignores the signals that this program was started to ignore, except those that it keeps for itself.
func Restore(keep func(os.Signal) bool) {
	for number, handler := range before {
		if s := syscall.Signal(number); handler == ignored && !keep(s) {
			signal.Ignore(s)
		}
	}
}
