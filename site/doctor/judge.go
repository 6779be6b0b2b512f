// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// diagnosis gathers the findings of a node.
type diagnosis struct {
	node
	found []state.Finding
}

func (d *diagnosis) fault(kind state.Kind, where, fix, what string, args ...any) {
	d.add(state.Fault, kind, where, fix, what, args...)
}

func (d *diagnosis) warning(kind state.Kind, where, fix, what string, args ...any) {
	d.add(state.Warning, kind, where, fix, what, args...)
}

func (d *diagnosis) add(level state.Level, kind state.Kind, where, fix, what string, args ...any) {
	what = fmt.Sprintf(what, args...)
	d.found = append(d.found, state.Finding{Kind: kind, Level: level, Where: where, What: what, Fix: fix})
}

// part reports whether the part of the node that a check needs was seen. If not, the check is not made, and another
// part of the report has the reason.
type part func(node) bool

func anything(node) bool    { return true }
func driver(n node) bool    { return n.Driver != nil }
func slurmConf(n node) bool { return n.Slurm != nil }
func slurmd(n node) bool    { return n.Slurm != nil && n.Slurm.Version != "" }

// check judges one thing.
type check struct {
	sentence string // if all is well
	seen     part
	judge    func(*diagnosis)
}

// checks lists all checks in the order of the report: our own files, the driver, Slurm, this machine.
var checks = []check{
	{"our programs are there, and who runs them may", anything, (*diagnosis).programsThere},
	{"our programs are of one version", anything, (*diagnosis).programsAgree},
	{"policy.hcl can be used", anything, (*diagnosis).policyLoads},
	{"site.hcl can be used", anything, (*diagnosis).configLoads},
	{"only root can change what root runs and reads", anything, (*diagnosis).onlyRootWrites},
	{"the paths of site.hcl exist", node.known, (*diagnosis).helpersThere},
	{"the kernel lets a guard hold files", anything, (*diagnosis).kernelHolds},
	{"the driver lets a guard hold files", driver, (*diagnosis).driverHolds},
	{"daemons can have control groups of their own", anything, (*diagnosis).groupsWork},
	{"the control program and the driver are of one version", driver, (*diagnosis).controlAgrees},
	{"no hole of this driver is known", driver, func(d *diagnosis) { d.unpatched("driver", d.Driver.Version) }},
	{"no hole of this Slurm is known", slurmd, func(d *diagnosis) { d.unpatched("Slurm", d.Slurm.Version) }},
	{"the driver answers and shows GPUs", node.known, (*diagnosis).driverAnswers},
	{"every GPU can be read", driver, (*diagnosis).gpusReadable},
	{"every GPU is new enough for shares", driver, eachGPU((*diagnosis).gpuNewEnough)},
	{"every GPU has persistence mode", driver, eachGPU((*diagnosis).gpuPersistent)},
	{"no GPU is in MIG mode if Slurm allocates whole GPUs", driver, eachGPU((*diagnosis).gpuWhole)},
	{"no GPU is out of service by its compute mode", driver, eachGPU((*diagnosis).gpuOpen)},
	{"slurm.conf can be read", anything, (*diagnosis).slurmReads},
	{"Prolog=, Epilog= and TaskProlog= start our programs", slurmConf, (*diagnosis).hooksOurs},
	{"slurmd may run them", slurmConf, (*diagnosis).hooksRunnable},
	{"they stand in the right order among others", slurmConf, (*diagnosis).hookOrder},
	{"PrologFlags= fits", slurmConf, (*diagnosis).prologFlags},
	{"Slurm waits for our programs until they end", slurmConf, (*diagnosis).prologTimeouts},
	{"GresTypes= has gpu", slurmConf, (*diagnosis).gresTypes},
	{"slurm.conf has a line for this node", slurmConf, (*diagnosis).nodeLine},
	{"the node has the trigger's Feature", slurmConf, (*diagnosis).nodeFeature},
	{"gres.conf can be read", slurmConf, (*diagnosis).gresReads},
	{"slurmd itself reads gres.conf", slurmConf, (*diagnosis).slurmdReads},
	{"the node's GPUs are of one type", slurmConf, (*diagnosis).oneType},
	{"gres.conf, slurm.conf, slurmd and the driver have the same GPUs", slurmConf, (*diagnosis).gresAgrees},
	{"parts of GPUs, by gres/shard and gres/mps, can be served", slurmConf, (*diagnosis).parts},
	{"steps see the folder of state", slurmConf, (*diagnosis).stateShared},
	{"a job can open only its own GPUs", slurmConf, (*diagnosis).devicesConstrained},
	{"limits of slurmd do not bind the jobs' daemons", slurmConf, (*diagnosis).daemonsUnbound},
	{"jobs keep their files in /dev/shm", anything, (*diagnosis).sharedMemoryStays},
	{"paths of sockets are short enough", anything, (*diagnosis).socketsFit},
	{"limits of open files are high enough", anything, (*diagnosis).filesEnough},
	{"the folder of state is root's own", anything, (*diagnosis).stateOurs},
	{"there is room for state, on a tmpfs", anything, (*diagnosis).stateRoom},
	{"ended jobs have left nothing", node.known, (*diagnosis).nothingLeft},
}

// outcome is the result of one check.
type outcome struct {
	What   string `json:"what"`
	Result string `json:"result"` // ok, warning, fault, or not seen
}

// judge makes all checks, and returns their results and the findings. It is pure: the same
// node has the same findings.
func judge(n node) (results []outcome, found []state.Finding) {
	found = []state.Finding{}
	for _, c := range checks {
		d, result := diagnosis{node: n}, "not seen"
		if c.seen(n) {
			c.judge(&d)
			result = "ok"
		}
		for _, f := range d.found {
			if f.Level != state.Note && result != string(state.Fault) {
				result = string(f.Level)
			}
		}
		results, found = append(results, outcome{c.sentence, result}), append(found, d.found...)
	}
	return results, found
}

// needs returns the mode bits that a program needs, and the reason. slurmd reads and executes it as root, and a rank as
// its user. Slurm refuses a file that can be executed and not read, with status 127.
func needs(program string) (bits fs.FileMode, reason string) {
	switch program {
	case "prolog", "epilog", "guard", "gpu-usage":
		return 0o500, "Slurm must be able to read and execute it, or it drains the node with status 127"
	case "mpirun-wrap":
		return 0o001, "every user executes it"
	}
	return 0o005, "it runs as the job's user, and Slurm must be able to read and execute it"
}

func (d *diagnosis) programsThere() {
	for _, p := range d.Programs {
		bits, reason := needs(p.Name)
		switch {
		case errors.Is(p.Err, fs.ErrNotExist):
			d.fault("program-missing", p.Path, reinstall, "%s is not there", p.Name)
		case p.Err != nil:
			d.fault("program-missing", p.Path, "look at it: ls -lL "+words.Step(p.Path),
				"%s cannot be looked at: %v", p.Name, p.Err)
		case p.Name != "mpsctl" && (!p.Mode.IsRegular() || p.Mode&bits != bits):
			d.fault("program-mode", p.Path, "chmod 755 "+words.Step(p.Path),
				"the mode of %s is %04o: %s", p.Name, p.Mode.Perm(), reason)
		}
	}
}

// firstToHold is the first driver with which a dead client's work continues while its files are held (from its open
// source; not tried).
const firstToHold = "535.43"

// notHeld is the effect of a guard that cannot hold files.
const notHeld = "a client that ends with work in flight kills the other clients on its GPU"

func (d *diagnosis) kernelHolds() {
	if d.Guard.NoGetfd != nil {
		d.warning("guard", "this kernel", "boot a kernel from 5.6 on, which this is not: uname -r", "pidfd_getfd: %v: %s", d.Guard.NoGetfd, notHeld)
	}
	if d.Guard.Scope >= 3 {
		d.warning("guard", "kernel.yama.ptrace_scope", "reboot after: echo kernel.yama.ptrace_scope=1 >/etc/sysctl.d/zz-slurm-mps.conf", "it is %d, and no process may look into another: %s", d.Guard.Scope, notHeld)
	}
}

func (d *diagnosis) driverHolds() {
	if older(d.Driver.Version, firstToHold) {
		d.warning("guard", "driver "+d.Driver.Version, "install a driver from "+firstToHold+" on, loaded is: cat /proc/driver/nvidia/version",
			"it stops a client's work when the process ends: %s", notHeld)
	}
}

func (d *diagnosis) groupsWork() {
	if d.NoGroups != nil {
		d.warning("control-groups", "/sys/fs/cgroup", "mount version 2 of them, as systemd does: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
			"%v: processes that a user starts through a daemon may outlive the job", d.NoGroups)
	}
}

func (d *diagnosis) sharedMemoryStays() {
	if d.LosesIPC {
		const file = "/etc/systemd/logind.conf.d/slurm-mps.conf"
		d.warning("remove-ipc", "systemd-logind", "mkdir -p "+filepath.Dir(file)+" && printf '[Login]\\nRemoveIPC=no\\n' >"+file+" && systemctl restart systemd-logind",
			"RemoveIPC is yes: when a user's last ssh to the node ends, the files in /dev/shm of the user's running jobs are removed")
	}
}

// older compares versions like 535.43.02 number by number. A text that is not a version is not older.
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

// unpatched judges a version by its branch. Nothing is known of a branch that is not listed, or has no first release.
func (d *diagnosis) unpatched(what, version string) {
	of := func(branch string) bool { return strings.HasPrefix(version, branch+".") }
	for _, p := range known().Patched {
		switch {
		case p.What != what || !slices.ContainsFunc(strings.Fields(p.Branches), of):
		case p.First == "":
			d.add(state.Note, "unpatched", what+" "+version, "look in later security bulletins of the vendor",
				"it is not known whether it has the fixes of known vulnerabilities (%s)", p.Source)
		case older(version, p.First):
			d.warning("unpatched", what+" "+version, "install "+p.First+" or later, and look again: mpsctl doctor"+
				d.Paths.Flag(), "it lacks the fixes of known vulnerabilities (%s)", p.Source)
		}
	}
}

// programsAgree compares versions. A program that does not print a version is not compared.
func (d *diagnosis) programsAgree() {
	var printed []string
	versions := map[string]bool{}
	for _, p := range d.Programs {
		if p.Version != "" {
			versions[p.Version] = true
			printed = append(printed, p.Path+" "+p.Version)
		}
	}
	if len(versions) > 1 {
		d.fault("program-versions", filepath.Dir(d.Programs[0].Path),
			reinstall,
			"our programs are of several versions, which need not understand one another's records: %s",
			strings.Join(printed, ", "))
	}
}

func (d *diagnosis) policyLoads() {
	d.unreadable("policy", d.Paths.Policy(), "mpsctl policy check"+d.Paths.Flag(), d.Policy.FileStatus,
		"jobs that ask for MPS fail, and drain the node")
}

func (d *diagnosis) configLoads() {
	d.unreadable("site-file", d.Paths.ConfigFile(), "correct it, as in the example: "+
		words.Step("diff", shipped+"site.hcl", d.Paths.ConfigFile()), d.ConfigErr, "the defaults hold")
}

// These folders of the packages (site/pkg/nfpm.yaml) have files to copy.
const (
	shipped  = "/usr/share/slurm-mps/"              // policy.hcl and site.hcl as they were shipped
	examples = "/usr/share/doc/slurm-mps/examples/" // lines for Slurm's files
)

// reinstall is the repair of our programs.
const reinstall = "where the package is: dpkg -i slurm-mps_*.deb; or: rpm -U --force slurm-mps-*.rpm"

var lineNumber = regexp.MustCompile(`:[0-9]+$`)

// edit is a repair by hand, of FILE or FILE:LINE.
func edit(what, where string) string {
	return what + ": ${EDITOR:-vi} " + words.Step(lineNumber.ReplaceAllString(where, ""))
}

// unreadable judges a file that cannot be used. If a copy of it is used, jobs run as before, so it is a warning. A file
// that someone except root may write is a fault all the same.
func (d *diagnosis) unreadable(kind state.Kind, path, correct string, s policyfile.FileStatus, without string) {
	if s.Err == nil {
		return
	}
	level := state.Fault
	if !s.Kept.IsZero() {
		level = state.Warning
	}
	where, what, fix := path, strings.TrimSuffix(s.Err.Error(), "."), "look at it: ls -l "+words.Step(path)
	bad, mistakes := errors.AsType[*policyfile.Error](s.Err)
	switch {
	case mistakes:
		first := bad.Diagnostics()[0]
		where, fix = fmt.Sprintf("%s:%d", first.File, first.Line), correct
	case errors.Is(s.Err, fs.ErrNotExist) && level == state.Warning: // only a policy can be missing
		kept := words.Step(filepath.Join(d.Paths.Kept(), "policy.json"))
		what, fix = "it is not there", "jq -j '.files[0].text' "+kept+" >"+words.Step(path)
	case errors.Is(s.Err, fs.ErrNotExist):
		what, fix = "it is not there", words.Step("install", "-D", "-m", "644", shipped+filepath.Base(path), path)
	case errors.Is(s.Err, osfile.ErrNotRootOwned):
		dir := words.Step(filepath.Dir(path)) // it may be a file of policy.d
		level, fix = state.Fault, fmt.Sprintf("chown -R root:root %s && chmod -R go-w %s", dir, dir)
	}
	d.add(level, kind, where, fix, "%s: %s", what, s.Instead(without))
}

// onlyRootWrites judges the files that root runs and reads. Each file or folder that someone else can change is a
// finding.
func (d *diagnosis) onlyRootWrites() {
	files := slices.Concat(d.Own, d.Helpers)
	for _, p := range d.Programs {
		files = append(files, p.installed)
	}
	if d.Slurm != nil {
		for _, h := range d.Slurm.Hooks {
			for _, s := range h.Scripts {
				files = append(files, s.installed)
			}
		}
	}
	found := map[string]bool{}
	for _, f := range files {
		if f.Loose == "" || found[f.Loose] || d.foreign(f.Path) {
			continue
		}
		found[f.Loose] = true
		d.fault("not-roots-own", f.Loose, fmt.Sprintf("chown root:root %s && chmod go-w %[1]s", words.Step(f.Loose)),
			"%s: someone except root can change what root runs or reads (%s)", f.LooseReason, f.Path)
	}
}

// foreign reports whether a file has the wrong owner, which is a finding already.
func (n node) foreign(path string) bool {
	return path == n.Paths.Policy() && errors.Is(n.Policy.Err, osfile.ErrNotRootOwned) ||
		path == n.Paths.ConfigFile() && errors.Is(n.ConfigErr.Err, osfile.ErrNotRootOwned)
}

func (d *diagnosis) helpersThere() {
	for _, f := range d.Helpers {
		switch {
		case f.Err != nil && f.Name == "mps_control":
			d.fault("control-missing", f.Path, "install the driver's package that has it, or set mps_control in "+
				words.Step(d.Paths.ConfigFile())+" to its path: find / -xdev -name nvidia-cuda-mps-control",
				"the MPS control program cannot be found: %v", f.Err)
		case f.Err != nil:
			d.fault("library-path", f.Path, edit("set library_path to where it is, or take the line out", d.Paths.ConfigFile()),
				"a folder of library_path cannot be found: %v", f.Err)
		case f.Name == "mps_control" && (!f.Mode.IsRegular() || f.Mode&0o001 == 0):
			d.fault("control-mode", f.Path, "chmod 755 "+words.Step(f.Path),
				"its mode is %v, and the job's user executes it", f.Mode)
		}
	}
}

// controlAgrees compares the versions of control program and driver. After an upgrade without a reboot, no client can
// talk to the daemon.
func (d *diagnosis) controlAgrees() {
	if d.Control != "" && d.Control != d.Driver.Version {
		d.fault("control-version", d.Config.Control, "drain the node, and when its jobs have ended: systemctl reboot",
			"it is driver %s's, and driver %s is loaded", d.Control, d.Driver.Version)
	}
}

func (d *diagnosis) driverAnswers() {
	switch {
	case d.NVMLErr != nil:
		d.fault("nvml", "NVML", "load the driver: modprobe nvidia && nvidia-smi -L; or set nvml_library in "+
			words.Step(d.Paths.ConfigFile())+" to one of these: find / -xdev -name libnvidia-ml.so.1", "%v", d.NVMLErr)
	case d.Driver != nil && len(d.Driver.GPUs) == 0:
		d.fault("no-gpu", "NVML", "see why: dmesg | grep -i nvrm", "driver %s shows no GPU", d.Driver.Version)
	}
}

// gpus returns the GPUs that could be read.
func (n node) gpus() (all []device) {
	if n.Driver != nil {
		for _, g := range n.Driver.GPUs {
			if g.Err == nil {
				all = append(all, g)
			}
		}
	}
	return all
}

func (g device) where() string { return fmt.Sprintf("GPU %d, %s", g.Index, g.Device.UUID) }

// smi returns a command that sets a GPU.
func (g device) smi(setting string) string {
	return fmt.Sprintf("nvidia-smi -i %s %s", g.Device.UUID, setting)
}

func (d *diagnosis) gpusReadable() {
	for _, g := range d.Driver.GPUs {
		if g.Err != nil {
			d.fault("gpu-unreadable", g.where(),
				"see why, a GPU that is lost comes back with a reboot: dmesg | grep -i xid",
				"%s", words.OneLine(g.Err))
		}
	}
}

// eachGPU judges every GPU that could be read.
func eachGPU(judge func(*diagnosis, device)) func(*diagnosis) {
	return func(d *diagnosis) {
		for _, g := range d.gpus() {
			judge(d, g)
		}
	}
}

func (d *diagnosis) gpuNewEnough(g device) {
	if g.Major < 7 {
		d.fault("gpu-too-old", g.where(), edit("give its node no Feature that asks for MPS", d.Conf),
			"%s has compute capability %d.%d: MPS knows shares from 7.0 on", g.Device.Name, g.Major, g.Minor)
	}
}

func (d *diagnosis) gpuPersistent(g device) {
	if !g.Persistent {
		d.warning("persistence-off", g.where(),
			"systemctl enable --now nvidia-persistenced; or: "+g.smi("-pm 1"), "persistence mode is off: the driver "+
				"forgets the compute mode when nothing uses the GPU, and every prolog waits for it to come up")
	}
}

// gpuWhole judges MIG mode on a node whose MIG instances Slurm does not allocate.
func (d *diagnosis) gpuWhole(g device) {
	instances := d.Slurm != nil && d.Slurm.Gres != nil && d.Slurm.Gres.Detect == slurm.DetectNVML
	if g.Device.MIGMode && !instances {
		d.fault("mig-mode", g.where(), g.smi("-mig 0")+"; or let Slurm allocate instances: "+
			"man gres.conf | grep -A9 AutoDetect=", "it is in MIG mode, and no job can use it whole")
	}
}

// gpuOpen judges the modes in which no process can use the GPU. exclusive_process without a lease is a finding of the
// leftovers of jobs.
func (d *diagnosis) gpuOpen(g device) {
	if g.Mode == site.ModeProhibited || g.Mode == site.ModeExclusiveThread {
		d.fault("gpu-mode", g.where(), g.smi("-c DEFAULT"), "its compute mode is %s", g.Mode)
	}
}

func (d *diagnosis) socketsFit() {
	const longest = "jobs/4294967295/99/pipe" // the largest job number, and a daemon for each of up to 100 GPUs
	if err := mps.CheckPath(filepath.Join(d.Paths.Run(), longest)); err != nil {
		d.fault("socket-path", d.Paths.Run(),
			"shorten --root where these start ours: grep -i log= "+words.Step(d.Conf), "%v", err)
	}
}

func (d *diagnosis) filesEnough() {
	for _, l := range d.Limits {
		if l.Hard < mps.EnoughFiles && !l.MayRaise {
			d.fault("open-files", l.Who,
				"below [Service] write LimitNOFILE=131072: systemctl edit slurmd; then: systemctl restart slurmd",
				"its hard limit of open files is %d and it may not raise it: a daemon needs %d, "+
					"and with less a job gets %d ranks on a GPU at most", l.Hard, mps.EnoughFiles, mps.Clients(l.Hard, 1))
		}
	}
}

func (d *diagnosis) stateOurs() {
	s := d.State
	switch {
	case s.Err != nil:
		d.fault("state-folder", s.Path, "look at it: ls -ld "+words.Step(s.Path), "%v", s.Err)
	case s.Exists && (s.UID != 0 || s.Mode != fs.ModeDir|0o755):
		d.fault("state-folder", s.Path, fmt.Sprintf("chown root:root %s && chmod 755 %[1]s", words.Step(s.Path)),
			"its owner is uid %d and its mode %v: it is to be root's, 0755", s.UID, s.Mode)
	}
}

// The minimum space for a node's state. A job has about 30 files of a few KiB: a lease, a ticket, locks and sockets.
const (
	minRoom  = 16 << 20
	minNames = 2000
)

func (d *diagnosis) stateRoom() {
	s := d.State
	if s.Err != nil {
		return
	}
	if s.Bytes < minRoom || s.Files < minNames {
		dir := words.Step(filepath.Dir(s.Path))
		d.fault("state-room", s.Path, fmt.Sprintf("make room there: df -h %s; df -i %s", dir, dir),
			"%d KiB and %d files are free: a lease that cannot be written is a prolog that fails", s.Bytes>>10, s.Files)
	}
	if !s.Memory && d.Paths.Root == "" { // another root is a test's, or an admin's own choice
		d.warning("state-on-disk", s.Path, "mount a tmpfs there, in a container with the option --tmpfs /run; to see what is mounted: findmnt -T /run", "it is not on a tmpfs: "+
			"every write of a record waits for a disk, and it outlives the boot that it is about")
	}
}

// usersDoing are findings of mpsctl status that a job's user can cause. They harm only this user's jobs, so they are
// warnings: otherwise a user could drain a node through a health check that runs doctor.
var usersDoing = []state.Kind{
	state.DaemonGone, state.DaemonReplaced, state.DaemonNotServing, state.DaemonNoAnswer,
	state.DaemonUnclear, state.ServerFault, state.CeilingLifted, state.FilesUnheld,
	state.GuardStalled, state.LeaseWithoutStep, state.TakersStuck, state.MemoryHeld, state.ClientsUnguarded,
}

// nothingLeft returns the findings of mpsctl status.
func (d *diagnosis) nothingLeft() {
	for _, f := range d.Leftovers {
		found := d.fault
		if slices.Contains(usersDoing, f.Kind) {
			found = d.warning
		}
		if f.Kind != state.PolicyUnusable && f.Kind != state.ConfigUnusable { // judged above
			found(f.Kind, f.Where, f.Fix, "%s", f.What)
		}
	}
	for _, hidden := range d.Hidden {
		d.warning("not-seen", "jobs", "look again: mpsctl status"+d.Paths.Flag(), "%s", hidden)
	}
}
