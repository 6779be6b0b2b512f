// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// slurmNode is a node without faults, with Slurm's files in a folder and two GPUs. A test plants a fault in the files
// or in the node.
type slurmNode struct {
	node
	t         *testing.T
	dir       string
	registers []string
}

func newSlurmNode(t *testing.T) *slurmNode {
	n := &slurmNode{node: sound(), t: t, dir: t.TempDir()}
	n.Name, n.Config = "gpu01", site.DefaultConfig()
	n.Policy.Trigger = &policy.Trigger{Constraint: "mps"}
	n.Driver = &driverState{Version: "580.178.04"}
	for i := range 2 {
		card := site.Device{UUID: site.UUID(fmt.Sprintf("GPU-0000000%d-0000-0000-0000-000000000000", i)), Minor: i}
		n.Driver.GPUs = append(n.Driver.GPUs, device{Index: i, Device: card, Major: 9, Persistent: true})
	}
	shippedConf, err := os.ReadFile("../etc/slurm.conf")
	n.do(err)
	n.write("slurm.conf", strings.ReplaceAll(string(shippedConf), "gpu:4", "gpu:2"))
	n.write("gres.conf", "Name=gpu File=/dev/nvidia[0-1]\n")
	n.write("cgroup.conf", "ConstrainDevices=yes\n")
	return n
}

func (n *slurmNode) do(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *slurmNode) write(name, text string) {
	n.t.Helper()
	n.do(os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o644))
}

// edit replaces a text in slurm.conf. The file must contain the text.
func (n *slurmNode) edit(old, text string) {
	n.t.Helper()
	content, err := os.ReadFile(filepath.Join(n.dir, "slurm.conf"))
	if err != nil || !strings.Contains(string(content), old) {
		n.t.Fatalf("no %q: %v", old, err)
	}
	n.write("slurm.conf", strings.Replace(string(content), old, text, 1))
}

// set puts a line before all others that count.
func (n *slurmNode) set(line string) {
	n.t.Helper()
	n.edit("\nGresTypes=", "\n"+line+"\nGresTypes=")
}

// diagnose reads Slurm's files and judges the node. Each hook starts our program, as the installed ones do.
func (n *slurmNode) diagnose() []string {
	n.t.Helper()
	n.Conf = filepath.Join(n.dir, "slurm.conf")
	n.Slurm, n.SlurmErr = readSlurm(Question{Conf: n.Conf, Node: n.Name, Registers: n.registers}, n.Config)
	if n.Slurm != nil {
		for i, h := range n.Slurm.Hooks {
			path := site.Libexec + "/" + h.Ours
			n.Slurm.Hooks[i].Scripts = []hookScript{{installed: installed{Path: path, Mode: 0o755}, Starts: h.Ours, By: path}}
		}
	}
	found := []string{}
	_, judged := judge(n.node)
	for _, f := range judged {
		text := fmt.Sprintf("%s %s at %s: %s", f.Level, f.Kind, f.Where, f.Fix)
		found = append(found, strings.ReplaceAll(text, n.dir+"/", ""))
		if f.What == "" {
			n.t.Errorf("half a finding: %+v", f)
		}
		e2e.CanBePasted(n.t, f.Fix)
	}
	return found
}

// Each fault in Slurm's files and each unfit GPU is one finding, with its place and its repair. Other healthy nodes
// have none.
func TestJudgeSlurm(t *testing.T) {
	const all = everywhere + ": "
	sed := func(line int, name, value string) string {
		return fmt.Sprintf(`sed -i --follow-symlinks '%d s~\b%s\s*=\s*[^[:space:]#]*~%[2]s=%s~I' `, line, name, value)
	}
	const write = "; then: scontrol reconfigure"
	const restart = "; then on that host: systemctl restart slurmctld; then on every node: systemctl restart slurmd"
	for _, c := range []struct {
		name  string
		plant func(*slurmNode)
		want  string // the beginning of the finding, "" for none
	}{
		{"the shipped lines", func(*slurmNode) {}, ""},
		{"no PrologFlags=", func(n *slurmNode) { n.edit("PrologFlags=Alloc,Contain", "") },
			"fault prolog-flags-alloc at slurm.conf: " + all + `printf '\n%s\n' PrologFlags=Alloc,Contain >>slurm.conf` + write},
		{"Alloc without Contain", func(n *slurmNode) { n.edit("Alloc,Contain", "Alloc") },
			"warning prolog-flags-contain at slurm.conf:7: " + all +
				sed(7, "PrologFlags", "Alloc,Contain") + "slurm.conf" + write},
		{"Alloc by another flag", func(n *slurmNode) { n.edit("Alloc,Contain", "ForceRequeueOnFail") },
			"warning prolog-flags-contain at slurm.conf:7: " + all +
				sed(7, "PrologFlags", "ForceRequeueOnFail,Contain") + "slurm.conf" + write},
		{"Contain by another flag", func(n *slurmNode) { n.edit("Alloc,Contain", "x11") }, ""},
		{"RunInJob", func(n *slurmNode) { n.edit("Alloc,Contain", "RunInJob,Contain") }, "warning run-in-job at slurm.conf:7: " +
			all + sed(7, "PrologFlags", "Contain") + "slurm.conf"},
		{"too little time", func(n *slurmNode) { n.set("PrologEpilogTimeout=104") },
			"fault hook-timeout at slurm.conf:3: " + all +
				sed(3, "PrologEpilogTimeout", "105") + "slurm.conf"},
		{"enough time", func(n *slurmNode) { n.set("PrologEpilogTimeout=105") }, ""},
		{"time without an end", func(n *slurmNode) { n.set("PrologEpilogTimeout=65534") }, ""},
		{"too little time for epilogs", func(n *slurmNode) { n.set("EpilogTimeout=64") },
			"fault hook-timeout at slurm.conf:3: " + all +
				sed(3, "EpilogTimeout", "65") + "slurm.conf" + write +
				"; or lower epilog_deadline: ${EDITOR:-vi} /etc/slurm-mps/site.hcl"},
		{"a common time that counts for none", func(n *slurmNode) {
			n.set("PrologEpilogTimeout=1\nPrologTimeout=105\nEpilogTimeout=65")
		}, ""},
		{"GresTypes without gpu", func(n *slurmNode) { n.edit("GresTypes=gpu", "GresTypes=craynetwork") },
			"fault gres-types at slurm.conf:3: " + all +
				sed(3, "GresTypes", "craynetwork,gpu") + "slurm.conf" + restart},
		{"a node without a line", func(n *slurmNode) { n.edit("gpu[01-16]", "gpu[02-16]") },
			"warning node-unknown at slurm.conf: name the node by --node, if it is one of these: grep -i NodeName= slurm.conf; or " +
				all + `printf '\n%s\n' 'NodeName=gpu01 Gres=gpu:2 Feature=mps' >>slurm.conf` + restart},
		{"a node that registers itself", func(n *slurmNode) {
			n.edit("gpu[01-16]", "gpu[02-16]")
			n.registers = registration(strings.Fields("slurmd -DZ --conf=Gres=gpu:2,Feature=mps -N gpu01"), "gpu01")
			n.registers[2] = strings.ReplaceAll(n.registers[2], ",", " ")
		}, ""},
		{"a node that registers itself without the feature", func(n *slurmNode) {
			n.edit("gpu[01-16]", "gpu[02-16]")
			n.registers = registration([]string{"slurmd", "-Z", "--conf", "Gres=gpu:2"}, "gpu01")
		}, "warning node-feature at slurm.conf: write Feature=mps into slurmd's --conf, and restart slurmd: systemctl cat slurmd"},
		{"another node's slurmd", func(n *slurmNode) {
			n.edit("gpu[01-16]", "gpu[02-16]")
			n.registers = registration([]string{"slurmd", "-Z", "--conf", "Gres=gpu:2", "-N", "gpu03"}, "gpu01")
		}, "warning node-unknown at slurm.conf: "},
		{"a node with two lines", func(n *slurmNode) { n.set("NodeName=gpu01 Feature=mps") },
			"fault node-line at slurm.conf: correct that line: ${EDITOR:-vi} slurm.conf"},
		{"a node without GPUs", func(n *slurmNode) { n.edit("Gres=gpu:2 ", "") },
			"fault node-gres at slurm.conf:15: " + all +
				sed(15, "NodeName", "gpu[01-16] Gres=gpu:2") + "slurm.conf" + restart},
		{"a node without the feature", func(n *slurmNode) { n.edit("Feature=mps", "Feature=h200,nomps") },
			"warning node-feature at slurm.conf:15: " + all +
				sed(15, "Feature", "h200,nomps,mps") + "slurm.conf" + restart},
		{"a policy without a feature", func(n *slurmNode) {
			n.edit("Feature=mps", "")
			n.Policy.Trigger = &policy.Trigger{Option: false}
		}, ""},
		{"two types of GPUs", func(n *slurmNode) {
			n.edit("Gres=gpu:2", "Gres=gpu:a:1,gpu:b:1")
			n.write("gres.conf", "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n")
		}, "fault gpu-types at slurm.conf:15: give the node's GPUs one type, the same in Gres= and Type=, or none: ${EDITOR:-vi} slurm.conf" + restart},
		{"a GPU that is not there", func(n *slurmNode) { n.write("gres.conf", "Name=gpu File=/dev/nvidia[0,5]\n") },
			"fault gres-differs at gres.conf: let these and gres.conf agree, by Flags=env_uuid"},
		{"gres/mps of other nodes", func(n *slurmNode) { n.edit("GresTypes=gpu", "GresTypes=gpu,mps") }, ""},
		{"gres/mps", func(n *slurmNode) {
			n.edit("GresTypes=gpu", "GresTypes=gpu,mps")
			n.edit("Gres=gpu:2", "Gres=gpu:2,mps:200")
			n.write("gres.conf", "Name=mps Count=200\nName=gpu File=/dev/nvidia[0-1]\n")
		}, ""},
		{"shards", func(n *slurmNode) {
			n.edit("GresTypes=gpu", "GresTypes=gpu,shard")
			n.edit("Gres=gpu:2", "Gres=gpu:2,shard:8")
			n.write("gres.conf", "Name=shard Count=8\nName=gpu File=/dev/nvidia[0-1]\n")
		}, ""},
		{"shards that slurm.conf does not count", func(n *slurmNode) {
			n.write("gres.conf", "Name=shard Count=8\nName=gpu File=/dev/nvidia[0-1]\n")
		}, "fault gres-shard at gres.conf: let it and Gres= of this node in slurm.conf agree: ${EDITOR:-vi} gres.conf" + restart},
		{"no gres.conf", func(n *slurmNode) { n.do(os.Remove(filepath.Join(n.dir, "gres.conf"))) },
			"fault gres-conf at gres.conf: write it as in /usr/share/doc/slurm-mps/examples/gres.conf: ${EDITOR:-vi} gres.conf; or name another by gres_conf: "},
		{"devices for all", func(n *slurmNode) { n.write("cgroup.conf", "ConstrainDevices=no\n") },
			"warning devices-open at cgroup.conf:1: " + all +
				sed(1, "ConstrainDevices", "yes") + "cgroup.conf" + write},
		{"no task/cgroup", func(n *slurmNode) { n.edit("task/cgroup,", "") },
			"warning devices-open at slurm.conf:11: " + all +
				sed(11, "TaskPlugin", "task/cgroup,task/affinity") + "slurm.conf" + write},
		{"a state in a private folder", func(n *slurmNode) {
			n.set("JobContainerType=job_container/tmpfs")
			n.write("job_container.conf", "NodeName=gpu[01-02] BasePath=/var/x Dirs=/var/tmp,/run\n")
		}, "fault state-private at job_container.conf:1: take /run out of the folders of jobs, or give ours another --root: ${EDITOR:-vi} job_container.conf"},
		{"a state in a private folder of a namespace", func(n *slurmNode) {
			n.set("NamespaceType=namespace/linux")
			n.write("namespace.yaml", "node_confs:\n  - nodes: \"gpu[01-02]\"\n    options:\n      dirs: \"/dev/shm,/run\"\n")
		}, "fault state-private at namespace.yaml:4: take /run out of the folders of jobs, or give ours another --root: ${EDITOR:-vi} namespace.yaml"},
		{"a private /tmp", func(n *slurmNode) { n.set("JobContainerType=job_container/tmpfs") }, ""},

		{"a GPU older than Volta", func(n *slurmNode) { n.Driver.GPUs[1].Major = 6 },
			"fault gpu-too-old at GPU 1, GPU-00000001-0000-0000-0000-000000000000: give its node no Feature"},
		{"persistence mode off", func(n *slurmNode) { n.Driver.GPUs[0].Persistent = false },
			"warning persistence-off at GPU 0, GPU-00000000-0000-0000-0000-000000000000: systemctl enable --now"},
		{"MIG", func(n *slurmNode) { n.Driver.GPUs[1].Device.MIGMode = true },
			"fault mig-mode at GPU 1, GPU-00000001-0000-0000-0000-000000000000: nvidia-smi -i GPU-00000001"},
		{"MIG with instances", func(n *slurmNode) {
			n.Driver.GPUs[1].Device.MIGMode = true
			n.write("gres.conf", "AutoDetect=nvml\n")
		}, ""},
		{"a GPU that is prohibited", func(n *slurmNode) { n.Driver.GPUs[1].Mode = site.ModeProhibited },
			"fault gpu-mode at GPU 1, GPU-00000001-0000-0000-0000-000000000000: nvidia-smi -i GPU-00000001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newSlurmNode(t)
			c.plant(n)
			found := n.diagnose()
			if c.want == "" && len(found) == 0 {
				return
			}
			if len(found) != 1 || c.want == "" || !strings.HasPrefix(found[0], c.want) {
				t.Errorf("found %q\nwant %q", found, c.want)
			}
		})
	}
}

// Of several prologs ours is the last, and of several epilogs the first. A script of another site is not ours.
func TestJudgeHooks(t *testing.T) {
	script := func(name, starts string) hookScript {
		return hookScript{installed: installed{Path: "/h/" + name, Mode: 0o755}, Starts: starts, By: "/usr/libexec/slurm-mps/" + starts}
	}
	for _, c := range []struct {
		name    string
		hook    hook
		want    string
		scripts []hookScript
	}{
		{"the last prolog", hook{Name: "Prolog", Ours: "prolog"}, "", []hookScript{script("9", ""), script("0", "prolog")}},
		{"a prolog that is not the last", hook{Name: "Prolog", Ours: "prolog"},
			"hook-order: let its name sort first: mv /h/50-ours /h/0-ours", []hookScript{script("50-ours", "prolog"), script("1", "")}},
		{"an epilog that is not the first", hook{Name: "Epilog", Ours: "epilog"},
			"hook-order: let its name sort last: mv /h/50-ours /h/zz-ours", []hookScript{script("9", ""), script("50-ours", "epilog")}},
		{"no prolog", hook{Name: "Prolog", Ours: "prolog"},
			"hook-not-ours: " + everywhere + ": printf '\\n%s\\n' Prolog=/usr/libexec/slurm-mps/prolog >>/s; then: scontrol reconfigure", nil},
		{"an epilog at the prolog", hook{Name: "Prolog", Ours: "prolog", Settings: []slurm.ConfValue{{From: "/s:1"}}},
			"hook-not-ours: " + everywhere + ": printf '\\n%s\\n' Prolog=/usr/libexec/slurm-mps/prolog >>/s", []hookScript{script("x", "epilog")}},
		{"a script of the site's", hook{Name: "Prolog", Ours: "prolog", Settings: []slurm.ConfValue{{From: "/s:1"}}},
			"hook-not-ours: let it start /usr/libexec/slurm-mps/prolog too, or name that: ${EDITOR:-vi} /s; then: scontrol reconfigure", []hookScript{script("x", "")}},
		{"a script that is gone", hook{Name: "Prolog", Ours: "prolog"}, "hook-missing: put it there, or " + everywhere + ": printf '\\n%s\\n' Prolog=",
			[]hookScript{{installed: installed{Path: "/h/gone", Err: os.ErrNotExist}}}},
		{"a script that slurmd may not read", hook{Name: "Prolog", Ours: "prolog"}, "hook-mode: chmod 755 /h/x",
			[]hookScript{{installed: installed{Path: "/h/x", Mode: 0o111}, Starts: "prolog", By: "/usr/libexec/slurm-mps/prolog"}}},
	} {
		c.hook.Scripts = c.scripts
		d := diagnosis{node: node{Slurm: &slurmFiles{ConfFile: slurm.ConfFile{Path: "/s"}, Hooks: []hook{c.hook}}}}
		d.hooksOurs()
		d.hooksRunnable()
		d.hookOrder()
		var found []string
		for _, f := range d.found {
			found = append(found, fmt.Sprintf("%s: %s", f.Kind, f.Fix))
			e2e.CanBePasted(t, f.Fix)
		}
		if c.want == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || c.want == "" || !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, c.want) }) {
			t.Errorf("%s: %q, want %q", c.name, found, c.want)
		}
	}
}

// A repair changes one value. A link stays a link, a tab ends a value as a space does, and a last line without an end
// stays a line.
func TestARepairChangesNothingElse(t *testing.T) {
	for _, c := range []struct{ name, before, after string }{
		{"Gres", "NodeName=gpu01\tCPUs=64\tState=UNKNOWN # ours", "NodeName=gpu01 Gres=new\tCPUs=64\tState=UNKNOWN # ours"},
		{"Gres", "NodeName = gpu01 Gres\t=\told\tCPUs=64# ours\n", "NodeName = gpu01 Gres=new\tCPUs=64# ours\n"},
		{"Prolog", "TaskProlog=/a\nPartitionName=x State=UP", "TaskProlog=/a\nPartitionName=x State=UP\nProlog=new\n"},
		{"Prolog", "", "\nProlog=new\n"},
	} {
		n := &slurmNode{t: t, dir: filepath.Join(t.TempDir(), "two words")}
		n.do(os.Mkdir(n.dir, 0o755))
		n.write("real", c.before)
		path := filepath.Join(n.dir, "slurm.conf")
		n.do(os.Symlink("real", path))
		conf, err := slurm.ReadConfFile(path, "gpu01")
		n.do(err)
		s := slurmFiles{ConfFile: conf}
		repair := s.set(c.name, "new", reconfigure)
		if c.name == "Gres" {
			repair = s.setNode(c.name, "new")
		}
		command := e2e.Commands(repair)[0]
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		if got := e2e.Read(t, filepath.Join(n.dir, "real")); got != c.after {
			t.Errorf("%s\ngot  %q\nwant %q", command, got, c.after)
		}
	}
}
