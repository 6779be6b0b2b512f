// SPDX-License-Identifier: Apache-2.0

// Package conformance compares the simulated MPS with the real one. One suite drives the control program and a CUDA
// program, and checks what was measured on an H200 with driver 580.159.04. The suite runs on the simulation, or on
// the real driver of this machine if CONFORMANCE_TARGET=real.
//
//	CONFORMANCE_TARGET   real: the driver of this machine; otherwise the simulation, which the suite builds
//	MPS_CONTROL          the control program (real only; default: nvidia-cuda-mps-control in PATH)
//	CONFORMANCE_CLIENT   cuda-client, built from site/sim/cuda/client.c (real only; default: cuda-client in PATH)
//	CONFORMANCE_LIB      folder with libcuda.so.1 (real only; default: where the loader finds it)
//	CONFORMANCE_UID      the user of the daemons and clients (default: 2001 if root runs the suite, else the same user)
//	CONFORMANCE_GPUS     UUIDs of the GPUs to use (real only; default: all that CUDA shows)
//
// On a real machine the suite does not change a compute mode. A test that needs a compute mode or an injected fault
// calls onlySimulated with a reason. So does a test whose result is true only of the machine that was measured.
package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// target is the MPS that the suite tests.
type target struct {
	control, client, libraries string
	uid                        int
	scratch                    string
	node                       *node.Node // of the simulation; nil on a real machine
	gpus                       []string   // UUIDs in PCI order
}

// machine is the target that the suite has found. On the simulation, each test has a node of its own in place of it.
var machine target

// owned are the targets of tests on the simulation, by the test's name.
var owned sync.Map

// alone gives a test a simulated node of its own, so that tests run side by side. Those of a real machine share it, and
// run one after the other.
func alone(t *testing.T) {
	t.Helper()
	if machine.node == nil {
		return
	}
	t.Parallel()
	mine := machine
	scratch := must.Get(os.MkdirTemp(machine.scratch, "t"))(t)
	mine.scratch = scratch
	must.OK(t, errors.Join(os.Chmod(scratch, 0o755), mine.simulate()))
	owned.Store(t.Name(), &mine)
}

// under is the target of a test, or of the test to which a subtest belongs.
func under(t *testing.T) *target {
	name, _, _ := strings.Cut(t.Name(), "/")
	if mine, ok := owned.Load(name); ok {
		return mine.(*target)
	}
	return &machine
}

// answerDeadline is for one command of a program that should answer. A client that starts a server takes 0.4 s.
const answerDeadline = soon

// soon bounds a wait for something that comes in a moment. Only a hang takes as long, also on a busy machine.
const soon = 3 * time.Minute

func TestMain(m *testing.M) { os.Exit(suite(m)) }

func suite(m *testing.M) int {
	scratch, err := os.MkdirTemp("", "mps-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	os.Chmod(scratch, 0o755) // so that the user of the daemons can pass through it
	machine = target{scratch: scratch, uid: ownOr2001()}
	if os.Getenv("CONFORMANCE_TARGET") == "real" {
		err = machine.findReal()
	} else {
		err = machine.simulate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare conformance suite:", err)
		return 1
	}
	return m.Run()
}

func ownOr2001() int {
	if uid, err := strconv.Atoi(os.Getenv("CONFORMANCE_UID")); err == nil {
		return uid
	}
	if os.Getuid() == 0 {
		return 2001
	}
	return os.Getuid()
}

func (t *target) simulate() error {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.scratch
	}
	built := filepath.Join(cache, "slurm-mps", "simulation")
	if err := sim.Build(built); err != nil {
		return err
	}
	made, err := sim.New(filepath.Join(t.scratch, "sim"), built, node.H200, node.H200)
	if err != nil {
		return err
	}
	t.control, t.client = made.Program("nvidia-cuda-mps-control"), made.Program("cuda-client")
	t.libraries, t.node, t.gpus = made.Libraries(), &made.Node, nil
	return t.listGPUs()
}

func (t *target) listGPUs() error {
	gpus, err := t.node.GPUs()
	for _, gpu := range gpus {
		uuid, err := gpu.Text("uuid")
		if err != nil {
			return err
		}
		t.gpus = append(t.gpus, uuid)
	}
	return err
}

func (t *target) findReal() error {
	var err error
	if t.control, err = exec.LookPath(or(os.Getenv("MPS_CONTROL"), "nvidia-cuda-mps-control")); err != nil {
		return err
	}
	if t.client, err = exec.LookPath(or(os.Getenv("CONFORMANCE_CLIENT"), "cuda-client")); err != nil {
		return err
	}
	t.libraries = os.Getenv("CONFORMANCE_LIB")
	if list := os.Getenv("CONFORMANCE_GPUS"); list != "" {
		t.gpus = strings.Split(list, ",")
		return nil
	}
	out := t.command(nil, t.uid, t.client, "count").run()
	for _, word := range strings.Fields(out.stdout) {
		if uuid, ok := strings.CutPrefix(word, "uuid="); ok {
			t.gpus = append(t.gpus, uuid)
		}
	}
	if len(t.gpus) == 0 {
		return fmt.Errorf("no GPU found: %s%s", out.stdout, out.stderr)
	}
	return nil
}

func or(text, otherwise string) string {
	if text != "" {
		return text
	}
	return otherwise
}

// onlySimulated skips a test on a real machine and gives the reason.
func onlySimulated(t *testing.T, because string) {
	t.Helper()
	if under(t).node == nil {
		t.Skipf("simulation only: %s", because)
	}
}

// needsRoot skips a test that runs programs as several users.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, because it runs programs as several users")
	}
}

func needsGPUs(t *testing.T, count int) {
	t.Helper()
	if len(under(t).gpus) < count {
		t.Skipf("needs %d GPUs, has %d", count, len(under(t).gpus))
	}
}

// call is a program to run. Its environment is added to the loader's variables and PATH.
type call struct {
	*exec.Cmd
	stdin    string
	deadline time.Duration
}

// outcome is how a program ended.
type outcome struct {
	stdout, stderr string
	code           int
	late           bool // it did not end in time and was killed
	took           time.Duration
}

func (t *target) command(environment []string, uid int, program string, args ...string) *call {
	command := exec.Command(program, args...)
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + or(t.libraries, os.Getenv("LD_LIBRARY_PATH"))},
		environment...)
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{}
	if uid != os.Getuid() {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return &call{Cmd: command, deadline: answerDeadline}
}

// run waits for the program, until its deadline.
func (c *call) run() outcome {
	var stdout, stderr bytes.Buffer
	deadline, cancel := context.WithTimeout(context.Background(), c.deadline)
	defer cancel()
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(c.stdin), &stdout, &stderr
	c.WaitDelay = time.Second
	begin := time.Now()
	if err := c.Start(); err != nil {
		return outcome{stderr: err.Error(), code: -1}
	}
	stop := context.AfterFunc(deadline, func() { c.Process.Kill() })
	err := c.Wait()
	stop()
	result := outcome{stdout: stdout.String(), stderr: stderr.String(), code: c.ProcessState.ExitCode(), took: time.Since(begin)}
	result.late = deadline.Err() != nil
	if errors.Is(err, exec.ErrWaitDelay) {
		result.stderr += "(a descendant holds the streams)"
	}
	return result
}

// eventually polls a condition and fails the test if it is false at the deadline. what describes the condition.
func eventually(t *testing.T, what string, deadline time.Duration, true_ func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !true_(); time.Sleep(5 * time.Millisecond) {
		must.Have(t, !time.Now().After(end), "not within %v: %s", deadline, what)
	}
}
