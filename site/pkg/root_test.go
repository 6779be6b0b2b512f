// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

// built returns the folder with the packages and the clean root, which make test-packages makes.
func built(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PACKAGES")
	if dir == "" {
		t.Skip("PACKAGES is not set: run make test-packages")
	}
	return dir
}

// root is a clean Debian with its own processes. All changes in it disappear with the test.
type root struct {
	t   *testing.T
	ctx context.Context
	dir string // the path from outside
	pid int    // the pid of its first process
}

// newRoot mounts a writable layer over the clean root. The root's processes die with its first process, and the first
// process dies with the test.
func newRoot(t *testing.T, base string) root {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	dir := must.Get(os.MkdirTemp("/tmp", "root"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	const script = `set -e
mkdir -p "$1/upper" "$1/work" "$1/root"
mount -t tmpfs none "$1/upper" # so that a killed test leaves no files
mkdir "$1/upper/u" "$1/upper/w"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper/u,workdir=$1/upper/w" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t tmpfs -o mode=755 dev "$1/root/dev" # this machine's may have no files of a driver, and must get none
mkdir -m 1777 "$1/root/dev/shm"
for device in null zero full random urandom tty; do
    touch "$1/root/dev/$device"
    mount --bind "/dev/$device" "$1/root/dev/$device"
done
mount -t tmpfs -o mode=755 run "$1/root/run"
cp /etc/resolv.conf "$1/root/etc/resolv.conf"
echo ready
exec sleep infinity`
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", dir, base)
	out, err := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	must.OK(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	printed := make([]byte, 6)
	if n, err := out.Read(printed); err != nil || !strings.HasPrefix(string(printed[:n]), "ready") {
		t.Fatalf("cannot make a root: %q, %v", printed[:n], err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	pid, err2 := strconv.Atoi(strings.TrimSpace(string(children)))
	must.OK(t, errors.Join(err, err2))
	return root{t, ctx, fmt.Sprintf("/proc/%d/root%s/root", pid, dir), pid}
}

// command returns a shell's command line in the root, with only this environment.
func (r root) command(env []string, script string) *exec.Cmd {
	inside := fmt.Sprintf("/proc/%d/root", r.pid)
	target, _ := filepath.Rel(inside, r.dir)
	cmd := exec.CommandContext(r.ctx, "nsenter", "--target", strconv.Itoa(r.pid), "--mount", "--pid", "/usr/sbin/chroot", "/"+target, "/bin/sh", "-c", script)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}, env...)
	cmd.WaitDelay = 5 * time.Second // do not wait for a daemon that keeps our pipe open
	return cmd
}

// run runs a command until it ends.
func (r root) run(env []string, script string) (code int, output string) {
	r.t.Helper()
	cmd := r.command(env, script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("%s: %v: %s", script, err, out.String())
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// must runs a command and returns its output. The command must end with this code.
func (r root) must(code int, script string) string {
	r.t.Helper()
	got, out := r.run(nil, script)
	if got != code {
		r.t.Fatalf("%s: code %d, want %d\n%s", script, got, code, out)
	}
	return out
}

func (r root) path(name string) string { return filepath.Join(r.dir, name) }

// bring copies a file of this machine into the root.
func (r root) bring(from, to string) {
	r.t.Helper()
	content, err := os.ReadFile(from)
	must.OK(r.t, errors.Join(err, os.WriteFile(r.path(to), content, 0o644)))
}

func (r root) write(path, content string) {
	r.t.Helper()
	must.OK(r.t, errors.Join(os.MkdirAll(filepath.Dir(r.path(path)), 0o755), os.WriteFile(r.path(path), []byte(content), 0o644)))
}

// driver installs a simulated driver with two GPUs in the root, and sets its paths in site.hcl.
func (r root) driver() {
	r.t.Helper()
	dir, err := testnode.Shared()
	if err == nil {
		dir, err = testnode.Build(dir)
	}
	if err == nil {
		_, err = sim.New(r.path("/opt/sim"), filepath.Join(dir, "sim"), node.H200, node.H200)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.write("/etc/slurm-mps/site.hcl", "mps_control = \"/opt/sim/bin/nvidia-cuda-mps-control\"\nnvml_library = \"/opt/sim/lib/libnvidia-ml.so.1\"\n")
	r.write("/etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-1]\n")
	r.write("/etc/slurm/slurm.conf", "GresTypes=gpu\nNodeName=n1 Gres=gpu:2 Feature=mps\nProlog=/usr/libexec/slurm-mps/prolog\n")
	// The simulated driver opens its own files, and the guard looks for those in /dev.
	for _, device := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} {
		r.must(0, "touch "+device+" && mount --bind /opt/sim/node"+device+" "+device)
	}
	r.must(0, "useradd --uid 2001 --user-group hpc1 2>/dev/null || useradd --uid 2001 hpc1")
}

// hook runs a prolog or an epilog for job 7 as slurmd does.
func (r root) hook(program string) (code int, output string) {
	r.t.Helper()
	job := testnode.Job{ID: 7, UID: 2001, GID: 2001, GPUs: "0", Features: "mps", Conf: "/etc/slurm/slurm.conf"}
	cmd := r.command(nil, "cd / && exec /usr/libexec/slurm-mps/"+program)
	cmd.Env = job.Environment(program + "_slurmd")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String()
}

// rank starts a client of job 7 through the wrapper. It returns when the client runs on its GPU.
func (r root) rank() *exec.Cmd {
	r.t.Helper()
	r.must(0, "rm -f /tmp/rank.out") // of an earlier rank
	env := []string{"SLURM_JOB_ID=7", "LD_LIBRARY_PATH=/opt/sim/lib"}
	cmd := r.command(env,
		"exec setpriv --reuid 2001 --regid 2001 --clear-groups mpirun-wrap --local-rank=0 --local-size=1 /opt/sim/bin/cuda-client spin -ms 1 -for 300 >/tmp/rank.out 2>&1")
	must.OK(r.t, cmd.Start())
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	for {
		printed, _ := os.ReadFile(r.path("/tmp/rank.out"))
		if strings.Contains(string(printed), " ready") {
			return cmd
		}
		if !wait.Sleep(ctx, 20*time.Millisecond) {
			r.t.Fatalf("the rank does not run: %s", printed)
		}
	}
}

// packages makes the packages with another version.
func packages(t *testing.T, dir, version string) (deb, rpm string) {
	t.Helper()
	out := t.TempDir()
	cmd := exec.Command("./build.sh", filepath.Join(dir, "package"), out)
	cmd.Env = append(os.Environ(), "VERSION="+version)
	if printed, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	return only(t, out, ourDeb), only(t, out, ourRPM)
}

// These patterns match the packages of a node, but not those of the SPANK plugin.
const (
	ourDeb = "slurm-mps_[0-9]*.deb"
	ourRPM = "slurm-mps-[0-9]*.rpm"
)

func only(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(dir, pattern))
	if len(found) != 1 {
		t.Fatalf("%d files %s in %s", len(found), pattern, dir)
	}
	return found[0]
}

// manager is a package manager in a root.
type manager struct {
	name, install, upgrade, back, remove, has string
}

var (
	dpkg = manager{
		name: "dpkg", install: "dpkg -i /old", upgrade: "dpkg -i /new", back: "dpkg -i /old", remove: "dpkg -r slurm-mps",
		has: "dpkg-query -W -f '${db:Status-Abbrev}' slurm-mps | grep -q '^.i '",
	}
	rpm = manager{
		name: "rpm", install: "rpm -i --nodeps /old", upgrade: "rpm -U --nodeps /new",
		back: "rpm -U --nodeps --oldpackage /old", remove: "rpm -e slurm-mps", has: "rpm -q slurm-mps",
	}
)

// TestRootInstallUpgradeRemove installs a candidate, goes to the release and back, and removes the packages. A job
// continues during an upgrade and on the way back, and the epilog that is there then closes it. Both versions have the
// same programs, as long as there is no earlier release. The admin's policy stays. A removal is refused while a job
// holds a GPU. After a removal, the output names the files that are left.
//
// Contract: R10
func TestRootInstallUpgradeRemove(t *testing.T) {
	dir := built(t)
	oldDeb, oldRPM := packages(t, dir, "0.1.0~rc1")
	newDeb, newRPM := packages(t, dir, "0.1.0")
	for m, files := range map[manager][2]string{
		dpkg: {oldDeb, newDeb},
		rpm:  {oldRPM, newRPM},
	} {
		t.Run(m.name, func(t *testing.T) {
			r := newRoot(t, filepath.Join(dir, "debian-bookworm"))
			r.bring(files[0], "/old")
			r.bring(files[1], "/new")
			if m == rpm {
				r.must(0, "apt-get -qq update && apt-get -qq install --no-install-recommends rpm >/dev/null")
			}
			r.lives(m)
		})
	}
}

func (r root) lives(m manager) {
	t := r.t
	r.must(0, m.install)
	if out := r.must(0, "mpsctl policy check && mpirun-wrap --version && mps-tune --version && /usr/libexec/slurm-mps/gpu-usage --version"); !strings.Contains(out, "slurm-mps ") {
		t.Errorf("after the installation, the programs print %s", out)
	}
	r.licensed(m)
	r.driver()
	r.must(0, "echo '# ours' >>/etc/slurm-mps/policy.hcl")
	if code, out := r.hook("prolog"); code != 0 {
		t.Fatalf("prolog: code %d: %s", code, out)
	}
	rank := r.rank()
	before := r.must(0, "stat -c %i /usr/bin/mpirun-wrap /usr/libexec/slurm-mps/epilog")

	r.must(0, m.upgrade)
	if after := r.must(0, "stat -c %i /usr/bin/mpirun-wrap /usr/libexec/slurm-mps/epilog"); after == before {
		t.Error("the upgrade did not replace the old files")
	}
	r.must(0, "tail -n 1 /etc/slurm-mps/policy.hcl | grep -qx '# ours'")
	r.goesOn(rank)

	if out := r.must(1, m.remove); !strings.Contains(out, "held for job 7: drain the node") {
		t.Errorf("a removal during a job prints %s", out)
	}
	r.must(0, m.has)
	r.must(0, "test -x /usr/libexec/slurm-mps/epilog")
	if code, out := r.hook("epilog"); code != 0 {
		t.Fatalf("epilog: code %d: %s", code, out)
	}
	if out := r.must(0, "mpsctl status"); strings.Contains(out, "job 7") {
		t.Errorf("after the epilog:\n%s", out)
	}

	r.goesBack(m)
	r.collects()
	if m == dpkg {
		r.rotates()
	}
	r.newerForm(m)
	out := r.must(0, m.remove)
	for _, want := range []string{"left on this node", "take Prolog=, Epilog= and TaskProlog= out of it"} {
		if !strings.Contains(out, want) {
			t.Errorf("the removal does not print %q: %s", want, out)
		}
	}
	if _, err := os.Lstat(r.path("/usr/libexec/slurm-mps")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("programs are left: %v", err)
	}
	r.must(0, "cat /etc/slurm-mps/policy.hcl* | grep -qx '# ours'") // the admin's own line
	if m == dpkg {
		r.must(0, "dpkg --purge slurm-mps && test ! -e /etc/slurm-mps && test ! -e /var/log/slurm-mps && test ! -e /var/lib/slurm-mps")
	}
}

// goesOn checks that the rank of job 7 runs, and is a client for the programs that are installed now.
func (r root) goesOn(rank *exec.Cmd) {
	r.t.Helper()
	if out := r.must(0, "mpsctl status"); !strings.Contains(out, "job 7") || !strings.Contains(out, "cuda-client") {
		r.t.Errorf("after another version, the rank is not a client:\n%s", out)
	}
	if err := rank.Process.Signal(syscall.Signal(0)); err != nil {
		r.t.Errorf("the rank has ended: %v", err)
	}
}

// goesBack puts the older version onto a node with a job that the newer one has opened. The older epilog closes it.
func (r root) goesBack(m manager) {
	r.t.Helper()
	if code, out := r.hook("prolog"); code != 0 {
		r.t.Fatalf("prolog: code %d: %s", code, out)
	}
	rank := r.rank()
	r.must(0, m.back)
	r.goesOn(rank)
	if code, out := r.hook("epilog"); code != 0 {
		r.t.Fatalf("epilog of the older version: code %d: %s", code, out)
	}
	if out := r.must(0, "mpsctl status"); strings.Contains(out, "job 7") {
		r.t.Errorf("after the epilog of the older version:\n%s", out)
	}
	r.must(0, m.upgrade)
}

// licensed checks that the licenses are installed where Debian and rpm look for them.
func (r root) licensed(m manager) {
	r.t.Helper()
	const modules = "grep -q 'github.com/hashicorp/hcl/v2' "
	if m == dpkg {
		const file = "/usr/share/doc/slurm-mps/copyright"
		r.must(0, "grep -qx 'License: Apache-2.0' "+file+" && "+modules+file)
		r.must(0, "test -s /usr/share/common-licenses/Apache-2.0 && test ! -e /usr/share/licenses/slurm-mps")
		return
	}
	got := strings.Fields(r.must(0, "rpm -q --licensefiles slurm-mps"))
	if want := []string{"/usr/share/licenses/slurm-mps/LICENSE", "/usr/share/licenses/slurm-mps/NOTICES"}; !slices.Equal(got, want) {
		r.t.Errorf("license files %q, want %q", got, want)
	}
	r.must(0, modules+got[1]+" && test ! -e /usr/share/doc/slurm-mps/copyright")
}

// collects runs the command line of slurm-mps-metrics.service.
func (r root) collects() {
	r.t.Helper()
	r.must(0, `mkdir -p /var/lib/slurm-mps/metrics; OUT=/var/lib/slurm-mps/metrics/slurm-mps.prom; eval "$(sed -n "s/^ExecStart=//p" /usr/lib/systemd/system/slurm-mps-metrics.service)"`)
	r.must(0, "cd /var/lib/slurm-mps/metrics && grep -qx 'slurm_mps_closed_jobs_total 2' slurm-mps.prom && grep -qx 'slurm_mps_clients_total 2' slurm-mps.prom")
}

// rotates checks that logrotate accepts its file, and that the log starts again after the rotation.
func (r root) rotates() {
	r.t.Helper()
	r.must(0, "apt-get -qq update && apt-get -qq install --no-install-recommends logrotate >/dev/null")
	r.must(0, "logrotate -f /etc/logrotate.d/slurm-mps && test ! -e /var/log/slurm-mps/slurm-mps.log && test -s /var/log/slurm-mps/slurm-mps.log.1")
	if code, out := r.hook("epilog"); code != 0 {
		r.t.Errorf("epilog: code %d: %s", code, out)
	}
	r.must(0, "test -s /var/log/slurm-mps/slurm-mps.log")
}

// newerForm checks that a version cannot be installed over leases that it cannot undo.
func (r root) newerForm(m manager) {
	r.t.Helper()
	const planted = "/run/slurm-mps/leases/9.json"
	r.write(planted, `{"schema":99,"boot":"x"}`)
	again := map[manager]string{dpkg: "dpkg -i /new", rpm: "rpm -U --nodeps --force /new"}[m]
	if code, out := r.run(nil, again); code == 0 || !strings.Contains(out, "it does not know the format of") {
		r.t.Errorf("over a lease of another format: code %d, %s", code, out)
	}
	r.must(0, "rm "+planted)
	r.must(0, m.has)
}
