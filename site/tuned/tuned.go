// SPDX-License-Identifier: Apache-2.0

// Package tuned reads and writes the file of tuned shares. mps-tune saves the best share of a program in the file,
// and mpirun-wrap finds it. A user may have a file, and a site may have a file. Each line has four words: program,
// ranks on a GPU, GPU and share.
//
// A file gives only a rule of shares. The policy's ceiling limits this rule like the rule of a flag.
package tuned

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"golang.org/x/sys/unix"
)

const (
	maxBytes = 64 << 10 // of a file: about 2000 lines
	maxName  = 100      // bytes of a program's name
)

const head = "# mps-tune: program, ranks on a GPU, GPU, share\n"

// Key identifies the program, the number of ranks and the GPU for which a share is saved.
type Key struct {
	Program string // the name of the program's file, or a name that the user gave
	Ranks   int    // ranks that share a GPU
	Model   string // model of the GPU, as one word
}

// Entry is a line of a file.
type Entry struct {
	Key
	Rule policy.ShareRule
}

// NewKey returns the key of a program with this number of ranks on this number of GPUs of a node. The product is
// NVML's name of the GPU. A MIG instance is a model of its own.
func NewKey(program string, ranks, gpus int, product string) Key {
	model := policy.ModelName(product)
	if _, instance, ok := strings.Cut(product, " MIG "); ok {
		model += "-" + instance
	}
	return Key{filepath.Base(program), (ranks + gpus - 1) / gpus, strings.Join(strings.Fields(model), "-")}
}

// Check refuses a name that cannot be written into a file.
func (k Key) Check() error {
	breaks := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if k.Program == "" || len(k.Program) > maxName || k.Program[0] == '#' || strings.ContainsFunc(k.Program, breaks) {
		return fmt.Errorf("cannot use name %q: want up to %d printable bytes without blanks: "+
			"give another: --save-as=NAME, and --share=tuned:NAME later", k.Program, maxName)
	}
	return nil
}

// String returns the key as a part of a sentence.
func (k Key) String() string {
	return fmt.Sprintf("%q with %s on each %s", k.Program, site.Count(k.Ranks, "rank"), k.Model)
}

// String returns the line of the entry.
func (e Entry) String() string {
	return fmt.Sprintf("%s %d %s %s", e.Program, e.Ranks, e.Model, e.Rule)
}

// UserFile returns the path of the user's file, from XDG_CONFIG_HOME or HOME. It returns "" if neither is an absolute
// path.
func UserFile(configHome, home string) string {
	switch {
	case filepath.IsAbs(configHome):
		return filepath.Join(configHome, "slurm-mps/tuned")
	case filepath.IsAbs(home):
		return filepath.Join(home, ".config/slurm-mps/tuned")
	}
	return ""
}

// Find returns the rule from the user's file, or else from the site's file. It also returns the path of that file.
func Find(userFile, siteFile string, key Key) (policy.ShareRule, string, error) {
	for _, file := range []struct {
		path string
		read func(string) ([]byte, error)
	}{{userFile, readOwn}, {siteFile, site.ReadRootOwnedInContainer}} {
		content, err := file.read(file.path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err == nil && len(content) > maxBytes {
			err = fmt.Errorf("cannot read %s: larger than %d bytes", file.path, maxBytes)
		}
		var rule policy.ShareRule
		if err == nil {
			rule, err = key.in(content, file.path)
		}
		if err != nil {
			return rule, "", fmt.Errorf("%w: correct or remove the file, or give another --share", err)
		}
		if rule != (policy.ShareRule{}) {
			return rule, file.path, nil
		}
	}
	return policy.ShareRule{}, "", fmt.Errorf("cannot find the tuned share of %s: no line of %s has it: "+
		"run mps-tune --save in a job, or give another --share", key, strings.TrimPrefix(userFile+" or "+siteFile, " or "))
}

// in returns the rule of the last line with this key, or the zero rule. It does not check other lines.
func (k Key) in(content []byte, path string) (rule policy.ShareRule, err error) {
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		words := strings.Fields(line)
		if !k.of(words) {
			continue
		}
		if rule, err = policy.ParseShare(words[3]); err != nil {
			return rule, fmt.Errorf("cannot read line %d of %s: %w", number, path, err)
		}
	}
	return rule, nil
}

// of reports whether the words of a line have this key.
func (k Key) of(words []string) bool {
	return len(words) == 4 && words[0] == k.Program && words[1] == strconv.Itoa(k.Ranks) && words[2] == k.Model
}

// readOwn reads a file of the user. The file may be a link, because the user decides what the file contains. It must
// be a regular file, because a read of another file may block or never end.
func readOwn(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "cannot read", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("cannot read %s: it is not a regular file", path)
	}
	content, err := proc.ReadOpen(fd, maxBytes+1)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return content, nil
}

// Save writes the entries into a user's file and replaces the lines with their keys. A reader sees the old file or
// the complete new file. Only the user can read the file. Without entries, Save proves that the file can be written.
// If two programs save at the same time, the lines of one program may be missing.
func Save(path string, entries []Entry) error {
	if path == "" {
		return errors.New("cannot save: neither XDG_CONFIG_HOME nor HOME is an absolute path: set HOME")
	}
	old, err := readOwn(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: move the file away", err)
	}
	content := merge(string(old), entries)
	if len(content) > maxBytes {
		return fmt.Errorf("cannot write %s: it would be larger than %d bytes: delete lines of it", path, maxBytes)
	}
	dir, err := ownFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return site.Replace(dir, filepath.Base(path), []byte(content), 0o600)
}

// merge returns the old lines without the lines that have a key of the entries, and then the entries.
func merge(old string, entries []Entry) string {
	if old == "" {
		old = head
	}
	var b strings.Builder
	for line := range strings.Lines(old) {
		replaced := false
		for _, e := range entries {
			replaced = replaced || e.of(strings.Fields(line))
		}
		if !replaced {
			b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	for _, e := range entries {
		b.WriteString(e.String() + "\n")
	}
	return b.String()
}

// ownFolder makes and opens a folder of the user. It refuses another user's folder: with sudo, HOME may be another
// user's.
func ownFolder(path string) (*os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make folder %s: %w", path, err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(dir.Fd()), &st)
	if err == nil && int(st.Uid) != os.Geteuid() {
		err = fmt.Errorf("its owner is uid %d and you are uid %d: set HOME to your own", st.Uid, os.Geteuid())
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("cannot write into %s: %w", path, err)
	}
	return dir, nil
}
