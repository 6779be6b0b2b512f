// SPDX-License-Identifier: Apache-2.0

// Command bench measures the prolog and the epilog as whole processes, and compares them with their floor on the same
// machine, in turns. The floor is the time of NVML and of the control program. Some jobs have clients, which are killed
// directly before the epilog, as Slurm kills the processes of a cancelled job.
//
// The command prints medians and writes every time as JSON. On a machine with a GPU it measures the GPU and leaves
// the compute modes unchanged. Otherwise it measures the simulation, in which a file of a client closes in no time.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab/hold"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

const uid, gid = 2001, 2001

// set is one line of the table: a shape of node and job.
type set struct {
	GPUs    int    `json:"gpus"`
	Leases  int    `json:"leases"` // leases on the node, with the job's own
	Clients int    `json:"clients"`
	Scope   string `json:"scope"`

	// The values are milliseconds, one for each trial. Type floor describes Floor and Quit. The kills are the time from
	// the kill of the clients to their ends. With a guard, a client ends at once, and the guard closes its files. So a
	// comparison needs the sum with Quit or Epilog.
	Floor    []float64 `json:"floor_ms"`
	Prolog   []float64 `json:"prolog_ms"`
	BareKill []float64 `json:"bare_kill_ms"`
	Quit     []float64 `json:"quit_ms"`
	Kill     []float64 `json:"kill_ms"`
	Epilog   []float64 `json:"epilog_ms"`
}

// heldOf names the variable that a bench below a holder has.
const heldOf = "BENCH_IS_HELD"

// held runs this command again below a holder, so that no daemon and no guard outlives it.
func held() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := hold.Command(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), heldOf+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

func main() {
	hold.Begin()
	if os.Getenv(heldOf) == "" {
		exit(held())
	}
	trials := flag.Int("trials", 20, "trials of each line")
	out := flag.String("json", "", "file for every single time")
	pairs := flag.Int("pairs", 0, "measure the slowest of so many pairs of hooks, alone and beside load; -json gets a line for each pair")
	simulated := flag.Bool("simulated", false, "measure the simulation, also on a machine with a GPU")
	flag.Parse()
	switch flag.Arg(0) {
	case "floor":
		floorMain()
		return
	case "load":
		loadMain()
	}
	exit(run(*trials, *pairs, *out, testnode.RealGPUs() > 0 && !*simulated))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// result is the content of the JSON file.
type result struct {
	Date   string `json:"date"`
	Real   bool   `json:"real"`
	CPUs   int    `json:"cpus"`
	Trials int    `json:"trials"`
	Sets   []set  `json:"sets"`
}

func run(trials, pairs int, out string, real bool) error {
	built, err := testnode.Built()
	if err != nil {
		return err
	}
	if pairs > 0 {
		return tails(built, real, pairs, out)
	}
	r := result{Date: time.Now().Format(time.DateOnly), Real: real, CPUs: runtime.NumCPU(), Trials: trials}
	if r.Sets, err = measureAll(built, real, trials); err != nil || out == "" {
		return err
	}
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(content, '\n'), 0o644)
}

// measureAll measures prolog and epilog on every kind of node and job.
func measureAll(built string, real bool, trials int) ([]set, error) {
	sets := []set{
		{GPUs: 1, Leases: 1, Scope: "job"}, {GPUs: 2, Leases: 1, Scope: "job"},
		{GPUs: 4, Leases: 1, Scope: "job"}, {GPUs: 8, Leases: 1, Scope: "job"},
		{GPUs: 8, Leases: 1, Scope: "gpu"},
		{GPUs: 1, Leases: 8, Scope: "job"}, {GPUs: 1, Leases: 64, Scope: "job"}, {GPUs: 8, Leases: 64, Scope: "job"},
		{GPUs: 1, Leases: 1, Clients: 3, Scope: "job"}, {GPUs: 1, Leases: 1, Clients: 8, Scope: "job"}, {GPUs: 2, Leases: 1, Clients: 8, Scope: "job"},
	}
	if real {
		sets = slices.DeleteFunc(sets, func(s set) bool { return s.GPUs > testnode.RealGPUs() || s.Leases == 8 })
	}
	fmt.Println("                                start        |    end without us         with us")
	fmt.Println("gpus leases clients scope    floor  prolog ratio |    kill    quit     kill  epilog  ratio   (medians in ms)")
	for i := range sets {
		if err := measure(&sets[i], built, real, trials); err != nil {
			return nil, err
		}
		sets[i].print()
	}
	return sets, nil
}

func (s set) print() {
	floor, prolog := median(s.Floor), median(s.Prolog)
	bareKill, quit, kill, epilog := median(s.BareKill), median(s.Quit), median(s.Kill), median(s.Epilog)
	fmt.Printf("%4d %6d %7d %5s  %7.1f %7.1f %5.2f | %7.1f %7.1f  %7.1f %7.1f  %5.2f\n", s.GPUs, s.Leases, s.Clients, s.Scope,
		floor, prolog, prolog/floor, bareKill, quit, kill, epilog, (kill+epilog)/(bareKill+quit))
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

// bench is the node of one set.
type bench struct {
	node  testnode.Node
	conf  string
	floor floor
	dir   string
}

func measure(s *set, built string, real bool, trials int) error {
	b, err := newBench(built, real, *s)
	defer b.remove()
	if err != nil {
		return err
	}
	if err := b.others(s.Leases - 1); err != nil {
		return err
	}
	for trial := range trials {
		if err := b.trial(s, b.job(uint32(10_000+trial), s.GPUs)); err != nil {
			return err
		}
	}
	return nil
}

// newBench makes a node in a folder of its own, which remove removes, also after an error.
func newBench(built string, real bool, s set) (b bench, err error) {
	dir, err := os.MkdirTemp("/tmp", "bench")
	if err != nil {
		return b, err
	}
	b = bench{dir: dir, conf: filepath.Join(dir, "slurm.conf")}
	if err := os.Chmod(dir, 0o755); err != nil {
		return b, err
	}
	scope := fmt.Sprintf("scope = %q", s.Scope)
	if real {
		b.node, err = testnode.Real(dir, built, testnode.Default(scope, testnode.Unchanged))
	} else {
		b.node, err = testnode.New(dir, built, testnode.Default(scope), slices.Repeat([]node.Model{node.H200}, s.GPUs)...)
	}
	if err != nil {
		return b, err
	}
	if b.floor, err = newFloor(b.node, dir, s); err != nil {
		return b, err
	}
	if err := errors.Join(os.Mkdir(b.shm(), 0o755), os.Symlink(b.shm(), filepath.Join(b.node.Root, "run"))); err != nil {
		return b, err
	}
	if err := os.WriteFile(b.conf, []byte(fmt.Sprintf("NodeName=n1 Gres=gpu:%d\n", s.GPUs)), 0o644); err != nil {
		return b, err
	}
	return b, os.WriteFile(filepath.Join(dir, "gres.conf"), []byte(b.node.GresConf(s.GPUs)), 0o644)
}

func (b bench) remove() {
	if b.dir != "" {
		_ = os.RemoveAll(b.shm())
		_ = os.RemoveAll(b.dir)
	}
}

// shm is /run of the root, which is a tmpfs as on a real node.
func (b bench) shm() string { return filepath.Join("/dev/shm", filepath.Base(b.dir)) }

// others adds leases of other jobs to the node.
func (b bench) others(n int) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	journal, err := lease.Open(b.node.Paths().Run(), boot)
	if err != nil {
		return err
	}
	for i := range n {
		l := lease.Lease{Job: lease.Job{ID: uint32(100 + i), UID: uid, GID: gid}, Phase: lease.Opened,
			GPUs: []lease.LeasedGPU{{UUID: site.UUID(fmt.Sprintf("GPU-0000-%04d", i))}}}
		if err := journal.Create(context.Background(), l); err != nil {
			return err
		}
	}
	return nil
}

// trial measures the floor and our hooks once each, one after the other.
func (b bench) trial(s *set, job testnode.Job) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b.settle()
	start, bareKill, quit, err := b.floor.measure(ctx, func() (clients, error) { return b.bareClients(ctx, s.GPUs, s.Clients) })
	if err != nil {
		return err
	}
	b.settle()
	prolog, err := b.timed(ctx, job, "prolog")
	if err != nil {
		return err
	}
	if err := b.serverReady(ctx, job.ID); err != nil {
		return err
	}
	ranks, err := b.heldClients(ctx, job.ID, s.GPUs, s.Clients)
	if err != nil {
		return err
	}
	kill := ranks.kill()
	epilog, err := b.timed(ctx, job, "epilog")
	if err != nil {
		return err
	}
	s.Floor, s.BareKill, s.Quit = append(s.Floor, start), append(s.BareKill, bareKill), append(s.Quit, quit)
	s.Prolog, s.Kill, s.Epilog = append(s.Prolog, prolog), append(s.Kill, kill), append(s.Epilog, epilog)
	return nil
}

// job is a job with the node's first GPUs that asks for MPS.
func (b bench) job(id uint32, gpus int) testnode.Job {
	return testnode.Job{ID: id, UID: uid, GID: gid, GPUs: positions(gpus), Features: "mps", Conf: b.conf}
}

// positions are Slurm's numbers of a job's GPUs.
func positions(gpus int) string {
	list := "0"
	for i := 1; i < gpus; i++ {
		list += fmt.Sprintf(",%d", i)
	}
	return list
}

// atRest is the time without calls to the driver before a measured start. A driver may still clean up after a server
// has ended. Without the pause, only our start would come directly after such an end.
const atRest = 300 * time.Millisecond

func (b bench) settle() {
	if b.node.Sim == nil {
		time.Sleep(atRest)
	}
}

func (b bench) timed(ctx context.Context, job testnode.Job, program string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	result, err := b.node.Run(ctx, job.Environment(program+"_slurmd"), program)
	if err == nil && result.Code != 0 {
		err = fmt.Errorf("%s ends with %d: %s", program, result.Code, result.Output)
	}
	return since(began), err
}

func since(began time.Time) float64 { return float64(time.Since(began).Microseconds()) / 1000 }

// serverReady waits for the job's servers. get_server_list answers when they are ready.
func (b bench) serverReady(ctx context.Context, id uint32) error {
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	ticket, err := lease.OpenReadOnly(b.node.Paths().Run(), boot).ReadTicket(id)
	if err != nil {
		return err
	}
	for _, daemon := range ticket.Daemons {
		if _, err := b.floor.ask(ctx, filepath.Dir(daemon.PipeDir), "get_server_list"); err != nil {
			return err
		}
	}
	return nil
}

// each runs do for 0 to n-1 at the same time, and returns the first error.
func each(n int, do func(int) error) error {
	results := make(chan error, n)
	for i := range n {
		go func() { results <- do(i) }()
	}
	var failed error
	for range n {
		if err := <-results; failed == nil {
			failed = err
		}
	}
	return failed
}
