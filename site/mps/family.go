package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"golang.org/x/sys/unix"
)

// comm is the name that the kernel has for daemon and server alike, cut at 15 bytes.
const comm = "nvidia-cuda-mps"

// Family finds the processes of a daemon, itself and its servers: they bear the name, are the job user's and have the
// daemon's pipe folder in their environment. A user can make such a process too, and then it is ended with the rest:
// it is the user's own and says of itself that it belongs to this job.
func (c Control) Family(job lease.Job, d lease.Daemon) ([]site.Proc, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var family []site.Proc
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !owned(pid, job.UID) {
			continue
		}
		if proc, ok := serves(pid, d.PipeDir); ok {
			family = append(family, proc)
		}
	}
	return family, nil
}

// owned reports whether a process may have the uid, which the owner of its folder in /proc tells. Root is the owner there
// of a process that has changed its uid and not yet run its program, as our own child between fork and exec.
func owned(pid int, uid uint32) bool {
	var st unix.Stat_t
	return unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && (st.Uid == uid || st.Uid == 0)
}

// serves reports whether pid is a living daemon or server of the pipe folder. The start time is read before the rest and
// again after it, so that all of it is about one process.
func serves(pid int, pipeDir string) (site.Proc, bool) {
	folder := "/proc/" + strconv.Itoa(pid)
	name, err := os.ReadFile(folder + "/comm")
	if err != nil || !strings.HasPrefix(string(name), comm) {
		return site.Proc{}, false
	}
	before, err := site.ReadStat(pid)
	if err != nil {
		return site.Proc{}, false
	}
	environment, err := os.ReadFile(folder + "/environ")
	if err != nil || !has(environment, "CUDA_MPS_PIPE_DIRECTORY="+pipeDir) {
		return site.Proc{}, false
	}
	return before.Proc, before.Proc.Alive()
}

func has(environment []byte, variable string) bool {
	for entry := range bytes.SplitSeq(environment, []byte{0}) {
		if string(entry) == variable {
			return true
		}
	}
	return false
}

// End kills what is left of a daemon and waits until it is gone; an error names what does not go. Servers go with their
// daemon (measured), and are killed all the same.
func (c Control) End(ctx context.Context, job lease.Job, d lease.Daemon) error {
	for {
		family, err := c.living(job, d)
		if err != nil || len(family) == 0 {
			return err
		}
		var failed error
		for _, proc := range family {
			failed = errors.Join(failed, proc.Kill(unix.SIGKILL))
		}
		if failed != nil {
			return failed
		}
		if !site.Pause(ctx, 5*time.Millisecond) {
			return fmt.Errorf("cannot end daemon of %s: %v does not go", d.PipeDir, family)
		}
	}
}

// living is the family and the recorded process, whatever its environment says by now.
func (c Control) living(job lease.Job, d lease.Daemon) ([]site.Proc, error) {
	family, err := c.Family(job, d)
	if err != nil {
		return nil, err
	}
	if !d.Proc.Alive() {
		return family, nil
	}
	for _, proc := range family {
		if proc == d.Proc {
			return family, nil
		}
	}
	return append(family, d.Proc), nil
}
