// SPDX-License-Identifier: Apache-2.0

// Command bench measures the prolog and the epilog as whole processes, and compares them with their floor on the same
// machine, in turns. The floor is the time of NVML and of the control program.
//
// The command prints medians and writes every time as JSON. On a machine with a GPU it measures the GPU and leaves
// the compute modes unchanged. Otherwise it measures the simulation.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
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
	GPUs   int    `json:"gpus"`
	Leases int    `json:"leases"` // leases on the node, with the job's own
	Scope  string `json:"scope"`

	// The values are milliseconds, one for each trial. Type floor describes Floor and Quit.
	Floor  []float64 `json:"floor_ms"`
	Prolog []float64 `json:"prolog_ms"`
	Quit   []float64 `json:"quit_ms"`
	Epilog []float64 `json:"epilog_ms"`

	// Steps are the prolog's steps, as its log has them. They show which step is slower on another machine.
	Steps map[string][]float64 `json:"steps_ms"`

	// Outside is the time of the prolog that neither the control program nor NVML takes: the prolog without its steps
	// gpus, daemon and answer. The modes are set beside the daemon's start.
	Outside []float64 `json:"outside_ms"`
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
	pairs := flag.Int("pairs", 1000, "pairs of hooks of -only tail, alone and as many beside load")
	simulated := flag.Bool("simulated", false, "measure the simulation, also on a machine with a GPU")
	only := flag.String("only", "acts", "acts: prolog and epilog; "+
		"ends: the epilog of a job whose eight clients were killed; closes: the same with none, three and eight; "+
		"idle: context switches of an idle guard; "+
		"tail: the slowest of many hooks, with a line of -json for each pair (bench tails FILE... adds up such files)")
	flag.Parse()
	switch flag.Arg(0) {
	case "floor":
		floorMain()
		return
	case "load":
		loadMain()
	case "tails":
		exit(addUp(os.Stdout, flag.Args()[1:]))
	}
	exit(run(*trials, *pairs, *out, *only, testnode.RealGPUs() > 0 && !*simulated))
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
	Date   string  `json:"date"`
	Real   bool    `json:"real"`
	CPUs   int     `json:"cpus"`
	Trials int     `json:"trials"`
	Sets   []set   `json:"sets,omitempty"`
	Ends   []ended `json:"ends,omitempty"`
	Idle   idling  `json:"idle,omitempty"`
}

func run(trials, pairs int, out, only string, real bool) error {
	built, err := testnode.Built()
	if err != nil {
		return err
	}
	r := result{Date: time.Now().Format(time.DateOnly), Real: real, CPUs: runtime.NumCPU(), Trials: trials}
	switch only {
	case "tail":
		return tails(built, r.Real, pairs, out)
	case "closes", "ends":
		clients := []int{endClients}
		if only == "closes" {
			clients = []int{0, 3, endClients}
		}
		if r.Ends, err = ends(built, r.Real, trials, clients...); err != nil {
			return err
		}
		printEnds(r.Ends)
	case "idle":
		if r.Idle, err = idle(built, r.Real, trials); err != nil {
			return err
		}
		r.Idle.print()
	case "acts":
		if r.Sets, err = acts(built, r.Real, trials); err != nil {
			return err
		}
	default:
		return fmt.Errorf("cannot measure %q: give -only acts, ends, closes, idle or tail", only)
	}
	if out == "" {
		return nil
	}
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(content, '\n'), 0o644)
}

// acts measures prolog and epilog on every kind of node and job.
func acts(built string, real bool, trials int) ([]set, error) {
	sets := []set{
		{GPUs: 1, Leases: 1, Scope: "job"}, {GPUs: 2, Leases: 1, Scope: "job"},
		{GPUs: 4, Leases: 1, Scope: "job"}, {GPUs: 8, Leases: 1, Scope: "job"},
		{GPUs: 8, Leases: 1, Scope: "gpu"},
		{GPUs: 1, Leases: 8, Scope: "job"}, {GPUs: 1, Leases: 64, Scope: "job"}, {GPUs: 8, Leases: 64, Scope: "job"},
	}
	if real {
		sets = slices.DeleteFunc(sets, func(s set) bool { return s.GPUs > testnode.RealGPUs() || s.Leases == 8 })
	}
	fmt.Println("gpus leases scope   floor  prolog  ratio  outside     quit  epilog  ratio   (medians in ms)")
	for i := range sets {
		if err := measure(&sets[i], built, real, trials); err != nil {
			return nil, err
		}
		s := sets[i]
		outside := fmt.Sprintf("%.1f", median(s.Outside))
		if real {
			outside = "-" // only the simulation knows which calls take NVML's time
		}
		fmt.Printf("%4d %6d %5s %7.1f %7.1f %6.2f %8s  %7.1f %7.1f %6.2f\n", s.GPUs, s.Leases, s.Scope, median(s.Floor), median(s.Prolog),
			median(s.Prolog)/median(s.Floor), outside, median(s.Quit), median(s.Epilog), median(s.Epilog)/median(s.Quit))
	}
	return sets, nil
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

// bench is the node of one set.
type bench struct {
	node    testnode.Node
	conf    string
	control string
	floor   floor
	dir     string
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
		job := b.job(uint32(10_000+trial), s.GPUs)
		if err := b.trial(s, job); err != nil {
			return err
		}
	}
	return nil
}

// newBench makes a node in a folder of its own, which remove removes, also after an error.
func newBench(built string, real bool, s set, grant ...string) (b bench, err error) {
	dir, err := os.MkdirTemp("/tmp", "bench")
	if err != nil {
		return b, err
	}
	b = bench{dir: dir, conf: filepath.Join(dir, "slurm.conf")}
	if err := os.Chmod(dir, 0o755); err != nil {
		return b, err
	}
	grant = append(grant, fmt.Sprintf("scope = %q", s.Scope))
	if real {
		b.node, err = testnode.Real(dir, built, testnode.Default(append(grant, testnode.Unchanged)...))
	} else {
		b.node, err = testnode.New(dir, built, testnode.Default(grant...), slices.Repeat([]node.Model{node.H200}, s.GPUs)...)
	}
	if err != nil {
		return b, err
	}
	if b.floor, err = newFloor(b.node, dir, s); err != nil {
		return b, err
	}
	if err := b.runOnTmpfs(); err != nil {
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

func (b bench) shm() string { return filepath.Join("/dev/shm", filepath.Base(b.dir)) }

// runOnTmpfs makes /run of the root a tmpfs, as on a real node.
func (b bench) runOnTmpfs() error {
	if err := os.Mkdir(b.shm(), 0o755); err != nil {
		return err
	}
	return os.Symlink(b.shm(), filepath.Join(b.node.Root, "run"))
}

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
	start, quit, err := b.floor.measure(ctx, nil)
	if err != nil {
		return err
	}
	b.settle()
	if err := os.Remove(b.node.Paths().Log()); err != nil && len(s.Prolog) > 0 {
		return err
	}
	prolog, err := b.timed(ctx, job, "prolog")
	if err != nil {
		return err
	}
	steps, err := b.steps()
	if err != nil {
		return err
	}
	if s.Steps == nil {
		s.Steps = map[string][]float64{}
	}
	for step, took := range steps {
		s.Steps[step] = append(s.Steps[step], took)
	}
	inside := steps["daemon and guard"] + steps["answer"] + steps["gpus"]
	s.Outside = append(s.Outside, prolog-inside)
	if err := b.serverReady(ctx, job.ID); err != nil {
		return err
	}
	epilog, err := b.timed(ctx, job, "epilog")
	if err != nil {
		return err
	}
	s.Floor, s.Quit = append(s.Floor, start), append(s.Quit, quit)
	s.Prolog, s.Epilog = append(s.Prolog, prolog), append(s.Epilog, epilog)
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

// steps returns the milliseconds of each step, from the log of the last prolog.
func (b bench) steps() (map[string]float64, error) {
	content, err := os.ReadFile(b.node.Paths().Log())
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(content)) {
		var entry struct {
			Step string
			MS   float64
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			return nil, err
		}
		all[entry.Step] += entry.MS
	}
	return all, nil
}

func since(began time.Time) float64 { return float64(time.Since(began).Microseconds()) / 1000 }

// serverReady waits for the job's servers. get_server_list answers when they are ready.
func (b bench) serverReady(ctx context.Context, id uint32) error {
	folders, err := b.daemonFolders(id)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if _, err := b.floor.ask(ctx, folder, "get_server_list"); err != nil {
			return err
		}
	}
	return nil
}

// daemonFolders returns the folders that contain the pipe and log folders of the job's daemons.
func (b bench) daemonFolders(id uint32) ([]string, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	ticket, err := lease.OpenReadOnly(b.node.Paths().Run(), boot).ReadTicket(id)
	if err != nil {
		return nil, err
	}
	var folders []string
	for _, daemon := range ticket.Daemons {
		folders = append(folders, filepath.Dir(daemon.PipeDir))
	}
	return folders, nil
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

// onNode makes a node, and calls use there with a limit.
func onNode(built string, real bool, s set, limit time.Duration, use func(context.Context, bench) error) error {
	b, err := newBench(built, real, s)
	defer b.remove()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return use(ctx, b)
}
