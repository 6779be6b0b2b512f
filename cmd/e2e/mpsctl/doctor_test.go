// SPDX-License-Identifier: Apache-2.0

package mpsctl_test

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// diagnosis is the JSON of doctor, as its documentation describes it.
type diagnosis struct {
	Node     string `json:"node"`
	Time     string `json:"time"`
	Complete bool   `json:"complete"`
	Looked   struct {
		SlurmConf string `json:"slurm_conf"`
		Driver    string `json:"driver"`
		Proven    bool   `json:"proven"`
		GPUs      int    `json:"gpus"`
		Programs  int    `json:"programs"`
		Checks    int    `json:"checks"`
	} `json:"checked"`
	Findings []struct {
		Kind  string `json:"kind"`
		Level string `json:"level"`
		Where string `json:"where"`
		What  string `json:"what"`
		Do    string `json:"fix"`
	} `json:"findings"`
	Unseen []string `json:"errors"`
}

func (d diagnosis) faults() (n int) {
	for _, f := range d.Findings {
		if f.Level == "fault" {
			n++
		}
	}
	return n
}

// healthyNode is a node without faults. Its slurm.conf and gres.conf are those of site/etc. A test
// then plants a fault.
type healthyNode struct{ testNode }

const healthyName = "gpu01"

func newHealthyNode(t *testing.T) healthyNode {
	t.Helper()
	return healthyNodeIn(newTestNode(t, "", node.H200, node.H200))
}

func healthyNodeIn(p testNode) healthyNode {
	p.T.Helper()
	w := healthyNode{p}
	w.linkPrograms()
	for _, program := range []string{"prolog", "epilog", "task-prolog"} {
		w.script(w.hook(program), fmt.Sprintf("exec %s --root %s\n", w.bin(program), w.Root))
	}
	conf := w.shipped("slurm.conf")
	conf = strings.ReplaceAll(conf, "/usr/libexec/slurm-mps", filepath.Dir(w.hook("x")))
	w.Write(w.Conf, strings.ReplaceAll(conf, "gpu:4", "gpu:2"))
	w.Write(w.Gres(), strings.ReplaceAll(w.shipped("gres.conf"), "[0-3]", "[0-1]"))
	w.Write(w.cgroup(), "ConstrainDevices=yes\n")
	w.Write(w.Paths().Policy(), w.shipped("policy.hcl"))
	w.driver("580.178.04")
	return w
}

// driver gives the node a version of the driver. The one that is simulated by default has known vulnerabilities.
func (w healthyNode) driver(version string) {
	w.T.Helper()
	w.Write(filepath.Join(w.Sim.Node.Dir, "driver_version"), version+"\n")
}

// linkPrograms gives the node its own folder of programs.
func (w *healthyNode) linkPrograms() {
	w.T.Helper()
	from := w.Bin
	w.Bin = filepath.Join(filepath.Dir(w.Root), "bin")
	w.change(os.Mkdir(w.Bin, 0o755))
	for _, program := range testnode.Programs {
		// A link fails if the folders are on two file systems.
		if err := os.Link(filepath.Join(from, program), w.bin(program)); err != nil {
			w.copy(filepath.Join(from, program), w.bin(program))
		}
	}
}

func (w healthyNode) copy(from, to string) {
	w.T.Helper()
	content, err := os.ReadFile(from)
	w.change(err)
	w.change(node.WriteProgram(to, content))
}

// own replaces a program by a copy that only this node uses, and returns its path. A change of the copy does not
// change the build of other tests.
func (w healthyNode) own(program string) string {
	w.T.Helper()
	w.copy(w.bin(program), w.bin(program)+".own")
	w.change(os.Rename(w.bin(program)+".own", w.bin(program)))
	return w.bin(program)
}

func (w healthyNode) bin(program string) string { return filepath.Join(w.Bin, program) }

func (w healthyNode) hook(program string) string {
	return filepath.Join(filepath.Dir(w.Root), "hooks", program)
}

func (w healthyNode) cgroup() string { return filepath.Join(filepath.Dir(w.Conf), "cgroup.conf") }

func (w healthyNode) script(path, content string) {
	w.T.Helper()
	w.Write(path, "#!/bin/sh\n"+content)
	w.change(os.Chmod(path, 0o755))
}

func (w healthyNode) change(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

func (w healthyNode) shipped(name string) string {
	w.T.Helper()
	content, err := os.ReadFile(filepath.Join("../../../site/etc", name))
	w.change(err)
	return string(content)
}

// edit replaces a text in a file. The file must contain the text.
func (w healthyNode) edit(path, old, new string) {
	w.T.Helper()
	content, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(content), old) {
		w.T.Fatalf("%s: no %q: %v", path, old, err)
	}
	w.Write(path, strings.Replace(string(content), old, new, 1))
}

// sets adds a line to slurm.conf.
func (w healthyNode) sets(line string) { w.edit(w.Conf, "GresTypes=", line+"\nGresTypes=") }

func (w healthyNode) doctor(args ...string) testnode.Result {
	return w.Ctl(append([]string{"doctor", "--slurm-conf", w.Conf, "--node", healthyName, "--slurmd", "none"}, args...)...)
}

// diagnose returns doctor's JSON. It checks that the JSON has no unknown field, and that the exit code tells whether
// doctor found a fault.
func (w healthyNode) diagnose() diagnosis {
	w.T.Helper()
	return w.read(w.doctor("--json"))
}

func (w healthyNode) read(result testnode.Result) diagnosis {
	w.T.Helper()
	var d diagnosis
	decoder := json.NewDecoder(strings.NewReader(result.Output))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		w.T.Fatalf("%v: %s", err, result.Output)
	}
	if found := d.faults()+len(d.Unseen) > 0; result.Code != map[bool]int{false: 0, true: 1}[found] || d.Complete != (len(d.Unseen) == 0) {
		w.T.Errorf("code %d: %s", result.Code, result.Output)
	}
	return d
}

// On a healthy node doctor exits with 0, prints one line about what it checked and changes no file. Its JSON has
// empty lists, not null.
func TestDoctorOfAHealthyNode(t *testing.T) {
	w := newHealthyNode(t)
	before := w.files()
	result := w.doctor()
	line := regexp.MustCompile(`^gpu01  [0-9-]+ [0-9:]+  \d+ checks: 7 programs, ` +
		regexp.QuoteMeta(w.Conf+", driver 580.178.04 (not proven: docs/measurements), 2 GPUs") + `\n$`)
	if result.Code != 0 || !line.MatchString(result.Output) {
		t.Errorf("code %d: %s", result.Code, result.Output)
	}
	raw := w.doctor("--json").Output
	for _, list := range []string{`"findings":[]`, `"errors":[]`, `"complete":true`} {
		if !strings.Contains(raw, list) {
			t.Errorf("no %s in %s", list, raw)
		}
	}
	d := w.diagnose()
	if d.Node != healthyName || d.Looked.SlurmConf != w.Conf || d.Looked.GPUs != 2 || d.Looked.Programs != 7 || d.Looked.Checks < 35 || d.Looked.Driver == "" {
		t.Errorf("doctor checked %+v", d)
	}
	if after := w.files(); !reflect.DeepEqual(after, before) {
		t.Errorf("doctor changed files:\n%v\n%v", before, after)
	}
}

// A driver on which slurm-mps was proven is named so. It may lack fixes all the same, which is a warning.
func TestDoctorOfAProvenDriver(t *testing.T) {
	w := newHealthyNode(t)
	w.driver("580.159.04")
	result := w.doctor()
	if result.Code != 0 || !strings.Contains(result.Output, ", driver 580.159.04 (proven), 2 GPUs\n") {
		t.Errorf("code %d: %s", result.Code, result.Output)
	}
	w.expect(faultPlanted{kind: "unpatched", where: "driver 580.159.04", do: "install 580.178.04 or later"})
}

// files returns all files of the node, with their modes and sizes.
func (w healthyNode) files() (all []string) {
	w.T.Helper()
	err := filepath.Walk(filepath.Dir(w.Root), func(path string, info os.FileInfo, err error) error {
		if err == nil {
			all = append(all, fmt.Sprint(path, info.Mode(), info.Size()))
		}
		return err
	})
	w.change(err)
	return all
}

// Doctor finds nothing on other healthy nodes: hooks without a script, patterns, includes, names in any case,
// AutoDetect, a running job.
func TestDoctorOfOtherHealthyNodes(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(healthyNode){
		"programs themselves": func(w healthyNode) {
			for _, program := range []string{"prolog", "epilog", "task-prolog"} {
				w.edit(w.Conf, w.hook(program)+"\n", w.bin(program)+"\n")
			}
		},
		"patterns": func(w healthyNode) {
			w.folder("prolog", "10-ours", "50-other")
			w.folder("epilog", "90-ours", "50-other")
		},
		"an include, and any case": func(w healthyNode) {
			w.edit(w.Conf, "PrologFlags=Alloc,Contain", "include more.conf \\\n\n")
			w.Write(filepath.Join(filepath.Dir(w.Conf), "more.conf"), "PROLOGFLAGS=contain\n")
		},
		"AutoDetect":        func(w healthyNode) { w.Write(w.Gres(), "AutoDetect=nvml\n") },
		"UUIDs":             func(w healthyNode) { w.Write(w.Gres(), "AutoDetect=full\nName=gpu Flags=env_uuid\n") },
		"timeouts for ever": func(w healthyNode) { w.sets("PrologEpilogTimeout=65534") },
		"a timeout each":    func(w healthyNode) { w.sets("PrologEpilogTimeout=10\nPrologTimeout=105\nEpilogTimeout=105") },
		"enough time":       func(w healthyNode) { w.sets("PrologEpilogTimeout=105") },
		"private folders": func(w healthyNode) {
			w.sets("JobContainerType=job_container/tmpfs")
			w.Write(w.container(), "BasePath=/var/x Dirs=/var/tmp\n")
		},
		"namespaces": func(w healthyNode) {
			w.sets("NamespaceType=namespace/linux")
			w.Write(w.namespace(), "defaults:\n  base_path: /var/x\n  dirs: /var/tmp\n  clone_ns_flags: \"CLONE_NEWNS,CLONE_NEWPID\"\n")
		},
		"no constraint asks": func(w healthyNode) {
			w.edit(w.Paths().Policy(), `constraint = "mps"`, "")
			w.edit(w.Conf, " Feature=mps", "")
		},
		"a link to a program": func(w healthyNode) {
			w.change(os.Symlink(w.bin("prolog"), w.hook("link")))
			w.edit(w.Conf, w.hook("prolog")+"\n", w.hook("link")+"\n")
		},
		"a job runs": func(w healthyNode) {
			job := w.nodeJob()
			job.ID = 4370007
			w.Open(job)
			w.socket(job.ID, 0)
		},
		"a job has ended": func(w healthyNode) { w.Must(0, w.nodeJob(), "prolog"); w.Must(0, w.nodeJob(), "epilog") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHealthyNode(t)
			plant(w)
			if d := w.diagnose(); len(d.Findings)+len(d.Unseen) != 0 {
				t.Errorf("found %+v", d)
			}
		})
	}
}

func (w healthyNode) container() string {
	return filepath.Join(filepath.Dir(w.Conf), "job_container.conf")
}

func (w healthyNode) namespace() string { return filepath.Join(filepath.Dir(w.Conf), "namespace.yaml") }

func (w healthyNode) nodeJob() testnode.Job {
	j := w.Job(7, "0")
	j.Extra = append(j.Extra, "SLURMD_NODENAME="+healthyName)
	return j
}

// folder makes a folder with scripts of a hook. One script starts our program.
func (w healthyNode) folder(program string, names ...string) {
	w.T.Helper()
	for _, name := range names {
		content := "exit 0\n"
		if strings.HasSuffix(name, "-ours") {
			content = fmt.Sprintf("# %s does what is to be done\nexec \"%s\" --root %s\n", w.bin("mpsctl"), w.bin(program), w.Root)
		}
		w.script(filepath.Join(w.hook(program+".d"), name), content)
	}
	w.edit(w.Conf, w.hook(program)+"\n", w.hook(program+".d")+"/*\n")
}

// Doctor compares the GPUs that the real slurmd lists with those that the prolog finds. It reports a difference or an
// empty list.
func TestDoctorAsksSlurmd(t *testing.T) {
	t.Parallel()
	const slurmd = "/usr/sbin/slurmd"
	if _, err := os.Stat(slurmd); err != nil {
		if os.Getenv("REQUIRE_LAB") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for _, c := range []struct {
		name  string
		plant func(w healthyNode) (slurmd string)
		fault faultPlanted // its kind is "" if there is no fault
	}{
		{"they agree", func(healthyNode) string { return slurmd }, faultPlanted{}},
		{"slurmd does not start", func(w healthyNode) string { w.sets("Foo=3"); return slurmd },
			faultPlanted{kind: "slurmd-refuses", where: "CONF/slurm.conf", do: "correct what it complains of: slurmd -G"}},
		// If slurmd prints no line about GPUs, or a line in an unknown form, doctor cannot check it. That is not a
		// fault of the node.
		{"slurmd finds none", func(w healthyNode) string { w.Write(w.Gres(), "AutoDetect=nvml\n"); return slurmd }, faultPlanted{unseen: true}},
		{"slurmd of tomorrow", func(w healthyNode) string {
			w.script(w.hook("slurmd"), "echo 'gpu 0: /dev/nvidia0'\n")
			return w.hook("slurmd")
		}, faultPlanted{unseen: true}},
		{"slurmd finds fewer", func(w healthyNode) string {
			w.script(w.hook("slurmd"), "echo '[2026-11-23T01:32:00.215] Gres Name=gpu Type=(null) Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Flags=HAS_FILE'\n")
			return w.hook("slurmd")
		}, faultPlanted{kind: "gres-differs", where: "CONF/gres.conf", do: "let these and CONF/gres.conf agree"}},
		{"another order", func(w healthyNode) string {
			w.script(w.hook("slurmd"), "echo 'slurmd: Gres Name=gpu Type=(null) Count=2 Index=0 ID=7696487 File=/dev/nvidia[1,0] Flags=HAS_FILE'\n")
			return w.hook("slurmd")
		}, faultPlanted{kind: "gres-differs", where: "CONF/gres.conf", do: "let these and CONF/gres.conf agree"}},
		{"no slurmd there", func(w healthyNode) string { return w.hook("slurmd") }, faultPlanted{unseen: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newHealthyNode(t)
			for i := range 2 { // slurmd lists no GPU without a device file
				w.change(unix.Mknod(fmt.Sprint(w.hook("nvidia"), i), unix.S_IFCHR|0o600, 195<<8|i))
			}
			w.Write(w.Gres(), "Name=gpu File="+w.hook("nvidia")+"[0-1]\n")
			w.sets("ClusterName=lab\nSlurmctldHost=localhost\nSlurmUser=root\nPartitionName=main Nodes=ALL")
			path := c.plant(w)
			d := w.read(w.doctor("--json", "--slurmd", path))
			for i := len(d.Findings) - 1; i >= 0; i-- { // this machine's Slurm may be any release
				if d.Findings[i].Kind == "unpatched" {
					d.Findings = slices.Delete(d.Findings, i, i+1)
				}
			}
			if c.fault.kind != "" {
				w.found(d, c.fault)
			} else if len(d.Findings) != 0 || (len(d.Unseen) != 0) != c.fault.unseen {
				t.Errorf("found %+v", d)
			}
		})
	}
}

// faultPlanted is a fault of a node and doctor's finding for it. In its texts, BIN, ROOT, DIR, CONF and HOOKS are
// replaced by the node's paths.
type faultPlanted struct {
	name, kind string
	plant      func(healthyNode)
	where, do  string // of the finding; the repair begins with this text
	mends      bool   // the repair is a command, and doctor finds nothing after it
	unseen     bool   // the fault also prevents one of the checks
}

func (w healthyNode) copyOf(program string) string {
	w.T.Helper()
	path := filepath.Join(filepath.Dir(w.Root), program)
	w.copy(w.Sim.Program(program), path)
	return path
}

// everywhere is where a repair of Slurm's files is made.
const everywhere = "on slurmctld's host and every node, once for a file that they share: "

var planted = []faultPlanted{
	{name: "a prolog that may be executed and not read", kind: "program-mode",
		plant: func(w healthyNode) { w.change(os.Chmod(w.own("prolog"), 0o111)) }, where: "BIN/prolog",
		do: "chmod 755 BIN/prolog", mends: true},
	{name: "a task-prolog for root alone", kind: "program-mode",
		plant: func(w healthyNode) { w.change(os.Chmod(w.own("task-prolog"), 0o700)) },
		where: "BIN/task-prolog", do: "chmod 755 BIN/task-prolog", mends: true},
	{name: "no wrapper", kind: "program-missing",
		plant: func(w healthyNode) { w.change(os.Remove(w.bin("mpirun-wrap"))) },
		where: "/usr/bin/mpirun-wrap",
		do:    "where the package is: dpkg -i slurm-mps_*.deb; or: rpm -U --force slurm-mps-*.rpm"},
	{name: "a wrapper of another user", kind: "not-roots-own",
		plant: func(w healthyNode) { w.change(os.Chown(w.own("mpirun-wrap"), e2e.UID, e2e.GID)) },
		where: "BIN/mpirun-wrap", do: "chown root:root BIN/mpirun-wrap", mends: true},
	{name: "a folder of programs for all to write", kind: "not-roots-own",
		plant: func(w healthyNode) { w.change(os.Chmod(w.Bin, 0o777)) }, where: "BIN",
		do: "chown root:root BIN && chmod go-w BIN", mends: true},
	{name: "a folder of scripts of another user", kind: "not-roots-own",
		plant: func(w healthyNode) { w.change(os.Chown(filepath.Dir(w.hook("x")), e2e.UID, e2e.GID)) },
		where: "HOOKS", do: "chown root:root HOOKS", mends: true},

	{name: "a policy with a mistake", kind: "policy",
		plant: func(w healthyNode) { w.edit(w.Paths().Policy(), "ceiling        = 100", "ceiling        = 0.5") },
		where: "ROOT/etc/slurm-mps/policy.hcl:23", do: "mpsctl policy check --root ROOT"},
	{name: "no policy", kind: "policy", plant: func(w healthyNode) { w.change(os.Remove(w.Paths().Policy())) },
		where: "ROOT/etc/slurm-mps/policy.hcl",
		do:    "install -D -m 644 /usr/share/slurm-mps/policy.hcl ROOT/etc/slurm-mps/policy.hcl"},
	{name: "a policy of another user", kind: "policy",
		plant: func(w healthyNode) { w.change(os.Chown(w.Paths().Policy(), e2e.UID, e2e.GID)) },
		where: "ROOT/etc/slurm-mps/policy.hcl",
		do:    "chown -R root:root ROOT/etc/slurm-mps && chmod -R go-w ROOT/etc/slurm-mps", mends: true},
	{name: "a policy that others may write", kind: "policy",
		plant: func(w healthyNode) { w.change(os.Chmod(w.Paths().Policy(), 0o664)) },
		where: "ROOT/etc/slurm-mps/policy.hcl", do: "chown -R root:root ROOT/etc/slurm-mps", mends: true},
	{name: "rules that others may write", kind: "policy", plant: func(w healthyNode) {
		rules := filepath.Join(filepath.Dir(w.Paths().Policy()), "policy.d", "a.hcl")
		w.Write(rules, "version = 1\n")
		w.change(os.Chmod(rules, 0o666))
	}, where: "ROOT/etc/slurm-mps/policy.hcl", do: "chown -R root:root ROOT/etc/slurm-mps", mends: true},
	{name: "a folder of the policy for all to write", kind: "not-roots-own",
		plant: func(w healthyNode) { w.change(os.Chmod(filepath.Dir(w.Paths().Policy()), 0o777)) },
		where: "ROOT/etc/slurm-mps", do: "chown root:root ROOT/etc/slurm-mps", mends: true},
	{name: "a site file with a mistake", kind: "site-file",
		plant: func(w healthyNode) { w.Write(w.Paths().ConfigFile(), "prolog_deadline = \"1 day\"\n") },
		where: "ROOT/etc/slurm-mps/site.hcl:1",
		do:    "correct it, as in the example: diff /usr/share/slurm-mps/site.hcl ROOT/etc/slurm-mps/site.hcl", unseen: true},

	{name: "a control program of another driver", kind: "control-version", plant: func(w healthyNode) {
		w.change(appendTo(w.copyOf("nvidia-cuda-mps-control"), "\x00555.42.06\x00"))
		w.edit(w.Paths().ConfigFile(), w.Sim.Program("nvidia-cuda-mps-control"), filepath.Join(filepath.Dir(w.Root), "nvidia-cuda-mps-control"))
	}, where: "DIR/nvidia-cuda-mps-control", do: "drain the node, and when its jobs have ended: systemctl reboot"},
	{name: "no control program", kind: "control-missing",
		plant: func(w healthyNode) { w.edit(w.Paths().ConfigFile(), "nvidia-cuda-mps-control", "nvidia-control") },
		where: "/bin/nvidia-control",
		do:    "install the driver's package that has it, or set mps_control in ROOT/etc/slurm-mps/site.hcl to its path: find / "},
	{name: "a control program that is not executable", kind: "control-mode", plant: func(w healthyNode) {
		path := w.copyOf("nvidia-cuda-mps-control")
		w.change(os.Chmod(path, 0o644))
		w.edit(w.Paths().ConfigFile(), w.Sim.Program("nvidia-cuda-mps-control"), path)
	}, where: "DIR/nvidia-cuda-mps-control", do: "chmod 755 DIR/nvidia-cuda-mps-control", mends: true},
	{name: "no folder of libraries", kind: "library-path", plant: func(w healthyNode) {
		w.edit(w.Paths().ConfigFile(), "nvml_library", "library_path = \"/nowhere\"\nnvml_library")
	}, where: "/nowhere",
		do: "set library_path to where it is, or take the line out: ${EDITOR:-vi} ROOT/etc/slurm-mps/site.hcl"},
	{name: "a link to NVML in a folder for all to write", kind: "not-roots-own", plant: func(w healthyNode) {
		link := filepath.Join(filepath.Dir(w.Root), "nvml", "libnvidia-ml.so.1")
		w.change(os.Mkdir(filepath.Dir(link), 0o755))
		w.change(os.Chmod(filepath.Dir(link), 0o777))
		w.change(os.Symlink(w.Sim.NVML(), link))
		w.edit(w.Paths().ConfigFile(), w.Sim.NVML(), link)
	}, where: "DIR/nvml", do: "chown root:root DIR/nvml && chmod go-w DIR/nvml", mends: true},
	{name: "no NVML", kind: "nvml",
		plant: func(w healthyNode) { w.edit(w.Paths().ConfigFile(), "libnvidia-ml.so.1", "libnvidia-ml.so.9") },
		where: "NVML", do: "load the driver: modprobe nvidia && nvidia-smi -L; or set nvml_library"},
	{name: "a driver that does not start", kind: "nvml",
		plant: func(w healthyNode) { w.change(w.Sim.Node.Fail("nvmlInit_v2", 9, 0)) }, where: "NVML",
		do: "load the driver: modprobe nvidia && nvidia-smi -L; or set nvml_library"},

	{name: "a GPU that is lost", kind: "gpu-unreadable",
		plant: func(w healthyNode) { w.change(w.Sim.Node.GPU(1).Fail("nvmlDeviceGetComputeMode", 15, 0)) },
		where: "GPU 1, GPU-", do: "see why, a GPU that is lost comes back with a reboot: dmesg"},
	{name: "MIG", kind: "mig-mode", plant: func(w healthyNode) { w.change(w.Sim.Node.GPU(1).Set("mig_mode", "1")) },
		where: "GPU 1, GPU-", do: "nvidia-smi -i GPU-"},
	{name: "a GPU that is exclusive without a lease", kind: "exclusive-without-lease",
		plant: func(w healthyNode) { w.change(w.Sim.Node.GPU(1).SetMode(node.ExclusiveProcess)) },
		where: "GPU 1", do: "unless someone meant it: nvidia-smi -i GPU-"},

	{name: "a line of slurm.conf without a value", kind: "slurm-conf", plant: func(w healthyNode) { w.sets("Prolog") },
		where: "CONF/slurm.conf", do: "correct that line"},
	{name: "no slurm.conf", kind: "slurm-conf", plant: func(w healthyNode) { w.change(os.Remove(w.Conf)) },
		where: "CONF/slurm.conf",
		do:    "correct that line: ${EDITOR:-vi} CONF/slurm.conf; or name another by --slurm-conf: find /etc "},
	{name: "no Prolog=", kind: "hook-not-ours", plant: func(w healthyNode) { w.edit(w.Conf, "\nProlog=", "\n#") },
		where: "CONF/slurm.conf",
		do:    everywhere + `printf '\n%s\n' Prolog=BIN/prolog >>CONF/slurm.conf; then: scontrol reconfigure`, mends: true},
	{name: "an epilog of another user", kind: "hook-not-ours",
		plant: func(w healthyNode) { w.script(w.hook("epilog"), "exit 0\n") }, where: "CONF/slurm.conf:5",
		do: "let it start BIN/epilog too, or name that: ${EDITOR:-vi} CONF/slurm.conf; then: scontrol reconfigure"},
	{name: "our prolog as the epilog", kind: "hook-not-ours",
		plant: func(w healthyNode) { w.edit(w.Conf, "Epilog="+w.hook("epilog"), "Epilog="+w.hook("prolog")) },
		where: "CONF/slurm.conf:5", do: everywhere + "sed -i --follow-symlinks '5 s~", mends: true},
	{name: "no TaskProlog=", kind: "hook-not-ours",
		plant: func(w healthyNode) { w.edit(w.Conf, "\nTaskProlog=", "\n#") }, where: "CONF/slurm.conf",
		do: everywhere + `printf '\n%s\n' TaskProlog=BIN/task-prolog >>CONF/slurm.conf`, mends: true},
	{name: "a prolog that is not there", kind: "hook-missing",
		plant: func(w healthyNode) { w.change(os.Remove(w.hook("prolog"))) }, where: "HOOKS/prolog",
		do: "put it there, or " + everywhere + "sed -i --follow-symlinks '4 s~", mends: true},
	{name: "a script that may not be read", kind: "hook-mode",
		plant: func(w healthyNode) { w.change(os.Chmod(w.hook("epilog"), 0o111)) }, where: "HOOKS/epilog",
		do: "chmod 755 HOOKS/epilog", mends: true},
	{name: "a prolog that is not the last", kind: "hook-order",
		plant: func(w healthyNode) { w.folder("prolog", "50-ours", "10-other") },
		where: "HOOKS/prolog.d/50-ours",
		do:    "let its name sort first: mv HOOKS/prolog.d/50-ours HOOKS/prolog.d/0-ours", mends: true},
	{name: "an epilog that is not the first", kind: "hook-order",
		plant: func(w healthyNode) { w.folder("epilog", "50-ours", "90-other") },
		where: "HOOKS/epilog.d/50-ours",
		do:    "let its name sort last: mv HOOKS/epilog.d/50-ours HOOKS/epilog.d/zz-ours", mends: true},
	{name: "no PrologFlags=", kind: "prolog-flags-alloc",
		plant: func(w healthyNode) { w.edit(w.Conf, "PrologFlags=Alloc,Contain", "") },
		where: "CONF/slurm.conf",
		do:    everywhere + `printf '\n%s\n' PrologFlags=Alloc,Contain >>CONF/slurm.conf`, mends: true},
	{name: "too little time", kind: "hook-timeout", plant: func(w healthyNode) { w.sets("PrologEpilogTimeout=104") },
		where: "CONF/slurm.conf:3", do: everywhere + "sed -i --follow-symlinks '3 s~", mends: true},
	{name: "less time than the site's file gives", kind: "hook-timeout", plant: func(w healthyNode) {
		w.sets("PrologTimeout=100")
		w.edit(w.Paths().ConfigFile(), "nvml_library", "prolog_deadline = \"90s\"\nnvml_library")
	}, where: "CONF/slurm.conf:3", do: everywhere + "sed -i --follow-symlinks '3 s~", mends: true},
	{name: "no gres.conf", kind: "gres-conf", plant: func(w healthyNode) { w.change(os.Remove(w.Gres())) },
		where: "gres.conf",
		do:    "write it as in /usr/share/doc/slurm-mps/examples/gres.conf: ${EDITOR:-vi} CONF/gres.conf; or name another"},
	{name: "an unknown word in gres.conf", kind: "gres-conf",
		plant: func(w healthyNode) { w.edit(w.Gres(), "File=", "Files=/dev/x Fil=") }, where: "gres.conf",
		do: "write it as in "},
	{name: "a GPU that is not there", kind: "gres-differs",
		plant: func(w healthyNode) { w.edit(w.Gres(), "[0-1]", "[0,5]") }, where: "CONF/gres.conf",
		do: "let these and CONF/gres.conf agree, by Flags=env_uuid"},
	{name: "more GPUs than there are", kind: "gres-differs", plant: func(w healthyNode) {
		w.edit(w.Conf, "Gres=gpu:2", "Gres=gpu:3")
		w.Write(w.Gres(), "AutoDetect=nvml\n")
	}, where: "CONF/gres.conf", do: "let these and CONF/gres.conf agree"},
	{name: "gres/shard", kind: "gres-shard",
		plant: func(w healthyNode) { w.edit(w.Gres(), "Name=gpu", "Name=shard Count=8\nName=gpu") },
		where: "CONF/gres.conf", do: "let it and Gres= of this node in CONF/slurm.conf agree: ${EDITOR:-vi} CONF/gres.conf"},
	{name: "a state in a private /tmp", kind: "state-private", plant: func(w healthyNode) {
		w.sets("JobContainerType=job_container/tmpfs")
		w.Write(w.container(), "BasePath=/var/x\n")
	}, where: "CONF/slurm.conf:3",
		do: "take /tmp out of the folders of jobs, or give ours another --root: ${EDITOR:-vi} CONF/job_container.conf"},
	{name: "a state in a private folder of a namespace", kind: "state-private", plant: func(w healthyNode) {
		w.sets("NamespaceType=namespace/linux")
		w.Write(w.namespace(), "node_confs:\n  - nodes: \"gpu[01-02]\"\n    options:\n      dirs: \"/dev/shm,"+w.Root+"/run\"\n")
	}, where: "CONF/namespace.yaml:4",
		do: "take ROOT/run out of the folders of jobs, or give ours another --root: ${EDITOR:-vi} CONF/namespace.yaml"},
	{name: "devices for all", kind: "devices-open",
		plant: func(w healthyNode) { w.Write(w.cgroup(), "ConstrainDevices=no\n") },
		where: "CONF/cgroup.conf:1", do: everywhere + "sed -i --follow-symlinks '1 s~", mends: true},

	{name: "a folder of state for all to write", kind: "state-folder", plant: func(w healthyNode) {
		w.change(os.MkdirAll(w.Paths().Run(), 0o755))
		w.change(os.Chmod(w.Paths().Run(), 0o777))
	}, where: "ROOT/run/slurm-mps", do: "chown root:root ROOT/run/slurm-mps && chmod 755 ROOT/run/slurm-mps", mends: true},
	{name: "folders of a job without a lease", kind: "directory-without-lease",
		plant: func(w healthyNode) { w.change(os.MkdirAll(filepath.Join(w.Paths().Run(), "jobs", "7"), 0o755)) },
		where: "job 7", do: "remove it: mpsctl reap --job 7 --root ROOT", mends: true},
	{name: "a torn lease", kind: "lease-unreadable",
		plant: func(w healthyNode) { w.Write(filepath.Join(w.Paths().Run(), "leases", "7.json"), "{") },
		where: "job 7",
		do:    "one that is not root's own, or of another version, stays until a person moves it away: ls -lR -I jobs ROOT/run/slurm-mps"},
}

// appendTo appends a text to a file.
func appendTo(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

func (w healthyNode) words(text string) string {
	dir := filepath.Dir(w.Root)
	return strings.NewReplacer("BIN", w.Bin, "ROOT", w.Root, "HOOKS", filepath.Dir(w.hook("x")), "CONF", filepath.Dir(w.Conf), "DIR", dir).Replace(text)
}

// Doctor finds each fault, alone, with its place and its repair. If the repair is a command, the node is healthy
// after it. TestJudgeSlurm of package doctor has more faults of Slurm's files and of GPUs.
func TestDoctorFindsEachFault(t *testing.T) {
	t.Parallel()
	for _, f := range planted {
		t.Run(f.name, func(t *testing.T) {
			w := newHealthyNode(t)
			f.plant(w)
			w.expect(f)
			if f.mends {
				w.mend()
			}
		})
	}
}

func (w healthyNode) expect(f faultPlanted) {
	w.T.Helper()
	w.found(w.diagnose(), f)
	if text := w.doctor().Output; !strings.Contains(text, f.kind+"  ") || !regexp.MustCompile(`\n(! 1 fault|~ 1 warning)\n$`).MatchString(text) {
		w.T.Errorf("the text is\n%s", text)
	}
}

// found checks that the diagnosis has exactly this finding.
func (w healthyNode) found(d diagnosis, f faultPlanted) {
	w.T.Helper()
	if len(d.Findings) != 1 || (len(d.Unseen) != 0) != f.unseen {
		w.T.Fatalf("found %+v", d)
	}
	got := d.Findings[0]
	if got.Kind != f.kind || !strings.Contains(got.Where, w.words(f.where)) ||
		!strings.HasPrefix(got.Do, w.words(f.do)) || got.What == "" || !slices.Contains([]string{"fault", "warning"}, got.Level) {
		w.T.Errorf("got  %+v\nwant %s  %s\n do: %s", got, f.kind, w.words(f.where), w.words(f.do))
	}
	e2e.CanBePasted(w.T, got.Do)
}

// mend runs the first command of the repair in a shell, as root does. The others make Slurm read it.
func (w healthyNode) mend() {
	w.T.Helper()
	do := e2e.Commands(w.diagnose().Findings[0].Do)[0]
	cmd := exec.CommandContext(w.Ctx, "/bin/sh", "-c", do)
	cmd.Env = []string{"PATH=" + w.Bin + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	if said, err := cmd.CombinedOutput(); err != nil {
		w.T.Fatalf("%s: %v: %s", do, err, said)
	}
	if d := w.diagnose(); len(d.Findings)+len(d.Unseen) != 0 {
		w.T.Errorf("after %s: %+v", do, d)
	}
}

// Doctor finds a program of another build among the programs.
func TestDoctorFindsAnotherVersion(t *testing.T) {
	w := newHealthyNode(t)
	file, err := elf.Open(w.bin("epilog"))
	w.change(err)
	defer file.Close()
	symbols, err := file.Symbols()
	w.change(err)
	at := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "github.com/slurm-mps/slurm-mps/site/cli.commit" })
	if at < 0 {
		t.Fatal("the programs do not have the symbol of their version")
	}
	section := file.Sections[symbols[at].Section]
	program, err := os.OpenFile(w.own("epilog"), os.O_WRONLY, 0)
	w.change(err)
	_, err = program.WriteAt([]byte{3}, int64(section.Offset+symbols[at].Value-section.Addr)+8) // the length of the string
	w.change(errors.Join(err, program.Close()))
	w.expect(faultPlanted{kind: "program-versions", where: "BIN", do: "where the package is: dpkg -i slurm-mps_*.deb"})
}

func TestDoctorFindsALongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(e2e.PublicDir(t), strings.Repeat("x", 60))
	w := healthyNodeIn(testNode{e2e.NodeIn(t, dir, "", node.H200, node.H200)})
	w.expect(faultPlanted{kind: "socket-path", where: "ROOT/run/slurm-mps",
		do: "shorten --root where these start ours: grep -i log= CONF/slurm.conf"})
}

// Doctor finds a file system that has space for only a few files.
func TestDoctorFindsNoRoom(t *testing.T) {
	w := newHealthyNode(t)
	run := filepath.Dir(w.Paths().Run())
	w.change(os.MkdirAll(run, 0o755))
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "size=64k,mode=755"); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("needs to mount a file system")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { w.change(unix.Unmount(run, unix.MNT_DETACH)) })
	w.expect(faultPlanted{kind: "state-room", where: "ROOT/run/slurm-mps", do: "make room there: df -h ROOT/run"})
}

// Doctor finds a limit of open files that root may not raise, as in a container without the capability.
func TestDoctorFindsFewFiles(t *testing.T) {
	w := newHealthyNode(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip(err)
	}
	line := append([]string{"-c", `ulimit -n 4096; exec "$@"`, "sh", setpriv, "--bounding-set=-sys_resource",
		"--inh-caps=-sys_resource"}, w.Command("mpsctl", "doctor", "--json", "--slurm-conf", w.Conf, "--node", healthyName, "--slurmd", "none")...)
	out, err := exec.CommandContext(w.Ctx, "/bin/sh", line...).Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, out)
	}
	w.found(w.read(testnode.Result{Code: exit.ExitCode(), Output: string(out)}), faultPlanted{kind: "open-files",
		where: "this shell", do: "below [Service] write LimitNOFILE=131072: systemctl edit slurmd"})
}

// Doctor takes the node's name and slurm.conf from the variables that slurmd sets. It refuses wrong flags with exit
// code 2.
func TestDoctorAsksTheEnvironment(t *testing.T) {
	w := newHealthyNode(t)
	result, err := w.Run(w.Ctx, []string{"SLURM_CONF=" + w.Conf, "SLURMD_NODENAME=" + healthyName}, "mpsctl", "doctor", "--json", "--slurmd", "none")
	w.change(err)
	if d := w.read(result); d.Node != healthyName || d.Looked.SlurmConf != w.Conf || len(d.Findings) != 0 {
		t.Errorf("%+v", d)
	}
	for args, want := range map[string]string{
		"--slurm-conf x": `cannot use --slurm-conf "x": give an absolute path`,
		"--slurmd x":     `cannot use --slurmd "x": give an absolute path, or none`,
		"more":           `cannot take "more"`,
		"--bogus":        "cannot read flags: unknown flag: --bogus",
	} {
		if result := w.Ctl(append([]string{"doctor"}, strings.Fields(args)...)...); result.Code != 2 || !strings.HasPrefix(result.Output, "mpsctl: "+want) {
			t.Errorf("%s: %+v", args, result)
		}
	}
}

// If doctor finds only warnings, it exits with 0, as a health check needs. With --strict it exits with 1, and -v
// lists every check.
func TestDoctorOfANodeWithWarnings(t *testing.T) {
	w := newHealthyNode(t)
	w.Write(w.cgroup(), "ConstrainDevices=no\n")
	result := w.doctor("-v")
	if result.Code != 0 || !strings.Contains(result.Output, "\n  ~   a job can open only its own GPUs\n") ||
		!strings.Contains(result.Output, "\n  ok  policy.hcl can be used\n") {
		t.Errorf("code %d: %s", result.Code, result.Output)
	}
	if strict := w.doctor("--strict"); strict.Code != 1 || !strings.HasSuffix(strict.Output, "\n~ 1 warning\n") {
		t.Errorf("code %d: %s", strict.Code, strict.Output)
	}
	var said struct {
		Checked struct{ Checks int }
		Checks  []struct{ What, Result string }
	}
	if err := json.Unmarshal([]byte(w.doctor("-v", "--json").Output), &said); err != nil ||
		len(said.Checks) != said.Checked.Checks || said.Checks[0].Result != "ok" {
		t.Errorf("%v: %+v", err, said)
	}
	// A user's change of the user's own daemon is a warning and not a fault of the node.
	w.Open(w.Job(7, "0"))
	d := w.Ticket(7).Daemons[0]
	if err := d.Proc.Kill(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if result := w.doctor(); result.Code != 0 || !strings.Contains(result.Output, "~ daemon-wedged") {
		t.Errorf("code %d: %s", result.Code, result.Output)
	}
	if err := d.Proc.Kill(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.Must(0, w.Job(7, "0"), "epilog")
	w.Write(w.Conf, "NodeName=x\n")
	if result := w.doctor("-v"); result.Code != 1 {
		t.Errorf("code %d: %s", result.Code, result.Output)
	}
}
