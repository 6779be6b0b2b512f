// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/inspect"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// Kind is the name of a fault, for programs.
type Kind string

// Level is how much a finding matters.
type Level string

// A fault makes a job fail, or gives it less than it was granted. A warning costs time, or makes a later fault worse.
const (
	Fault   Level = "fault"
	Warning Level = "warning"
)

// Finding is a fault or warning with its place and its repair.
type Finding struct {
	Kind  Kind   `json:"kind"`
	Level Level  `json:"level"`
	Where string `json:"where"`
	What  string `json:"what"`
	Do    string `json:"fix"`
}

func fault(kind Kind, where, do, what string, args ...any) Finding {
	return Finding{kind, Fault, where, fmt.Sprintf(what, args...), do}
}

func warning(kind Kind, where, do, what string, args ...any) Finding {
	return Finding{kind, Warning, where, fmt.Sprintf(what, args...), do}
}

// part is the part of the node that a check needs. If it was not seen, the check is not made, and another part of the
// report has the reason.
type part func(Node) bool

func anything(Node) bool    { return true }
func driver(n Node) bool    { return n.Driver != nil }
func slurmConf(n Node) bool { return n.Slurm != nil }

// check judges one thing.
type check struct {
	what  string // the sentence if all is well
	looks part
	judge func(Node) []Finding
}

// checks lists all checks in the order of the report: our own files, the driver, Slurm, this machine.
var checks = []check{
	{"our programs are there, and who runs them may", anything, programsThere},
	{"our programs are of one version", anything, programsAgree},
	{"policy.hcl can be used", anything, policyLoads},
	{"site.hcl can be used", anything, factsLoad},
	{"only root can change what root runs and reads", anything, nobodyElseWrites},
	{"what site.hcl names is there", Node.known, helpersThere},
	{"the kernel and the driver let a guard hold files", driver, guardWorks},
	{"daemons can have control groups of their own", anything, groupsWork},
	{"the control program and the driver are of one version", driver, controlAgrees},
	{"the driver answers and shows GPUs", Node.known, driverAnswers},
	{"every GPU can be read", driver, gpusReadable},
	{"every GPU is new enough for shares", driver, gpusNewEnough},
	{"every GPU has persistence mode", driver, gpusPersistent},
	{"no GPU is in MIG mode if Slurm allocates whole GPUs", driver, gpusWhole},
	{"no GPU is out of service by its compute mode", driver, gpusOpen},
	{"slurm.conf can be read", anything, slurmReads},
	{"Prolog=, Epilog= and TaskProlog= start our programs", slurmConf, hooksOurs},
	{"slurmd may run them", slurmConf, hooksRunnable},
	{"they stand in the right order among others", slurmConf, hookOrder},
	{"PrologFlags= fits", slurmConf, prologFlags},
	{"Slurm waits for our programs until they end", slurmConf, prologTimeouts},
	{"GresTypes= has gpu", slurmConf, gresTypes},
	{"slurm.conf has a line for this node", slurmConf, nodeLine},
	{"the node has the trigger's Feature", slurmConf, nodeFeature},
	{"gres.conf can be read", slurmConf, gresReads},
	{"slurmd itself reads gres.conf", slurmConf, slurmdReads},
	{"the node's GPUs are of one type", slurmConf, oneType},
	{"gres.conf, slurm.conf, slurmd and the driver have the same GPUs", slurmConf, gresAgrees},
	{"Slurm itself shares no GPU of this node among jobs", slurmConf, noShares},
	{"steps see the folder of state", slurmConf, stateShared},
	{"a job can open its own GPUs alone", slurmConf, devicesConstrained},
	{"the SPANK plugin is there, for slurmd's release", slurmConf, spankFits},
	{"paths of sockets are short enough", anything, socketsFit},
	{"limits of open files are high enough", anything, filesEnough},
	{"the folder of state is root's own", anything, stateOurs},
	{"there is room for state, on a tmpfs", anything, stateRoom},
	{"nothing is left of jobs that have ended", Node.known, nothingLeft},
}

// Judge returns what would make a job on this node fail. It is pure: the same node has the same findings.
func Judge(n Node) []Finding {
	found := []Finding{}
	for _, c := range checks {
		found = append(found, c.judge(n)...)
	}
	return found
}

// Check is the result of one check.
type Check struct {
	What   string `json:"what"`
	Result string `json:"result"` // ok, warning, fault, or not seen
}

// Checks returns all checks with their results.
func Checks(n Node) []Check {
	all := make([]Check, len(checks))
	for i, c := range checks {
		all[i] = Check{c.what, "ok"}
		found := c.judge(n)
		switch {
		case slices.ContainsFunc(found, func(f Finding) bool { return f.Level == Fault }):
			all[i].Result = string(Fault)
		case len(found) > 0:
			all[i].Result = string(Warning)
		case !c.looks(n):
			all[i].Result = "not seen"
		}
	}
	return all
}

// needs returns the mode bits that a program needs. slurmd reads and executes it as root, and a rank as its user.
// Slurm refuses a file that can be executed and not read, with status 127.
func needs(program string) fs.FileMode {
	switch program {
	case "prolog", "epilog", "guard", "gpu-usage":
		return 0o500
	case "mpirun-wrap":
		return 0o001
	}
	return 0o005
}

func programsThere(n Node) (found []Finding) {
	for _, p := range n.Programs {
		where := p.Path
		switch {
		case errors.Is(p.Err, fs.ErrNotExist):
			found = append(found, fault("program-missing", where, "install it: docs/operator.md, Install on a node", "%s is not there", p.Name))
		case p.Err != nil:
			found = append(found, fault("program-missing", where, "look at it: ls -lL "+where, "%s cannot be looked at: %v", p.Name, p.Err))
		case p.Name != "mpsctl" && (!p.Mode.IsRegular() || p.Mode&needs(p.Name) != needs(p.Name)):
			found = append(found, fault("program-mode", where, "chmod 755 "+where, "the mode of %s is %04o: %s", p.Name, p.Mode.Perm(), whyMode(p.Name)))
		}
	}
	return found
}

// firstToHold is the first driver with which a dead client's work continues while its files are held (from its open
// source; not tried).
const firstToHold = "535.43"

func guardWorks(n Node) (found []Finding) {
	const harm = "a client that ends with work in flight kills the other clients on its GPU"
	if n.Guard.NoGetfd != nil {
		found = append(found, warning("guard", "this kernel", "use a kernel from 5.6 on", "pidfd_getfd: %v: %s", n.Guard.NoGetfd, harm))
	}
	if n.Guard.Scope >= 3 {
		found = append(found, warning("guard", "kernel.yama.ptrace_scope", "set it to 2 or less and reboot", "it is %d, and no process may look into another: %s", n.Guard.Scope, harm))
	}
	if n.Driver != nil && older(n.Driver.Version, firstToHold) {
		found = append(found, warning("guard", "driver "+n.Driver.Version, "use a driver from "+firstToHold+" on", "it stops a client's work when the process ends: %s", harm))
	}
	return found
}

func groupsWork(n Node) (found []Finding) {
	if n.NoGroups != nil {
		found = append(found, warning("control-groups", "/sys/fs/cgroup", "mount version 2 of control groups, as systemd does", "%v: what a user starts through a daemon may outlive the job", n.NoGroups))
	}
	return found
}

// older compares versions like 535.43.02 number by number. A text that is no version is not older.
func older(version, than string) bool {
	have, want := strings.Split(version, "."), strings.Split(than, ".")
	for i := range min(len(have), len(want)) {
		a, err1 := strconv.Atoi(have[i])
		b, err2 := strconv.Atoi(want[i])
		if err1 != nil || err2 != nil || a != b {
			return err1 == nil && err2 == nil && a < b
		}
	}
	return false
}

func whyMode(program string) string {
	if program == "mpirun-wrap" {
		return "every user executes it"
	}
	if program == "task-prolog" {
		return "it runs as the job's user, and Slurm takes no file that it may not read as well as execute"
	}
	return "slurmd takes no file that it may not read as well as execute, and drains the node with status 127"
}

// programsAgree compares versions. A program that does not print a version is not compared.
func programsAgree(n Node) []Finding {
	var told []string
	versions := map[string]bool{}
	for _, p := range n.Programs {
		if p.Version != "" {
			versions[p.Version] = true
			told = append(told, p.Path+" "+p.Version)
		}
	}
	if len(versions) < 2 {
		return nil
	}
	return []Finding{fault("program-versions", filepath.Dir(n.Programs[0].Path), "install all of one build: docs/operator.md, Install on a node",
		"our programs are of several versions, which need not understand one another's records: %s", strings.Join(told, ", "))}
}

func policyLoads(n Node) []Finding {
	return unreadable("policy", n.Paths.Policy(), "mpsctl policy check"+n.rooted(), n.Policy.FileStatus, "jobs that ask for MPS fail, and drain the node")
}

func factsLoad(n Node) []Finding {
	return unreadable("site-file", n.Paths.ConfigFile(), "correct the line; "+shipped+"site.hcl is an example", n.ConfigErr, "the defaults hold")
}

// These are the folders of the packages (site/pkg/nfpm.yaml).
const (
	libexec  = "/usr/libexec/slurm-mps/"            // programs for slurmd
	shipped  = "/usr/share/slurm-mps/"              // policy.hcl and site.hcl as they were shipped
	examples = "/usr/share/doc/slurm-mps/examples/" // lines for Slurm's files
)

// rooted is the flag that changes the root of the commands' files.
func (n Node) rooted() string {
	if n.Paths.Root == "" {
		return ""
	}
	return " --root " + n.Paths.Root
}

// unreadable judges a file that cannot be used. If a copy of it is used, jobs run as before, so it is a warning.
func unreadable(kind Kind, path, correct string, s policyfile.FileStatus, without string) []Finding {
	if s.Err == nil {
		return nil
	}
	f := Finding{Kind: kind, Level: Fault, Where: path, Do: "look at it: ls -l " + path}
	if !s.Kept.IsZero() {
		f.Level = Warning
	}
	what := s.Err.Error()
	var bad *policyfile.Error
	switch {
	case errors.As(s.Err, &bad):
		c := bad.Diagnostics()[0]
		f.Where, f.Do = fmt.Sprintf("%s:%d", c.File, c.Line), correct
	case errors.Is(s.Err, fs.ErrNotExist):
		name := filepath.Base(path)
		what, f.Do = "it is not there", fmt.Sprintf("install -D -m 644 %s %s", shipped+name, path)
	case errors.Is(s.Err, site.ErrNotRootOwned):
		f.Do = fmt.Sprintf("chown root:root %s && chmod 644 %s", path, path)
	}
	f.What = strings.TrimSuffix(what, ".") + ": " + s.Instead(without)
	return []Finding{f}
}

// nobodyElseWrites judges what root runs and reads. It returns a finding for each file or folder that someone else
// can change.
func nobodyElseWrites(n Node) (found []Finding) {
	files := slices.Clone(n.Own)
	for _, p := range n.Programs {
		files = append(files, p.File)
	}
	if n.Slurm != nil {
		for _, h := range n.Slurm.Hooks {
			for _, s := range h.Scripts {
				files = append(files, s.File)
			}
		}
		if n.Slurm.Plugin != nil {
			files = append(files, n.Slurm.Plugin.File)
		}
	}
	files = append(files, n.Helpers...)
	told := []string{}
	for _, f := range files {
		if f.Loose == "" || slices.Contains(told, f.Loose) || n.foreign(f.Path) {
			continue
		}
		told = append(told, f.Loose)
		found = append(found, fault("not-roots-own", f.Loose, fmt.Sprintf("chown root:root %s && chmod go-w %s", f.Loose, f.Loose),
			"%s: someone except root can change what root runs or reads (%s)", f.LooseWhy, f.Path))
	}
	return found
}

// foreign reports whether a file has the wrong owner, which is a finding already.
func (n Node) foreign(path string) bool {
	return path == n.Paths.Policy() && errors.Is(n.Policy.Err, site.ErrNotRootOwned) || path == n.Paths.ConfigFile() && errors.Is(n.ConfigErr.Err, site.ErrNotRootOwned)
}

func helpersThere(n Node) (found []Finding) {
	for _, f := range n.Helpers {
		set := fmt.Sprintf("set %s in %s to where it is", f.Name, n.Paths.ConfigFile())
		switch {
		case f.Err != nil && f.Name == "mps_control":
			found = append(found, fault("control-missing", f.Path, set+", or install the driver's package that has nvidia-cuda-mps-control", "the MPS control program cannot be found: %v", f.Err))
		case f.Err != nil:
			found = append(found, fault("library-path", f.Path, set+", or take the line out", "a folder of library_path cannot be found: %v", f.Err))
		case f.Name == "mps_control" && (!f.Mode.IsRegular() || f.Mode&0o001 == 0):
			found = append(found, fault("control-mode", f.Path, "chmod 755 "+f.Path, "its mode is %v, and the job's user executes it", f.Mode))
		}
	}
	return found
}

// controlAgrees compares the versions of control program and driver. After an upgrade without a reboot, no client can
// talk to the daemon.
func controlAgrees(n Node) []Finding {
	if n.Driver == nil || n.Control == "" || n.Control == n.Driver.Version {
		return nil
	}
	return []Finding{fault("control-version", n.Config.Control, "reboot the node, or install the packages of one driver", "it is driver %s's, and driver %s is loaded", n.Control, n.Driver.Version)}
}

func driverAnswers(n Node) []Finding {
	switch {
	case n.NVMLErr != nil:
		return []Finding{fault("nvml", "NVML", fmt.Sprintf("make nvidia-smi work (modprobe nvidia), or set nvml_library in %s to where libnvidia-ml.so.1 is", n.Paths.ConfigFile()), "%v", n.NVMLErr)}
	case n.Driver != nil && len(n.Driver.GPUs) == 0:
		return []Finding{fault("no-gpu", "NVML", "see why: dmesg | grep -i nvrm", "driver %s shows no GPU", n.Driver.Version)}
	}
	return nil
}

// gpus returns the GPUs that could be read.
func (n Node) gpus() (all []GPU) {
	if n.Driver != nil {
		for _, g := range n.Driver.GPUs {
			if g.Err == nil {
				all = append(all, g)
			}
		}
	}
	return all
}

func (g GPU) where() string { return fmt.Sprintf("GPU %d, %s", g.Index, g.Device.UUID) }

func gpusReadable(n Node) (found []Finding) {
	if n.Driver == nil {
		return nil
	}
	for _, g := range n.Driver.GPUs {
		if g.Err != nil {
			found = append(found, fault("gpu-unreadable", g.where(), "see why: dmesg | grep -i xid; a GPU that is lost comes back with a reboot of the node", "%s", strings.ReplaceAll(g.Err.Error(), "\n", "; ")))
		}
	}
	return found
}

func gpusNewEnough(n Node) (found []Finding) {
	for _, g := range n.gpus() {
		if g.Major < 7 {
			found = append(found, fault("gpu-too-old", g.where(), "give its node no Feature that asks for MPS", "%s has compute capability %d.%d: MPS knows shares from 7.0 on", g.Device.Name, g.Major, g.Minor))
		}
	}
	return found
}

func gpusPersistent(n Node) (found []Finding) {
	for _, g := range n.gpus() {
		if !g.Persistent {
			found = append(found, warning("persistence-off", g.where(), "systemctl enable --now nvidia-persistenced, or: nvidia-smi -i "+string(g.Device.UUID)+" -pm 1",
				"persistence mode is off: the driver forgets the compute mode when nothing uses the GPU, and every prolog waits for it to come up"))
		}
	}
	return found
}

// gpusWhole judges MIG mode on a node whose MIG instances Slurm does not allocate.
func gpusWhole(n Node) (found []Finding) {
	if n.Slurm != nil && n.Slurm.Gres != nil && n.Slurm.Gres.Detect == slurm.DetectNVML {
		return nil
	}
	for _, g := range n.gpus() {
		if g.Device.MIGMode {
			found = append(found, fault("mig-mode", g.where(), "nvidia-smi -i "+string(g.Device.UUID)+" -mig 0, or AutoDetect=nvml in gres.conf, so that Slurm allocates instances", "it is in MIG mode, and no job can use it whole"))
		}
	}
	return found
}

// gpusOpen judges the modes in which no process can use the GPU. exclusive_process without a lease is a finding of
// what jobs have left.
func gpusOpen(n Node) (found []Finding) {
	for _, g := range n.gpus() {
		if g.Mode == site.ModeProhibited || g.Mode == site.ModeExclusiveThread {
			found = append(found, fault("gpu-mode", g.where(), "nvidia-smi -i "+string(g.Device.UUID)+" -c DEFAULT", "its compute mode is %s", g.Mode))
		}
	}
	return found
}

// widest is the longest path of a job's socket: with the largest job number, and a daemon for each of up to 100 GPUs.
func widest(paths site.Paths) string {
	return filepath.Join(paths.Run(), "jobs", "4294967295", "99", "pipe")
}

func socketsFit(n Node) []Finding {
	if err := mps.CheckPath(widest(n.Paths)); err != nil {
		return []Finding{fault("socket-path", n.Paths.Run(), "move it with a shorter --root", "%v", err)}
	}
	return nil
}

func filesEnough(n Node) (found []Finding) {
	for _, l := range n.Limits {
		if l.Hard < mps.EnoughFiles && !l.MayRaise {
			found = append(found, fault("open-files", l.Who, "LimitNOFILE=131072 in slurmd.service (systemctl edit slurmd), then: systemctl restart slurmd",
				"its hard limit of open files is %d and it may not raise it: a daemon needs %d, and with less a job gets %d ranks on a GPU at most", l.Hard, mps.EnoughFiles, mps.Clients(l.Hard, 1)))
		}
	}
	return found
}

func stateOurs(n Node) []Finding {
	s := n.State
	switch {
	case s.Err != nil:
		return []Finding{fault("state-folder", s.Path, "look at it: ls -ld "+s.Path, "%v", s.Err)}
	case s.There && (s.UID != 0 || s.Mode != fs.ModeDir|0o755):
		return []Finding{fault("state-folder", s.Path, fmt.Sprintf("chown root:root %s && chmod 755 %s", s.Path, s.Path), "its owner is uid %d and its mode %v: it is to be root's, 0755", s.UID, s.Mode)}
	}
	return nil
}

// The minimum space for a node's state. A job has about 30 files of a few KiB: a lease, a ticket, claims and sockets.
const (
	minRoom  = 16 << 20
	minNames = 2000
)

func stateRoom(n Node) (found []Finding) {
	s := n.State
	if s.Err != nil {
		return nil
	}
	if s.Bytes < minRoom || s.Files < minNames {
		found = append(found, fault("state-room", s.Path, "make room there: df -h "+filepath.Dir(s.Path)+"; df -i "+filepath.Dir(s.Path), "%d KiB and %d files are free: a lease that cannot be written is a prolog that fails", s.Bytes>>10, s.Files))
	}
	if !s.Memory && n.Paths.Root == "" { // another root is a test's, or an admin's own choice
		found = append(found, warning("state-on-disk", s.Path, "mount a tmpfs on /run", "it is not on a tmpfs: every write of a record waits for a disk, and it outlives the boot that it is about"))
	}
	return found
}

// usersDoing are findings of mpsctl status that a job's user can cause. They harm only this user's jobs, so they are
// warnings: otherwise a user could drain a node through a health check that runs doctor.
var usersDoing = []inspect.Kind{
	inspect.DaemonGone, inspect.DaemonReplaced, inspect.DaemonNotServing, inspect.DaemonNoAnswer, inspect.DaemonUnclear, inspect.ServerFault, inspect.CeilingLifted, inspect.FilesUnheld,
	inspect.GuardStalled, inspect.TakersStuck, inspect.ClientsUnguarded,
}

// nothingLeft returns the findings of mpsctl status.
func nothingLeft(n Node) (found []Finding) {
	for _, f := range n.Leftovers {
		switch {
		case f.Kind == inspect.PolicyUnusable, f.Kind == inspect.ConfigUnusable: // judged above
		case slices.Contains(usersDoing, f.Kind):
			found = append(found, warning(Kind(f.Kind), f.Where, f.Do, "%s", f.What))
		default:
			found = append(found, fault(Kind(f.Kind), f.Where, f.Do, "%s", f.What))
		}
	}
	for _, what := range n.Hidden {
		found = append(found, warning("not-seen", "jobs", "look again: mpsctl status"+n.rooted(), "%s", what))
	}
	return found
}
