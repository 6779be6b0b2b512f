// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// nvidiaMajor is the major number of /dev/nvidiaN in Linux's list of devices.
const nvidiaMajor = 195

func confPath(dir string) string    { return filepath.Join(dir, "etc", "slurm.conf") }
func mungeSocket(dir string) string { return filepath.Join(dir, "run", "munge.socket") }
func hostsPath(dir string) string   { return filepath.Join(dir, "etc", "hosts") }
func bootPath(dir, name string) string {
	return filepath.Join(dir, "etc", "boot_id."+name)
}
func logPath(dir, name string) string {
	return filepath.Join(dir, "log", name+".log")
}

// outPath returns the path for a daemon's stdout and stderr. A daemon writes there before it has read its
// configuration.
func outPath(dir, name string) string { return filepath.Join(dir, "log", name+".out") }

func nodeNames(o Options, host string) []string {
	if o.SameName {
		return []string{host}
	}
	names := make([]string, o.Nodes)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", o.Prefix, i+1)
	}
	return names
}

// writeFiles makes everything below Dir. It overwrites the files that a former cluster left there, and removes its
// state. With the old state, the old jobs would come back.
func writeFiles(o Options, t tree, host string, names []string, base int) error {
	if err := makeDirs(o.Dir, names); err != nil {
		return err
	}
	devices, err := makeDevices(o)
	if err != nil {
		return err
	}
	hooks, err := writeHooks(o)
	if err != nil {
		return err
	}
	key := make([]byte, 1024)
	rand.Read(key)
	etc := filepath.Join(o.Dir, "etc")
	return errors.Join(
		os.WriteFile(filepath.Join(etc, "munge.key"), key, 0o600),
		writeText(confPath(o.Dir), slurmConf(o, t, hooks, host, names, base)),
		writeText(filepath.Join(etc, "gres.conf"), gresConf(o, devices)),
		writeText(filepath.Join(etc, "cgroup.conf"), cgroupConf(o, t.release)),
		writeText(filepath.Join(etc, "plugstack.conf"), ""),
		writeNamespace(o),
		writeHosts(o, names),
		writeBootIDs(o, names),
	)
}

func writeNamespace(o Options) error {
	if o.Namespace == "" {
		return nil
	}
	return writeText(filepath.Join(o.Dir, "etc", "namespace.yaml"), o.Namespace)
}

// writeText writes a file that every user may read. The umask has no effect.
func writeText(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

func makeDirs(dir string, names []string) error {
	for _, stale := range []string{"state", "spool", "run"} {
		if err := os.RemoveAll(filepath.Join(dir, stale)); err != nil {
			return fmt.Errorf("cannot clear the state of a former cluster: %w", err)
		}
	}
	for _, sub := range []string{"", "etc", "log", "run", "dev", "spool", "state", "hooks", "home"} {
		if err := makeDir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	if err := makeDir(filepath.Join(dir, "tmp"), 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := errors.Join(makeDir(filepath.Join(dir, "spool", name), 0o755),
			makeDir(filepath.Join(dir, "tmp", name), 0o777|fs.ModeSticky)); err != nil {
			return err
		}
	}
	return nil
}

// makeDir makes a directory with exactly this mode. The umask has no effect.
func makeDir(path string, mode fs.FileMode) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("cannot make %s: %w", path, err)
	}
	return os.Chmod(path, mode)
}

// makeDevices returns the paths of the GPU devices. Fake GPUs must be device nodes: for plain files, Slurm sets
// neither SLURM_JOB_GPUS nor CUDA_VISIBLE_DEVICES.
func makeDevices(o Options) ([]string, error) {
	if o.DevDir != "" {
		return findDevices(o.DevDir, o.GPUs)
	}
	paths := make([]string, o.GPUs)
	for i := range paths {
		paths[i] = filepath.Join(o.Dir, "dev", fmt.Sprintf("nvidia%d", i))
		if err := makeDevice(paths[i], i); err != nil {
			return nil, fmt.Errorf("cannot make the fake GPU %s: %w", paths[i], err)
		}
	}
	return paths, nil
}

func makeDevice(path string, minor int) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(nvidiaMajor, uint32(minor)))); err != nil {
		return err
	}
	return os.Chmod(path, 0o666)
}

var deviceForm = regexp.MustCompile(`^nvidia(\d+)$`)

// findDevices returns the first n GPU devices of a folder, sorted by minor number. The numbers may start above 0 and
// may have gaps.
func findDevices(dir string, n int) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list GPU devices: %w", err)
	}
	var minors []int
	for _, e := range entries {
		if m := deviceForm.FindStringSubmatch(e.Name()); m != nil {
			minor, _ := strconv.Atoi(m[1]) // the expression matches only digits
			minors = append(minors, minor)
		}
	}
	if len(minors) < n {
		return nil, fmt.Errorf("cannot give a node %d GPUs: %s has %d nvidiaN", n, dir, len(minors))
	}
	sort.Ints(minors)
	paths := make([]string, n)
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprintf("nvidia%d", minors[i]))
	}
	return paths, nil
}

// hookPaths are the paths of the hooks in slurm.conf. "" means that slurm.conf has no such hook.
type hookPaths struct{ prolog, epilog, taskProlog string }

func writeHooks(o Options) (hookPaths, error) {
	prolog, err1 := writeHook(o.Dir, "prolog", o.Prolog)
	epilog, err2 := writeHook(o.Dir, "epilog", o.Epilog)
	taskProlog, err3 := writeHook(o.Dir, "task-prolog", o.TaskProlog)
	return hookPaths{prolog, epilog, taskProlog}, errors.Join(err1, err2, err3)
}

// writeHook returns the path of a hook for slurm.conf. The path is the program itself, or a script that executes the
// program with its arguments.
func writeHook(dir, name string, argv []string) (string, error) {
	switch len(argv) {
	case 0:
		return "", nil
	case 1:
		return argv[0], nil
	}
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	path := filepath.Join(dir, "hooks", name)
	if err := writeText(path, "#!/bin/sh\nexec "+strings.Join(words, " ")+"\n"); err != nil {
		return "", fmt.Errorf("cannot write the hook %s: %w", path, err)
	}
	return path, os.Chmod(path, 0o755)
}

// firstJob returns the first job number of a cluster. Clusters on one host need different job numbers, because Open
// MPI names its shared memory by host, user and job. Two jobs with the same name crash each other.
func firstJob(base int) int { return base * 100 }

// slurmConf returns the text of slurm.conf. Settings that it does not name have Slurm's default, because newer
// releases refuse some spellings of the default. The controller has the first port, and the nodes have the ports
// after it.
func slurmConf(o Options, t tree, hooks hookPaths, host string, names []string, base int) string {
	lines := []string{
		"ClusterName=lab",
		"SlurmctldHost=" + host + "(127.0.0.1)",
		fmt.Sprintf("SlurmctldPort=%d", base),
		fmt.Sprintf("FirstJobId=%d", firstJob(base)),
		"SlurmUser=root",
		"SlurmdUser=root",
		"AuthType=auth/munge",
		"AuthInfo=socket=" + mungeSocket(o.Dir),
		"StateSaveLocation=" + o.Dir + "/state",
		"SlurmdSpoolDir=" + o.Dir + "/spool/%n",
		"SlurmctldPidFile=" + o.Dir + "/run/slurmctld.pid",
		"SlurmdPidFile=" + o.Dir + "/run/slurmd.%n.pid",
		"SlurmctldLogFile=" + logPath(o.Dir, "slurmctld"),
		"SlurmdLogFile=" + logPath(o.Dir, "slurmd.%n"),
		"SlurmctldDebug=debug",
		"SlurmdDebug=debug2",
		"LogTimeFormat=iso8601_ms",
		"PlugStackConfig=" + o.Dir + "/etc/plugstack.conf",
		// mpi/pmix makes TmpFS/spmix_appdir_UID_JOB.STEP. The nodes and the clusters of one host must not share this
		// folder.
		"TmpFS=" + o.Dir + "/tmp/%n",
		"SelectType=select/cons_tres",
		"SelectTypeParameters=CR_Core",
		"MpiDefault=none",
		"ReturnToService=2",
		"SlurmdParameters=config_overrides",
		"PropagateResourceLimits=NONE",
		"KillWait=5",
		"InactiveLimit=0",
		"MinJobAge=300",
		"SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
		"UnkillableStepTimeout=60",
	}
	if o.ConstrainDevices {
		lines = append(lines, "ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup")
	} else {
		lines = append(lines, "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none")
	}
	lines = appendSet(lines, "GresTypes", gresTypes(allGres(o)))
	if t.root != "" {
		lines = append(lines, "PluginDir="+t.root+"/plugins")
	}
	lines = appendSet(lines, "PrologFlags", o.PrologFlags)
	lines = appendSet(lines, "Prolog", hooks.prolog)
	lines = appendSet(lines, "Epilog", hooks.epilog)
	lines = appendSet(lines, "TaskProlog", hooks.taskProlog)
	for i, name := range names {
		if o.Dynamic { // slurmctld of 22.05 ends with a fault if MaxNodeCount is 1 (run)
			lines = append(lines, "MaxNodeCount=4", fmt.Sprintf("SlurmdPort=%d", base+1))
			break
		}
		lines = append(lines, nodeLine(o, name, host, base+1+i))
	}
	lines = append(lines, "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
	lines = append(lines, o.Extra...)
	return strings.Join(lines, "\n") + "\n"
}

func appendSet(lines []string, name, value string) []string {
	if value == "" {
		return lines
	}
	return append(lines, name+"="+value)
}

func nodeLine(o Options, name, host string, port int) string {
	words := []string{"NodeName=" + name, "NodeHostname=" + host, "NodeAddr=127.0.0.1", fmt.Sprintf("Port=%d", port)}
	return strings.Join(append(append(words, nodeWords(o, name)...), "State=UNKNOWN"), " ")
}

// nodeWords are what a node has, as in its line in slurm.conf and for slurmd -Z.
func nodeWords(o Options, name string) []string {
	words := []string{
		fmt.Sprintf("CPUs=%d Boards=1 SocketsPerBoard=1 CoresPerSocket=%d ThreadsPerCore=1", o.CPUs, o.CPUs),
		"RealMemory=4000"}
	gres, differs := o.GresOf[name]
	if !differs {
		gres = o.Gres
	}
	words = appendSet(words, "Gres", gres)
	return appendSet(words, "Feature", o.Features)
}

// allGres returns the Gres of all nodes together.
func allGres(o Options) string {
	return strings.Join(append([]string{o.Gres}, slices.Sorted(maps.Values(o.GresOf))...), ",")
}

// gresTypes returns the kinds in a node's Gres: "gpu:a:1,gpu:b:1,mps:100" has gpu and mps.
func gresTypes(gres string) string {
	var kinds []string
	seen := map[string]bool{}
	for _, item := range strings.Split(gres, ",") {
		kind, _, _ := strings.Cut(item, ":")
		if kind != "" && !seen[kind] {
			seen[kind] = true
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, ",")
}

// gresConf returns the text of gres.conf. It has one line for each device, because Slurm's index of a device is the
// order of the lines.
func gresConf(o Options, devices []string) string {
	if o.GresConf != "" {
		return o.GresConf
	}
	var b strings.Builder
	for _, path := range devices {
		fmt.Fprintf(&b, "Name=gpu File=%s\n", path)
	}
	return b.String()
}

// cgroupConf returns the text of cgroup.conf. slurmd loads a cgroup plugin even if its configuration uses none. It
// would choose cgroup/v2, which needs systemd or its slice. Since 24.05 the configuration can disable the plugin.
func cgroupConf(o Options, release string) string {
	switch {
	case o.ConstrainDevices && version2():
		return "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nConstrainDevices=yes\n"
	case o.ConstrainDevices:
		return "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n"
	case release >= "24.05":
		return "CgroupPlugin=disabled\n"
	}
	return "CgroupPlugin=cgroup/v1\n"
}

// writeHosts writes the /etc/hosts for slurmctld and for nodes with their own names: the host's file and the nodes'
// names.
func writeHosts(o Options, names []string) error {
	text, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return fmt.Errorf("cannot give the nodes an /etc/hosts of their own: %w", err)
	}
	var b strings.Builder
	b.WriteString(strings.TrimRight(string(text), "\n") + "\n")
	for _, name := range names {
		fmt.Fprintf(&b, "127.0.0.1 %s\n", name)
	}
	return writeText(hostsPath(o.Dir), b.String())
}
