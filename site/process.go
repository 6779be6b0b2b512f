// SPDX-License-Identifier: Apache-2.0

package site

import "github.com/slurm-mps/slurm-mps/site/proc"

// Process identifies a process, and Stat is the kernel's account of one. Package proc reads both.
type (
	Process = proc.Process
	Stat    = proc.Stat
)

// ReadStat is proc.ReadStat.
func ReadStat(pid int) (Stat, error) { return proc.ReadStat(pid) }

// CurrentProcess is proc.Current.
func CurrentProcess() (Process, error) { return proc.Current() }

// BootID is proc.BootID.
func BootID() (string, error) { return proc.BootID() }
