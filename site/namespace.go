// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"os"
)

// initialNamespaces are the numbers of the machine's own namespaces, which are constants of the kernel.
var initialNamespaces = map[string]uint32{"pid": 4026531836, "user": 4026531837}

// InOwnNamespace reports whether this process is in another namespace of a kind, "pid" or "user", than the machine's
// own. Processes outside of a pid namespace have no pid there, and users outside of a user namespace no number.
func InOwnNamespace(kind string) bool {
	link, err := os.Readlink("/proc/self/ns/" + kind)
	return err == nil && link != fmt.Sprintf("%s:[%d]", kind, initialNamespaces[kind])
}
