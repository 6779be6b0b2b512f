// SPDX-License-Identifier: Apache-2.0

// Command demo shows what slurm-mps does, in four acts, on a throw-away Slurm on this machine. With -play it opens a
// shell on that Slurm in place of the acts. Slurm and slurm-mps are real. The GPUs are simulated, also on a machine
// that has some.
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

// limit bounds the acts together. They take a quarter of a minute on an idle machine of two cores.
const limit = 2 * time.Minute

// folder begins the name of the machine's folder in /tmp. The pid of the demo follows it.
const folder = "slurm-mps-demo-"

func main() {
	playing := flag.Bool("play", false, "open a shell on the lab in place of the acts")
	only := flag.Int("act", 0, "show act `N` alone")
	flag.Parse()
	// A signal ends the acts or the shell, and then everything is cleaned up. More signals do not end that.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	// The reader of a pipe may be gone while there is still something to clean up.
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
		err = errSignal // what it has interrupted is no news
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

// use opens a shell on the machine, or shows the acts.
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

// build makes the programs and the simulation where they are not made yet, and returns their folder.
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
