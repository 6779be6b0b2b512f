// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"io/fs"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Node is what was gathered of a node. A part that could not be looked at is nil, and Unseen or an error beside it says why.
type Node struct {
	Name   string
	Root   bool // who looks is root
	Time   time.Time
	Paths  site.Paths
	Unseen []string

	Programs  []Program
	Policy    PolicyResult
	Own       []File      // the policy and the site's file
	Config    site.Config // that hold: the file's, or what is used in its place
	ConfigErr policyfile.FileStatus
	Helpers   []File // that site.hcl names, or its defaults
	Control   string // the driver's version that the control program is of, "" where it does not say
	Conf      string // path of slurm.conf
	Slurm     *Slurm
	SlurmErr  error
	Driver    *Driver
	NVMLErr   error
	State     StateDir
	Limits    []Limit
	Guard     Guarding
	NoGroups  error // why daemons get no control groups of their own
	Leftovers []inspect.Finding
	Hidden    []string // of the jobs, from root: a user's process can hold up who looks at it
}

// File is a program, or a folder of them, as it lies there.
type File struct {
	Name string // what it is for people
	Path string
	Mode fs.FileMode
	Err  error
	// Loose is the file, or the folder above it, that somebody else than root can change; "" for none.
	Loose, LooseWhy string
}

// Program is one of ours.
type Program struct {
	File
	Version string // "" where it does not say
}

// PolicyResult is the policy.
type PolicyResult struct {
	Trigger *policy.Trigger // of the policy that is used
	policyfile.FileStatus
}

// Script is what Slurm runs at one of its hooks.
type Script struct {
	File
	Starts string // which of our programs it is, or starts; "" for none
	By     string // the path of that
}

// Hook is Prolog=, Epilog= or TaskProlog=.
type Hook struct {
	Name     string
	Ours     string // the program of ours that belongs there
	Settings []slurm.ConfValue
	Scripts  []Script // in the order in which Slurm runs them
}

// Slurm is what Slurm's files say of this node.
type Slurm struct {
	slurm.ConfFile
	Hooks       []Hook
	NodeErr     error // why no line of slurm.conf says what the node is
	Features    []string
	FeaturesErr error
	Gres        *slurm.Gres
	GresErr     error
	SlurmdGPUs  []int            // the minors that slurmd itself lists, by position; nil where it was not asked or not understood
	ListErr     error            // why it does not list them
	Container   *slurm.ConfFile  // job_container.conf
	Namespace   *slurm.Namespace // namespace.yaml, which namespace/linux reads in its place
	Cgroup      *slurm.ConfFile
	Unread      []string // why a file beside slurm.conf could not be read
}

// Driver is what NVML says.
type Driver struct {
	Version string
	GPUs    []GPU
}

// GPU is one whole GPU.
type GPU struct {
	Index        int
	Device       site.Device
	Mode         site.Mode
	Major, Minor int // compute capability
	Persistent   bool
	Err          error
}

// StateDir is the folder of state, or the folder above it that is there.
type StateDir struct {
	Path         string
	There        bool // it is the folder itself
	Mode         fs.FileMode
	UID          uint32
	Memory       bool // it is on a file system that a boot empties
	Bytes, Files uint64
	Err          error
}

// Guarding is what the kernel lets a guard do.
type Guarding struct {
	Scope   int   // kernel.yama.ptrace_scope; 0 without Yama
	NoGetfd error // why pidfd_getfd does not work
}

// Limit is how many files a process may let a daemon open.
type Limit struct {
	Who      string
	Hard     uint64
	MayRaise bool
}
