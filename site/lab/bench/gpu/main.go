// SPDX-License-Identifier: Apache-2.0

// Command gpu measures what ranks get of a GPU that they share. It measures the throughput of real programs under
// every rule and under time-slicing. It also measures the cost of the production binaries and of NVIDIA's MPS.
//
// The command writes each result to a file before it measures the next one. It does not measure results again that
// are in the file, so a stopped run can continue later. It never changes a compute mode, MIG or a clock.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const (
	uid      = 2001
	userName = "hpc1"
)

// settings are the values of the flags.
type settings struct {
	results string
	minutes float64
	only    string
	ranks   string // the program ranks
	library string // kernels.so
	python  string
	windows int
	window  float64
	warm    float64
	trials  int
	gpus    int
	without string
}

func main() {
	var s settings
	flag.StringVar(&s.results, "results", "throughput.jsonl", "file of the results; an existing file is continued")
	flag.Float64Var(&s.minutes, "minutes", 8, "time limit in minutes; a cell that needs more time does not start")
	flag.StringVar(&s.only, "only", "", "parts, comma separated: first-call, sweep, first-kernel, throughput, tune; all without it")
	flag.StringVar(&s.ranks, "ranks", "", "the program made of ranks/ranks.c")
	flag.StringVar(&s.library, "library", "", "the library made of ranks/kernels.cu")
	flag.StringVar(&s.python, "python", "", "a python3 with PyTorch; without it the torch cells are skipped")
	flag.IntVar(&s.windows, "windows", 3, "measurement windows for each program")
	flag.Float64Var(&s.window, "window", 0.25, "seconds of a window")
	flag.Float64Var(&s.warm, "warm", 0.2, "seconds before the first window")
	flag.IntVar(&s.trials, "trials", 15, "trials of each short measurement")
	flag.IntVar(&s.gpus, "gpus", 0, "GPUs that are measured at the same time; 0 means all real GPUs, or one simulated GPU")
	flag.StringVar(&s.without, "without", "", "programs to skip, comma separated")
	flag.Parse()
	if err := run(s); err != nil {
		fmt.Fprintf(os.Stderr, "gpu: %v\n", err)
		os.Exit(1)
	}
}

//go:embed ranks/ranks.py
var torchRanks string

func run(s settings) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration((s.minutes+2)*float64(time.Minute)))
	defer cancel()
	dir, err := os.MkdirTemp("/tmp", "gpub")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	b, err := newBench(ctx, s, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	parts := []struct {
		name string
		do   func(context.Context) error
	}{{"first-call", b.firstCalls}, {"sweep", b.sweep}, {"first-kernel", b.firstKernels}, {"throughput", b.throughput}, {"tune", b.tune}}
	for _, part := range parts {
		if s.only == "" || slices.Contains(strings.Split(s.only, ","), part.name) {
			if err := part.do(ctx); err != nil {
				return err
			}
		}
	}
	return b.summary()
}

// bench is one run.
type bench struct {
	settings
	dir, built string
	until      time.Time
	gpu        policy.GPU
	lanes      []*lane
	real       bool
	control    string   // the control program
	libraries  []string // the folders in which the ranks find CUDA
	outside    *lab.Cluster
	user       lab.User

	mutex  sync.Mutex // guards the fields below, because the lanes share them
	lines  []record.Line
	hooked map[string]*lab.Cluster // by the name of their hooks
	nodes  map[string]testnode.Node
	jobs   uint32
	failed int
}

func newBench(ctx context.Context, s settings, dir string) (*bench, error) {
	b := &bench{settings: s, dir: dir, until: time.Now().Add(time.Duration(s.minutes * float64(time.Minute))), gpu: policy.GPU{SMs: 132, SMsPerTPC: 2},
		nodes: map[string]testnode.Node{}, hooked: map[string]*lab.Cluster{}, real: testnode.RealGPUs() > 0, control: testnode.RealControl}
	var err error
	if b.built, err = testnode.Built(); err != nil {
		return nil, err
	}
	if b.lines, err = record.Read(s.results); err != nil {
		return nil, err
	}
	if b.user, err = lab.EnsureUser(userName, uid); err != nil {
		return nil, err
	}
	if b.real {
		b.libraries = []string{"/usr/local/nvidia/lib64", "/usr/local/cuda/lib64", os.Getenv("LD_LIBRARY_PATH")}
	} else if err := b.simulate(); err != nil {
		return nil, err
	}
	if err := b.openLanes(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "ranks.py"), []byte(torchRanks), 0o644); err != nil {
		return nil, err
	}
	// This cluster has no hooks and no GPUs. Its environment starts MPI programs, also from a bundle.
	if b.outside, err = b.startLab(ctx, "outside", lab.Options{}); err != nil {
		return nil, err
	}
	return b, b.note(record.Line{Machine: b.machine()})
}

// simulate makes one simulated node. All test nodes of the run share it.
func (b *bench) simulate() error {
	made, err := testnode.New(filepath.Join(b.dir, "sim"), b.built, "", slices.Repeat([]node.Model{node.H200}, max(1, b.gpus))...)
	if err != nil {
		return err
	}
	b.control, b.libraries = made.Sim.Program("nvidia-cuda-mps-control"), []string{made.Sim.Libraries()}
	b.nodes["simulated"] = made
	return nil
}

func (b *bench) machine() *record.Machine {
	m := record.Machine{GPU: "simulated", CPUs: len(b.lanes[0].cpus), GPUs: len(b.lanes), Date: time.Now().Format(time.DateOnly), Real: b.real}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	if !b.real {
		return &m
	}
	printed, err := exec.Command("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
	first, _, _ := strings.Cut(string(printed), "\n") // all GPUs are alike
	if name, driver, ok := strings.Cut(first, ", "); err == nil && ok {
		m.GPU, m.Driver = name, driver
	}
	return &m
}

// note adds lines to the file.
func (b *bench) note(lines ...record.Line) error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.lines = append(b.lines, lines...)
	return record.Write(b.results, b.lines)
}

// maxTries is the maximum number of tries for a failing cell.
const maxTries = 2

// done reports whether a cell needs no more tries.
func (b *bench) done(key string) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	tries := 0
	for _, line := range b.lines {
		if line.Key == key && line.Failed == "" {
			return true
		}
		if line.Key == key {
			tries++
		}
	}
	return tries >= maxTries
}

// left reports whether at least this many seconds are left.
func (b *bench) left(seconds float64) bool {
	return time.Until(b.until) >= time.Duration(seconds*float64(time.Second))
}

// attempt measures a cell if the cell is not in the file and there is enough time. If the measurement fails, attempt
// records the failure in the file.
func (b *bench) attempt(ctx context.Context, key string, seconds float64, measure func(context.Context) ([]record.Line, error)) error {
	if b.done(key) || !b.left(seconds) {
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, time.Duration((3*seconds+20)*float64(time.Second)))
	defer cancel()
	began := time.Now()
	lines, err := measure(bound)
	if err != nil {
		b.mutex.Lock()
		b.failed++
		b.mutex.Unlock()
		text := err.Error()
		fmt.Printf("%-34s FAILED: %s\n", key, text)
		return b.note(record.Line{Key: key, Failed: text[:min(len(text), 2000)]})
	}
	for i := range lines {
		lines[i].Key = key
	}
	fmt.Printf("%-34s %5.1f s %s\n", key, time.Since(began).Seconds(), brief(lines))
	return b.note(lines...)
}

// brief returns a cell's results in one line.
func brief(lines []record.Line) string {
	var words []string
	for _, line := range lines {
		if t := line.Throughput; t != nil {
			words = append(words, fmt.Sprintf("%s %.0f (%.0f)", t.Program, record.Median(t.Totals()), record.Median(t.Slowest())))
		}
		if t := line.Tune; t != nil {
			words = append(words, fmt.Sprintf("use %s: %s", t.Report.Use, t.Report.Why))
		}
		if t := line.Times; t != nil {
			words = append(words, fmt.Sprintf("%s %.1f ms", t.Way, record.Median(t.MS)))
		}
	}
	return strings.Join(words, ", ")
}

// throughput measures all batches of the plan. Each GPU measures one batch at a time.
func (b *bench) throughput(ctx context.Context) error {
	return sideBySide(b, b.planned(), func(l *lane, batch batch) error {
		for _, c := range batch.cells(b.gpu) {
			c.programs = b.wanted(c.programs)
			if err := b.attempt(ctx, c.key(), c.seconds(), func(ctx context.Context) ([]record.Line, error) { return l.measure(ctx, c) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// planned returns the batches that this machine can run.
func (b *bench) planned() []batch {
	return slices.DeleteFunc(slices.Clone(batches), func(batch batch) bool { return batch.kind == "torch" && b.python == "" })
}

// wanted returns a list of programs without the programs to skip.
func (b *bench) wanted(programs string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(programs, ","), func(p string) bool {
		return slices.Contains(strings.Split(b.without, ","), p)
	}), ",")
}

// summary prints how many cells are in the file. It returns an error if a cell failed in this run.
func (b *bench) summary() error {
	cells, missing := 0, 0
	for _, batch := range b.planned() {
		for _, c := range batch.cells(b.gpu) {
			cells++
			if !b.done(c.key()) {
				missing++
			}
		}
	}
	fmt.Printf("%d of %d cells of throughput are in the file\n", cells-missing, cells)
	if b.failed > 0 {
		return fmt.Errorf("%d cells failed: see %s", b.failed, b.results)
	}
	return nil
}

// close stops the clusters and checks that no process or file of ours is left.
func (b *bench) close() error {
	var err error
	if b.outside != nil {
		err = b.outside.Stop()
	}
	for _, c := range b.hooked {
		err = errors.Join(err, c.Stop())
	}
	for name, s := range b.nodes {
		left, e := s.Left()
		err = errors.Join(err, e)
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left behind by %s: %q", name, left))
		}
	}
	return err
}
