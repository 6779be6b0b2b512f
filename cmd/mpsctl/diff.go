// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/words"
)

// diffLimit bounds a run of diff, which takes milliseconds for files of this size.
const diffLimit = 30 * time.Second

// unified returns the difference of a file and a text as diff -u prints it, "" if there is none. If diff cannot run, it
// returns the reason, because a difference that is not printed keeps no policy from its node.
func unified(old, newName, updated string) (text string) {
	ctx, cancel := context.WithTimeout(context.Background(), diffLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/diff", "-auN", "--label", old, "--label", newName, "--", old, "-")
	cmd.Stdin, cmd.Env = strings.NewReader(updated), []string{"LC_ALL=C"}
	printed, err := cmd.Output()
	if exit, ran := errors.AsType[*exec.ExitError](err); err != nil && (!ran || exit.ExitCode() != 1) {
		return fmt.Sprintf("cannot print the difference: %v\n", err)
	}
	for line := range strings.Lines(string(printed)) {
		text += words.Printable(strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")) + "\n"
	}
	return text
}
