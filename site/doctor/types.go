// SPDX-License-Identifier: Apache-2.0

// Package doctor finds the faults that would make a job on this node fail, with a repair for each. mpsctl doctor prints
// it.
//
// It changes nothing, and every wait has a deadline. It reports nothing as wrong that it has not seen. Gathering and
// judging are separate: judge is pure.
package doctor

import (
	"context"
	_ "embed"
	"encoding/json"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/state"
)

// node is the state of a node, as far as it was gathered. A part that could not be read is nil, and Unseen or an error
// beside it has the reason.
type node struct {
	Name   string
	Root   bool // this process is root
	Time   time.Time
	Paths  site.Paths
	Unseen []string

	Programs  []program
	Policy    policyResult
	Own       []installed // the policy and the site's file
	Config    site.Config // the settings in use: the file's, or those that replace it
	ConfigErr policyfile.FileStatus
	Helpers   []installed // the programs that site.hcl names, or their defaults
	Control   string      // the version of the control program's driver, "" if it is not certain
	Conf      string      // path of slurm.conf
	Slurm     *slurmFiles
	SlurmErr  error
	Driver    *driverState
	NVMLErr   error
	State     stateFolder
	Limits    []limit
	Guard     holding
	GroupsAt  string // the mount of their hierarchy
	NoGroups  error  // why daemons get no control groups
	LosesIPC  bool   // when a user's last ssh ends, systemd removes the user's files in /dev/shm
	Leftovers []state.Finding
	Hidden    []string // of the jobs, if a user's process hides them by blocking this process
}

// installed is a program, or a folder of programs, as it is installed.
type installed struct {
	Name string // its name for people
	Path string
	Mode fs.FileMode
	Err  error
	// Loose is the file, or the folder above it, that someone except root can change; "" for none.
	Loose, LooseReason string
}

// program is one of our programs.
type program struct {
	installed
	Version string // "" if it prints none
}

// policyResult is the state of the policy.
type policyResult struct {
	Trigger *policy.Trigger // of the policy in use
	policyfile.FileStatus
}

// hookScript is a program that Slurm runs at one of its hooks.
type hookScript struct {
	installed
	Starts string // which of our programs it is or starts; "" for none
	By     string // the path of that program
}

// hook is Prolog=, Epilog= or TaskProlog=.
type hook struct {
	Name     string
	Ours     string // which of our programs belongs there
	Settings []slurm.ConfValue
	Scripts  []hookScript // in the order in which Slurm runs them
}

// slurmFiles is the part of Slurm's files that is about this node.
type slurmFiles struct {
	slurm.ConfFile
	Hooks      []hook
	Registers  []string // slurmd's arguments about a node that registers itself and is in no file
	NodeErr    error    // why no line of slurm.conf describes the node
	Features   []string
	Reserved   string // "MemSpecLimit=1024", for slurmd
	Gres       *slurm.Gres
	GresErr    error
	Version    string          // of slurmd, "" if it was not run
	SlurmdGPUs []int           // the minors that slurmd lists, by position; nil if it was not run or not understood
	ListErr    error           // why it does not list them
	Container  *slurm.ConfFile // job_container.conf
	Namespace  *namespace      // namespace.yaml, which namespace/linux reads instead
	Cgroup     *slurm.ConfFile
	Unread     []string // why a file beside slurm.conf could not be read
}

// driverState is the driver as NVML reports it.
type driverState struct {
	Version string
	GPUs    []device
}

// device is one whole GPU.
type device struct {
	Index        int
	Device       site.Device
	Mode         site.Mode
	Major, Minor int // compute capability
	Persistent   bool
	Err          error
}

// stateFolder is the folder of state, or the lowest folder above it that exists.
type stateFolder struct {
	Path         string
	Exists       bool // the folder itself exists
	Mode         fs.FileMode
	UID          uint32
	Memory       bool // its file system is empty after a boot
	Bytes, Files uint64
	Err          error
}

// holding has the limits that the kernel sets to a guard.
type holding struct {
	Scope   int   // kernel.yama.ptrace_scope; 0 without Yama
	NoGetfd error // why pidfd_getfd does not work
}

// limit is how many files a process may let a daemon open.
type limit struct {
	Who      string
	Hard     uint64
	MayRaise bool
}

// knownFile has proven drivers, and the first releases with fixes of known vulnerabilities.
//
//go:embed known.json
var knownFile []byte

var known = sync.OnceValue(func() (k struct {
	Proven  []struct{ Driver, GPU string }
	Patched []struct{ What, Branches, First, Source string }
}) {
	_ = json.Unmarshal(knownFile, &k)
	return k
})

// Report is the result of doctor, in the form of its JSON.
type Report struct {
	Node     string          `json:"node"`
	Time     time.Time       `json:"time"`
	Complete bool            `json:"complete"` // all was seen
	Checked  checked         `json:"checked"`
	Checks   []outcome       `json:"checks,omitempty"` // with -v
	Findings []state.Finding `json:"findings"`
	Unseen   []string        `json:"errors"`
}

// checked counts the parts that doctor has read.
type checked struct {
	SlurmConf string `json:"slurm_conf"` // "" if there is none to read
	Driver    string `json:"driver"`     // its version, "" if it does not answer
	Proven    bool   `json:"proven"`     // on these GPUs, by known.json
	GPUs      int    `json:"gpus"`
	Programs  int    `json:"programs"`
	Checks    int    `json:"checks"`
}

// Examine reads the state of a node and judges it.
func Examine(ctx context.Context, q Question) Report {
	return newReport(gather(ctx, q, site.ProgramPath))
}

func newReport(n node) Report {
	r := Report{Node: n.Name, Time: n.Time, Complete: len(n.Unseen) == 0, Unseen: n.Unseen}
	r.Checks, r.Findings = judge(n)
	r.Checked.Programs, r.Checked.Checks = len(n.Programs), len(checks)
	if n.Slurm != nil {
		r.Checked.SlurmConf = n.Slurm.Path
	}
	if n.Driver != nil {
		r.Checked.Driver, r.Checked.GPUs, r.Checked.Proven = n.Driver.Version, len(n.Driver.GPUs), n.Driver.proven()
	}
	return r
}

// Failed reports whether the node is not ready for jobs, or could not be read completely.
func (r Report) Failed(strict bool) bool {
	return !r.Complete || r.Count(state.Fault) > 0 || strict && r.Count(state.Warning) > 0
}

// Count returns the number of findings of a level.
func (r Report) Count(level state.Level) (n int) {
	for _, f := range r.Findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// proven reports whether slurm-mps was proven with this driver on every type of GPU here.
func (d *driverState) proven() bool {
	return len(d.GPUs) > 0 && !slices.ContainsFunc(d.GPUs, func(g device) bool {
		return !slices.Contains(known().Proven, struct{ Driver, GPU string }{d.Version, g.Device.Name})
	})
}
