// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/hold"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
	"golang.org/x/sys/unix"
)

// asCommand names the variable with which this test is the command.
const asCommand = "SITE_CHECK_TEST"

func TestMain(m *testing.M) {
	hold.Begin()
	if os.Getenv(asCommand) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// builtFolder has the programs, the simulation and the suite.
func builtFolder(t *testing.T) string {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("REQUIRE_LAB") != "":
		t.Fatal("prologs are root's: run as root")
	default:
		t.Skip("prologs are root's: run as root")
	}
	built, err := testnode.Built()
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// withSuite is a folder with what is built and a suite of two tests that print what the real one prints. The real one
// takes a minute, and make site-check has it.
func withSuite(t *testing.T, built string) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "kit")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	const suite = "#!/bin/sh\necho '--- PASS: TestOne (0.1s)'\necho '--- SKIP: TestTwo (0.1s)'\n" +
		`test "$CONFORMANCE_TARGET" = real && test -x "$CONFORMANCE_CLIENT" && test -x "$MPS_CONTROL"` + "\n"
	err = errors.Join(os.Chmod(folder, 0o755), os.Symlink(filepath.Join(built, "bin"), filepath.Join(folder, "bin")),
		os.Symlink(filepath.Join(built, "sim"), filepath.Join(folder, "sim")),
		os.WriteFile(filepath.Join(folder, "conformance.test"), []byte(suite), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func siteCheck(ctx context.Context, t *testing.T, built string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{"-simulate"}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "BUILT_FOLDER="+built)
	return cmd
}

var row = regexp.MustCompile(`(?m)^\{.*\}$`)

// The short form on a simulated GPU: each part is made, the guard saves all neighbours, a plain daemon none, and the
// line is one of known.json.
func TestTheShortForm(t *testing.T) {
	built := withSuite(t, builtFolder(t))
	out, err := siteCheck(t.Context(), t, built, "-ends", "2").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"ok   conformance: 1 of 1 tests passed, 1 skipped", "ok   shares: 6 of 6 as asked",
		"ok   clients: 48 of 49 served, want 48", "ok   the guard's cost: ",
		"ok   ends with the guard: 2 of 2 without harm", "ok   ends without: 0 of 2 without harm",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	var line driver
	if err := json.Unmarshal(row.Find(out), &line); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if line.Driver != "580.159.04" || line.GPU != "NVIDIA H200" || line.Mode != "default" || line.Commit == "" {
		t.Errorf("%+v", line)
	}
}

// On a MIG instance all parts are made, too. It serves fewer clients, and the output says what an instance lacks.
func TestAnInstance(t *testing.T) {
	built := withSuite(t, builtFolder(t))
	out, err := siteCheck(t.Context(), t, built, "-mig", "-ends", "2").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"The instance is MIG-", "with 60 SMs. NVML does not tell what an instance computes",
		"ok   conformance: 1 of 1 tests passed, 1 skipped",
		"ok   shares: 6 of 6 as asked", "ok   clients: 20 of 49 served",
		"ok   ends with the guard: 2 of 2 without harm", "ok   ends without: 0 of 2 without harm",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	var line driver
	if err := json.Unmarshal(row.Find(out), &line); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(line.GPU, "MIG 3g.40gb") || line.Mode != "MIG, none" {
		t.Errorf("%+v", line)
	}
}

// Without an instance, -mig says how an admin makes one, and tries nothing. Without -mig, a GPU in MIG mode is refused.
// No MIG setting changes.
func TestWithoutAnInstance(t *testing.T) {
	built, folder := builtFolder(t), t.TempDir() // a process loads one NVML, so the cases have one folder
	for _, c := range []struct {
		mig  bool
		mode string
		want string
	}{
		{true, "0", "no GPU has a MIG instance. An admin makes one on an idle GPU"},
		{true, "1", "no GPU has a MIG instance. An admin makes one on an idle GPU"},
		{false, "1", "GPU 0 is in MIG mode: as root, -mig tries an instance"},
	} {
		k := &kit{settings: settings{simulate: true, mig: c.mig}, folder: folder, built: built}
		var err error
		if k.node, err = testnode.New(filepath.Join(k.folder, "n"), built, "", node.H100SXM); err == nil {
			err = k.node.Sim.Node.GPU(0).Set("mig_mode", c.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := k.look(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("-mig %t, MIG mode %s: %v, want %q", c.mig, c.mode, err, c.want)
		}
		if mode, err := k.node.Sim.Node.GPU(0).Text("mig_mode"); err != nil || mode != c.mode {
			t.Errorf("the MIG mode is %s, %v", mode, err)
		}
	}
}

// The combinations of -mig that are refused.
func TestRefusedInstances(t *testing.T) {
	out, err := siteCheck(t.Context(), t, t.TempDir(), "-mig", "-exclusive").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "give -exclusive or -mig") {
		t.Errorf("%v: %s", err, out)
	}
	if os.Geteuid() != 0 {
		t.Skip("runs as another user than root")
	}
	user := siteCheck(t.Context(), t, t.TempDir(), "-mig")
	user.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := user.CombinedOutput(); err == nil || !strings.Contains(string(out), "serves whole GPUs: run it as root") {
		t.Errorf("%v: %s", err, out)
	}
}

// An interrupted run leaves no process and no file.
func TestAnInterruptedRun(t *testing.T) {
	built := withSuite(t, builtFolder(t))
	cmd := siteCheck(t.Context(), t, built)
	var out strings.Builder
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	buffer := make([]byte, 4096)
	interrupted := false
	for {
		n, err := read.Read(buffer)
		out.Write(buffer[:n])
		if !interrupted && strings.Contains(out.String(), "cost: ") { // the next part has neighbours at work
			interrupted = true
			time.Sleep(time.Second)
			_ = cmd.Process.Signal(unix.SIGINT)
		}
		if err != nil {
			break // no process has the pipe any more
		}
	}
	if err := cmd.Wait(); err == nil || !interrupted {
		t.Errorf("interrupted: %t, %v\n%s", interrupted, err, out.String())
	}
	if left := using(t, built); len(left) > 0 {
		t.Errorf("left behind: %q\n%s", left, out.String())
	}
}

// using returns the command lines with a folder, and the folders of runs.
func using(t *testing.T, built string) (found []string) {
	t.Helper()
	folders, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range folders {
		if line, _ := os.ReadFile(file); strings.Contains(string(line), built) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// The file of make site-check finds its programs behind itself.
func TestAPack(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "site-check")
	guard := filepath.Join(from, "bin", "guard")
	err := errors.Join(os.MkdirAll(filepath.Dir(guard), 0o755), os.WriteFile(guard, []byte("#!/bin/sh\n"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	pack := exec.Command("/proc/self/exe", "-pack", from, to)
	pack.Env = append(os.Environ(), asCommand+"=1")
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Without programs for a node it stops, and it has unpacked what there is by then.
	folder := t.TempDir()
	run := exec.Command(to, "-minutes", "0.01")
	run.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BUILT_FOLDER=") })
	run.Env = append(run.Env, asCommand+"=1", insideOf+"="+folder)
	out, _ := run.CombinedOutput()
	info, err := os.Stat(filepath.Join(folder, "pack", "bin", "guard"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v: %v\n%s", info, err, out)
	}
}
