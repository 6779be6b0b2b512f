// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/wait"
)

var alone = act{
	title: "Without an admin: mpirun-wrap --own",
	before: "You see four ranks by Open MPI, outside of any Slurm job. No prolog and no daemon of root takes part: " +
		"mpirun-wrap starts MPS and the guard itself.",
	after: "It means: a site need not have installed slurm-mps. The daemon and the guard end with the last rank.",
	run:   showOwn,
}

const ownRanks = 4

func showOwn(ctx context.Context, s showing) error {
	without := s.withoutMPS()
	during := make(chan []string)
	watched, stop := context.WithCancel(ctx)
	go func() { during <- s.ownProcesses(watched) }()
	shown, err := s.must(ctx, s.user, fmt.Sprintf("./ranks %d mpirun-wrap --own --report ./app 2", ownRanks))
	stop()
	ran := <-during
	if err != nil {
		return err
	}
	if placed, done := strings.Count(shown, "# rank "), strings.Count(shown, " kernels\n"); placed != ownRanks || done != ownRanks {
		return fmt.Errorf("of %d ranks, %d were placed and %d ended well", ownRanks, placed, done)
	}
	for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "mpirun-wrap --own-keep"} {
		if !slices.Contains(ran, name) {
			return fmt.Errorf("beside the ranks ran %q, and no %s", ran, name)
		}
	}
	if s.withoutMPS() != without {
		return errors.New("a rank has computed without MPS")
	}
	s.text("\nBeside the ranks ran: " + strings.Join(ran, ", ") + ".")
	return s.ownGone(ctx)
}

// ownProcesses returns the most processes of --own that it has seen at one time before the context ends.
func (m *machine) ownProcesses(ctx context.Context) (most []string) {
	for wait.Sleep(ctx, 20*time.Millisecond) {
		if now := m.ownNow(); len(now) > len(most) {
			most = now
		}
	}
	return most
}

// ownNow names the machine's processes of MPS and the keepers of --own.
func (m *machine) ownNow() (names []string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		line, _ := os.ReadFile(path)
		environment, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		words := strings.Split(string(line), "\x00")
		name := filepath.Base(words[0])
		if len(words) > 1 && strings.HasPrefix(words[1], "--own-") {
			name += " " + words[1]
		} else if !strings.HasPrefix(name, "nvidia-cuda-mps-") {
			continue
		}
		if bytes.Contains(append(line, environment...), []byte(m.dir+"/")) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ownGone waits until no process and no folder of --own is left.
func (s showing) ownGone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for began := time.Now(); ; {
		folders, _ := filepath.Glob(filepath.Join(s.node.Root, "tmp/slurm-mps-*"))
		left := append(s.ownNow(), folders...)
		if len(left) == 0 {
			s.text(fmt.Sprintf("After %d ms: no daemon, no server, no keeper, no folder.", time.Since(began).Milliseconds()))
			return nil
		}
		if !wait.Sleep(ctx, 10*time.Millisecond) {
			return fmt.Errorf("left behind: %q", left)
		}
	}
}

// withoutMPS lists the pids that the simulated driver has served without MPS.
func (m *machine) withoutMPS() string {
	pids, _ := os.ReadFile(filepath.Join(m.node.Sim.Node.Dir, "without_mps"))
	return string(pids)
}
