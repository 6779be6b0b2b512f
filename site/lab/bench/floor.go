// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// floor is the minimum work of the hooks. Its start opens NVML, starts the daemons as the user, and waits for their
// first answers. Its quit ends the daemons with idle servers.
//
// The start is measured in its own process, from main on, because a hook is a process too. NVML starts 10 ms faster
// in a process that has used it before (H200s), and no hook has used it before.
type floor struct {
	Dir     string // the parent of the daemons' folders
	NVML    string
	Control string
	Visible string // the job's GPUs
	Daemons int
}

func newFloor(s testnode.Node, dir string, of set) (floor, error) {
	f := floor{Dir: dir, NVML: testnode.RealNVML(), Control: testnode.RealControl, Daemons: 1}
	if of.Scope == "gpu" {
		f.Daemons = of.GPUs
	}
	if s.Sim != nil {
		f.NVML, f.Control = s.Sim.NVML(), s.Sim.Program("nvidia-cuda-mps-control")
		return f, nil
	}
	nvml, err := gpu.Open(f.NVML)
	if err != nil {
		return f, err
	}
	var uuids []string
	for i := range of.GPUs {
		device, err := nvml.ByMinor(i)
		if err != nil {
			return f, errors.Join(err, nvml.Close())
		}
		uuids = append(uuids, string(device.UUID))
	}
	f.Visible = strings.Join(uuids, ",")
	return f, nvml.Close()
}

// measure returns the milliseconds of the start, of the kill of some clients, and of the quit.
func (f floor) measure(ctx context.Context, begin func() (clients, error)) (start, kill, quit float64, err error) {
	if start, err = f.inItsOwnProcess(ctx); err != nil {
		return 0, 0, 0, err
	}
	all := func(command string) error {
		return each(f.Daemons, func(n int) error { _, err := f.ask(ctx, f.daemonDir(n), command); return err })
	}
	for _, command := range []string{fmt.Sprintf("start_server -uid %d", uid), "get_server_list"} {
		if err := all(command); err != nil {
			return 0, 0, 0, err
		}
	}
	running, err := begin()
	if err != nil {
		return 0, 0, 0, errors.Join(err, all("quit"))
	}
	kill = running.kill()
	began := time.Now()
	err = all("quit")
	return start, kill, since(began), err
}

func (f floor) inItsOwnProcess(ctx context.Context) (ms float64, err error) {
	question, err := json.Marshal(f)
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, "floor")
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(question)), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("cannot measure the floor: %w", err)
	}
	return ms, json.Unmarshal(output, &ms)
}

// floorMain is the main function of that process.
func floorMain() {
	began := time.Now()
	var f floor
	err := json.NewDecoder(os.Stdin).Decode(&f)
	if err == nil {
		err = f.start()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench floor: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(since(began))
}

func (f floor) start() error {
	if _, err := gpu.Open(f.NVML); err != nil { // the process's end shuts NVML down
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return each(f.Daemons, func(n int) error {
		dir, err := f.makeDirs(n)
		if err != nil {
			return err
		}
		if _, err := f.ask(ctx, dir, "", "-d"); err != nil {
			return err
		}
		_, err = f.ask(ctx, dir, "get_server_list")
		return err
	})
}

func (f floor) daemonDir(n int) string { return filepath.Join(f.Dir, fmt.Sprintf("f%d", n)) }

// makeDirs makes a daemon's folders, which belong to the user.
func (f floor) makeDirs(n int) (string, error) {
	dir := f.daemonDir(n)
	for _, path := range []string{dir, filepath.Join(dir, "pipe"), filepath.Join(dir, "log")} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", err
		}
		if err := os.Chown(path, uid, gid); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func (f floor) ask(ctx context.Context, dir, command string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, f.Control, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(dir, "pipe"),
		"CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(dir, "log")}
	if f.Visible != "" {
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+f.Visible)
	}
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{gid}}}
	output, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot ask %q: %w: %s", command, err, output)
	}
	return string(output), nil
}
