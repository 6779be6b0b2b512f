// SPDX-License-Identifier: Apache-2.0

// Command mutants plants one fault at a time in the source, and runs the tests that must notice the fault. A test that
// passes with its fault checks nothing.
//
//	mutants [-minutes N] [NAME...]
//	mutants -table
//
// A fault is an error if its text is not found exactly once, if it does not build, or if its tests do not notice it.
// The command first runs the tests without any fault. The source stays as it is: the compiler reads the file with the
// fault from another folder (go build -overlay). With -minutes, the command plants the faults in a random order, and none
// after that time. With -table, it prints the faults of each clause of docs/contract.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/hold"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// deadline bounds the tests of one fault, with the build of the programs that they run.
const deadline = 4 * time.Minute

func main() {
	hold.Begin()
	table := flag.Bool("table", false, "print the faults of each clause")
	minutes := flag.Int("minutes", 0, "plant faults in a random order, and none after so many minutes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	faults, err := readFaults()
	last := time.Now().Add(24 * time.Hour)
	if *minutes > 0 {
		last = time.Now().Add(time.Duration(*minutes) * time.Minute)
		rand.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	}
	switch {
	case err != nil:
	case *table:
		err = printTable(os.Stdout, faults)
	default:
		err = run(ctx, faults, last, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, chosen []fault, last time.Time, names []string) error {
	if len(names) > 0 {
		chosen = slices.DeleteFunc(chosen, func(f fault) bool { return !slices.Contains(names, f.name) })
	}
	if len(chosen) == 0 || len(names) > 0 && len(chosen) != len(names) {
		return fmt.Errorf("cannot find all of the faults %q: see site/lab/mutants/faults", names)
	}
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("cannot find the source: %w", err)
	}
	tree := tree{source: strings.TrimSpace(string(top))}
	if err := wellFormed(tree.source, chosen); err != nil { // before any test runs
		return err
	}
	if tree.folder, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer os.RemoveAll(tree.folder)
	if err := os.Chmod(tree.folder, 0o755); err != nil { // users of the tests run programs in this folder
		return err
	}
	if slices.ContainsFunc(chosen, fault.ofPrograms) {
		if err := tree.prepare(ctx, chosen); err != nil {
			return err
		}
	}
	if err := tree.green(ctx, chosen); err != nil {
		return err
	}
	red, wrong := 0, error(nil)
	for i, f := range chosen {
		began := time.Now()
		if began.After(last) {
			fmt.Printf("%d faults are not tried\n", len(chosen)-i)
			chosen = chosen[:i]
			break
		}
		err := tree.noticed(ctx, f)
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
		took := time.Since(began).Seconds()
		fmt.Printf("%s %-38s %-8s %5.1f s  %s\n", verdict, f.name, f.promise, took, f.tests)
		if ctx.Err() != nil {
			return errors.Join(wrong, ctx.Err())
		}
	}
	fmt.Printf("%d of %d red\n", red, len(chosen))
	return wrong
}

// wellFormed reports the faults that cannot be planted, and those that do not build.
func wellFormed(source string, chosen []fault) (wrong error) {
	packages, err := newPackages(source, chosen)
	if err != nil {
		return err
	}
	for _, f := range chosen {
		wrong = errors.Join(wrong, packages.check(f))
	}
	return wrong
}

// planted returns the file's text with the fault.
func (f fault) planted(source string) (string, error) {
	content, err := os.ReadFile(filepath.Join(source, f.file))
	if err != nil {
		return "", fmt.Errorf("%s: cannot plant: %w", f.name, err)
	}
	if n := strings.Count(string(content), f.old); n != 1 {
		return "", fmt.Errorf("%s: cannot plant: %s has its text %d times, want once:\n%s", f.name, f.file, n, f.old)
	}
	return strings.Replace(string(content), f.old, f.new, 1), nil
}

// tree is the source and a folder for what is built of it.
type tree struct{ source, folder string }

// overlay writes the fault's file, and the file for the option -overlay of go that puts it into the source's place.
func (t tree) overlay(f fault) (path string, err error) {
	content, err := f.planted(t.source)
	if err != nil {
		return "", err
	}
	faulty := filepath.Join(t.folder, "faulty.go")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(t.source, f.file): faulty}})
	if err != nil {
		return "", err
	}
	path = filepath.Join(t.folder, "overlay.json")
	return path, errors.Join(os.WriteFile(faulty, []byte(content), 0o644), os.WriteFile(path, replace, 0o644))
}

// errGreen means that a test does not notice a fault.
var errGreen = errors.New("a test passes with the fault")

// noticed runs the tests of a fault with the fault. The error is nil if all of them failed.
func (t tree) noticed(ctx context.Context, f fault) error {
	overlay, err := t.overlay(f)
	if err != nil {
		return err
	}
	if f.ofPrograms() {
		if err := t.build(ctx, "-overlay", overlay); err != nil {
			return err
		}
	}
	// Tests that build a program themselves build it with the fault, too.
	const variable = "GOFLAGS"
	flags := variable + "=" + os.Getenv(variable) + " -overlay=" + overlay
	failed, out, err := t.test(ctx, f.folder, strings.Fields(f.tests), flags)
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
func (t tree) green(ctx context.Context, chosen []fault) error {
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
		failed, out, err := t.test(ctx, folder, names)
		if err != nil {
			return err
		}
		if len(failed) > 0 || !passed.MatchString(out) {
			return fmt.Errorf("without a fault, these tests of %s are red: %q\n%s", folder, failed, out)
		}
	}
	fmt.Printf("green without a fault, in %.0f s\n", time.Since(began).Seconds())
	return nil
}

var passed = regexp.MustCompile(`(?m)^(ok  |PASS$)`)

// ran matches the end of a test run, passed or failed. A failed build has another end.
var ran = regexp.MustCompile(`(?m)^(ok  |PASS$| *--- FAIL: )`)

var failure = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)

// test runs tests and returns the names of those that failed. A name with a slash runs a part of a test. The
// variables are for go test. The tests of the programs are built already.
func (t tree) test(
	ctx context.Context, folder string, names []string, variables ...string,
) (failed []string, out string, err error) {
	dir := t.source
	line := slices.Concat([]string{"env"}, variables, []string{"go", "test", "-vet=off", "-count=1", folder})
	if strings.HasPrefix(folder, programs) {
		dir = filepath.Join(t.source, folder)
		line = []string{"env", "BUILT_FOLDER=" + t.folder, t.tests(folder)}
	}
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

// programs begins the folders of the tests that run programs.
const programs = "./cmd/e2e/"

func (f fault) ofPrograms() bool { return strings.HasPrefix(f.folder, programs) }

// tests is the path of the built tests of a folder.
func (t tree) tests(folder string) string {
	return filepath.Join(t.folder, filepath.Base(folder)+".test")
}

func (t tree) prepare(ctx context.Context, chosen []fault) error {
	if _, err := testnode.Build(t.folder); err != nil {
		return err
	}
	built := map[string]bool{}
	for _, f := range chosen {
		if !f.ofPrograms() || built[f.folder] {
			continue
		}
		built[f.folder] = true
		if err := t.do(ctx, "go", "test", "-vet=off", "-c", "-o", t.tests(f.folder), f.folder); err != nil {
			return err
		}
	}
	return t.do(ctx, "env", "CGO_ENABLED=0", "go", "build", "-o", filepath.Join(t.folder, "hostile"), "./cmd/e2e/hostile/testdata/hostile")
}

// build builds all programs. Those that ranks run are static, and so is the guard.
func (t tree) build(ctx context.Context, options ...string) error {
	static := []string{"guard", "mpirun-wrap", "task-prolog"}
	some := func(cgo string, programs []string) error {
		output := filepath.Join(t.folder, "bin") + "/"
		line := append([]string{"env", "CGO_ENABLED=" + cgo, "go", "build", "-trimpath", "-o", output}, options...)
		for _, program := range programs {
			line = append(line, "./cmd/"+program)
		}
		return t.do(ctx, line...)
	}
	isStatic := func(program string) bool { return slices.Contains(static, program) }
	isNoFile := func(program string) bool { return isStatic(program) || testnode.Links[program] != "" }
	others := slices.DeleteFunc(slices.Clone(testnode.Programs), isNoFile)
	return errors.Join(some("0", static), some("1", others), testnode.Link(filepath.Join(t.folder, "bin")))
}

func (t tree) do(ctx context.Context, line ...string) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if out, err := command(ctx, t.source, line...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run %q: %w: %s", line, err, out)
	}
	return nil
}

// command is a program that leaves nothing: a test that is stopped has processes.
func command(ctx context.Context, dir string, line ...string) *exec.Cmd {
	cmd := hold.Command(ctx, line[0], line[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
	return cmd
}
