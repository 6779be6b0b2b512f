// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

func ticketOf(devices int, scope policy.Scope, overlap float64) lease.Ticket {
	t := lease.Ticket{Job: lease.Job{ID: 7}, Grant: policy.DefaultGrant()}
	t.Grant.Scope, t.Grant.Share = scope, policy.Overlap(overlap)
	for i := range devices {
		uuid := site.UUID(fmt.Sprintf("GPU-%d", i))
		daemon := 0
		if scope == policy.ScopeGPU || i == 0 {
			daemon = len(t.Daemons)
			dir := fmt.Sprintf("/run/slurm-mps/jobs/7/%d", daemon)
			t.Daemons = append(t.Daemons, lease.Daemon{PipeDir: dir + "/pipe", LogDir: dir + "/log"})
		}
		t.Devices = append(t.Devices, lease.TicketDevice{Device: site.Device{UUID: uuid, SMs: 132, TPC: 2}, Daemon: daemon})
	}
	return t
}

func TestPlacements(t *testing.T) {
	for _, c := range []struct {
		name    string
		ticket  lease.Ticket
		ranks   int
		want    string // GPU:daemon:SMs of each rank
		percent string // of rank 0
	}{
		{"one rank, one GPU", ticketOf(1, policy.ScopeJob, 1), 1, "0:0:132", ""},
		{"eight ranks round two GPUs", ticketOf(2, policy.ScopeJob, 1), 8, "0:0:34 1:0:34 0:0:34 1:0:34 0:0:32 1:0:32 0:0:32 1:0:32", "25.757576"},
		{"a daemon for each GPU", ticketOf(2, policy.ScopeGPU, 1), 4, "0:0:66 1:1:66 0:0:66 1:1:66", "50"},
		{"three ranks on two GPUs: the second has one alone", ticketOf(2, policy.ScopeJob, 1), 3, "0:0:66 1:0:132 0:0:66", "50"},
		{"fewer ranks than GPUs", ticketOf(4, policy.ScopeJob, 1), 2, "0:0:132 1:0:132", ""},
		{"overlap 2", ticketOf(1, policy.ScopeJob, 2), 4, "0:0:66 0:0:66 0:0:66 0:0:66", "50"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for rank := range c.ranks {
				placement := must.Get(Place(c.ticket, Rank{Task: launch.Task{LocalRank: rank, LocalSize: c.ranks}}))(t)
				daemon := strings.Split(placement.Daemon.PipeDir, "/")[5]
				got = append(got, fmt.Sprintf("%s:%s:%d", strings.TrimPrefix(string(placement.Device.UUID), "GPU-"), daemon, placement.Share.SMs))
				if last := placement.variables()[3]; rank == 0 && (last.Name != "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" || last.Value != c.percent) {
					t.Errorf("rank 0 has %v, want %q", last, c.percent)
				}
			}
			must.Equal(t, "got", strings.Join(got, " "), c.want)
		})
	}
}

func TestEnvironmentReplacesAndUnsets(t *testing.T) {
	placement := must.Get(Place(ticketOf(1, policy.ScopeJob, 1), Rank{Task: launch.Task{LocalRank: 0, LocalSize: 1}}))(t)
	got := placement.environment([]string{"A=1", "CUDA_VISIBLE_DEVICES=0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10", "CUDA_MPS_PIPE_DIRECTORY=/x", "B="})
	want := "A=1 B= CUDA_VISIBLE_DEVICES=GPU-0 CUDA_MPS_PIPE_DIRECTORY=/run/slurm-mps/jobs/7/0/pipe CUDA_MPS_LOG_DIRECTORY=/run/slurm-mps/jobs/7/0/log"
	must.Equal(t, "got", strings.Join(got, " "), want)
}

func TestNoPlacement(t *testing.T) {
	boot := "boot"
	dir := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(dir, "tickets"), 0o755))
	reader := lease.OpenReadOnly(dir, boot)
	broken := ticketOf(1, policy.ScopeJob, 1)
	broken.Devices[0].Daemon = 3
	for _, c := range []struct {
		name string
		err  func() error
		want string
	}{
		{"outside of Slurm", func() error { _, err := findTicket(reader, launch.Task{}); return err },
			"cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set), " +
				"or Slurm's variables were unset: submit it: sbatch --gres=gpu:1 --constraint=mps JOB.sh; or give --own"},
		{"a job without MPS", func() error { _, err := findTicket(reader, launch.Task{JobIDs: []uint32{7}}); return err },
			"cannot find ticket of job 7 on this node: the job did not ask for MPS: submit it with --constraint=mps, or run the program without mpirun-wrap"},
		{"a container without the folder", func() error {
			_, err := findTicket(lease.OpenReadOnly("/nonexistent", boot), launch.Task{JobIDs: []uint32{7}})
			return err
		},
			"cannot find ticket of job 7: there is no folder /nonexistent/tickets here: in a container, mount /nonexistent; if the site has not installed slurm-mps, give --own; elsewhere, submit the job with --constraint=mps"},
		{"a refused job", func() error {
			_, err := Place(lease.Ticket{RefusalReason: "it has no GPU"}, Rank{Task: launch.Task{LocalSize: 1}})
			return err
		},
			"this job has no MPS: it has no GPU"},
		{"a ticket without devices", func() error {
			_, err := Place(lease.Ticket{Job: lease.Job{ID: 7}}, Rank{Task: launch.Task{LocalSize: 1}})
			return err
		},
			"cannot place ranks: the ticket of job 7 names no device"},
		{"a ticket without the daemon", func() error { _, err := Place(broken, Rank{Task: launch.Task{LocalSize: 1}}); return err },
			"cannot place rank 0: the ticket of job 7 names no daemon for GPU-0"},
	} {
		if err := c.err(); err == nil || err.Error() != c.want {
			t.Errorf("%s:\n got  %v\n want %s", c.name, err, c.want)
		}
	}
}

// Contract: K1
func TestCheckAsksTheNode(t *testing.T) {
	self := must.Get(proc.Current())(t)
	dir := t.TempDir()
	placement := Placement{gpuShare: gpuShare{Device: site.Device{UUID: "GPU-0"}}, Daemon: lease.Daemon{PipeDir: dir, Proc: self}}
	control := filepath.Join(dir, "control")
	if err := placement.checkDaemon(nil); err == nil {
		t.Error("a daemon without a socket passes")
	}
	must.OK(t, os.WriteFile(control, nil, 0o600))
	if err := placement.checkDaemon(nil); err == nil || !strings.HasSuffix(err.Error(), "is not a socket") {
		t.Errorf("a file for a socket: %v", err)
	}
	os.Remove(control)
	listener := must.Get(net.Listen("unixpacket", control))(t)
	defer listener.Close()
	must.Note(t, placement.checkDaemon(nil))
	placement.Daemon.Proc.Start++ // the same pid, another process
	if err := placement.checkDaemon(nil); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("a pid that is another process's: %v", err)
	}
}

func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o755, "plain": 0o644} {
		must.OK(t, errors.Join(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode)))
	}
	env := []string{"PATH=/nonexistent:" + dir}
	if path, err := lookPath("good", env); err != nil || path != dir+"/good" {
		t.Errorf("%s, %v", path, err)
	}
	for program, c := range map[string]struct {
		code int
		says string
	}{
		"missing":        {127, "cannot run missing: not found in PATH"},
		"plain":          {126, "cannot run " + dir + "/plain: permission denied: make it executable: chmod +x " + dir + "/plain"},
		dir:              {126, "cannot run " + dir + ": it is a directory"},
		dir + "/missing": {127, "cannot run " + dir + "/missing: no such file or directory"},
		dir + "/good/x":  {127, "cannot run " + dir + "/good/x: not a directory"},
	} {
		_, err := lookPath(program, env)
		var failed *execError
		must.Hold(t, errors.As(err, &failed) && failed.Code == c.code && err.Error() == c.says,
			"%s: %v, want %d %s", program, err, c.code, c.says)
	}
}

// No entry of a list is for a process that is no rank: it has an even share, as a single rank has.
func TestAProcessWithoutAPlaceTakesNoEntry(t *testing.T) {
	rank := Rank{Task: launch.Task{LocalSize: 1}}
	must.OK(t, rank.Options.Set("share", "3:1"))
	ticket := ticketOf(2, policy.ScopeJob, 1)
	placement, err := placeNonRank(ticket, rank)
	if err != nil || placement.Share.SMs != 132 {
		t.Errorf("by the user's list: %+v, %v", placement.Share, err)
	}
	ticket.Grant.Share, _ = policy.ParseShare("70%,30%")
	if placement, err = placeNonRank(ticket, Rank{Task: launch.Task{LocalSize: 1}}); err != nil || placement.Share.SMs != 132 {
		t.Errorf("by the policy's list: %+v, %v", placement.Share, err)
	}
	if _, err := Place(ticket, Rank{Task: launch.Task{LocalSize: 1}}); err == nil || !strings.Contains(err.Error(), "for 2 ranks on a GPU, and this GPU has 1") {
		t.Errorf("a single rank: %v", err)
	}
}

// A rank that sees all GPUs can have a limit of memory if there is one GPU only.
func TestALimitOnTheOnlyGPU(t *testing.T) {
	for gpus, refused := range map[int]bool{1: false, 2: true} {
		ticket := ticketOf(gpus, policy.ScopeJob, 1)
		for i := range ticket.Devices {
			ticket.Devices[i].MemoryMiB = 143771
		}
		for _, choice := range []choice{allGPUs, inheritGPUs} {
			rank := Rank{Task: launch.Task{LocalSize: 1}, Options: Options{GPU: choice}}
			must.OK(t, rank.Options.Set("mem", "8G"))
			if placement, err := Place(ticket, rank); (err != nil) != refused || !refused && placement.limits() == "" {
				t.Errorf("%d GPUs, --gpu=%s: %v", gpus, choice, err)
			}
		}
	}
}

// The wrapper compares launchers' variables with the environment of the job's script, which is a process.
func TestWhoAmI(t *testing.T) {
	t.Parallel()
	m := newMembers(t, 4)
	const rank = "$WRAP --share=even -- /bin/sh -c 'echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'"
	const ompi = "OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=8 OMPI_COMM_WORLD_RANK=3 PMIX_NAMESPACE=5"
	const hydra = "MPI_LOCALRANKID=3 MPI_LOCALNRANKS=8 PMI_RANK=3 PMI_FD=9"
	const cleaned = "mpirun-wrap: cannot read task: SLURM_JOB_ID is set and SLURM_LOCALID is not, " +
		"so Slurm's variables are missing: " +
		"put srun before it; in a container, hand on SLURM_LOCALID, SLURM_GTIDS and SLURM_STEP_ID, or run the wrapper outside of it; " +
		"or give --local-rank and --local-size (printed once for this node)"
	const unknown = "mpirun-wrap: cannot read task: it is not known whether OMPI_COMM_WORLD_LOCAL_RANK " +
		`is from a launcher in this job, because SLURM_TASK_PID ("0999999999") ` +
		`has ended or cannot be read: unset OMPI_COMM_WORLD_LOCAL_RANK if it is not; ` +
		"or give --local-rank and --local-size (printed once for this node)"
	const noJob = "mpirun-wrap: cannot use MPS: this is not a Slurm job (SLURM_JOB_ID is not set), or Slurm's variables were " +
		"unset: submit it: sbatch --gres=gpu:1 --constraint=mps JOB.sh; or give --own (printed once for this node)"
	const ended = "SLURM_TASK_PID=0999999999 "
	flag := func(flags string) string { return strings.Replace(rank, "--share", flags+" --share", 1) }
	clean := func(env string) string {
		return `env -i "WRAP=$WRAP" SLURM_JOB_ID=7 ` + env + ` /bin/sh -c '` + strings.ReplaceAll(rank, "'", `'\''`) + "'"
	}
	socket := func(cmd *exec.Cmd) { // as PMI_FD, descriptor 9
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0) // no rank of another test has it
		must.OK(t, err)
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		cmd.ExtraFiles = []*os.File{6: theirs}
	}
	for _, c := range []struct {
		name, job, script string // what the job has inherited, and what its script runs
		set               func(*exec.Cmd)
		want              string
	}{
		{"nothing", "", rank + "; true", nil, "GPU-0"},
		{"from mpirun", ompi, rank + "; true", nil, "GPU-0"},
		{"from mpirun, exec", ompi, "exec " + rank, nil, "GPU-0"},
		{"an mpirun in a job from mpirun", ompi, "PMIX_NAMESPACE=6 " + rank + "; true", nil, "GPU-3 50"},
		{"from mpiexec", hydra, rank + "; true", nil, "GPU-0"},
		{"from mpiexec, a file of that number", hydra, "exec 9<&0; " + rank + "; true", nil, "GPU-0"},
		{"an mpiexec in a job from mpiexec", hydra, rank + "; true", socket, "GPU-3 50"},
		{"half a set", "LOCAL_RANK=2", rank + "; true", nil, "GPU-0"},
		{"by hand", "LOCAL_RANK=2 LOCAL_WORLD_SIZE=8", "LOCAL_RANK=1 " + rank + "; true", nil, "GPU-1 50"},
		{"no launcher, and the script has ended", "", ended + rank + "; true", nil, "GPU-0"},
		{"from mpirun, and the script has ended", ompi, ended + rank + "; true", nil, unknown},
		{"mpirun and a container with a user namespace", "", "exec 7<${WRAP%% *}; WRAP=\"/proc/self/fd/7 ${WRAP#* }\"; " + ompi +
			" unshare --user --map-root-user " + rank + "; true", nil, "GPU-3 50"},
		{"mpirun without SLURM_JOB_ID", "", "unset SLURM_JOB_ID; " + ompi + " " + rank + "; true", nil, noJob},
		{"the same with a place", ompi, ended + flag("--local-rank=1 --local-size=8"), nil, "GPU-1 50"},
		{"the same with slots", ompi, ended + flag("--slots=4"), nil, "GPU-0"},
		{"a mpiexec's rank on a node without the script", hydra, ended + rank + "; true", socket, "GPU-3 50"},
		{"env -i", "", clean(""), nil, cleaned},
		{"env -i, handed on", "", clean("SLURM_LOCALID=1 SLURM_GTIDS=4,5,6,7,8 SLURM_STEP_ID=0"), nil, "GPU-1"},
		{"env -i with slots", "", clean("SLURM_MPS_SLOTS=4"), nil, "GPU-0"},
	} {
		script := filepath.Join(m.dir, "script")
		must.OK(t, os.WriteFile(script, []byte(c.script), 0o600))
		cmd := exec.Command("/bin/sh", "-c", "exec env SLURM_TASK_PID=$$ "+c.job+" /bin/sh "+script)
		cmd.Env = m.env
		if c.set != nil {
			c.set(cmd)
		}
		out, _ := cmd.CombinedOutput()
		must.Equal(t, c.name, strings.TrimSpace(string(out)), c.want)
	}
}
