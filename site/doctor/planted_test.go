// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	simulated "github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/state"
	"golang.org/x/sys/unix"
)

// healthyNode is a node without faults. Its slurm.conf and gres.conf are those of site/etc. A test
// then plants a fault.
type healthyNode struct{ e2e.Node }

const healthyName = "gpu01"

// place is the folder of all these nodes, one after the other, because a process loads one NVML library. Beside it are
// copies of our programs, to which each node links.
var place = sync.OnceValues(func() (string, error) {
	built, err := e2e.Built()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("/tmp", "mps")
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "built"), 0o755)); err != nil {
		return dir, err
	}
	for _, program := range testnode.Programs {
		content, err := os.ReadFile(filepath.Join(built, "bin", program))
		if err = errors.Join(err, simulated.WriteProgram(filepath.Join(dir, "built", program), content)); err != nil {
			return dir, err
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := place(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// newHealthyNode makes the node's files. Nothing runs on it: this process reads it.
func newHealthyNode(t *testing.T) healthyNode {
	t.Helper()
	e2e.NeedRoot(t)
	top := must.Get(place())(t)
	dir := filepath.Join(top, "n")
	t.Cleanup(func() { os.RemoveAll(dir) })
	built := must.Get(e2e.Built())(t)
	made := must.Get(testnode.New(dir, built, "", simulated.H200, simulated.H200))(t)
	w := healthyNode{e2e.Node{Node: made, T: t, Ctx: t.Context(), Conf: filepath.Join(dir, "slurm", "slurm.conf")}}
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
	w.Write(w.control(), elf.ELFMAG) // the simulation's has many bytes to search for a version
	w.change(os.Chmod(w.control(), 0o755))
	w.edit(w.Paths().ConfigFile(), w.Sim.Program("nvidia-cuda-mps-control"), w.control())
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
	from := filepath.Join(filepath.Dir(filepath.Dir(w.Root)), "built")
	w.Bin = filepath.Join(filepath.Dir(w.Root), "bin")
	w.change(os.Mkdir(w.Bin, 0o755))
	for _, program := range testnode.Programs {
		w.change(os.Link(filepath.Join(from, program), w.bin(program)))
	}
}

func (w healthyNode) copy(from, to string) {
	w.T.Helper()
	content, err := os.ReadFile(from)
	w.change(err)
	w.change(simulated.WriteProgram(to, content))
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
	content, err := os.ReadFile(filepath.Join("../etc", name))
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

// diagnose reads the node in this process. slurmd is the path of the program that lists the GPUs, or LeaveSlurmd.
func (w healthyNode) diagnose(slurmd string) Report {
	facts := gather(w.Ctx, Question{Paths: w.Paths(), Conf: w.Conf, Node: healthyName, Slurmd: slurmd}, w.bin)
	facts.Hidden = nil // of all processes of this machine, other tests' too
	return newReport(facts)
}

// A driver on which slurm-mps was proven is named so. It may lack fixes all the same, which is a warning.
func TestDoctorOfAProvenDriver(t *testing.T) {
	w := newHealthyNode(t)
	w.driver("580.159.04")
	r := w.diagnose(LeaveSlurmd)
	w.found(r, faultPlanted{kind: "unpatched", where: "driver 580.159.04", do: "install 580.178.04 or later"})
	if r.Checked.Driver != "580.159.04" || !r.Checked.Proven || r.Failed(false) || !r.Failed(true) {
		t.Errorf("%+v", r)
	}
}

// Doctor finds nothing on other healthy nodes: hooks without a script, patterns, includes, names in any case,
// AutoDetect.
func TestDoctorOfOtherHealthyNodes(t *testing.T) {
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
	} {
		t.Run(name, func(t *testing.T) {
			w := newHealthyNode(t)
			plant(w)
			if r := w.diagnose(LeaveSlurmd); len(r.Findings)+len(r.Unseen) != 0 || r.Checked.GPUs != 2 {
				t.Errorf("found %+v %q", r.Findings, r.Unseen)
			}
		})
	}
}

func (w healthyNode) container() string {
	return filepath.Join(filepath.Dir(w.Conf), "job_container.conf")
}

func (w healthyNode) namespace() string { return filepath.Join(filepath.Dir(w.Conf), "namespace.yaml") }

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
			d := w.diagnose(path)
			for i := len(d.Findings) - 1; i >= 0; i-- { // this machine's Slurm may be any release
				if d.Findings[i].Kind == "unpatched" {
					d.Findings = slices.Delete(d.Findings, i, i+1)
				}
			}
			if c.fault.kind != "" {
				w.found(d, c.fault)
			} else if len(d.Findings) != 0 || (len(d.Unseen) != 0) != c.fault.unseen {
				t.Errorf("found %+v %q", d.Findings, d.Unseen)
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
	andNVML    bool   // another library than the first cannot be loaded, which is a second finding
}

func (w healthyNode) control() string {
	return filepath.Join(filepath.Dir(w.Root), "nvidia-cuda-mps-control")
}

var planted = []faultPlanted{
	{name: "a prolog that may be executed and not read", kind: "program-mode",
		plant: func(w healthyNode) { w.change(os.Chmod(w.own("prolog"), 0o111)) }, where: "BIN/prolog",
		do: "chmod 755 BIN/prolog", mends: true},
	{name: "a task-prolog for root alone", kind: "program-mode",
		plant: func(w healthyNode) { w.change(os.Chmod(w.own("task-prolog"), 0o700)) },
		where: "BIN/task-prolog", do: "chmod 755 BIN/task-prolog", mends: true},
	{name: "no wrapper", kind: "program-missing",
		plant: func(w healthyNode) { w.change(os.Remove(w.bin("mpirun-wrap"))) },
		where: "BIN/mpirun-wrap",
		do:    "where the package is: dpkg -i slurm-mps_*.deb; or: rpm -U --force slurm-mps-*.rpm"},
	{name: "a wrapper of another user", kind: "not-roots-own",
		plant: func(w healthyNode) { w.change(os.Chown(w.own("mpirun-wrap"), int(e2e.UID), int(e2e.GID))) },
		where: "BIN/mpirun-wrap", do: "chown root:root BIN/mpirun-wrap", mends: true},
	{name: "a folder of programs for all to write", kind: "not-roots-own",
		plant: func(w healthyNode) { w.change(os.Chmod(w.Bin, 0o777)) }, where: "BIN",
		do: "chown root:root BIN && chmod go-w BIN", mends: true},
	{name: "a folder of scripts of another user", kind: "not-roots-own",
		plant: func(w healthyNode) { w.change(os.Chown(filepath.Dir(w.hook("x")), int(e2e.UID), int(e2e.GID))) },
		where: "HOOKS", do: "chown root:root HOOKS", mends: true},

	{name: "a policy with a mistake", kind: "policy",
		plant: func(w healthyNode) { w.edit(w.Paths().Policy(), "ceiling        = 100", "ceiling        = 0.5") },
		where: "ROOT/etc/slurm-mps/policy.hcl:23", do: "mpsctl policy check --root ROOT"},
	{name: "no policy", kind: "policy", plant: func(w healthyNode) { w.change(os.Remove(w.Paths().Policy())) },
		where: "ROOT/etc/slurm-mps/policy.hcl",
		do:    "install -D -m 644 /usr/share/slurm-mps/policy.hcl ROOT/etc/slurm-mps/policy.hcl"},
	{name: "a policy of another user", kind: "policy",
		plant: func(w healthyNode) { w.change(os.Chown(w.Paths().Policy(), int(e2e.UID), int(e2e.GID))) },
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
		w.change(appendTo(w.control(), "\x00555.42.06\x00"))
	}, where: "DIR/nvidia-cuda-mps-control", do: "drain the node, and when its jobs have ended: systemctl reboot"},
	{name: "no control program", kind: "control-missing",
		plant: func(w healthyNode) { w.edit(w.Paths().ConfigFile(), "nvidia-cuda-mps-control", "nvidia-control") },
		where: "DIR/nvidia-control",
		do:    "install the driver's package that has it, or set mps_control in ROOT/etc/slurm-mps/site.hcl to its path: find / "},
	{name: "a control program that is not executable", kind: "control-mode",
		plant: func(w healthyNode) { w.change(os.Chmod(w.control(), 0o644)) },
		where: "DIR/nvidia-cuda-mps-control", do: "chmod 755 DIR/nvidia-cuda-mps-control", mends: true},
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
	}, where: "DIR/nvml", do: "chown root:root DIR/nvml && chmod go-w DIR/nvml", andNVML: true},
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
		plant: func(w healthyNode) { w.change(w.Sim.Node.GPU(1).SetMode(simulated.ExclusiveProcess)) },
		where: "GPU 1", do: "unless someone meant it: nvidia-smi -i GPU-"},

	{name: "a line of slurm.conf without a value", kind: "slurm-conf", plant: func(w healthyNode) { w.sets("Prolog") },
		where: "CONF/slurm.conf", do: "correct that line"},
	{name: "no slurm.conf", kind: "slurm-conf", plant: func(w healthyNode) { w.change(os.Remove(w.Conf)) },
		where: "CONF/slurm.conf",
		do:    "name another by --slurm-conf: find /etc "},
	{name: "no Prolog=", kind: "hook-not-ours", plant: func(w healthyNode) { w.edit(w.Conf, "\nProlog=", "\n#") },
		where: "CONF/slurm.conf",
		do:    everywhere + ": " + `printf '\n%s\n' Prolog=BIN/prolog >>CONF/slurm.conf; then: scontrol reconfigure`, mends: true},
	{name: "an epilog of another user", kind: "hook-not-ours",
		plant: func(w healthyNode) { w.script(w.hook("epilog"), "exit 0\n") }, where: "CONF/slurm.conf:5",
		do: "let it start BIN/epilog too, or name that: ${EDITOR:-vi} CONF/slurm.conf; then: scontrol reconfigure"},
	{name: "our prolog as the epilog", kind: "hook-not-ours",
		plant: func(w healthyNode) { w.edit(w.Conf, "Epilog="+w.hook("epilog"), "Epilog="+w.hook("prolog")) },
		where: "CONF/slurm.conf:5", do: everywhere + ": " + "sed -i --follow-symlinks '5 s~", mends: true},
	{name: "no TaskProlog=", kind: "hook-not-ours",
		plant: func(w healthyNode) { w.edit(w.Conf, "\nTaskProlog=", "\n#") }, where: "CONF/slurm.conf",
		do: everywhere + ": " + `printf '\n%s\n' TaskProlog=BIN/task-prolog >>CONF/slurm.conf`, mends: true},
	{name: "a prolog that is not there", kind: "hook-missing",
		plant: func(w healthyNode) { w.change(os.Remove(w.hook("prolog"))) }, where: "HOOKS/prolog",
		do: "put it there, or " + everywhere + ": " + "sed -i --follow-symlinks '4 s~", mends: true},
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
		do:    everywhere + ": " + `printf '\n%s\n' PrologFlags=Alloc,Contain >>CONF/slurm.conf`, mends: true},
	{name: "too little time", kind: "hook-timeout", plant: func(w healthyNode) { w.sets("PrologEpilogTimeout=104") },
		where: "CONF/slurm.conf:3", do: everywhere + ": " + "sed -i --follow-symlinks '3 s~", mends: true},
	{name: "less time than the site's file gives", kind: "hook-timeout", plant: func(w healthyNode) {
		w.sets("PrologTimeout=100")
		w.edit(w.Paths().ConfigFile(), "nvml_library", "prolog_deadline = \"90s\"\nnvml_library")
	}, where: "CONF/slurm.conf:3", do: everywhere + ": " + "sed -i --follow-symlinks '3 s~", mends: true},
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
		where: "CONF/cgroup.conf:1", do: everywhere + ": " + "sed -i --follow-symlinks '1 s~", mends: true},

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
	w.found(w.diagnose(LeaveSlurmd), f)
}

// found checks that the diagnosis has exactly this finding.
func (w healthyNode) found(d Report, f faultPlanted) {
	w.T.Helper()
	if f.andNVML && len(d.Findings) == 2 && d.Findings[1].Kind == "nvml" {
		d.Findings = d.Findings[:1]
	}
	if len(d.Findings) != 1 || (len(d.Unseen) != 0) != f.unseen {
		w.T.Fatalf("found %+v %q", d.Findings, d.Unseen)
	}
	got := d.Findings[0]
	if string(got.Kind) != f.kind || !strings.Contains(got.Where, w.words(f.where)) ||
		!strings.HasPrefix(got.Fix, w.words(f.do)) || got.What == "" || !slices.Contains([]state.Level{state.Fault, state.Warning}, got.Level) {
		w.T.Errorf("got  %+v\nwant %s  %s\n do: %s", got, f.kind, w.words(f.where), w.words(f.do))
	}
	e2e.CanBePasted(w.T, got.Fix)
}

// mend runs the first command of the repair in a shell, as root does. The others make Slurm read it.
func (w healthyNode) mend() {
	w.T.Helper()
	do := e2e.Commands(w.diagnose(LeaveSlurmd).Findings[0].Fix)[0]
	cmd := exec.CommandContext(w.Ctx, "/bin/sh", "-c", do)
	cmd.Env = []string{"PATH=" + w.Bin + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	if said, err := cmd.CombinedOutput(); err != nil {
		w.T.Fatalf("%s: %v: %s", do, err, said)
	}
	if d := w.diagnose(LeaveSlurmd); len(d.Findings)+len(d.Unseen) != 0 {
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
	w := newHealthyNode(t)
	long := filepath.Join(filepath.Dir(w.Root), strings.Repeat("x", 60), "root")
	w.change(errors.Join(os.Mkdir(filepath.Dir(long), 0o755), os.Rename(w.Root, long)))
	w.Root = long
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
