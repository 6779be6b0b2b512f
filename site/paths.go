// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site/words"
)

// Paths names this project's files. Tests and the demo set Root, which is put before each path.
type Paths struct {
	Root string
}

// Check refuses a Root that is not an absolute path.
func (p Paths) Check() error {
	if p.Root != "" && !filepath.IsAbs(p.Root) {
		return fmt.Errorf("cannot use --root %q: give an absolute path", p.Root)
	}
	return nil
}

// Policy returns the path of the policy file.
func (p Paths) Policy() string { return filepath.Join(p.Root, "/etc/slurm-mps/policy.hcl") }

// ConfigFile returns the path of the site's configuration file.
func (p Paths) ConfigFile() string { return filepath.Join(p.Root, "/etc/slurm-mps/site.hcl") }

// Run returns the folder of all state. It lasts until the next boot, like the things that it describes.
func (p Paths) Run() string { return filepath.Join(p.Root, "/run/slurm-mps") }

// Kept returns the folder for files that must survive a reboot: the last usable policy and site file.
func (p Paths) Kept() string { return filepath.Join(p.Root, "/var/lib/slurm-mps") }

// Reports returns the folder of the reports of jobs that have ended.
func (p Paths) Reports() string { return filepath.Join(p.Kept(), "reports") }

// Devices returns the folder of the GPUs' device files.
func (p Paths) Devices() string { return filepath.Join(p.Root, "/dev") }

// Log returns the path of the log file. Each line is a JSON object.
func (p Paths) Log() string { return filepath.Join(p.Root, "/var/log/slurm-mps/slurm-mps.log") }

// Config is the site's configuration: paths of helper programs, deadlines of prolog and epilog, interval of samples.
// slurmd gives a prolog no PATH and no LD_LIBRARY_PATH, so neither variable is read.
type Config struct {
	NVMLLibrary    string // path of libnvidia-ml.so.1; "" lets the loader find it
	Control        string // path of nvidia-cuda-mps-control
	LibraryPath    string // LD_LIBRARY_PATH for the control program, if the driver's libraries are in an unusual folder
	GresConf       string // path of gres.conf; "" means the folder of the slurm.conf that Slurm names
	PrologDeadline time.Duration
	EpilogDeadline time.Duration
	SharedReports  string // folder for copies of reports that all nodes have, with %u for the user; "" means no copies
	// UsageInterval is the time between two samples of a job's use of its GPUs. If it is 0, nothing is recorded.
	UsageInterval time.Duration
}

// DefaultConfig returns the configuration of a site without a configuration file.
func DefaultConfig() Config {
	return Config{
		Control:        "/usr/bin/nvidia-cuda-mps-control",
		PrologDeadline: 60 * time.Second,
		EpilogDeadline: 60 * time.Second,
		UsageInterval:  10 * time.Second,
	}
}

// These are the times that a prolog and an epilog may take beyond their deadlines: for the undo, for the prolog's trial
// as the user nobody, and a small reserve.
const (
	PrologMargin = 45 * time.Second
	EpilogMargin = 5 * time.Second
)

// MaxDurations returns how long a prolog and an epilog may take until they end by themselves. Slurm must wait longer.
func (c Config) MaxDurations() (prolog, epilog time.Duration) {
	return c.PrologDeadline + PrologMargin, c.EpilogDeadline + EpilogMargin
}

// Libexec is the folder into which packages install the programs that slurmd runs.
const Libexec = "/usr/libexec/slurm-mps"

// ProgramPath returns the path of another program that slurmd or the guard runs: in the folder of this program if it is
// there, or else in Libexec.
func ProgramPath(program string) string {
	self, err := os.Executable()
	if err != nil {
		return filepath.Join(Libexec, program)
	}
	path := filepath.Join(filepath.Dir(self), program)
	if _, err := os.Stat(path); err != nil {
		return filepath.Join(Libexec, program)
	}
	return path
}

// Flag returns the flag of a command for these paths, after a space; "" for the usual ones.
func (p Paths) Flag() string {
	if p.Root == "" {
		return ""
	}
	return " " + words.Step("--root", p.Root)
}

// ReapCommand returns the command that reaps one job.
func (p Paths) ReapCommand(job uint32) string {
	return fmt.Sprintf("mpsctl reap --job %d", job) + p.Flag()
}

// IfGone returns the repair of a lease that its job's epilog has not closed.
func (p Paths) IfGone(job uint32) string {
	return fmt.Sprintf("if squeue -j %d shows that the job is gone: %s", job, p.ReapCommand(job))
}
