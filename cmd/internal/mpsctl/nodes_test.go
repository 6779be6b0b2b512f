// SPDX-License-Identifier: Apache-2.0

package mpsctl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site/inspect"
)

// remote makes a root whose site.hcl names a script as the remote shell, and runs mpsctl there.
func remote(t *testing.T, script string, args ...string) (code int, out, said string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("site.hcl is root's own: run as root")
	}
	root := t.TempDir()
	shell := filepath.Join(root, "shell")
	conf := filepath.Join(root, "etc/slurm-mps/site.hcl")
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{shell: "#!/bin/sh\n" + script, conf: fmt.Sprintf("remote_shell = %q\n", shell+" -x")} {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(conf, 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	p := cli.Process{Args: append([]string{"--root", root}, args...), Out: &stdout, Err: &stderr}
	code = Run(p, Commands()...)
	return code, stdout.String(), stderr.String()
}

// Each node has a line with what it has, or why it does not answer. What a node prints cannot control the terminal.
func TestStatusOfNodes(t *testing.T) {
	code, out, said := remote(t, `
[ "$1 $3 $4 $5 $#" = "-x mpsctl status --json 5" ] || { echo "arguments $*" >&2; exit 9; }
case $2 in
n1) echo 'a profile prints this'
    echo '{"node":"n1","jobs":[{"gpus":[{"clients":[{"pid":4},{"pid":5}]},{"clients":[{"pid":5}]}]}],"findings":[],"errors":[]}' ;;
n2) printf '{"node":"n2","jobs":[],"findings":[{"kind":"guard-gone"},{"kind":"guard-gone"},{"kind":"\\u001b[2Jx"}],"errors":["a"]}\n'
    exit 1 ;;
n3) printf 'ssh: \033[31mrefused\n' >&2; exit 255 ;;
n4) echo 'mpsctl: not found' >&2; exit 127 ;;
n5) echo '{"jobs":[]}' ;;
esac`, "status", "--nodes", "n1,n2,n3,n4,n5,n1")
	want := `node  jobs clients  findings
n1       1       2  -
n2       0       0  ?[2Jx, guard-gone (2), 1 part not seen
n3       -       -  no answer: ssh: ?[31mrefused (exit status 255)
n4       -       -  no answer: mpsctl: not found (exit status 127)
n5       -       -  no answer: the answer is not mpsctl's: is slurm-mps installed there?

5 nodes: 1 with findings, 3 without an answer
`
	if code != 1 || out != want || said != "" {
		t.Errorf("code %d, %s\n got %s\nwant %s", code, said, out, want)
	}
}

// mpsctl audit asks each node for its own report, and the JSON output has one object for each node.
func TestAuditOfNodes(t *testing.T) {
	script := `[ "$4" = audit ] || exit 9
echo '{"node":"'$2'","complete":true,"counts":{"gpus":4,"jobs":2,"clients":8},"findings":[],"errors":[]}'`
	code, out, said := remote(t, script, "--json", "audit", "-w", "n1,n2")
	want := `{"nodes":[{"node":"n1","jobs":2,"clients":8,"findings":[],"errors":0},` +
		`{"node":"n2","jobs":2,"clients":8,"findings":[],"errors":0}]}` + "\n"
	if code != 0 || out != want || said != "" {
		t.Errorf("code %d, %s\n got %s\nwant %s", code, said, out, want)
	}
	var is any
	if err := json.Unmarshal([]byte(out), &is); err != nil {
		t.Error(err)
	}
}

func TestNodesThatCannotBeAsked(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"-oProxyCommand=x", `cannot read --nodes "-oProxyCommand=x": "-oProxyCommand=x" is no node's name`},
		{"n1,-v", `"-v" is no node's name`},
		{"", `"" is no`},
		{"n1,", `"" is no node's name`},
		{"n1;reboot", `"n1;reboot" is no node's name`},
		{"-[1-2]", "it begins with -"},
	} {
		if code, out, said := remote(t, "exit 9", "status", "-w", c.list); code != 2 || out != "" || !strings.Contains(said, c.want) {
			t.Errorf("%q: code %d, %s%s, want %s", c.list, code, out, said, c.want)
		}
	}
	if code, _, said := remote(t, "exit 9", "status", "--watch", "-w", "n1"); code != 2 || !strings.Contains(said, "not both") {
		t.Errorf("code %d, %s", code, said)
	}
}

// Slurm or ClusterShell expands a list with brackets, whichever is installed.
func TestExpandNodes(t *testing.T) {
	for program, args := range map[string]string{"scontrol": "show hostnames", "nodeset": "--expand"} {
		dir := t.TempDir()
		script := fmt.Sprintf("#!/bin/sh\n[ \"$*\" = '%s gpu[1-2]' ] && echo gpu1 && echo gpu2\n", args)
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir)
		if nodes, err := expandNodes(t.Context(), "gpu[1-2]"); err != nil || strings.Join(nodes, " ") != "gpu1 gpu2" {
			t.Errorf("%s: %q, %v", program, nodes, err)
		}
		if _, err := expandNodes(t.Context(), "gpu[2-1]"); err == nil {
			t.Errorf("%s: a list that it refuses is expanded", program)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := expandNodes(t.Context(), "gpu[1-2]"); err == nil || !strings.Contains(err.Error(), "neither scontrol nor nodeset") {
		t.Error(err)
	}
}

// The real scontrol expands a list as the fake one does, and asks no slurmctld.
func TestExpandNodesByScontrol(t *testing.T) {
	if _, err := exec.LookPath("scontrol"); err != nil {
		t.Skip("scontrol is not here: install Slurm")
	}
	conf := filepath.Join(t.TempDir(), "slurm.conf") // scontrol reads this file first
	if err := os.WriteFile(conf, []byte("ClusterName=c\nSlurmctldHost=localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_CONF", conf)
	nodes, err := expandNodes(t.Context(), "gpu[01-03,07],big1")
	if err != nil || strings.Join(nodes, " ") != "gpu01 gpu02 gpu03 gpu07 big1" {
		t.Errorf("%q, %v", nodes, err)
	}
}

// A node that hangs is given up, and everything that the remote shell has started ends. The same happens to a node
// that prints without end.
func TestANodeIsBounded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	answer := askNode(ctx, []string{"/bin/sh", "-c", "sleep 600 & sleep 600"}, "n1")
	if answer.Failure != "no answer in time" || time.Since(began) > 5*time.Second {
		t.Errorf("%+v after %v", answer, time.Since(began))
	}
	if answer := askNode(t.Context(), []string{"/bin/sh", "-c", "exec yes"}, "n1"); answer.Failure != errTooLong.Error() {
		t.Errorf("%+v", answer)
	}
}

// All nodes are asked, at most 32 at the same time, and the answers keep the order of the nodes.
func TestNodesSideBySide(t *testing.T) {
	var nodes []string
	for i := range 100 {
		nodes = append(nodes, fmt.Sprintf("n%d", i))
	}
	var now, top atomic.Int32
	answers := askEach(nodes, func(node string) inspect.Answer {
		for at := now.Add(1); ; {
			if before := top.Load(); at <= before || top.CompareAndSwap(before, at) {
				break
			}
		}
		time.Sleep(time.Millisecond)
		now.Add(-1)
		return inspect.Answer{Node: node}
	})
	for i, a := range answers {
		if a.Node != nodes[i] {
			t.Errorf("answer %d is from %s", i, a.Node)
		}
	}
	if top.Load() > maxShells || top.Load() < 2 {
		t.Errorf("%d at the same time", top.Load())
	}
}
