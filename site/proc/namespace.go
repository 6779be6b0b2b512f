// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"os"
)

// initialNamespaces are the numbers of the machine's own namespaces. They are constants of the kernel.
var initialNamespaces = map[string]uint32{"pid": 4026531836, "user": 4026531837}

// InOwnNamespace reports whether this process is in another namespace than the machine's own. The kind is "pid" or
// "user". A process outside of a pid namespace has no pid in it, and a user outside of a user namespace has no number
// in it.
func InOwnNamespace(kind string) bool {
	name, err := os.Readlink("/proc/self/ns/" + kind) // also if /proc shows the processes of another pid namespace
	return err == nil && name != fmt.Sprintf("%s:[%d]", kind, initialNamespaces[kind])
}

// Namespace returns the kernel's name for a process's namespace of a kind, as in "mnt:[4026531841]".
func Namespace(pid int, kind string) (string, error) { return os.Readlink(Folder(pid) + "/ns/" + kind) }
