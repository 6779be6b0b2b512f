// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	tail := " S 77 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1000"
	for _, tc := range []struct {
		text string
		want stat
		ok   bool
	}{
		{"10 (sleep)" + tail, stat{"sleep", 'S', 77, 12345}, true},
		{"10 (a) R (b c)" + tail, stat{"a) R (b c", 'S', 77, 12345}, true},
		{"10 (sleep) S 77", stat{}, false},
		{"", stat{}, false},
		{")(", stat{}, false},
	} {
		got, err := parseStat(tc.text)
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%q: %+v, %v", tc.text, got, err)
		}
	}
	self, err := readStat(os.Getpid())
	if now, errNow := bootTicks(); err != nil || errNow != nil || self.start == 0 || self.start > now {
		t.Errorf("this process started at %d, %v; now is %d, %v", self.start, err, now, errNow)
	}
}

func TestParseNode(t *testing.T) {
	const drained = "NodeName=n1 Arch=x86_64\n   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0\n   Partitions=main \n" +
		"   Reason=Prolog error [root@2026-11-21T09:00:00]\n"
	for _, tc := range []struct{ text, state, reason string }{
		{drained, "IDLE+DRAIN", "Prolog error"},
		{"NodeName=n1\n   State=MIXED ThreadsPerCore=1\n", "MIXED", ""},
		{"Node n9 not found", "", ""},
	} {
		state, reason, err := parseNode(tc.text)
		if state != tc.state || reason != tc.reason || (err == nil) != (tc.state != "") {
			t.Errorf("%q: %q, %q, %v", tc.text, state, reason, err)
		}
	}
}

func TestParseJob(t *testing.T) {
	const held = "JobId=3 JobName=wrap\n   Priority=0 Nice=0\n   JobState=PENDING Reason=launch_failed_requeued_held Dependency=(null)\n   ExitCode=0:0\n   NodeList=\n"
	for _, tc := range []struct {
		text       string
		id         int
		state      string
		exit, sig  int
		held, over bool
	}{
		{held, 3, "PENDING", 0, 0, true, false},
		{"JobId=4\n JobState=COMPLETING Reason=None ExitCode=0:0", 4, "COMPLETING", 0, 0, false, false},
		{"JobId=5\n JobState=FAILED Reason=NonZeroExitCode ExitCode=7:0", 5, "FAILED", 7, 0, false, true},
		{"JobId=6\n JobState=CANCELLED Reason=None ExitCode=0:15", 6, "CANCELLED", 0, 15, false, true},
		{"JobId=7\n JobState=PENDING Reason=Resources Priority=4294", 7, "PENDING", 0, 0, false, false},
	} {
		j, err := parseJob(tc.text)
		if err != nil || j.ID != tc.id || j.State != tc.state || j.Exit != tc.exit || j.Signal != tc.sig || j.Held() != tc.held || j.Over() != tc.over {
			t.Errorf("%q: %+v, held %t, over %t, %v", tc.text, j, j.Held(), j.Over(), err)
		}
	}
	if _, err := parseJob("slurm_load_jobs error: Invalid job id specified"); err == nil {
		t.Error("an answer without a job gave no error")
	}
}

func TestListening(t *testing.T) {
	socket, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := socket.Addr().(*net.TCPAddr).Port
	if !listening(port) {
		t.Error("a port with a listener")
	}
	client, err := net.Dial("tcp4", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := socket.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	socket.Close()
	if listening(port) {
		t.Error("a port with a connection, and no listener")
	}
}

func TestGres(t *testing.T) {
	for gres, want := range map[string]string{"": "", "gpu:4": "gpu", "gpu:a:1,gpu:b:1,mps:100": "gpu,mps"} {
		if got := gresTypes(gres); got != want {
			t.Errorf("gresTypes(%q) is %q, want %q", gres, got, want)
		}
	}
	devices := []string{"/dev/nvidia0", "/dev/nvidia2"}
	if got := gresConf(Options{}, devices); got != "Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia2\n" {
		t.Errorf("gres.conf is %q", got)
	}
	if got := gresConf(Options{GresConf: "whole"}, devices); got != "whole" {
		t.Errorf("gres.conf is %q", got)
	}
}

func TestFindDevices(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := findDevices(dir, 3)
	if want := []string{dir + "/nvidia0", dir + "/nvidia2", dir + "/nvidia10"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := findDevices(dir, 4); err == nil || !strings.Contains(err.Error(), "cannot give a node 4 GPUs: "+dir+" has 3") {
		t.Errorf("a request for four of three GPUs: %v", err)
	}
}

func TestFindUser(t *testing.T) {
	const passwd = "root:x:0:0::/root:/bin/sh\nbroken\nhpc1:x:2001:100::/tmp:/bin/sh\n"
	for _, tc := range []struct {
		name      string
		uid       uint32
		found, ok bool
	}{
		{"hpc1", 2001, true, true}, {"hpc2", 2002, false, true}, {"hpc1", 2002, false, false}, {"hpc2", 2001, false, false},
	} {
		user, found, err := findUser(passwd, tc.name, tc.uid)
		if found != tc.found || (err == nil) != tc.ok || found && user != (User{"hpc1", 2001, 100}) {
			t.Errorf("%s %d: %+v, %t, %v", tc.name, tc.uid, user, found, err)
		}
	}
	if !hasGroup("a:x:5:\nb:x:2001:", 2001) || hasGroup("a:x:5:", 2001) {
		t.Error("hasGroup does not find groups by number")
	}
}

// TestHookArguments checks that a hook receives its arguments unchanged.
func TestHookArguments(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"/usr/bin/printf", "%s|", "a b", "it's", "$HOME", `back\slash`, ""}
	path, err := writeHook(dir, "prolog", args)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path).Output()
	if want := `a b|it's|$HOME|back\slash||`; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
	if path, err := writeHook(dir, "epilog", args[:1]); err != nil || path != args[0] {
		t.Errorf("a hook without arguments has the path %q, %v", path, err)
	}
}

func TestSlurmConf(t *testing.T) {
	o := Options{Dir: "/tmp/x", Nodes: 2, GPUs: 4, CPUs: 8, Features: "mps,fast", PrologFlags: "Alloc", Extra: []string{"KillWait=1"}}.withDefaults()
	conf := slurmConf(o, tree{root: "/opt/b"}, hookPaths{prolog: "/p", epilog: "/e"}, "host", []string{"n1", "n2"}, 20000)
	for _, want := range []string{
		"SlurmctldHost=host(127.0.0.1)\n", "SlurmctldPort=20000\n", "PluginDir=/opt/b/plugins\n", "Prolog=/p\n", "Epilog=/e\n",
		"PrologFlags=Alloc\n", "GresTypes=gpu\n", "ProctrackType=proctrack/linuxproc\n",
		"NodeName=n2 NodeHostname=host NodeAddr=127.0.0.1 Port=20002 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 " +
			"ThreadsPerCore=1 RealMemory=4000 Gres=gpu:4 Feature=mps,fast State=UNKNOWN\n",
	} {
		if !strings.Contains(conf, want) {
			t.Errorf("slurm.conf lacks %q", want)
		}
	}
	if strings.Contains(conf, "TaskProlog") {
		t.Error("slurm.conf has a task prolog that the options do not have")
	}
	if !strings.HasSuffix(conf, "\nKillWait=1\n") {
		t.Error("the extra lines are not the last lines")
	}
	for _, tc := range []struct {
		constrain     bool
		release, want string
	}{{true, "24.11", "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n"}, {false, "22.05",
		"CgroupPlugin=cgroup/v1\n"}, {false, "24.11", "CgroupPlugin=disabled\n"}} {
		if got := cgroupConf(Options{ConstrainDevices: tc.constrain}, tc.release); got != tc.want {
			t.Errorf("cgroup.conf for %s is %q", tc.release, got)
		}
	}
}

// TestCheck checks options that cannot make a cluster. They are refused in one sentence, before anything is changed.
func TestCheck(t *testing.T) {
	needed(t, Unfit())
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Dir: "relative"}, `Dir is "relative": it must be an absolute path`},
		{Options{Dir: "/tmp/a b"}, "cannot hold a path with blanks"},
		{Options{Dir: "/tmp/" + strings.Repeat("x", 60)}, "leave no room for Slurm's sockets"},
		{Options{Dir: "/tmp/x", Nodes: 32}, "Nodes is 32: it must be 1 to 31"},
		{Options{Dir: "/tmp/x", Nodes: 3, SameName: true}, "SameName is for one node"},
		{Options{Dir: "/tmp/x", GPUs: -1}, "cannot be negative"},
		{Options{Dir: "/tmp/x", Prolog: []string{"prolog"}}, `Prolog is "prolog": it must be an absolute path`},
		{Options{Dir: "/tmp/x", Epilog: []string{"/nonexistent"}}, "cannot use Epilog: stat /nonexistent"},
		{Options{Dir: "/tmp/x", TaskProlog: []string{"/etc/passwd"}}, "cannot use TaskProlog: /etc/passwd must be a readable and executable file"},
	} {
		if err := tc.o.withDefaults().check(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.want)
		}
	}
	if err := checkReachable(filepath.Join(closed, "lab")); err == nil || !strings.Contains(err.Error(), "has mode 0700") {
		t.Errorf("a folder that users cannot traverse: %v", err)
	}
}

// TestPackagesAgree checks that install.sh installs the packages that Missing checks, in the same order.
func TestPackagesAgree(t *testing.T) {
	m := regexp.MustCompile(`(?m)^packages='([^']*)'`).FindStringSubmatch(readFile(t, "install.sh"))
	if m == nil {
		t.Fatal("install.sh has no list of packages")
	}
	var names []string
	for _, p := range packages {
		names = append(names, p.name)
	}
	if !slices.Equal(strings.Fields(m[1]), names) {
		t.Errorf("install.sh installs %q, the lab wants %q", m[1], names)
	}
}

// TestInstallIsQuiet checks that install.sh prints nothing if everything is installed.
func TestInstallIsQuiet(t *testing.T) {
	needed(t, Unfit())
	out, err := exec.Command("/bin/sh", "install.sh").CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("install.sh: %v, %q", err, out)
	}
}

// TestInstallRefuses checks that every failure is one sentence. It must name what is missing and what the user can
// do.
func TestInstallRefuses(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		tools map[string]string
		want  string
	}{
		{"no apt", nil, "install.sh: cannot install slurm-wlm "},
		{"not root", map[string]string{"apt-get": "exit 1", "dpkg-query": "exit 1", "id": "echo 1000"}, "run this as root\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bin := t.TempDir()
			for name, text := range tc.tools {
				script(t, bin, name, "#!"+shell+"\n"+text+"\n")
			}
			cmd := exec.Command(shell, "install.sh")
			cmd.Env = []string{"PATH=" + bin}
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), tc.want) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("%v, %q; want one line with %q", err, out, tc.want)
			}
		})
	}
}

// TestParseJobs checks that a job array is over when each of its elements is over.
func TestParseJobs(t *testing.T) {
	const over, runs = "JobId=8 ArrayJobId=8\n   JobState=COMPLETED ExitCode=0:0", "JobId=9 ArrayJobId=8\n   JobState=RUNNING ExitCode=0:0"
	for text, want := range map[string]string{
		over + "\n\n" + over + "\n\n": "COMPLETED", over + "\n\n" + runs + "\n\n": "RUNNING", runs + "\n\n" + over: "RUNNING", over: "COMPLETED",
	} {
		if j, err := parseJobs(text); err != nil || j.State != want {
			t.Errorf("%q: %s, %v, want %s", text, j.State, err, want)
		}
	}
}
