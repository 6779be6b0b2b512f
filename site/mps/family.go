package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// passes bounds how often the processes are listed for one answer.
const passes = 10

// Family finds the processes of a daemon, itself and its servers: they bear the name, are the job user's and have the
// daemon's pipe folder in their environment. A user can make such a process too, and then it is ended with the rest:
// it is the user's own and says of itself that it belongs to this job.
//
// A list of processes is old when it is read: one that has gone meanwhile may have left a child that is not on it, which
// is what the program that starts a daemon does. So they are listed again until nobody has gone unseen.
func (c Control) Family(job lease.Job, d lease.Daemon) ([]site.Proc, error) {
	var family []site.Proc
	seen := map[int]bool{}
	for range passes {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return nil, fmt.Errorf("cannot list processes: %w", err)
		}
		missed := false
		for _, entry := range entries {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil || seen[pid] {
				continue
			}
			proc, kin := look(pid, job.UID, d.PipeDir)
			seen[pid] = kin != becoming
			missed = missed || kin == gone || kin == becoming
			if kin == member {
				family = append(family, proc)
			}
		}
		if !missed {
			break
		}
	}
	return family, nil
}

// kin is what a process is to a daemon.
type kin int

const (
	stranger kin = iota
	member
	gone     // before it could be looked at
	becoming // another program, and has no environment for a moment
)

// look tells what a process is to the daemon of a pipe folder and of a user.
func look(pid int, uid uint32, pipeDir string) (site.Proc, kin) {
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid), &st) != nil {
		return site.Proc{}, gone
	}
	// Root is the owner there of a process that has changed its uid and not yet run its program, as our own child between
	// fork and exec.
	if st.Uid != uid && st.Uid != 0 {
		return site.Proc{}, stranger
	}
	return serves(pid, pipeDir)
}

// serves tells whether pid is a living daemon or server of the pipe folder. The start time is read before the rest and
// again after it, so that all of it is about one process.
func serves(pid int, pipeDir string) (site.Proc, kin) {
	folder := "/proc/" + strconv.Itoa(pid)
	name, err := os.ReadFile(folder + "/comm")
	if err != nil {
		return site.Proc{}, gone
	}
	if !strings.HasPrefix(string(name), comm) {
		return site.Proc{}, stranger
	}
	before, err := site.ReadStat(pid)
	if err != nil {
		return site.Proc{}, gone
	}
	environment, err := os.ReadFile(folder + "/environ")
	switch {
	case errors.Is(err, fs.ErrPermission):
		return site.Proc{}, stranger
	case err != nil || !before.Proc.Alive():
		return site.Proc{}, gone
	case len(environment) == 0:
		return site.Proc{}, becoming
	case !has(environment, "CUDA_MPS_PIPE_DIRECTORY="+pipeDir):
		return site.Proc{}, stranger
	}
	return before.Proc, member
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
