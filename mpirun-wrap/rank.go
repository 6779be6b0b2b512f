// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
	"golang.org/x/sys/unix"
)

// Rank is all input for the placement of a rank.
type Rank struct {
	Task    launch.Task
	Binding launch.Binding
	CanOpen opener
	Options Options
	Shards  int    // the step's shards on this node; 0 for none
	Visible string // CUDA_VISIBLE_DEVICES, "" if it is not set
}

// readRank reads the description of the rank from the environment and the machine.
func (r *run) readRank() (err error) {
	r.rank = Rank{Options: r.Options, CanOpen: r.canOpen, Visible: r.Env["CUDA_VISIBLE_DEVICES"]}
	if r.rank.Binding, err = launch.ReadBinding(r.Env); err != nil {
		return err
	}
	if r.rank.Shards, _, err = slurm.ShardsOnNode(r.Env); err != nil {
		return err
	}
	if r.Options.Slots == jobTasks {
		n, err := launch.TasksOnNode(r.Env)
		if err == nil && n == 1 { // one slot would run the processes one after the other
			err = errors.New("cannot count slots: the job or step has one task on this node")
		}
		if err != nil {
			return fmt.Errorf("%w: give the number: --slots=8", err)
		}
		r.rank.Options.Slots = n
	}
	if r.readTask(); r.taskErr != nil {
		return r.taskErr
	}
	r.rank.Task = r.task
	return nil
}

func (r *run) canOpen(minor int) bool {
	return osfile.CanOpen(filepath.Join(r.Paths.Devices(), "nvidia"+strconv.Itoa(minor)))
}

// readTask reads the rank's place on its node, once. The variables of launchers that have not started this process are
// removed from the run's, but not from the program's.
func (r *run) readTask() {
	if r.taskRead {
		return
	}
	r.taskRead = true
	r.task, r.taskErr = r.findTask()
	if r.taskErr != nil && r.Options.Slots != 0 { // the slot is the place
		r.task, r.taskErr = launch.ManualTask(r.Env, 0, 1)
	} else if r.taskErr != nil && r.Options.LocalSize == 0 {
		r.taskErr = fmt.Errorf("%w; or give --local-rank and --local-size", r.taskErr)
	}
}

func (r *run) findTask() (launch.Task, error) {
	if r.Options.LocalSize > 0 {
		return launch.ManualTask(r.Env, r.Options.LocalRank, r.Options.LocalSize)
	}
	first, _ := strconv.Atoi(r.Env["SLURM_TASK_PID"])
	if first > 0 && first != r.PID && launch.HasLauncher(r.Env) {
		env, err := launch.WithoutInheritedLauncher(r.Env, readOrigin(first, r.Env["PMI_FD"]))
		if err != nil {
			return launch.Task{}, err
		}
		r.Env = env
	}
	return launch.ReadTask(r.Env, r.PID)
}

func readOrigin(pid int, pmi string) launch.Origin {
	found := proc.Variables(context.Background(), proc.Process{PID: pid}, launch.OriginVariables()...)
	if found.Err != nil {
		found.Values = nil // a part proves nothing
	}
	hidden := proc.InOwnNamespace("pid") || proc.InOwnNamespace("user")
	return launch.Origin{Env: found.Values, Hidden: hidden, HasPMI: isInheritedSocket(pmi)}
}

// isInheritedSocket reports whether a number is a descriptor of a socket that this process has not opened itself. Go
// gives its own descriptors the close-on-exec flag.
func isInheritedSocket(number string) bool {
	fd, err := strconv.Atoi(number)
	if err != nil {
		return false
	}
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0 && unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// launchID names the launch of the rank, whose place was read before. All ranks of a launch on a node have the same
// parent, which has started them. The name is found once.
func (r *run) launchID() (string, error) {
	if r.launch != "" {
		return r.launch, nil
	}
	self, err := proc.ReadStat(r.PID)
	if err != nil {
		return "", err
	}
	var parent proc.Stat // none if it is outside of this pid namespace
	if self.Parent != 0 {
		if parent, err = proc.ReadStat(self.Parent); err != nil {
			return "", err
		}
	}
	r.launch = launchID(r.Env, r.task, parent.Process)
	return r.launch, nil
}

// launchID names one launch on this node, so that two launches of a job do not share messages. A launcher's own
// name for the launch comes first, because behind a shell the parent is not the launcher.
func launchID(env slurm.Env, task launch.Task, parent proc.Process) string {
	switch {
	case task.Source == launch.SourceStepd:
		return "step" + task.StepID
	case env["PMIX_NAMESPACE"] != "":
		return "pmix" + clean(env["PMIX_NAMESPACE"])
	case env["OMPI_MCA_ess_base_jobid"] != "":
		return "ompi" + clean(env["OMPI_MCA_ess_base_jobid"])
	case parent == proc.Process{}: // the first process of a container
		return "step" + task.StepID
	}
	return fmt.Sprintf("pid%d.%d", parent.PID, parent.Start)
}

// clean makes a launcher's name usable in a file name.
func clean(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name[:min(len(name), 100)])
}
