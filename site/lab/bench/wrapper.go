// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/bench/peers"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// ranks is how many start at once: as many as MPS serves on a GPU.
const ranks = 48

// wrapping is what the wrapper costs: from its start to the end of a static program that does nothing, beside a
// static Go program that only becomes it. A round measures each way once, in turns.
type wrapping struct {
	// Milliseconds by way, an element a round.
	Alone map[string][]float64 `json:"alone_ms"` // one rank, nothing beside it
	// A round of all ranks at once: from the first's start to the last's end, and the slowest of them from its own
	// start.
	Together map[string][]float64 `json:"together_ms"`
	Slowest  map[string][]float64 `json:"slowest_ms"`

	Ranks int `json:"ranks"`
}

// way is a way to start a program.
type way struct {
	name string
	line []string
}

//go:embed nothing/nothing.c
var nothing string

// wrappers measures on a node with an open job.
func wrappers(built string, real bool, rounds int) (w wrapping, err error) {
	err = withJob(built, real, func(ctx context.Context, l lines) error {
		w, err = measureWays(ctx, []way{
			{"execs", l.execs},
			{"wrapper", l.wrap(l.idle)},
			{"bash", l.bash},
		}, rounds)
		return err
	})
	return w, err
}

// grow measures what grows.
func grow(built string, trials int) (g growth, err error) {
	err = withJob(built, false, func(ctx context.Context, l lines) error {
		return g.ranksGrow(ctx, l.execs, l.wrap(l.idle), trials)
	})
	if err != nil {
		return g, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return g, g.startsGrow(ctx, built, (trials+3)/4)
}

// lines are what ranks of an open job are started by.
type lines struct {
	idle  string                        // the program that does nothing
	execs []string                      // only becomes it
	bash  []string                      // the wrapper in bash before it, with the job's daemon
	wrap  func(args ...string) []string // the wrapper before anything
}

// withJob opens a job on a node of one GPU and measures there.
func withJob(built string, real bool, measure func(context.Context, lines) error) (err error) {
	dir, err := os.MkdirTemp("/tmp", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	defer os.RemoveAll(filepath.Join("/dev/shm", filepath.Base(dir)))
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	b, err := newBench(dir, built, real, set{GPUs: 1, Leases: 1, Scope: "job"})
	if err != nil {
		return err
	}
	if err := programs(built, dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	job := testnode.Job{ID: 7, UID: uid, GID: gid, GPUs: "0", Features: "mps", Conf: b.conf}
	if _, err := b.timed(ctx, job, "prolog"); err != nil {
		return err
	}
	defer func() {
		_, closed := b.timed(ctx, job, "epilog")
		err = errors.Join(err, closed)
	}()
	daemons, err := b.daemonFolders(job.ID)
	if err == nil {
		err = peers.Install(dir, real)
	}
	if err != nil {
		return err
	}
	idle := filepath.Join(dir, "nothing")
	return measure(ctx, lines{
		idle:  idle,
		execs: []string{filepath.Join(dir, "execs"), idle},
		bash:  []string{filepath.Join(dir, "wrapper.sh"), daemons[0], b.control, idle},
		wrap: func(args ...string) []string {
			return append([]string{filepath.Join(dir, "mpirun-wrap"), "--root", b.stage.Root}, args...)
		},
	})
}

func measureWays(ctx context.Context, ways []way, rounds int) (wrapping, error) {
	w := wrapping{Alone: map[string][]float64{}, Together: map[string][]float64{}, Slowest: map[string][]float64{}, Ranks: ranks}
	for round := range rounds * 10 {
		for i := range ways {
			way := ways[(round+i)%len(ways)]
			_, each, err := together(ctx, way.line, 1)
			if err != nil {
				return w, err
			}
			w.Alone[way.name] = append(w.Alone[way.name], each[0])
		}
	}
	for round := range rounds {
		for i := range ways {
			way := ways[(round+i)%len(ways)]
			wall, each, err := together(ctx, way.line, ranks)
			if err != nil {
				return w, err
			}
			w.Together[way.name] = append(w.Together[way.name], wall)
			w.Slowest[way.name] = append(w.Slowest[way.name], slices.Max(each))
		}
	}
	return w, nil
}

// rank is a command as srun starts one of n tasks of the job on a node, but for the shell between.
func rank(ctx context.Context, line []string, i, n int) *exec.Cmd {
	ids := "0"
	for id := 1; id < n; id++ {
		ids += "," + strconv.Itoa(id)
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_LOCALID=" + strconv.Itoa(i), "SLURM_GTIDS=" + ids,
		"SLURM_STEP_GPUS=0", "SLURM_GPUS_ON_NODE=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{gid}}}
	return cmd
}

// together runs a line as n ranks at once, and says how long all took and each.
func together(ctx context.Context, line []string, n int) (wall float64, times []float64, err error) {
	times = make([]float64, n)
	began := time.Now()
	err = each(n, func(i int) error {
		cmd := rank(ctx, line, i, n)
		var said strings.Builder
		cmd.Stderr = &said
		began := time.Now()
		err := cmd.Run()
		times[i] = since(began)
		if err == nil && said.Len() > 0 {
			err = errors.New("it has something to say")
		}
		if err != nil {
			return fmt.Errorf("cannot run %q: %w: %s", line, err, said.String())
		}
		return nil
	})
	return since(began), times, err
}

// programs puts the wrapper and the two that stand beside it, all static, where the job's user can reach them. On a
// machine without compilers they lie where SLURM_MPS_BUILT says.
func programs(built, dir string) error {
	if os.Getenv("SLURM_MPS_BUILT") == "" {
		if err := compile(filepath.Join(built, "bin")); err != nil {
			return err
		}
	}
	for _, name := range []string{"mpirun-wrap", "execs", "nothing"} {
		content, err := os.ReadFile(filepath.Join(built, "bin", name))
		if err != nil {
			return fmt.Errorf("cannot measure wrapper: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			return fmt.Errorf("cannot measure wrapper: %w", err)
		}
	}
	return nil
}

func compile(bin string) error {
	execs := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(bin, "execs"), "github.com/slurm-mps/slurm-mps/site/lab/bench/execs")
	execs.Env = append(os.Environ(), "CGO_ENABLED=0")
	idle := exec.Command("gcc", "-O2", "-static", "-x", "c", "-o", filepath.Join(bin, "nothing"), "-")
	idle.Stdin = strings.NewReader(nothing)
	for _, cmd := range []*exec.Cmd{execs, idle} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot build %q: %w: %s", cmd.Args, err, out)
		}
	}
	return nil
}

// print writes the table. "even" is what so many take one after the other, divided among the CPUs: where all of them at
// once take much longer, they wait for one another.
func (w wrapping) print() {
	fmt.Printf("\nway      alone  ratio    even  %d at once  ratio  slowest  ratio   (medians in ms)\n", w.Ranks)
	for _, name := range []string{"execs", "wrapper", "bash"} {
		alone, wall, slowest := median(w.Alone[name]), median(w.Together[name]), median(w.Slowest[name])
		fmt.Printf("%-7s %6.2f %6.2f %7.1f %11.1f %6.2f %8.1f %6.2f\n", name, alone, alone/median(w.Alone["execs"]),
			alone*float64(w.Ranks)/float64(runtime.NumCPU()), wall, wall/median(w.Together["execs"]), slowest, slowest/median(w.Slowest["execs"]))
	}
}
