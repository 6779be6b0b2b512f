// SPDX-License-Identifier: Apache-2.0

package own

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testproc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"golang.org/x/sys/unix"
)

// gpuNode is the root of a node with these GPUs.
func gpuNode(t *testing.T, models ...node.Model) string {
	t.Helper()
	root := t.TempDir()
	if _, err := node.Create(root, models); err != nil {
		t.Fatal(err)
	}
	return root
}

// Ranks share a daemon if they are of one step, on one node, with the same GPUs.
func TestKey(t *testing.T) {
	root := gpuNode(t, node.H200, node.H200)
	base := []string{"SLURM_CLUSTER_NAME=c", "SLURMD_NODENAME=n1", "CUDA_VISIBLE_DEVICES=0,1"}
	first := launch.Task{JobID: 7, StepID: "0", LocalSize: 2}
	name := func(env []string, task launch.Task) string {
		t.Helper()
		s := must.Get(newStep(root, env, task, launch.Binding{}))(t)
		must.Equal(t, fmt.Sprintf("the folder's name is %s", s.key), len(s.key), 16)
		return s.key
	}
	ours := name(base, first)
	for what, same := range map[string]string{
		"another rank":           name(append(base, "SLURM_PROCID=1"), launch.Task{JobID: 7, StepID: "0", LocalRank: 1, LocalSize: 2}),
		"another launcher's":     name(base, launch.Task{JobID: 7, StepID: "0", LocalSize: 9, Source: "hydra"}),
		"the same GPUs, no list": name(base[:2], first),
		"another order of GPUs":  name([]string{base[0], base[1], "CUDA_VISIBLE_DEVICES=1,0"}, first),
	} {
		must.Equal(t, what, same, ours)
	}
	seen := map[string]string{ours: "the first rank"}
	for what, other := range map[string]string{
		"another step":    name(base, launch.Task{JobID: 7, StepID: "1"}),
		"another job":     name(base, launch.Task{JobID: 8, StepID: "0"}),
		"no job":          name(base, launch.Task{}),
		"another node":    name([]string{base[0], "SLURMD_NODENAME=n2", base[2]}, first),
		"another cluster": name([]string{"SLURM_CLUSTER_NAME=d", base[1], base[2]}, first),
		"one GPU":         name([]string{base[0], base[1], "CUDA_VISIBLE_DEVICES=0"}, first),
		"the other GPU":   name([]string{base[0], base[1], "CUDA_VISIBLE_DEVICES=1"}, first),
	} {
		must.Equal(t, fmt.Sprintf("%s has the folder of", what), seen[other], "")
		seen[other] = what
	}
}

// Each step that --own cannot serve is refused with a reason.
func TestNewStepRefuses(t *testing.T) {
	task := launch.Task{JobID: 7, StepID: "0", LocalSize: 2, Source: launch.SourceStepd}
	whole, cut := gpuNode(t, node.H200), gpuNode(t, node.H100SXM.Cut(node.H100Slice3))
	for name, c := range map[string]struct {
		root    string
		env     []string
		binding launch.Binding
		want    string
	}{
		"no GPU":          {t.TempDir(), nil, launch.Binding{}, "cannot find a GPU: no GPU can be opened: is it a GPU node"},
		"none visible":    {whole, []string{"CUDA_VISIBLE_DEVICES="}, launch.Binding{}, `CUDA_VISIBLE_DEVICES is ""`},
		"MIG":             {cut, nil, launch.Binding{}, "is divided into MIG instances, and --own serves whole GPUs"},
		"GPUs per task":   {whole, nil, launch.Binding{OwnGPUs: 1}, "in place of --gpus-per-task"},
		"tasks per a GPU": {whole, nil, launch.Binding{TasksPerGPU: 2}, "cannot use --own: Slurm gives each task of this step GPUs of its own"},
	} {
		if _, err := newStep(c.root, c.env, task, c.binding); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	alone := launch.Task{JobID: 7, StepID: "0", LocalSize: 1, Source: launch.SourceStepd}
	if _, err := newStep(whole, nil, alone, launch.Binding{OwnGPUs: 1}); err != nil {
		t.Errorf("a step of one task: %v", err)
	}
}

// A rank that joins while its daemon quits waits for the next one.
func TestADaemonThatQuits(t *testing.T) {
	k := newKeeper(t)
	self := must.Get(proc.Current())(t)
	daemon := k.folders
	daemon.Proc = self
	socket := must.Get(net.Listen("unix", filepath.Join(daemon.PipeDir, "control")))(t)
	defer socket.Close()
	k.tell(&lease.Ticket{Job: k.job, Daemons: []lease.Daemon{daemon}})
	current := func(pid int, command string) (served bool, why string) {
		line := fmt.Sprintf("[2026-11-21 05:23:12.402 Control %5d] Cmd:%s\n", pid, command)
		text := line + strings.Repeat("[2026-11-21 05:23:12.402 Control     1] Accepting connection...\n", 200)
		must.OK(t, os.WriteFile(filepath.Join(daemon.LogDir, "control.log"), []byte(text), 0o600))
		ticket, why := k.current()
		return ticket != nil && ticket.RefusalReason == "", why
	}
	for _, command := range []string{"quit", "quit -t 2"} {
		const want = ": a script told it to quit, and it waits for its clients: leave the quit out"
		if served, why := current(self.PID, command); served || why != want {
			t.Errorf("%s: %v, %q", command, served, why)
		}
	}
	for pid, command := range map[int]string{self.PID + 1: "quit", self.PID: "get_server_list"} {
		if served, _ := current(pid, command); !served {
			t.Errorf("%d, %s: not served", pid, command)
		}
	}
	must.OK(t, os.Remove(socket.Addr().String()))
	want := "cannot use MPS any more: something has removed " + k.folder.Name()
	if ticket, _ := k.current(); ticket == nil || !strings.HasPrefix(ticket.RefusalReason, want) {
		t.Errorf("without its socket: %+v, want %s", ticket, want)
	}
}

// newKeeper is a keeper with its folders, and without a daemon.
func newKeeper(t *testing.T) *keeper {
	t.Helper()
	folder, err1 := makeFolder(newRoot(t), 7)
	state, err2 := newState()
	must.OK(t, errors.Join(err1, err2))
	k := &keeper{folder: folder, state: state, ranks: map[int]rank{}, job: lease.Job{ID: 7, UID: uint32(os.Getuid())}}
	must.OK(t, k.makeStore())
	t.Cleanup(func() { folder.Close(); state.file.Close() })
	return k
}

// The user's own other server is named before another user's.
func TestOthersError(t *testing.T) {
	theirs := mps.Process{Process: proc.Process{PID: 1}, UID: 2002}
	mine := mps.Process{Process: proc.Process{PID: 2}, UID: 2001}
	for want, servers := range map[string][]mps.Process{
		"<nil>": nil, "an MPS server of uid 2002 (pid 1) ": {theirs}, "another MPS server of yours (pid 2) ": {theirs, mine},
	} {
		if got := fmt.Sprint(othersError(servers, 2001)); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Only the arguments of --own's own programs are taken from the user's.
func TestMainLeavesOthersAlone(t *testing.T) {
	for _, args := range [][]string{nil, {"./app"}, {"--own", "./app"}, {superviseMode}, {keepMode, "x"}, {pauseMode}, {gaugeMode, "x"}, {takeMode, "x"}} {
		if code, is := Main(args, nil); is || code != 0 {
			t.Errorf("%q: %d, %v", args, code, is)
		}
	}
	if code, is := Main([]string{pauseMode, "soon"}, nil); !is || code != 1 {
		t.Errorf("a wrong duration: %d, %v", code, is)
	}
}

// No signal to all processes of a step ends the keeper before the ranks.
func TestSignalsOfAStep(t *testing.T) {
	if os.Getenv("IGNORE") != "" {
		ignoreSignals()
		status := must.Get(os.ReadFile("/proc/self/status"))(t)
		fmt.Printf("%s\n", status)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSignalsOfAStep$")
	cmd.Env = append(os.Environ(), "IGNORE=1")
	status, err := cmd.Output()
	_, mask, found := strings.Cut(string(status), "SigIgn:\t")
	must.Have(t, err == nil && found, "%v: %s", err, status)
	ignored := must.Get(strconv.ParseUint(strings.Fields(mask)[0], 16, 64))(t)
	for from, signals := range map[string][]syscall.Signal{
		"a terminal":              {unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP},
		"Slurm":                   {unix.SIGTERM, unix.SIGXCPU},
		"a user, before the end":  {unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM},
		"a reader that has ended": {unix.SIGPIPE},
	} {
		for _, signal := range signals {
			must.Hold(t, ignored&(1<<(signal-1)) != 0, "%v of %s ends the keeper", signal, from)
		}
	}
}

// The guard of a keeper gets all that root's guard gets, except what needs root: it has no log, no recorder, no
// names, and outside of Slurm no SLUID.
func TestWhatAGuardGets(t *testing.T) {
	k := &keeper{job: lease.Job{ID: 7, UID: 2001, GID: 2002}, root: gpuNode(t, node.H200), folders: lease.Daemon{PipeDir: "/p", LogDir: "/l"}}
	k.devices = []site.Device{{UUID: "GPU-6", Minor: 6}}
	smi := filepath.Join(t.TempDir(), "nvidia-smi")
	must.OK(t, os.WriteFile(smi, nil, 0o755))
	unset := testproc.Unset(k.options(slurm.Env{"PATH": filepath.Dir(smi)}))
	must.Equal(t, "not set", strings.Join(unset, " "), "SLUID NameOf Log Recorder Raised")
}
