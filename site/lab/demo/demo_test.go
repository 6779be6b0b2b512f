// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lab/watch"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// testLimit bounds a test. A busy machine needs this long.
const testLimit = 3 * time.Minute

// program is the demo's binary, built once.
var program = sync.OnceValues(func() (string, error) {
	built, err := build()
	if err != nil {
		return "", err
	}
	path := filepath.Join(built, "demo")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot build demo: %w: %s", err, out)
	}
	return path, nil
})

// demo is a running demo.
type demo struct {
	*exec.Cmd
	t      *testing.T
	output *watch.Output
}

// begin starts a demo. It runs in parallel with the demos of other tests.
func begin(t *testing.T, stdin io.Reader, env []string, args ...string) *demo {
	t.Helper()
	if err := lab.Unfit(); err != nil {
		if os.Getenv("REQUIRE_LAB") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Parallel()
	path := must.Get(program())(t)
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	d := &demo{exec.CommandContext(ctx, path, args...), t, &watch.Output{}}
	d.Cancel = func() error { return d.Process.Signal(syscall.SIGTERM) }
	d.Env = append(append(os.Environ(), "BUILT_FOLDER="+filepath.Dir(path)), env...) // the programs are already built
	d.Stdin = stdin
	d.Stdout, d.Stderr = d.output, d.output
	must.OK(t, d.Start())
	return d
}

// ends waits until the demo ends with the exit code. It checks that no file and no process of the demo is left.
func (d *demo) ends(code int) string {
	d.t.Helper()
	_ = d.Wait() // ProcessState has the code
	if got := d.ProcessState.ExitCode(); got != code {
		d.t.Errorf("the demo ends with code %d, want %d:\n%s", got, code, d.output.Text())
	}
	name := fmt.Sprintf("/%s%d-", folder, d.Process.Pid)
	if left, _ := filepath.Glob("/tmp" + name + "*"); len(left) > 0 {
		d.t.Errorf("files are left: %q", left)
	}
	for _, left := range mentioning(name) {
		d.t.Errorf("a process is left: %s", left)
	}
	return d.output.Text()
}

// mentioning returns the command lines of the processes that have the text in their command line or environment.
func mentioning(text string) (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file)
		environment, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		if strings.Contains(string(line)+string(environment), text) {
			found = append(found, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// TestTheActs runs all acts with a pipe as the output.
func TestTheActs(t *testing.T) {
	d := begin(t, nil, nil)
	text := d.ends(0)
	for _, a := range acts {
		must.Hold(t, strings.Contains(text, a.title), "the act %q is not shown", a.title)
	}
	must.Hold(t, strings.HasSuffix(text, wrap(gone, "")), "the text about the end is missing:\n%s", text)
	if full := regexp.MustCompile(`GPU-[0-9a-f]{8}-`).FindString(text); full != "" || strings.Contains(text, "\x1b") {
		t.Errorf("a full UUID (%q), or a colour on a pipe", full)
	}
	for line := range strings.Lines(text) {
		if n := cells(strings.TrimRight(line, "\n")); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestAPipedScript gives commands as "make play <FILE" does: each of them runs, and the shell ends with the file. With
// --own, a job without a prolog's daemon starts one: its folders have room for sockets below a pid of seven digits.
func TestAPipedScript(t *testing.T) {
	const longest = "/tmp/" + folder + "4194304-4294967295/root/tmp/slurm-mps-2001-4294967295/" +
		"jobs/2512001/0/pipe/control_privileged"
	must.Hold(t, len(longest) <= 107, "a socket's path can have %d bytes: %s", len(longest), longest)
	path := filepath.Join(t.TempDir(), "script")
	script := "exec 2>&1\nsrun -Q --gres=gpu:1 -n2 mpirun-wrap --own --share=even ./app\n" +
		"salloc -Q --gres=gpu:1 --constraint=mps -n2 srun mpirun-wrap --share=even ./app\necho the last line: $?\n"
	must.OK(t, os.WriteFile(path, []byte(script), 0o600))
	stdin := must.Get(os.Open(path))(t)
	defer stdin.Close()
	text := begin(t, stdin, nil, "-play").ends(0)
	if strings.Count(text, ": 66 SMs") != 4 || !strings.Contains(text, "\nthe last line: 0\n") ||
		!strings.Contains(text, "no\nshards") {
		t.Errorf("want two ranks by --own, two by the prolog, the last line, and a word about shards:\n%s", text)
	}
}
