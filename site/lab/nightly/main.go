// SPDX-License-Identifier: Apache-2.0

// Command nightly runs what is too long for a day: each part of `make nightly`, one after the other.
//
//	nightly [PART...]
//	nightly -again FILE...
//
// It prints a page with each part, its exit code, its time, and the tests that failed and passed when they ran again.
// The page and the parts' outputs are in .build/nightly. A night that was interrupted goes on at the same commit: parts
// that have passed do not run again. The exit code is 0 if each part's is. With -again, the command prints the tests
// that ran again from the files of events that gotestsum wrote; no file is an error.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/hold"
)

// part is a command of a night. NIGHTLY=1 is in its environment.
type part struct {
	name    string
	line    string // for sh, at the top of the source
	minutes int    // then it is killed
}

// parts are a night of at most six hours.
var parts = []part{
	{"check", "make check", 10},
	{"all tests, whole", "make test", 40},
	{"the race detector, units",
		"go test -race -timeout 14m ./policy/... ./prolog ./epilog ./mpirun-wrap/... ./site/guard/... ./site/lease", 15},
	{"packages", "make test-packages", 14},
	{"a release, twice, and walks with it, 22.05 and 24.11", "make test-release", 44},
	{"walk, 26.05", "make walk SUITE=forky", 12},
	{"tests with Slurm 24.11", "make test-slurm SUITE=trixie", 20},
	{"tests with Slurm 26.05", "make test-slurm SUITE=forky", 20},
	{"soak", "make soak-jobs SOAK_MINUTES=15", 22},
	{"soak of --own", "make soak-own OWN_STARTS=400", 14},
	{"fuzzers", "make fuzz FUZZTIME=20s", 12},
	{"sweep, with the race detector", "make sweep", 80},
}

// result is what became of a part at a commit. Code is 124 for a part that took too long, as timeout(1) has it. Again
// has the tests that ran again.
type result struct {
	Commit, Name, Line string
	Code               int
	Began              time.Time
	Took               time.Duration
	Again              []string
}

func main() {
	hold.Begin()
	files := flag.Bool("again", false, "print the tests that ran again")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *files {
		err = printAgain(os.Stdout, flag.Args())
	} else {
		err = night(ctx, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

// night runs the parts with these names, or all of them.
func night(ctx context.Context, names []string) error {
	chosen := slices.Clone(parts)
	if len(names) > 0 {
		chosen = slices.DeleteFunc(chosen, func(p part) bool { return !slices.Contains(names, p.name) })
	}
	if len(chosen) == 0 || len(names) > 0 && len(chosen) != len(names) {
		return fmt.Errorf("cannot find all of the parts %q", names)
	}
	folder, err := filepath.Abs(filepath.Join(".build", "nightly"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return fmt.Errorf("cannot read the commit: %w", err)
	}
	file := filepath.Join(folder, "results.jsonl")
	earlier, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	at := strings.TrimSpace(string(commit))
	passed, err := passedAt(at, earlier)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", file, err)
	}
	var results []result
	for _, p := range chosen {
		r, done := passed[p.name]
		if !done {
			if r, err = p.run(ctx, folder, at); err == nil {
				err = appendResult(file, r)
			}
			if err != nil {
				return err
			}
		}
		results = append(results, r)
		fmt.Fprintf(os.Stderr, "nightly: %s: %d after %s\n", p.name, r.Code, minutes(r.Took))
		if err := os.WriteFile(filepath.Join(folder, "page.md"), []byte(page(at, results)), 0o644); err != nil {
			return err
		}
	}
	fmt.Print(page(at, results))
	if failed := slices.ContainsFunc(results, func(r result) bool { return r.Code != 0 }); failed {
		return errors.New("not every part has passed")
	}
	return nil
}

// passedAt returns the last results of parts that have passed at a commit, by name. A tree with changes has none.
func passedAt(commit string, lines []byte) (map[string]result, error) {
	passed := map[string]result{}
	for line := range bytes.Lines(lines) {
		var r result
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		if r.Commit == commit && r.Code == 0 && !strings.HasSuffix(commit, "-dirty") {
			passed[r.Name] = r
		}
	}
	return passed, nil
}

func appendResult(path string, r result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// run runs a part with its output in a file. Nothing that the part has started lives on, also if the night is killed.
func (p part) run(ctx context.Context, folder, commit string) (result, error) {
	base := filepath.Join(folder, strings.Map(plain, p.name))
	log, err := os.Create(base + ".log")
	if err != nil {
		return result{}, err
	}
	defer log.Close()
	events := base + ".json" // of gotestsum, if the part uses it; it may use it several times
	if err := errors.Join(removeAll(events), removeAll(base+".*.json")); err != nil {
		return result{}, err
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(p.minutes)*time.Minute)
	defer cancel()
	cmd := hold.Command(limited, "sh", "-c", p.line)
	cmd.Env = append(os.Environ(), "NIGHTLY=1", "EVENTS="+events)
	cmd.Stdout, cmd.Stderr = log, log
	began := time.Now()
	err = cmd.Run()
	r := result{Commit: commit, Name: p.name, Line: p.line, Began: began.UTC(), Took: time.Since(began)}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r, ctx.Err()
	case limited.Err() != nil:
		r.Code = 124
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	case err != nil:
		return r, err
	}
	files, _ := filepath.Glob(base + ".*.json")
	if _, missing := os.Stat(events); missing == nil {
		files = append(files, events)
	}
	for _, file := range files {
		more, err := readAgain(file)
		if err != nil {
			return r, err
		}
		for _, a := range more {
			r.Again = append(r.Again, a.String())
		}
	}
	return r, nil
}

func removeAll(pattern string) (err error) {
	files, _ := filepath.Glob(pattern)
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// plain leaves what a file's name may have.
func plain(r rune) rune {
	if r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return '-'
}

func page(commit string, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Commit %s, %d processors, kernel %s.\n\n", commit, processors(), kernel())
	b.WriteString("| part | command | began (UTC) | exit code | minutes | ran again |\n|---|---|---|--:|--:|--:|\n")
	var total time.Duration
	for _, r := range results {
		total += r.Took
		fmt.Fprintf(&b, "| %s | `%s` | %s | %d | %s | %d |\n",
			r.Name, r.Line, r.Began.Format("2006-01-02 15:04"), r.Code, minutes(r.Took), len(r.Again))
	}
	fmt.Fprintf(&b, "| sum | | | | %s | |\n", minutes(total))
	for _, r := range results {
		for i, a := range r.Again {
			if i == 0 {
				fmt.Fprintf(&b, "\nFailed, and passed alone, in %q:\n\n", r.Name)
			}
			fmt.Fprintf(&b, "* %s\n", a)
		}
	}
	return b.String()
}

func minutes(d time.Duration) string { return fmt.Sprintf("%.1f", d.Minutes()) }
