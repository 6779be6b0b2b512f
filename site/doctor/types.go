// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	_ "embed"
	"encoding/json"
	"io/fs"
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
	NoGroups  error // why daemons get no control groups
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
	NodeErr    error // why no line of slurm.conf describes the node
	Features   []string
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

// knownFile has what was tried and published of releases: the drivers on which slurm-mps was proven, and the first
// release of a branch with the fixes of known vulnerabilities. site/lab/proven reads all of it.
//
//go:embed known.json
var knownFile []byte

var known = sync.OnceValue(func() (k struct {
	Proven  []struct{ Driver, GPU string }
	Patched []struct{ What, Branch, First, Source string }
}) {
	_ = json.Unmarshal(knownFile, &k)
	return k
})
