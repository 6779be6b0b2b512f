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
)

// ranks is the number of ranks that start at once. It is the maximum number of clients that MPS serves on a GPU.
const ranks = 48

// wrapping is the cost of the wrapper: the time from its start to the end of a static program that does nothing. It
// is compared with a static Go program that only executes that program. A round measures each way once, in turns.
type wrapping struct {
	// Alone is the time of one rank that runs alone: milliseconds by way, one value for each round.
	Alone map[string][]float64 `json:"alone_ms"`
	// Together and Slowest are from rounds with all ranks at once. Together is the time from the first start to the
	// last end. Slowest is the time of the slowest rank from its own start.
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

// wrappers measures the ways on a node with an open job.
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

// grow measures all of growth.
func grow(built string, trials int) (g growth, err error) {
	err = withJob(built, false, func(ctx context.Context, l lines) error {
		return g.ranksGrow(ctx, l.execs, l.wrap(l.idle), trials)
	})
	return g, err
}

// lines are the command lines that start ranks of an open job.
type lines struct {
	idle  string                        // the program that does nothing
	execs []string                      // only executes idle
	bash  []string                      // executes idle through the wrapper in bash, with the job's daemon
	wrap  func(args ...string) []string // executes args through the wrapper
}

// withJob opens a job on a node with one GPU, and calls measure there.
func withJob(built string, real bool, measure func(context.Context, lines) error) (err error) {
	b, err := newBench(built, real, set{GPUs: 1, Leases: 1, Scope: "job"})
	defer b.remove()
	if err != nil {
		return err
	}
	if err := programs(built, b.dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	job := b.job(7, 1)
	if _, err := b.timed(ctx, job, "prolog"); err != nil {
		return err
	}
	defer func() {
		_, closed := b.timed(ctx, job, "epilog")
		err = errors.Join(err, closed)
	}()
	daemons, err := b.daemonFolders(job.ID)
	if err == nil {
		err = peers.Install(b.dir, real)
	}
	if err != nil {
		return err
	}
	idle := filepath.Join(b.dir, "nothing")
	return measure(ctx, lines{
		idle:  idle,
		execs: []string{filepath.Join(b.dir, "execs"), idle},
		bash:  []string{filepath.Join(b.dir, "wrapper.sh"), daemons[0], b.control, idle},
		wrap: func(args ...string) []string {
			return append([]string{filepath.Join(b.dir, "mpirun-wrap"), "--root", b.node.Root}, args...)
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

// rank returns the command that srun runs for task i of n on a node, but without the shell that srun uses.
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

// together runs a line as n ranks at once. It returns the time of all ranks together and of each rank.
func together(ctx context.Context, line []string, n int) (wall float64, times []float64, err error) {
	times = make([]float64, n)
	began := time.Now()
	err = each(n, func(i int) error {
		cmd := rank(ctx, line, i, n)
		var output strings.Builder
		cmd.Stderr = &output
		began := time.Now()
		err := cmd.Run()
		times[i] = since(began)
		if err == nil && output.Len() > 0 {
			err = errors.New("the command printed to stderr")
		}
		if err != nil {
			return fmt.Errorf("cannot run %q: %w: %s", line, err, output.String())
		}
		return nil
	})
	return since(began), times, err
}

// programs copies the wrapper and the two programs of the comparison, all static, to a folder that the job's user can
// reach. On a machine without compilers, BUILT_FOLDER names the folder with the programs.
func programs(built, dir string) error {
	if os.Getenv("BUILT_FOLDER") == "" {
		if err := compile(filepath.Join(built, "bin")); err != nil {
			return err
		}
	}
	for _, name := range []string{"mpirun-wrap", "execs", "nothing"} {
		if err := copyProgram(filepath.Join(built, "bin", name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("cannot measure wrapper: %w", err)
		}
	}
	return nil
}

func copyProgram(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
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

// print prints the table. "even" is the time of all ranks one after the other, divided by the CPUs. If all ranks at
// once take much longer, they wait for each other.
func (w wrapping) print() {
	fmt.Printf("\nway      alone  ratio    even  %d at once  ratio  slowest  ratio   (medians in ms)\n", w.Ranks)
	for _, name := range []string{"execs", "wrapper", "bash"} {
		alone, wall, slowest := median(w.Alone[name]), median(w.Together[name]), median(w.Slowest[name])
		fmt.Printf("%-7s %6.2f %6.2f %7.1f %11.1f %6.2f %8.1f %6.2f\n", name, alone, alone/median(w.Alone["execs"]),
			alone*float64(w.Ranks)/float64(runtime.NumCPU()), wall, wall/median(w.Together["execs"]), slowest, slowest/median(w.Slowest["execs"]))
	}
}
