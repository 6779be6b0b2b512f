// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/firstthread"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// SleepsInDriver waits until a thread of the process is in clock_nanosleep. Go does not call it, and the simulated
// driver does.
func (p Node) SleepsInDriver(pid int) {
	p.T.Helper()
	p.Until("call of the driver", func() bool {
		calls, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		return slices.ContainsFunc(calls, func(call string) bool {
			text, _ := os.ReadFile(call)
			_, err := os.Stat(filepath.Join(p.Paths().Run(), "leases/7.json"))
			return strings.HasPrefix(string(text), fmt.Sprint(unix.SYS_CLOCK_NANOSLEEP)+" ") && err == nil
		})
	})
}

// HoldsDaemon checks everything that the contract requires of a daemon's process.
func (p Node) HoldsDaemon(d lease.Daemon) {
	t := p.T
	t.Helper()
	folder := fmt.Sprintf("/proc/%d/", d.Proc.PID)
	status := Read(t, folder+"status")
	for _, want := range UsersStatus {
		must.Hold(t, strings.Contains(status, want), "status lacks %q:\n%s", want, status)
	}
	if stat, err := proc.ReadStat(d.Proc.PID); err != nil || stat.Session != d.Proc.PID || stat.Start != d.Proc.Start {
		t.Errorf("stat %+v, %v: want a session of its own", stat, err)
	}
	if cwd, err := os.Readlink(folder + "cwd"); cwd != "/" {
		t.Errorf("cwd %s, %v", cwd, err)
	}
	must.Equal(t, "oom_score_adj", Read(t, folder+"oom_score_adj"), "0\n")
	var files uint64
	for line := range strings.Lines(Read(t, folder+"limits")) {
		fmt.Sscanf(line, "Max open files %d", &files)
	}
	must.Hold(t, files >= 16384, "RLIMIT_NOFILE %d", files)
	for fd := range 3 {
		if to, err := os.Readlink(fmt.Sprintf("%sfd/%d", folder, fd)); to != "/dev/null" {
			t.Errorf("fd %d is %s, %v", fd, to, err)
		}
	}
	var uuids []string
	for _, uuid := range d.Devices {
		uuids = append(uuids, string(uuid))
	}
	environment := strings.Split(strings.TrimRight(Read(t, folder+"environ"), "\x00"), "\x00")
	slices.Sort(environment)
	if p.Sim == nil { // a machine's control program may be a script that adds its own variables
		environment = slices.DeleteFunc(environment, func(entry string) bool {
			return strings.HasPrefix(entry, "LD_LIBRARY_PATH=") || strings.HasPrefix(entry, "PWD=")
		})
	}
	want := []string{
		"CUDA_MPS_LOG_DIRECTORY=" + d.LogDir, "CUDA_MPS_PIPE_DIRECTORY=" + d.PipeDir,
		"CUDA_VISIBLE_DEVICES=" + strings.Join(uuids, ","), "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}
	must.Hold(t, slices.Equal(environment, want), "environment %q, want %q", environment, want)
}

// Finding is a finding of mpsctl audit.
type Finding struct {
	Kind  string    `json:"kind"`
	Job   uint32    `json:"job"`
	GPU   site.UUID `json:"gpu"`
	PID   int       `json:"pid"`
	Where string    `json:"where"`
	What  string    `json:"what"`
	Do    string    `json:"fix"`
}

// Audit returns the findings of this test's node. It leaves out daemons of other tests that run on this machine at
// the same time.
func (p Node) Audit() []Finding {
	p.T.Helper()
	result := p.Ctl("audit", "--json")
	var r struct {
		Complete bool      `json:"complete"`
		Findings []Finding `json:"findings"`
		Unseen   []string  `json:"errors"`
	}
	if err := json.Unmarshal([]byte(result.Output), &r); err != nil {
		p.T.Fatalf("%v: %s", err, result.Output)
	}
	if found := len(r.Findings)+len(r.Unseen) > 0; result.Code != map[bool]int{false: 0, true: 1}[found] || r.Complete != (len(r.Unseen) == 0) {
		p.T.Errorf("code %d: %s", result.Code, result.Output)
	}
	return slices.DeleteFunc(r.Findings, func(f Finding) bool {
		return f.Kind == "daemon-not-of-a-lease" && !strings.Contains(f.Where, filepath.Dir(p.Root)+"/")
	})
}

// MpsctlAs runs mpsctl as a user.
func (p Node) MpsctlAs(user uint32, args ...string) (code int, out string) {
	p.T.Helper()
	line := p.Command("mpsctl", args...)
	ctx, cancel := Limited()
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.T.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(said)
}

// Boot is the id of this boot of the machine.
func Boot(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(Read(t, "/proc/sys/kernel/random/boot_id"))
}

// Recorder is the process that records what job 7 uses; its pid is 0 if there is none.
func (p Node) Recorder() proc.Process {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		line, _ := os.ReadFile(folder + "/cmdline")
		if text := string(line); !strings.Contains(text, "--record\x007\x00") || !strings.Contains(text, p.Root+"\x00") {
			continue
		}
		var pid int
		fmt.Sscanf(filepath.Base(folder), "%d", &pid)
		if stat, err := proc.ReadStat(pid); err == nil && stat.Running() {
			return stat.Process
		}
	}
	return proc.Process{}
}

// Rank is a client that has printed that it is ready.
type Rank struct {
	Cmd   *exec.Cmd
	Out   Lines
	Ready string
}

// Ranks starts all ranks of a step at once and waits until every rank is ready.
func (p Node) Ranks(n int, program ...string) []Rank {
	p.T.Helper()
	gtids := "0"
	for i := 1; i < n; i++ {
		gtids += fmt.Sprintf(",%d", i)
	}
	all := make([]Rank, n)
	for rank := range n {
		cmd := p.AsUser(7, p.Command("mpirun-wrap", append([]string{p.CudaClient()}, program...)...))
		cmd.Env = With(With(cmd.Env, "SLURM_LOCALID", fmt.Sprint(rank)), "SLURM_GTIDS", gtids)
		cmd.SysProcAttr.Setpgid = true
		out := must.Get(cmd.StdoutPipe())(p.T)
		cmd.Stderr = cmd.Stdout
		must.OK(p.T, cmd.Start())
		p.T.Cleanup(func() { _ = cmd.Process.Kill() })
		all[rank] = Rank{Cmd: cmd, Out: LinesOf(p.T, out)}
	}
	for rank := range all {
		line, err := all[rank].Out.Next()
		must.Have(p.T, err == nil && strings.Contains(line, "ready"), "rank %d prints %q, %v", rank, line, err)
		all[rank].Ready = line
	}
	return all
}

// WithoutFirstThread builds the library of package firstthread once and returns its path, which each user may read.
var WithoutFirstThread = sync.OnceValues(func() (string, error) {
	folder, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	return firstthread.Build(folder)
})

// MPSNames are the names of processes that root's programs look for, as the kernel cuts them.
var MPSNames = []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "slurmd", "slurmstepd"}

// OtherUID is a user who has nothing to do with the job.
var OtherUID = UID + 1

// Hostile is the program of the attacks, testdata/hostile, built once.
var Hostile = sync.OnceValues(func() (string, error) {
	shared, err := testnode.Shared()
	if err != nil {
		return "", err
	}
	path := filepath.Join(shared, "hostile")
	if os.Getenv("BUILT_FOLDER") != "" {
		return path, nil
	}
	build := exec.Command("go", "build", "-o", path, Module+"cmd/e2e/hostile/testdata/hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the attacks: %w: %s", err, out)
	}
	return path, nil
})

// ControlIs makes a script the control program of the site, and keeps the simulated library.
func (p Node) ControlIs(script string) {
	path := filepath.Join(filepath.Dir(p.Root), "control")
	p.Write(path, script)
	must.OK(p.T, os.Chmod(path, 0o755))
	p.Write(p.Paths().ConfigFile(), fmt.Sprintf("nvml_library = %q\nmps_control = %q\n", p.Sim.NVML(), path))
}

// ofOthers are programs that a repair may name, and that a machine of tests may lack.
var ofOthers = []string{"mpsctl", "scontrol", "scancel", "slurmd", "systemctl", "nvidia-smi", "nvidia-cuda-mps-control", "modprobe",
	"dpkg", "rpm", "sudo", "dmesg", "man", "${EDITOR:-vi}"}

// CanBePasted checks that a person can paste each step of a repair. A step is a command, or a remark, a colon and a
// command. A shell parses the command, and its programs exist.
func CanBePasted(t *testing.T, repair string) {
	t.Helper()
	for _, command := range Commands(repair) {
		if out, err := exec.Command("sh", "-n", "-c", command).CombinedOutput(); err != nil {
			t.Errorf("a shell does not parse %q: %s", command, out)
		}
		for part := range strings.SplitSeq(strings.ReplaceAll(command, "&&", "|"), "|") {
			program, _, _ := strings.Cut(strings.TrimSpace(part), " ")
			if _, err := exec.LookPath(program); err != nil && !slices.Contains(ofOthers, program) {
				t.Errorf("%q is no command: %v", command, err)
			}
		}
	}
}

// Commands returns the steps of a repair without their remarks.
func Commands(repair string) (all []string) {
	for step := range strings.SplitSeq(repair, "; ") {
		if _, command, remarked := strings.Cut(step, ": "); remarked {
			step = command
		}
		all = append(all, step)
	}
	return all
}
