// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/words"
	"golang.org/x/sys/unix"
)

// execError means that a program could not be run. Code is the wrapper's exit code.
type execError struct {
	Code int // 126: not executable, 127: not found
	err  error
}

func (e *execError) Error() string { return e.err.Error() }
func (e *execError) Unwrap() error { return e.err }

func notRun(path string, err error) error {
	if err == nil {
		return nil
	}
	code := 126
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		code = notFound
	}
	return &execError{code, fmt.Errorf("cannot run %s: %w%s", path, err, repair(path, err))}
}

// repair says what the words of exec's error do not tell: the cause, and what to do.
func repair(path string, err error) string {
	var fs unix.Statfs_t
	if !slices.Contains([]error{unix.ENOENT, unix.EACCES, unix.ENOEXEC}, err) || unix.Statfs(path, &fs) != nil {
		return ""
	}
	head := headOf(path)
	needs, isELF := interpreter(head)
	var missing error
	refused := unix.Access(path, unix.X_OK) != nil
	if needs != "" && err != unix.ENOEXEC && !refused {
		missing = executable(needs)
	}
	switch {
	case missing != nil && strings.HasSuffix(needs, "\r"):
		return ": its first line ends in a carriage return, as in DOS: convert it: " +
			`sed -i 's/\r$//' ` + words.Shell(path)
	case err == unix.EACCES && fs.Flags&unix.ST_NOEXEC != 0:
		return ": its file system is mounted noexec: copy it to another one"
	case err == unix.EACCES && refused:
		return ": make it executable: chmod +x " + words.Shell(path)
	case missing != nil && isELF:
		return ": it needs the loader " + needs + ", which is not there: build it for this node, or run it in its container"
	case missing != nil:
		return ": its first line (#!) needs an interpreter: " + missing.Error()
	case err == unix.ENOENT:
		return ": the file is there, but not the loader or interpreter that it needs"
	case isELF && machine(head) != machine(headOf("/proc/self/exe")):
		return ": it is a binary for " + machine(head) + ": build it for " + machine(headOf("/proc/self/exe")) + ", as this node is"
	case isELF:
		return ": the binary is damaged, or no program: build it again"
	case strings.HasPrefix(head, "\xef\xbb\xbf") || strings.HasPrefix(head, "\xff\xfe"):
		return ": it begins with a byte order mark (BOM): save it as UTF-8 without one"
	case err == unix.ENOEXEC:
		return ": it is no binary, and has no first line like #!/bin/sh: add one"
	}
	return ""
}

// headOf returns the begin of a file, which has all that exec reads of nearly all programs. It is "" if this user may
// not read the file.
func headOf(path string) string {
	var head [4096]byte
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	n, _ := unix.Pread(fd, head[:], 0)
	return string(head[:max(n, 0)])
}

// interpreter returns the program that the kernel starts for a script, or the loader for a binary, as elf(5) has it
// for 64 bits (PT_INTERP is 3): "" for none. Package debug/elf would make each rank's program larger by a tenth.
func interpreter(head string) (path string, isELF bool) {
	if line, script := strings.CutPrefix(head, "#!"); script {
		line, _, _ = strings.Cut(line, "\n")
		path, _, _ = strings.Cut(strings.Trim(strings.ReplaceAll(line, "\t", " "), " "), " ")
		return path, false
	}
	if len(head) < 64 || !strings.HasPrefix(head, "\x7fELF\x02\x01") {
		return "", len(head) >= 20 && strings.HasPrefix(head, "\x7fELF")
	}
	all := uint64(len(head))
	at := func(offset uint64) uint64 { return binary.LittleEndian.Uint64([]byte(head[offset:])) }
	for h, n := at(32), at(56)&0xffff; n > 0 && h <= all-56; h, n = h+56, n-1 { // an entry has 56 bytes
		begin, size := at(h+8), at(h+32)
		if uint32(at(h)) == 3 && begin < all && size < all-begin {
			return strings.TrimRight(head[begin:begin+size], "\x00"), true
		}
	}
	return "", true
}

// machine is the machine of a binary, by its number in elf.h.
func machine(head string) string {
	if len(head) < 20 {
		return "an unknown machine"
	}
	number := int(head[18]) + int(head[19])<<8
	if name := map[int]string{3: "i386", 21: "ppc64", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}[number]; name != "" {
		return name
	}
	return fmt.Sprintf("machine %d", number)
}

const notFound = 127

// lookPath finds a program. A name with a slash is a path; any other name is looked up in PATH. The error is a
// *execError.
func lookPath(program string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		return program, executable(program)
	}
	if program == "" {
		return "", &execError{notFound, errors.New("cannot run a program: its name is empty")}
	}
	var refused error
	for _, dir := range filepath.SplitList(pathOf(env)) {
		path := filepath.Join(dir, program)
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if refused == nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			refused = err
		}
	}
	if refused == nil {
		refused = &execError{notFound, fmt.Errorf("cannot run %s: not found in PATH", program)}
	}
	return "", refused
}

func pathOf(env []string) string {
	for _, entry := range env {
		if path, ok := strings.CutPrefix(entry, "PATH="); ok {
			return path
		}
	}
	return "/usr/local/bin:/usr/bin:/bin"
}

func executable(path string) error {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = errors.New("it is a directory")
	}
	if err == nil {
		err = unix.Access(path, unix.X_OK)
	}
	return notRun(path, err)
}
