// SPDX-License-Identifier: Apache-2.0

// Command own shows mpirun-wrap --own on a simulated node without Slurm and without a prolog. A plain user copies one
// file, and starts four ranks by Open MPI. The command fails if a rank has no share, or if something is left afterwards.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const ranks = 4 // of the launch

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "own: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	user, err := lab.EnsureUser("hpc1", 2001)
	if err != nil {
		return err
	}
	built, err := testnode.Built()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/tmp", "own")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := testnode.New(filepath.Join(dir, "n"), built, "", node.H200)
	if err != nil {
		return err
	}
	s := show{dir: dir, home: filepath.Join(dir, "home"), node: n}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(s.home, 0o755), os.Chown(s.home, int(user.UID), int(user.GID))); err != nil {
		return err
	}
	return s.play(user)
}

// show is one run of this command.
type show struct {
	dir, home string
	node      testnode.Node
}

func (s show) play(user lab.User) error {
	fmt.Printf("No Slurm, no prolog, no admin. The GPU is a simulated H200.\nBefore: %s.\n\n", list(s.present()))
	program, err := os.ReadFile(filepath.Join(s.node.Bin, "mpirun-wrap"))
	if err == nil {
		err = node.WriteProgram(filepath.Join(s.home, "mpirun-wrap"), program)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(s.launch(ctx, user), s.gone(ctx), s.check())
}

// launch runs the ranks, and prints what runs while all of them compute.
func (s show) launch(ctx context.Context, user lab.User) error {
	line := []string{"-np", strconv.Itoa(ranks), "--oversubscribe", filepath.Join(s.home, "mpirun-wrap"), "--own", "--report", "--root", s.node.Root,
		s.node.Sim.Program("cuda-client"), "spin", "-ms", "5", "-for", "2"}
	fmt.Printf("%s$ ls\n  mpirun-wrap\n%[1]s$ mpirun -np %d ./mpirun-wrap --own --report cuda-client spin -ms 5 -for 2\n", user.Name, ranks)
	cmd := exec.CommandContext(ctx, "mpirun.openmpi", line...)
	cmd.Env = []string{"PATH=" + filepath.Dir(s.node.Sim.Program("x")) + ":/usr/bin:/bin", "LD_LIBRARY_PATH=" + s.node.Sim.Libraries(),
		"HOME=" + s.home}
	cmd.Dir, cmd.SysProcAttr = s.home, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.UID, Gid: user.GID}}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start ranks: %w", err)
	}
	placed, ready, done := 0, 0, 0
	for lines := bufio.NewScanner(output); lines.Scan(); {
		fmt.Println("  " + lines.Text())
		switch text := lines.Text(); {
		case strings.HasPrefix(text, "# rank "):
			placed++
		case strings.Contains(text, " done "):
			done++
		case strings.Contains(text, " ready "):
			if ready++; ready == ranks {
				fmt.Printf("\nDuring: %s.\n\n", list(s.present()))
			}
		}
	}
	if err := cmd.Wait(); err != nil || placed != ranks || ready != ranks || done != ranks {
		return fmt.Errorf("of %d ranks, %d were placed, %d computed and %d ended well: mpirun: %v", ranks, placed, ready, done, err)
	}
	return nil
}
