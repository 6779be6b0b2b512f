// SPDX-License-Identifier: Apache-2.0

// Command job shows a job's life on a node. It runs a real Slurm on this machine, with the production binaries as its
// hooks. The job is an MPI program whose ranks share GPUs. Afterwards the command checks that the node is as before.
//
// If the machine has GPUs, the job uses them. Their modes stay unchanged unless ALLOW_MODE_CHANGES=1 is set. If the
// machine has no GPU, the job uses simulated H200s.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

const (
	uid      = 2001
	userName = "hpc1"
	deadline = 50 * time.Second
)

// launchers maps the name of each launcher to its command line.
var launchers = map[string]string{"srun": "srun --mpi=pmix -n%d", "mpirun": "mpirun.openmpi -np %d"}

func main() {
	ranks := flag.Int("ranks", 8, "ranks of the job")
	launcher := flag.String("launcher", "srun", "srun or mpirun")
	showPS := flag.Bool("ps", false, "print the control program's own list of clients")
	screen := flag.String("screen", "", "draw what mpsctl status shows during the job into this SVG `FILE`")
	flag.Parse()
	if err := run(*ranks, *launcher, *showPS, *screen); err != nil {
		fmt.Fprintf(os.Stderr, "job: %v\n", err)
		os.Exit(1)
	}
}

func run(ranks int, launcher string, showPS bool, screen string) error {
	if launchers[launcher] == "" || ranks < 1 || ranks > 48 {
		return errors.New("cannot launch: -launcher is srun or mpirun, and -ranks 1 to 48")
	}
	if os.Geteuid() != 0 {
		return errors.New("cannot show a node: slurmd runs prologs as root: run this as root")
	}
	built, err := testnode.Built()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/tmp", "job")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	d := demo{dir: dir, built: built, ranks: ranks, launch: fmt.Sprintf(launchers[launcher], ranks), showPS: showPS, screen: screen}
	return d.play(ctx)
}

// demo is one run of this command.
type demo struct {
	dir, built string
	ranks      int
	launch     string // the command that starts the ranks
	showPS     bool
	screen     string // the SVG file for the picture of mpsctl status, or ""
	node       testnode.Node
	control    mps.ControlProgram
	gpus       int
	libraries  string // LD_LIBRARY_PATH of the ranks
	cluster    *lab.Cluster
	user       lab.User
}

func (d *demo) play(ctx context.Context) (err error) {
	if err := d.makeNode(); err != nil {
		return err
	}
	if err := d.startSlurm(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cluster.Stop(), d.closeLeft()) }()
	began := time.Now()
	id, err := d.submit(ctx)
	if err != nil {
		return err
	}
	watched, err := d.watch(ctx, id)
	if err != nil {
		return fmt.Errorf("%w\n%s\n%s", err, d.output(id), d.log())
	}
	d.printTimeline(began, watched)
	if err := d.printRanks(watched); err != nil {
		return fmt.Errorf("%w\n%s", err, d.output(id))
	}
	return d.proveClean(ctx)
}

func (d *demo) makeNode() (err error) {
	if d.gpus = testnode.RealGPUs(); d.gpus > 0 {
		d.control, d.libraries = mps.ControlProgram{Path: testnode.RealControl}, os.Getenv("LD_LIBRARY_PATH")
		d.node, err = testnode.Real(d.dir, d.built, testnode.Default(testnode.Compute()))
		modes := "are left alone"
		if testnode.MayChangeModes() {
			modes = "are set by the prolog and put back by the epilog, as ALLOW_MODE_CHANGES=1 allows"
		}
		fmt.Printf("This machine has %d real GPU(s): their compute modes %s.\n", d.gpus, modes)
		return err
	}
	d.gpus = 4
	d.node, err = testnode.New(d.dir, d.built, "", node.H200, node.H200, node.H200, node.H200)
	if err != nil {
		return err
	}
	d.control = mps.ControlProgram{Path: d.node.Sim.Program("nvidia-cuda-mps-control")}
	d.libraries = d.node.Sim.Libraries()
	fmt.Printf("This machine has no GPU: its driver and MPS are simulated, four NVIDIA H200s.\n")
	return nil
}

func (d *demo) startSlurm(ctx context.Context) (err error) {
	if d.user, err = lab.EnsureUser(userName, uid); err != nil {
		return err
	}
	o := lab.Options{
		Dir: filepath.Join(d.dir, "slurm"), GPUs: d.gpus, Features: "mps", PrologFlags: "Alloc", SameName: true,
		Prolog: d.node.Command("prolog"), Epilog: d.node.Command("epilog"), TaskProlog: d.node.Command("task-prolog"),
		Bundle: os.Getenv("SLURM_BUNDLE"),
	}
	if d.node.Sim == nil {
		o.DevDir = "/dev"
	}
	began := time.Now()
	if d.cluster, err = lab.Start(ctx, o); err != nil {
		return err
	}
	version, err := d.cluster.Run(ctx, d.user, "sinfo", "--version")
	fmt.Printf("A real %s is up on it after %d ms, with our prolog, epilog and task-prolog.\n\n",
		strings.TrimSpace(version.Stdout), time.Since(began).Milliseconds())
	return err
}

// submit submits the job as an ordinary user does.
func (d *demo) submit(ctx context.Context) (int, error) {
	home, err := d.cluster.Home(d.user)
	if err != nil {
		return 0, err
	}
	launch := fmt.Sprintf("%s %s %s 5 300", d.launch, strings.Join(d.node.Command("mpirun-wrap"), " "), filepath.Join(d.built, "sim", "bin", "mpi-ranks"))
	script := filepath.Join(home, "job.sh")
	if err := node.WriteProgram(script, []byte("#!/bin/bash\nexport LD_LIBRARY_PATH="+d.libraries+":$LD_LIBRARY_PATH\n"+launch+"\n")); err != nil {
		return 0, err
	}
	gres := fmt.Sprintf("--gres=gpu:%d", min(2, d.gpus))
	fmt.Printf("%s$ sbatch %s --constraint=mps -n%d job.sh\n      job.sh: %s mpirun-wrap ./mpi-ranks\n\n", userName, gres, d.ranks, d.launch)
	return d.cluster.Submit(ctx, d.user, gres, "--constraint=mps", fmt.Sprintf("-n%d", d.ranks), "-o", filepath.Join(home, "%j.out"), script)
}

// watched is what this program saw of the job.
type watched struct {
	ticket  lease.Ticket
	clients map[int]bool // pids that the daemon lists as its clients
	modes   string       // of the GPUs during the job
	seen    time.Time    // when all ranks were clients
	ended   time.Time
	output  string
	ps      string // the output of the control program's ps command
}

// watch follows the job from its ticket to its epilog, and asks the daemons for their clients until all ranks are
// clients.
func (d *demo) watch(ctx context.Context, id int) (w watched, err error) {
	boot, err := proc.BootID()
	if err != nil {
		return w, err
	}
	journal := lease.OpenReadOnly(d.node.Paths().Run(), boot)
	for w.ticket.Job.ID == 0 {
		if w.ticket, err = journal.ReadTicket(uint32(id)); err != nil && !wait.Sleep(ctx, 5*time.Millisecond) {
			return w, fmt.Errorf("cannot see the job's ticket: %w", err)
		}
	}
	if w.ticket.RefusalReason != "" {
		return w, fmt.Errorf("cannot show the job: %s", w.ticket.RefusalReason)
	}
	if w.modes, err = d.openModes(w.ticket); err != nil {
		return w, err
	}
	w.clients = map[int]bool{}
	for len(w.clients) < d.ranks && wait.Sleep(ctx, 100*time.Millisecond) {
		if _, err := journal.ReadTicket(uint32(id)); err != nil {
			break // the job has ended
		}
		for _, daemon := range w.ticket.Daemons {
			clients, err := d.control.Clients(ctx, w.ticket.Job, daemon)
			if err != nil {
				continue // one failed request proves nothing
			}
			for _, client := range clients {
				w.clients[client.PID] = true
			}
		}
		w.seen = time.Now()
	}
	if d.showPS {
		w.ps = d.askPS(w.ticket)
	}
	if d.screen != "" {
		if err := d.screenshot(ctx, d.screen); err != nil {
			return w, err
		}
	}
	if _, err := d.cluster.WaitJob(ctx, id); err != nil {
		return w, err
	}
	w.ended = time.Now()
	w.output = d.output(id)
	return w, nil
}

// askPS runs the control program's ps command, as the job's user would.
func (d *demo) askPS(t lease.Ticket) string {
	all := ""
	for _, daemon := range t.Daemons {
		cmd := exec.Command(d.control.Path)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + daemon.PipeDir}
		cmd.Stdin = strings.NewReader("ps\n")
		printed, err := cmd.CombinedOutput()
		if err != nil {
			printed = append(printed, err.Error()...)
		}
		all += string(printed)
	}
	return all
}

func (d *demo) output(id int) string {
	home, err := d.cluster.Home(d.user)
	if err != nil {
		return err.Error()
	}
	content, _ := os.ReadFile(filepath.Join(home, fmt.Sprintf("%d.out", id)))
	return string(content)
}

// openModes returns the compute modes while the job runs. On a real machine whose modes may change, openModes also
// checks them: only the job's GPUs are exclusive.
func (d *demo) openModes(t lease.Ticket) (string, error) {
	if len(d.node.Before) == 0 {
		return d.modes(), nil
	}
	var held []site.UUID
	for _, device := range t.Devices {
		held = append(held, device.UUID)
	}
	wrong, err := d.node.WrongModes(held...)
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("the compute modes are wrong while the job is open: %q", wrong)
	}
	return fmt.Sprintf("EXCLUSIVE_PROCESS on the job's %d, the other %d as before", len(held), d.gpus-len(held)), err
}

// closeLeft restores the modes of real GPUs if the run fails before the job's epilog.
func (d *demo) closeLeft() error {
	if len(d.node.Before) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second) // the context of the run may have ended
	defer cancel()
	return d.node.CloseLeft(ctx)
}

// modes returns the compute modes of the simulated GPUs. For real GPUs it returns what happens to their modes at the
// end.
func (d *demo) modes() string {
	if len(d.node.Before) > 0 {
		return "as before" // Left has checked this
	}
	if d.node.Sim == nil {
		return "left alone"
	}
	gpus, err := d.node.Sim.Node.GPUs()
	if err != nil {
		return err.Error()
	}
	names := map[int]string{0: "DEFAULT", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
	var list []string
	for _, gpu := range gpus {
		mode, _ := gpu.Mode()
		list = append(list, names[mode])
	}
	return strings.Join(list, " ")
}

// proveClean waits until Slurm has run the epilog, and then checks the node itself.
func (d *demo) proveClean(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		left, err := d.node.Left()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			fmt.Printf("\nThe node afterwards: compute modes %s; no daemon, no server, no lease, no claim, no ticket, no folder of the job. Clean.\n", d.modes())
			return nil
		}
		if !wait.Sleep(bound, 20*time.Millisecond) {
			return fmt.Errorf("the node is not as it was: %q\n%s", left, d.log())
		}
	}
}

func (d *demo) log() string {
	content, _ := os.ReadFile(d.node.Paths().Log())
	return string(content)
}
