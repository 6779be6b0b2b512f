// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/lab/hold"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// asCommand names the variable with which this test is the command.
const asCommand = "SITE_CHECK_TEST"

func TestMain(m *testing.M) {
	hold.Begin()
	if os.Getenv(asCommand) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// builtFolder has the programs, the simulation and the suite.
func builtFolder(t *testing.T) string {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("REQUIRE_LAB") != "":
		t.Fatal("prologs are root's: run as root")
	default:
		t.Skip("prologs are root's: run as root")
	}
	return must.Get(testnode.Built())(t)
}

// withSuite is a folder with what is built and a suite of two tests that print what the real one prints. The real one
// takes a minute, and make site-check has it.
func withSuite(t *testing.T, built string) string {
	t.Helper()
	folder := must.Get(os.MkdirTemp("/tmp", "kit"))(t)
	t.Cleanup(func() { os.RemoveAll(folder) })
	const suite = "#!/bin/sh\necho '--- PASS: TestOne (0.1s)'\necho '--- SKIP: TestTwo (0.1s)'\n" +
		`test "$CONFORMANCE_TARGET" = real && test -x "$CONFORMANCE_CLIENT" && test -x "$MPS_CONTROL"` + "\n"
	must.OK(t, errors.Join(os.Chmod(folder, 0o755), os.Symlink(filepath.Join(built, "bin"), filepath.Join(folder, "bin")),
		os.Symlink(filepath.Join(built, "sim"), filepath.Join(folder, "sim")),
		os.WriteFile(filepath.Join(folder, "conformance.test"), []byte(suite), 0o755)))
	return folder
}

func siteCheck(ctx context.Context, t *testing.T, built string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"-simulate"}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "BUILT_FOLDER="+built)
	return cmd
}

var row = regexp.MustCompile(`(?m)^\{.*\}$`)

// The short form on a simulated GPU: each part is made, the guard saves all neighbours, a plain daemon none, and the
// line is one of known.json.
func TestTheShortForm(t *testing.T) {
	built := withSuite(t, builtFolder(t))
	out, err := siteCheck(t.Context(), t, built, "-ends", "2").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"ok   conformance: 1 of 1 tests passed, 1 skipped", "ok   shares: 6 of 6 as asked",
		"ok   clients: 48 of 49 served, want 48", "ok   the guard's cost: ",
		"ok   ends with the guard: 2 of 2 without harm", "ok   ends without: 0 of 2 without harm",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	var line driver
	if err := json.Unmarshal(row.Find(out), &line); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if line.Driver != "580.159.04" || line.GPU != "NVIDIA H200" || line.Mode != "default" || line.Commit == "" {
		t.Errorf("%+v", line)
	}
}

// Trials on a simulated GPU: no end harms a neighbour with slurm-mps, and a plain daemon loses both. A second run has
// nothing left to try.
func TestTrials(t *testing.T) {
	built, results := builtFolder(t), t.TempDir()
	const some = "^(ends/(wrap/two-kernels/kill|wrap/spins/abort|child/client/step-kill|plain/one-kernel/exit1)/|" +
		"room/next-0/prolog|shared/cancelled-turns-0/|own/daemon/)"
	try := func() (string, error) {
		out, err := siteCheck(t.Context(), t, built, "-minutes", "4", "-trials", some, "-results", results).CombinedOutput()
		return string(out), err
	}
	out, err := try()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	all, err := readTrials(filepath.Join(results, "trials.jsonl"))
	if err != nil || len(all) != 13 {
		t.Fatalf("%d trials, want 13: %v\n%s", len(all), err, out)
	}
	for _, one := range all {
		if one.Method == bare && one.Cell == "wrap/two-kernels/kill" {
			must.Equal(t, fmt.Sprintf("without the guard: %+v", one), one.Alive, 0)
		} else if one.Method != bare && (!one.Valid || !one.Good || one.Alive != one.Neighbours) {
			t.Errorf("%+v", one)
		}
	}
	if out, err := try(); err == nil || !strings.Contains(out, "no trial is left") {
		t.Errorf("a second run: %v\n%s", err, out)
	}
}
