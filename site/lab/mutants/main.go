// SPDX-License-Identifier: Apache-2.0

// Command mutants plants one fault at a time in a copy of the source, and runs the tests that must notice the fault.
// A test that passes with its fault checks nothing.
//
//	mutants [NAME...]
//
// A fault is an error if its text is not found exactly once, if it does not build, or if its tests do not notice it.
// The command first runs the tests without any fault.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// fault is one change, and the tests that must notice it.
type fault struct {
	name     string
	promise  string // a clause of docs/contract.md, or a finding of docs/security.md
	file     string
	old, new string
	folder   string // of the tests
	tests    string // the names of the tests that must fail, separated by blanks; "Test/subtest" for a part of a test
}

// deadline bounds the tests of one fault, with the build of the programs that they run.
const deadline = 4 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	chosen := slices.Clone(faults)
	if len(names) > 0 {
		chosen = slices.DeleteFunc(chosen, func(f fault) bool { return !slices.Contains(names, f.name) })
	}
	if len(chosen) == 0 || len(names) > 0 && len(chosen) != len(names) {
		return fmt.Errorf("cannot find all of the faults %q: see site/lab/mutants/faults.go", names)
	}
	tree, err := copyTree(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	var wrong error
	for _, f := range chosen { // report a list that does not fit the source before any test runs
		_, err := f.planted(tree)
		wrong = errors.Join(wrong, err)
	}
	if wrong != nil {
		return wrong
	}
	if err := green(ctx, tree, chosen); err != nil {
		return err
	}
	if slices.ContainsFunc(chosen, fault.ofPrograms) {
		if err := prepare(ctx, tree); err != nil {
			return err
		}
	}
	red := 0
	for _, f := range chosen {
		began := time.Now()
		err := f.noticed(ctx, tree)
		verdict := "red  "
		switch {
		case err == nil:
			red++
		case errors.Is(err, errGreen):
			verdict = "GREEN"
		default:
			verdict = "WRONG"
		}
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %w", f.name, err))
		}
		fmt.Printf("%s %-34s %-8s %5.1f s  %s\n", verdict, f.name, f.promise, time.Since(began).Seconds(), f.tests)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Printf("%d of %d red\n", red, len(chosen))
	return wrong
}

// copyTree copies the module's files, also the files that git does not track yet.
func copyTree(ctx context.Context) (string, error) {
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find the source: %w", err)
	}
	from := strings.TrimSpace(string(top))
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = from
	files, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("cannot list the source: %w", err)
	}
	tree, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(tree, 0o755); err != nil { // users of the tests run programs in this folder
		return "", err
	}
	for file := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(from, file), filepath.Join(tree, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", errors.Join(fmt.Errorf("cannot copy the source: %w", err), os.RemoveAll(tree))
		}
	}
	return tree, nil
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}

// planted returns the file's text with the fault.
func (f fault) planted(tree string) (string, error) {
	content, err := os.ReadFile(filepath.Join(tree, f.file))
	if err != nil {
		return "", fmt.Errorf("%s: cannot plant: %w", f.name, err)
	}
	if n := strings.Count(string(content), f.old); n != 1 {
		return "", fmt.Errorf("%s: cannot plant: %s has its text %d times, want once:\n%s", f.name, f.file, n, f.old)
	}
	return strings.Replace(string(content), f.old, f.new, 1), nil
}

// errGreen means that a test does not notice a fault.
var errGreen = errors.New("a test passes with the fault")

// noticed plants the fault and removes it again. The error is nil if all of its tests failed.
func (f fault) noticed(ctx context.Context, tree string) error {
	path := filepath.Join(tree, f.file)
	whole, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	content, err := f.planted(tree)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		return err
	}
	defer os.WriteFile(path, whole, 0o644)
	if err := do(ctx, tree, "go", "build", "./"+filepath.Dir(f.file)); err != nil {
		return fmt.Errorf("it does not build: %w", err)
	}
	dir, line := tree, []string{"go", "test", "-vet=off", "-count=1", f.folder}
	if f.ofPrograms() {
		if err := build(ctx, tree); err != nil {
			return err
		}
		where := filepath.Join(tree, built)
		dir, line = filepath.Join(tree, f.folder), []string{"env", "BUILT_FOLDER=" + where, filepath.Join(where, "cmd.test")}
	}
	failed, out, err := test(ctx, dir, line, strings.Fields(f.tests))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(f.tests) {
		if !slices.Contains(failed, name) {
			return fmt.Errorf("%w: %s:\n%s", errGreen, name, out)
		}
	}
	return nil
}

// green runs all tests without a fault.
func green(ctx context.Context, tree string, chosen []fault) error {
	began := time.Now()
	tests := map[string][]string{}
	for _, f := range chosen {
		for _, name := range strings.Fields(f.tests) {
			if !slices.Contains(tests[f.folder], name) {
				tests[f.folder] = append(tests[f.folder], name)
			}
		}
	}
	for folder, names := range tests {
		failed, out, err := test(ctx, tree, []string{"go", "test", "-vet=off", "-count=1", folder}, names)
		if err != nil {
			return err
		}
		if len(failed) > 0 || !strings.Contains(out, "\nok") && !strings.HasPrefix(out, "ok") {
			return fmt.Errorf("without a fault, these tests of %s are red: %q\n%s", folder, failed, out)
		}
	}
	fmt.Printf("green without a fault, in %.0f s\n", time.Since(began).Seconds())
	return nil
}

// ran matches the end of a test run, passed or failed. A failed build has another end.
var ran = regexp.MustCompile(`(?m)^(ok  |PASS$| *--- FAIL: )`)

var failure = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)

// test runs tests and returns the names of those that failed. A name with a slash runs a part of a test.
func test(ctx context.Context, dir string, line, names []string) (failed []string, out string, err error) {
	var tops, parts []string
	for _, name := range names {
		top, part, has := strings.Cut(name, "/")
		tops = append(tops, top)
		if has {
			parts = append(parts, regexp.QuoteMeta(part))
		}
	}
	pattern := "^(" + strings.Join(tops, "|") + ")$"
	if len(parts) == len(names) {
		pattern += "/^(" + strings.Join(parts, "|") + ")$"
	}
	ctx, cancel := context.WithTimeout(ctx, deadline*time.Duration(1+len(names)/8))
	defer cancel()
	text, err := command(ctx, dir, append(line, "-test.run", pattern)...).CombinedOutput()
	if ctx.Err() != nil {
		return nil, "", fmt.Errorf("the tests %q did not end: %w", names, ctx.Err())
	}
	if !ran.Match(text) || strings.Contains(string(text), "no tests to run") {
		return nil, "", fmt.Errorf("the tests %q do not run: %s", names, text)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, "", err
	}
	for _, match := range failure.FindAllStringSubmatch(string(text), -1) {
		failed = append(failed, match[1])
	}
	return failed, string(text), nil
}

// The tests of the programs are slow, because they build all programs and their own helpers. They are built once,
// without a fault. Only the programs are built again for each fault.

// built is the folder in which the tests of this module find the programs that they run.
const built = ".build"

func (f fault) ofPrograms() bool { return f.folder == "./cmd" }

func prepare(ctx context.Context, tree string) error {
	return errors.Join(
		do(ctx, tree, "go", "test", "-vet=off", "-c", "-o", filepath.Join(built, "cmd.test"), "./cmd"),
		do(ctx, tree, "env", "CGO_ENABLED=0", "go", "build", "-o", filepath.Join(built, "hostile"), "./cmd/testdata/hostile"))
}

func build(ctx context.Context, tree string) error {
	return errors.Join(
		do(ctx, tree, "go", "build", "-trimpath", "-o", filepath.Join(built, "bin")+"/", "./cmd/prolog", "./cmd/epilog", "./cmd/mpsctl"),
		do(ctx, tree, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", filepath.Join(built, "bin")+"/", "./cmd/mpirun-wrap", "./cmd/task-prolog"))
}

func do(ctx context.Context, tree string, line ...string) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if out, err := command(ctx, tree, line...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run %q: %w: %s", line, err, out)
	}
	return nil
}

func command(ctx context.Context, dir string, line ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
