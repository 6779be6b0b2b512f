// SPDX-License-Identifier: Apache-2.0

package own

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// hiddenLine is in the step's folder when a rank has printed that its program is hidden.
const hiddenLine = "hidden"

// checkHidden returns an error if the kernel will show only root the files of a program's processes, so that no guard
// of the user can take them (fs/exec.c, would_dump; security/commoncap.c). Whether the program uses CUDA is not known.
func checkHidden(path string) error {
	why := hiddenBy(path)
	if why == "" {
		return nil
	}
	return fmt.Errorf("%s is not guarded if it uses CUDA itself, because %s: its end may kill its neighbours", path, why)
}

// hiddenBy is the cause for checkHidden, "" if there is none.
func hiddenBy(path string) string {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return ""
	}
	if unix.Access(path, unix.R_OK) != nil {
		return "you may not read its file (ask for chmod a+r)"
	}
	uid := st.Mode&unix.S_ISUID != 0 && st.Uid != uint32(os.Geteuid())
	gid := st.Mode&unix.S_ISGID != 0 && st.Mode&unix.S_IXGRP != 0 && st.Gid != uint32(os.Getegid())
	size, err := unix.Getxattr(path, "security.capability", nil)
	capable := err == nil && size > 0
	if !uid && !gid && !capable || ignoresPrivileges(path) || isScript(path) {
		return ""
	}
	if capable {
		return "its file has capabilities (run a copy without)"
	}
	return "its file has the set-user-ID or set-group-ID bit (run a copy without)"
}

// ignoresPrivileges reports whether the kernel gives a program no rights of its file.
func ignoresPrivileges(path string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) == nil && int64(fs.Flags)&unix.ST_NOSUID != 0 {
		return true
	}
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return err == nil && set != 0
}

// isScript reports whether a file begins with "#!". Its interpreter has no rights of it.
func isScript(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	var magic [2]byte
	n, _ := file.Read(magic[:])
	return string(magic[:n]) == "#!"
}
