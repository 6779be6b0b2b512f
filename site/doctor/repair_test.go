// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/state"
)

// odd is a name that a shell would read as several commands, and a person as several steps of a repair.
const odd = "it's: odd; touch 1:2\n&~ x"

// Each repair names an odd path in a word of the shell's, also in the remark before a command.
func TestRepairsOfOddPaths(t *testing.T) {
	for name, plant := range map[string]func(*node){
		"programs": func(n *node) {
			n.Programs = []program{{installed: installed{Name: "prolog", Path: "/" + odd, Err: fs.ErrPermission}},
				{installed: installed{Name: "guard", Path: "/" + odd}}}
		},
		"others write": func(n *node) { n.Own = []installed{{Path: "/x", Loose: "/" + odd, LooseReason: "mode"}} },
		"no policy": func(n *node) {
			n.Policy.Err, n.ConfigErr.Err, n.ConfigErr.Kept = fs.ErrNotExist, osfile.ErrNotRootOwned, n.Time
		},
		"no site file": func(n *node) { n.Policy.Err, n.ConfigErr.Err = errors.New("x"), fs.ErrNotExist },
		"wrong site file": func(n *node) {
			_, n.Policy.Err = policyfile.Parse([]byte("x"), n.Paths.Policy())
			_, n.ConfigErr.Err = policyfile.Parse([]byte("x"), n.Paths.ConfigFile())
		},
		"helpers": func(n *node) {
			n.Helpers = []installed{{Name: "mps_control", Path: "/" + odd, Err: fs.ErrNotExist},
				{Name: "mps_control", Path: "/" + odd}, {Name: "library_path", Path: "/" + odd, Err: fs.ErrNotExist}}
		},
		"no driver":  func(n *node) { n.NVMLErr = errors.New("none") },
		"an old GPU": func(n *node) { n.Driver = &driverState{Version: "580.178.04", GPUs: []device{{Persistent: true}}} },
		"an old driver": func(n *node) {
			n.Driver = &driverState{Version: "580.1.1", GPUs: []device{{Major: 9, Persistent: true}}}
		},
		"a state of a user":  func(n *node) { n.State.Exists, n.State.UID, n.State.Path = true, 7, "/"+odd },
		"no room":            func(n *node) { n.State.Files, n.State.Path = 0, "/"+odd },
		"no state":           func(n *node) { n.State.Err, n.State.Path = errors.New("x"), "/"+odd },
		"no slurm.conf":      func(n *node) { n.SlurmErr = errors.New("x") },
		"a part is not seen": func(n *node) { n.Hidden = []string{"x"} },
		"slurmd refuses": func(n *node) {
			n.Slurm = &slurmFiles{ListErr: errors.New("x"), ConfFile: slurm.ConfFile{Path: n.Conf}}
		},
		"hooks": func(n *node) {
			script := hookScript{installed: installed{Path: "/x/" + odd + "/10-a", Mode: 0}, Starts: "prolog", By: "/y"}
			missing := hookScript{installed: installed{Path: "/" + odd, Err: fs.ErrNotExist}}
			n.Programs = []program{{installed: installed{Name: "epilog", Path: "/" + odd, Mode: 0o755}}}
			n.Slurm = &slurmFiles{ConfFile: slurm.ConfFile{Path: n.Conf}, Hooks: []hook{
				{Name: "Prolog", Ours: "prolog", Scripts: []hookScript{script, script}}, {Name: "Epilog", Ours: "epilog"},
				{Name: "TaskProlog", Ours: "task-prolog", Scripts: []hookScript{missing}},
				{Name: "Epilog", Ours: "epilog", Scripts: []hookScript{{}}, Settings: []slurm.ConfValue{{From: n.Conf + ":3"}}},
			}}
		},
		"gres.conf": func(n *node) {
			n.Slurm = &slurmFiles{ConfFile: slurm.ConfFile{Path: n.Conf}, GresErr: errors.New("x")}
		},
		"shards": func(n *node) {
			gres := slurm.Gres{Path: "/" + odd, Shared: []string{"shard"}}
			n.Slurm = &slurmFiles{ConfFile: slurm.ConfFile{Path: n.Conf}, Gres: &gres}
		},
	} {
		n := sound()
		n.Programs, n.Paths, n.Conf = nil, site.Paths{Root: "/" + odd}, "/"+odd+"/slurm.conf"
		plant(&n)
		_, found := judge(n)
		must.Hold(t, len(found) != 0, "%s: no finding", name)
		for _, f := range found {
			must.Hold(t, !strings.Contains(f.Fix, odd[5:]) && !strings.Contains(f.Fix, "\n"), "%s, %s: %q", name, f.Kind, f.Fix)
			e2e.CanBePasted(t, f.Fix)
		}
	}
	n := sound()
	n.Paths, n.Hidden = site.Paths{Root: "/" + odd}, []string{"x"}
	for _, f := range append(mustFind(n), state.Finding{Fix: "reap: " + n.Paths.ReapCommand(7)}) {
		for _, command := range e2e.Commands(f.Fix) {
			out, err := exec.Command("bash", "-c", "mpsctl() { printf '%s|' \"$@\"; }; "+command).Output()
			must.Hold(t, err != nil || !strings.Contains(command, "--root") || strings.Contains(string(out), "--root|/"+odd+"|"),
				"%s: %q", command, out)
		}
	}
}

func mustFind(n node) []state.Finding {
	_, found := judge(n)
	return found
}

// A repair of a value with odd characters, in a file with an odd name, does what it says.
func TestARepairOfAnOddSetting(t *testing.T) {
	const value = `/opt/our own/a&b~c\d/prolog`
	for before, after := range map[string]string{
		"ClusterName=x\n":                             "ClusterName=x\n\nProlog=\"" + value + "\"\n",
		"Prolog=\"/opt/two words\" # ours\nA=b\n":     "Prolog=\"" + value + "\" # ours\nA=b\n",
		"ClusterName=x\nProlog = /opt/x\tEpilog=/y\n": "ClusterName=x\nProlog=\"" + value + "\"\tEpilog=/y\n",
	} {
		dir := filepath.Join(t.TempDir(), odd)
		path := filepath.Join(dir, "slurm.conf")
		must.OK(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(path, []byte(before), 0o644)))
		conf := must.Get(slurm.ReadConfFile(path, "gpu01"))(t)
		command := e2e.Commands(slurmFiles{ConfFile: conf}.set("Prolog", quoted(value), reconfigure))[0]
		if out, err := exec.Command("bash", "-c", command).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", command, err, out)
		}
		must.Equal(t, fmt.Sprintf("%s\ngot", command), e2e.Read(t, path), after)
	}
}
