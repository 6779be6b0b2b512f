// SPDX-License-Identifier: Apache-2.0

// Package node is the folder that simulates the NVIDIA driver of one node. The folder has the GPUs, their modes, the
// processes that hold contexts, and the faults that a test sets. README.md in this folder describes it; node.h is the
// same for C.
//
// When a process changes the folder, every other process sees the complete change at once.
//
// The package imports only the standard library, because sim.Build compiles it outside of this module.
package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

// ErrBusy means that a GPU's compute mode does not allow another context. Test for it with errors.Is.
var ErrBusy = errors.New("the compute mode admits no further context")

// The compute modes (nvmlComputeMode_t).
const (
	Default          = 0
	ExclusiveThread  = 1
	Prohibited       = 2
	ExclusiveProcess = 3
)

// Node is a simulated node's folder, SIM/node.
type Node struct{ Dir string }

// GPU is one GPU of a node, SIM/node/gpuN.
type GPU struct {
	Dir   string
	Index int // the index in NVML, which is PCI order
}

// Here returns the node of the running program: ../node from the folder of the program's own file.
func Here() (Node, error) {
	program, err := os.Executable()
	if err != nil {
		return Node{}, fmt.Errorf("cannot find own program: %w", err)
	}
	return Open(filepath.Join(filepath.Dir(filepath.Dir(program)), "node"))
}

// Open returns the node in dir, which Create has made.
func Open(dir string) (Node, error) {
	if _, err := os.Stat(filepath.Join(dir, "driver_version")); err != nil {
		return Node{}, fmt.Errorf("cannot open simulated node %s: %w", dir, err)
	}
	return Node{Dir: dir}, nil
}

// GPUs returns the node's GPUs in NVML's order.
func (n Node) GPUs() ([]GPU, error) {
	var found []GPU
	for i := 0; ; i++ {
		dir := filepath.Join(n.Dir, "gpu"+strconv.Itoa(i))
		_, err := os.Stat(dir)
		if errors.Is(err, os.ErrNotExist) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list GPUs of simulated node: %w", err)
		}
		found = append(found, GPU{Dir: dir, Index: i})
	}
}

// GPU returns GPU i of the node. It need not exist.
func (n Node) GPU(i int) GPU { return GPU{Dir: filepath.Join(n.Dir, "gpu"+strconv.Itoa(i)), Index: i} }

// Text returns an attribute of the node without its newline.
func (n Node) Text(attribute string) (string, error) { return readText(n.Dir, attribute) }

// Set writes an attribute of the node.
func (n Node) Set(attribute, text string) error { return writeText(n.Dir, attribute, text) }

// Fail makes a library-wide NVML function return code (an nvmlReturn_t). times is the number of calls that fail; 0
// means all.
func (n Node) Fail(function string, code, times int) error {
	return failIn(n.Dir, function, code, times)
}

// Delay makes an NVML function wait this many milliseconds before it answers.
func (n Node) Delay(function string, ms int) error {
	return writeText(n.Dir, filepath.Join("delay_ms", function), strconv.Itoa(ms))
}

// Text returns an attribute of the GPU ("uuid", "mig/0/sms") without its newline.
func (g GPU) Text(attribute string) (string, error) { return readText(g.Dir, attribute) }

// Number returns an attribute of the GPU that is a whole number.
func (g GPU) Number(attribute string) (int, error) {
	text, err := g.Text(attribute)
	if err != nil {
		return 0, err
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("cannot read attribute %s: %w", filepath.Join(g.Dir, attribute), err)
	}
	return number, nil
}

// Set writes an attribute of the GPU.
func (g GPU) Set(attribute, text string) error { return writeText(g.Dir, attribute, text) }

// Mode returns the GPU's compute mode, one of Default to ExclusiveProcess.
func (g GPU) Mode() (int, error) { return g.Number("compute_mode") }

// SetMode sets the GPU's compute mode, as a person outside of the programs under test does.
func (g GPU) SetMode(mode int) error {
	return locked(g.Dir, func() error { return g.Set("compute_mode", strconv.Itoa(mode)) })
}

// Fail makes an NVML function return code (an nvmlReturn_t) on this GPU. times is the number of calls that fail; 0
// means all.
func (g GPU) Fail(function string, code, times int) error {
	return failIn(g.Dir, function, code, times)
}

// Instances returns the numbers of the GPU's MIG instances, in order.
func (g GPU) Instances() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(g.Dir, "mig"))
	if err != nil {
		return nil, fmt.Errorf("cannot list MIG instances of simulated GPU %d: %w", g.Index, err)
	}
	var numbers []int
	for _, entry := range entries {
		if k, err := strconv.Atoi(entry.Name()); err == nil {
			numbers = append(numbers, k)
		}
	}
	sort.Ints(numbers)
	return numbers, nil
}

func failIn(dir, function string, code, times int) error {
	text := strconv.Itoa(code)
	if times > 0 {
		text += " " + strconv.Itoa(times)
	}
	return locked(dir, func() error { return writeText(dir, filepath.Join("errors", function), text) })
}

func readText(dir, attribute string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, attribute))
	if err != nil {
		return "", fmt.Errorf("cannot read attribute of simulated node: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// writeText replaces the file, so that no reader finds it empty. Every user can read the file, and only root can
// write it.
func writeText(dir, attribute, text string) error {
	target := filepath.Join(dir, attribute)
	draft, err := os.CreateTemp(filepath.Dir(target), ".draft-")
	if err != nil {
		return fmt.Errorf("cannot write attribute %s: %w", target, err)
	}
	_, err = draft.WriteString(text + "\n")
	err = errors.Join(err, draft.Chmod(0o644), draft.Close())
	if err == nil {
		err = os.Rename(draft.Name(), target)
	}
	if err != nil {
		os.Remove(draft.Name())
		return fmt.Errorf("cannot write attribute %s: %w", target, err)
	}
	return nil
}

// locked runs change under the flock of dir. A holder of the lock waits only for the disk, so the wait ends.
func locked(dir string, change func() error) error {
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return fmt.Errorf("cannot lock simulated node: %w", err)
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	return change()
}

// flock repeats a wait that a signal has ended, because the Go runtime sends itself signals.
func flock(lock *os.File) error {
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// SignalGroup sends a signal to the process group that cmd leads. After cmd was waited for, it returns an error and sends
// nothing, because its number may be another group's by then.
func SignalGroup(cmd *exec.Cmd, signal syscall.Signal) error {
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		return err
	}
	return syscall.Kill(-cmd.Process.Pid, signal)
}

// WriteProgram writes a file that is run immediately after. During the write no other goroutine starts a process. A
// new process would have the file open for writing until it executes its own program. Running a file that is open for
// writing fails with ETXTBSY.
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o755)
}
