// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"golang.org/x/sys/unix"
)

// The attacks of a soak run beside a job, in no step of it, and go on while its epilog runs. The job must complete.
const (
	midExec  = "processes in the middle of an exec"
	noClose  = "files that never close"
	stalled  = "a client in the middle of an exec"
	manyOpen = "a stranger opens the device 10,000 times a second"

	attackLasts = 3 * time.Second
	// afterAttack is the time in which each guard has seen the clients that started during the attack.
	afterAttack = 500 * time.Millisecond
)

// attacked begins the attack of a job and returns when it has begun.
//
// All nodes of a soak see the same processes, and all jobs have the same user. A process of this user that is in the
// middle of an exec hides new clients from all guards of the user (docs/security.md). So no neighbours are judged at
// that time.
func (v *jobRun) attacked() error {
	program, err := e2e.Hostile()
	if err != nil {
		return err
	}
	device := func(name string) string { return filepath.Join(v.testNode.Sim.Node.Dir, "dev", name) }
	if v.fault.name == manyOpen {
		attack, err := v.attackAs(e2e.OtherUID, nil, program, "opens", device("nvidia-uvm"))
		if err == nil {
			v.attacks.Go(func() { wait.Sleep(v.soak.Ctx, attackLasts); attack.end() })
		}
		return err
	}
	user := uint32(e2e.UID)
	if v.fault.name == midExec && v.ending == "cancelled" {
		user = e2e.OtherUID // a stranger
	}
	v.judging.Lock()
	files, err := v.neverClose(user, program)
	if err != nil {
		v.judging.Unlock()
		return err
	}
	line, processes := []string{program, "execs", files.dir, "5", e2e.MPSNames[0], e2e.MPSNames[1]}, 1
	switch v.fault.name {
	case noClose:
		file := filepath.Join(files.dir, "file")
		line = []string{program, "flipping", device("nvidiactl"), device("nvidia-uvm"), file, "500"}
		processes = 3 // each succeeds by chance
	case stalled:
		open := `exec 5<"$0" 6<"$1"; shift; exec "$@"`
		line = []string{"/bin/sh", "-c", open, device("nvidiactl"), device("nvidia-uvm"), program, "execs", files.dir, "1", "client"}
	}
	var groups []*attackGroup
	for range processes {
		group, failed := v.attackAs(user, nil, line...)
		if err = errors.Join(err, failed); failed == nil {
			groups = append(groups, group)
		}
	}
	v.attacks.Go(func() {
		defer v.judging.Unlock()
		wait.Sleep(v.soak.Ctx, attackLasts)
		v.countTakers()
		files.end() // before the processes, which cannot end without it
		for _, group := range groups {
			group.end()
		}
		wait.Sleep(v.soak.Ctx, afterAttack)
	})
	return err
}

// countTakers notes how many processes of guards wait for a user's file system.
func (s *soak) countTakers() {
	stuck := 0
	for _, p := range roots() {
		if strings.HasSuffix(p.line, " --take ") && strings.Contains(p.status, "\nState:\tD") {
			stuck++
		}
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.stuck = max(s.stuck, stuck)
}

// rootProcess is a process of root.
type rootProcess struct{ pid, line, exe, status string }

// roots returns root's processes. It reads no others, because a process in its exec holds up its readers.
func roots() (all []rootProcess) {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		if info, err := os.Stat(folder); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
			continue
		}
		line, _ := os.ReadFile(folder + "/cmdline")
		status, _ := os.ReadFile(folder + "/status")
		exe, _ := os.Readlink(folder + "/exe")
		text := strings.ReplaceAll(string(line), "\x00", " ")
		all = append(all, rootProcess{filepath.Base(folder), text, exe, string(status)})
	}
	return all
}

// attackGroup is a process of a user with its children, which are one process group.
type attackGroup struct{ cmd *exec.Cmd }

func (v *jobRun) attackAs(user uint32, file *os.File, line ...string) (*attackGroup, error) {
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{"PATH=/usr/bin:/bin"}, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true,
		Credential: &syscall.Credential{Uid: user, Gid: user, Groups: []uint32{user}}}
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	a := &attackGroup{cmd}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		a.end()
		return nil, fmt.Errorf("the attack %q prints %q, %v", cmd.Args, line, err)
	}
	return a, nil
}

func (a *attackGroup) end() {
	_ = node.SignalGroup(a.cmd, unix.SIGKILL)
	_ = a.cmd.Wait()
}

// slowFiles is a mounted file system of a user that never answers.
type slowFiles struct {
	dir    string
	server *attackGroup
}

// neverClose mounts such a file system. Its server ends by itself if the test is killed.
func (v *jobRun) neverClose(user uint32, program string) (f slowFiles, err error) {
	if f.dir, err = os.MkdirTemp(v.Top, "fuse"); err != nil {
		return f, err
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return f, err
	}
	defer device.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", device.Fd(), user, user)
	if err := unix.Mount("hostile", f.dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return f, fmt.Errorf("cannot mount a file system of a user: %w", err)
	}
	life := strconv.Itoa(int((10 * time.Minute).Seconds())) // processes that use it may start slowly
	if f.server, err = v.attackAs(user, device, program, "fuse", "-1", life); err != nil {
		return f, errors.Join(err, unix.Unmount(f.dir, unix.MNT_DETACH))
	}
	return f, nil
}

func (f slowFiles) end() {
	f.server.end()
	_ = unix.Unmount(f.dir, unix.MNT_DETACH)
	_ = os.Remove(f.dir)
}

// metricsEvery is the time between two runs of mpsctl metrics. On a site it is a minute.
const metricsEvery = 5 * time.Second

// measure runs mpsctl metrics on a node as the timer does, until the soak ends. It notes the greatest age that the
// file has had.
func (s *soak) measure(name string, ended <-chan struct{}) {
	n := &soakNode{soak: s, name: name, testNode: s.TestNodes[name]}
	line := n.testNode.Command("mpsctl", "metrics", "--out", filepath.Join(s.metrics, name+".prom"))
	tick := time.NewTicker(metricsEvery)
	defer tick.Stop()
	for last := time.Now(); ; {
		text, err := n.onNode(line)
		if err != nil {
			s.wrong(plannedJob{number: -1}, wrongEnd, fmt.Sprintf("mpsctl metrics: %v: %s", err, text))
		}
		s.mutex.Lock()
		s.oldest = max(s.oldest, time.Since(last))
		s.mutex.Unlock()
		if err == nil {
			last = time.Now()
		}
		select {
		case <-ended:
			return
		case <-tick.C:
		}
	}
}

// ofSoak reports whether a line of strangers is an attack that goes on, or mpsctl metrics.
func ofSoak(stranger string) bool {
	return strings.Contains(stranger, `/hostile\x00`) || strings.Contains(stranger, `metrics\x00--out`)
}

// rootsLeft are root's processes of our programs after all jobs have ended. They get a moment to end.
func (s *soak) rootsLeft() (found []string) {
	bin := s.First().Bin
	e2e.Comes(func() bool {
		found = nil
		for _, p := range roots() {
			taker := p.exe == filepath.Join(bin, "guard") && strings.HasSuffix(p.line, " --take ")
			if taker || strings.HasPrefix(p.exe, bin+"/") && strings.Contains(p.line, s.Top+"/") {
				found = append(found, p.pid+" "+p.line)
			}
		}
		return len(found) == 0
	})
	return found
}
