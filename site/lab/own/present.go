// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// present names the user's folders of --own, and all processes of the node.
func (s show) present() (found []string) {
	made, _ := filepath.Glob(filepath.Join(s.node.Root, "tmp/slurm-mps-*"))
	for _, folder := range made {
		found = append(found, "the folder "+filepath.Base(folder))
	}
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		line, _ := os.ReadFile(folder + "/cmdline")
		environment, _ := os.ReadFile(folder + "/environ")
		pid, _ := strconv.Atoi(filepath.Base(folder))
		stat, err := proc.ReadStat(pid)
		if err != nil || !stat.Running() || !strings.Contains(string(line)+string(environment), s.dir+"/") {
			continue
		}
		words := strings.Split(string(line), "\x00")
		name := filepath.Base(words[0])
		if len(words) > 1 && strings.HasPrefix(words[1], "--own-") {
			name += " " + words[1]
		}
		found = append(found, name)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// gone waits until nothing is left.
func (s show) gone(ctx context.Context) error {
	began := time.Now()
	for left := s.present(); len(left) > 0; left = s.present() {
		if !wait.Sleep(ctx, 10*time.Millisecond) {
			return fmt.Errorf("left behind: %q", left)
		}
	}
	fmt.Printf("\nAfter %d ms: %s.\n", time.Since(began).Milliseconds(), list(nil))
	return nil
}

// list is a list in a sentence.
func list(found []string) string {
	if len(found) == 0 {
		return "no daemon, no server, no keeper, no folder"
	}
	return strings.Join(found, ", ")
}

// check checks that no rank has computed without MPS.
func (s show) check() error {
	pids, err := os.ReadFile(filepath.Join(s.node.Sim.Node.Dir, "without_mps"))
	if len(pids) > 0 {
		return fmt.Errorf("these have computed without MPS: %s", pids)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
