// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// maxPrinted is the maximum of bytes that are kept of what a program prints. slurmd -G prints a line for each GPU.
const maxPrinted = 1 << 20

// head keeps the beginning of what is written to it.
type head []byte

func (h *head) Write(piece []byte) (int, error) {
	*h = append(*h, piece[:min(len(piece), maxPrinted-len(*h))]...)
	return len(piece), nil
}

// run runs a program of root's that answers and ends, without variables but a path, and returns what it prints. If it
// does not end within the limit, run kills it.
func run(ctx context.Context, limit time.Duration, path string, args ...string) (string, error) {
	bound, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var printed head
	cmd := exec.CommandContext(bound, path, args...)
	cmd.Env, cmd.WaitDelay = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, time.Second
	cmd.Stdout, cmd.Stderr = &printed, &printed
	err := cmd.Run()
	if err != nil {
		err = errors.Join(err, bound.Err())
	}
	return string(printed), err
}

// look reads a file's mode, and whether anyone except root could replace it or a link to it.
func look(name, file string) installed {
	f := installed{Name: name, Path: file}
	info, err := os.Stat(file)
	if err != nil {
		f.Err = cause(err)
		return f
	}
	f.Mode = info.Mode()
	f.Loose, f.LooseReason = loose(file)
	return f
}

// cause returns an error without the path, which the report names.
func cause(err error) error { return cmp.Or(errors.Unwrap(err), err) }

// maxElements is above the folders and links of any path.
const maxElements = 1000

// loose follows a path from /, and each link in it, and returns the last of these files and folders that anyone except
// root can change. In a sticky folder only root can replace root's files.
func loose(file string) (where, why string) {
	at, rest := "/", strings.Split(file, "/")
	for range maxElements {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return at, err.Error()
		}
		kind := st.Mode & unix.S_IFMT
		sticky := kind == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
		switch {
		case st.Uid != 0:
			where, why = at, fmt.Sprintf("its owner is uid %d", st.Uid)
		case st.Mode&0o022 != 0 && !sticky && kind != unix.S_IFLNK:
			where, why = at, fmt.Sprintf("its mode is %04o", st.Mode&0o7777)
		}
		if target, err := os.Readlink(at); err == nil {
			at, rest = filepath.Dir(at), append(strings.Split(target, "/"), rest...)
			if filepath.IsAbs(target) {
				at = "/"
			}
		}
		if len(rest) == 0 {
			break
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
	return where, why
}

// ourPrograms is the import path of our programs, which Go writes into each program.
const ourPrograms = "github.com/slurm-mps/slurm-mps/cmd/"

// ours returns which of our programs a file is, "" for none. A script may name a path that a user can make, so it waits
// for no writer of a fifo.
func ours(file string) string {
	opened, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer opened.Close()
	info, err := buildinfo.Read(opened)
	if err != nil || !strings.HasPrefix(info.Path, ourPrograms) {
		return ""
	}
	return path.Base(info.Path)
}

// versionTimeout bounds a program's --version, which takes 5 ms.
const versionTimeout = 2 * time.Second

var printedVersion = regexp.MustCompile(`\bslurm-mps (\S+) \(`)

// versionOf returns the version that one of our programs prints. It returns "" if the program does not exist or
// root does not own it.
func versionOf(ctx context.Context, f installed) string {
	if f.Err != nil || f.Loose != "" {
		return ""
	}
	printed, err := run(ctx, versionTimeout, f.Path, "--version")
	match := printedVersion.FindStringSubmatch(printed)
	if err != nil || match == nil {
		return ""
	}
	return match[1]
}

var driverVersion = regexp.MustCompile(`\b[1-9][0-9]{2}\.[0-9]{2,3}(\.[0-9]{2})?\b`)

// maxControl is far above the size of the control program (70 KiB with driver 580).
const maxControl = 64 << 20

// driverOf finds the version of the driver in the control program (that of 580.159.04 contains "580.159.04", once).
// It does not run the program, because -v prints CUDA's version. It returns "" for a script, and if the version is
// not certain.
func driverOf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxControl))
	if err != nil || !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
		return ""
	}
	versions := slices.CompactFunc(driverVersion.FindAll(content, -1), bytes.Equal)
	if len(versions) != 1 {
		return ""
	}
	return string(versions[0])
}

// script reads a file that Slurm runs, and finds which of our programs it is or starts.
func script(file string) hookScript {
	s := hookScript{installed: look("", file)}
	if s.Err != nil || !s.Mode.IsRegular() {
		return s
	}
	if name := ours(file); name != "" {
		s.Starts, s.By = name, file
		return s
	}
	content, err := osfile.ReadAny(file)
	if err != nil || !strings.HasPrefix(string(content), "#!") {
		return s
	}
	s.Starts, s.By = started(string(content))
	return s
}

// started returns the first of our programs whose path is in a script.
func started(content string) (name, program string) {
	for line := range strings.Lines(content) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n\"'`;|&(){}=<>", r) })
		for _, word := range words {
			if !filepath.IsAbs(word) {
				continue
			}
			if name := ours(word); name != "" {
				return name, word
			}
		}
	}
	return "", ""
}

// readHook reads the scripts that Slurm runs for one of its settings: a path, or a pattern. Slurm runs the files of a
// pattern in the reverse order of their names (measured).
func readHook(name, program string, settings slurm.ConfFile) hook {
	h := hook{Name: name, Ours: program, Settings: settings.Values(name)}
	if name == "TaskProlog" && len(h.Settings) > 1 {
		h.Settings = h.Settings[len(h.Settings)-1:]
	}
	for _, s := range h.Settings {
		for _, file := range expanded(s.Value, filepath.Dir(settings.Path)) {
			h.Scripts = append(h.Scripts, script(file))
		}
	}
	return h
}

// expanded returns the files of a path or a pattern, the last first. If no file matches, it returns the path.
func expanded(pattern, dir string) []string {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(dir, pattern)
	}
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{pattern}
	}
	matched, _ := filepath.Glob(pattern) // none of a pattern that is wrong
	slices.Sort(matched)
	slices.Reverse(matched)
	return matched
}

// stateDir reads the folder of state, or the part of its path that exists.
func stateDir(paths site.Paths) stateFolder {
	s := stateFolder{Path: paths.Run()}
	for path := s.Path; ; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
			continue
		}
		if s.Err = cause(err); err != nil {
			return s
		}
		if path == s.Path {
			s.Exists, s.Mode, s.UID = true, info.Mode(), info.Sys().(*syscall.Stat_t).Uid
		}
		s.Err = s.measure(path)
		return s
	}
}

// measure reads the free space. A file system that does not count files has no limit of them.
func (s *stateFolder) measure(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return err
	}
	s.Memory = int64(fs.Type) == unix.TMPFS_MAGIC || int64(fs.Type) == unix.RAMFS_MAGIC
	s.Bytes, s.Files = fs.Bavail*uint64(fs.Bsize), fs.Ffree
	if fs.Files == 0 {
		s.Files = 1 << 62
	}
	if fs.Blocks == 0 {
		s.Bytes = 1 << 62
	}
	return nil
}
