// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// terminalRows is the height of a small terminal. One row is for the prompt.
const terminalRows = 24

// TestTheTextsFit checks that the welcome, and the card alone, each fit a terminal of 80 columns and 24 rows.
func TestTheTextsFit(t *testing.T) {
	var shown bytes.Buffer
	screen{out: &shown}.text(welcome("/tmp/mps-1234567-1234567890/bin/admin", "nano, vim, emacs"))
	for name, text := range map[string]string{"welcome": shown.String(), "card": cardText()} {
		if rows := strings.Count(text, "\n"); rows == 0 || rows >= terminalRows {
			t.Errorf("the %s has %d rows, want less than %d:\n%s", name, rows, terminalRows, text)
		}
		for line := range strings.Lines(text) {
			if n := cells(strings.TrimRight(line, "\n")); n > columns {
				t.Errorf("the %s has a line of %d columns: %s", name, n, line)
			}
		}
	}
	if !strings.Contains(shown.String(), card[0].line) || !strings.Contains(shown.String(), "no gain in speed") {
		t.Errorf("the welcome lacks the first thing to try, or that there is no gain in speed:\n%s", shown.String())
	}
}

// TestKilledWithoutSrun checks that the program of the card ends with a sentence, because no other rank would come.
func TestKilledWithoutSrun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	program := exec.CommandContext(ctx, "bash", "-c", programs["killed"])
	program.Dir, program.WaitDelay = t.TempDir(), time.Second
	program.Env = []string{"PATH=" + os.Getenv("PATH"), "SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_PROCID=0"} // as in a batch script
	out, _ := program.CombinedOutput()
	if code := program.ProcessState.ExitCode(); code != 2 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "srun has not started it") {
		t.Errorf("code %d, want 2 and a sentence about srun:\n%s", code, out)
	}
}

func TestEditors(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if got := editors(); !strings.Contains(got, "none") {
		t.Errorf("without an editor: %q", got)
	}
	for _, name := range []string{"vim", "nano"} {
		if err := os.WriteFile(filepath.Join(os.Getenv("PATH"), name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := editors(); got != "nano, vim" {
		t.Errorf("with two editors: %q", got)
	}
}
