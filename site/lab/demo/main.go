// SPDX-License-Identifier: Apache-2.0

// Command demo shows in five acts what slurm-mps does, on a temporary Slurm on this machine. With -play it opens a
// shell on that Slurm and shows no acts. Slurm and slurm-mps are real. The GPUs are always simulated, even if the
// machine has real GPUs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// limit bounds the time for all acts. They take about 20 seconds on an idle machine with two cores.
const limit = 2 * time.Minute

// folder is the start of the folder's name in /tmp. The pid of the demo follows. It is short, because mpirun-wrap --own
// has sockets below the folder, and a socket's path has at most 107 bytes.
const folder = "mps-"

func main() {
	playing := flag.Bool("play", false, "open a shell on the lab in place of the acts")
	only := flag.Int("act", 0, "show act `N` alone")
	flag.Parse()
	// A signal ends the acts or the shell, and then the clean-up runs. More signals do not end the clean-up.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	// The reader of a pipe may close the pipe before the clean-up ends.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := run(ctx, *playing, *only); err != nil {
		fmt.Fprintln(os.Stderr, shortUUIDs(fmt.Sprintf("demo: %v", err)))
		os.Exit(1)
	}
}

func run(ctx context.Context, playing bool, only int) error {
	if only < 0 || only > len(acts) {
		return fmt.Errorf("cannot show act %d: there are %d: give -act 1 to %d", only, len(acts), len(acts))
	}
	if os.Geteuid() != 0 {
		return errors.New("cannot start Slurm: you are not root: run this as root, a container is enough")
	}
	built, err := build()
	if ctx.Err() != nil {
		return errSignal
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/tmp", fmt.Sprintf("%s%d-", folder, os.Getpid()))
	if err != nil {
		return err
	}
	m, err := start(ctx, dir, built)
	if err == nil {
		err = use(ctx, m, playing, only)
	}
	if ctx.Err() != nil {
		err = errSignal // errors that the signal caused do not matter
	}
	if closed := m.close(); closed != nil {
		err = errors.Join(err, fmt.Errorf("cannot clean up: %w", closed))
	}
	if err == nil {
		newScreen(os.Stdout, os.Getenv).text(gone)
	}
	return err
}

var errSignal = errors.New("ended by a signal")

// use opens a shell on the machine if playing is true. Otherwise it
// shows the acts.
func use(ctx context.Context, m *machine, playing bool, only int) error {
	s := newScreen(os.Stdout, os.Getenv)
	if playing {
		return play(ctx, s, m)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return show(ctx, s, m, only)
}

const gone = "This Slurm and all its processes and files are gone. Only the account hpc1 stays."

// build builds the programs and the simulation if they are not built yet, and returns their folder.
func build() (string, error) {
	shared, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(shared, "sim", "content")); err != nil {
		fmt.Println("The programs are built first. This takes a minute or two, once.")
	}
	return testnode.Build(shared)
}
