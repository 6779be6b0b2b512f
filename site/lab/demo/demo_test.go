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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
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
	output *output
}

// output is what the demo has printed so far.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
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
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	d := &demo{exec.CommandContext(ctx, path, args...), t, &output{}}
	d.Cancel = func() error { return d.Process.Signal(syscall.SIGTERM) }
	d.Env = append(append(os.Environ(), "BUILT_FOLDER="+filepath.Dir(path)), env...) // the programs are already built
	d.Stdin = stdin
	d.Stdout, d.Stderr = d.output, d.output
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	return d
}

// ends waits until the demo ends with the exit code. It checks that no file and no process of the demo is left.
func (d *demo) ends(code int) string {
	d.t.Helper()
	_ = d.Wait() // ProcessState has the code
	if got := d.ProcessState.ExitCode(); got != code {
		d.t.Errorf("the demo ends with code %d, want %d:\n%s", got, code, d.output)
	}
	name := fmt.Sprintf("/%s%d-", folder, d.Process.Pid)
	if left, _ := filepath.Glob("/tmp" + name + "*"); len(left) > 0 {
		d.t.Errorf("files are left: %q", left)
	}
	for _, left := range mentioning(name) {
		d.t.Errorf("a process is left: %s", left)
	}
	return d.output.String()
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
		if !strings.Contains(text, a.title) {
			t.Errorf("the act %q is not shown", a.title)
		}
	}
	if !strings.HasSuffix(text, wrap(gone, "")) {
		t.Errorf("the text about the end is missing:\n%s", text)
	}
	if full := regexp.MustCompile(`GPU-[0-9a-f]{8}-`).FindString(text); full != "" || strings.Contains(text, "\x1b") {
		t.Errorf("a full UUID (%q), or a colour on a pipe", full)
	}
	for line := range strings.Lines(text) {
		if n := cells(strings.TrimRight(line, "\n")); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestTheCard gives each line of the card to the shell.
func TestTheCard(t *testing.T) {
	var script strings.Builder
	for i, t := range card {
		fmt.Fprintf(&script, "%s\necho \"[$? ends %d]\" 2>&1\n", t.line, i+1)
	}
	script.WriteString("sleep 1000 &\nid -un; card\n")
	d := begin(t, strings.NewReader("exec 2>&1\n"+script.String()), nil, "-play")
	text := d.ends(0)
	for i, c := range card {
		printed, rest, ended := strings.Cut(text, fmt.Sprintf("[%d ends %d]\n", c.code, i+1))
		if !ended || !strings.Contains(printed, c.want) {
			t.Fatalf("%s: want %q and code %d:\n%s", c.line, c.want, c.code, text)
		}
		text = rest
	}
	if !strings.HasPrefix(text, userName+"\n"+cardText()) || len(card) != 10 {
		t.Errorf("want the user's shell and a card of ten lines, got:\n%s", text)
	}
}

// TestTheUsersFiles changes a script of the user, and starts the programs by mpirun and again and again.
func TestTheUsersFiles(t *testing.T) {
	const killed = "srun --gres=gpu:1 --constraint=mps -n4 mpirun-wrap ./killed"
	d := begin(t, strings.NewReader(`exec 2>&1
for file in *; do echo "# changed" >>$file || echo "not mine: $file"; done
salloc --quiet --gres=gpu:1 --constraint=mps -n4 mpirun --oversubscribe mpirun-wrap ./app </dev/null
sbatch --quiet --wait --gres=gpu:1 --constraint=mps -n4 --output=alone.out --wrap "mpirun-wrap ./app" && cat alone.out
`+killed+"; "+killed+`
sbatch --quiet --wait job.sh && tail -n1 job.sh
rm alone.out job.out
echo "files: "$(ls -A)
`), nil, "-play")
	text := d.ends(0)
	var names []string
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, want := range []string{"rank 0: 66 SMs", "rank 3: 66 SMs", "\n# changed\n", "files: " + strings.Join(names, " ") + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, ": finished"); n != 6 || strings.Contains(text, "not mine") || strings.Contains(text, "rank :") {
		t.Errorf("%d neighbours finished, want 6 of two launches, and files of the user:\n%s", n, text)
	}
	if !regexp.MustCompile(`(?m)^process \d+: \d+ SMs`).MatchString(text) {
		t.Errorf("a process without a launcher has no name:\n%s", text)
	}
}

// TestAPipedScript gives commands as "make play <FILE" does: each of them runs, and the shell ends with the file. With
// --own, a job without a prolog's daemon starts one: its folders have room for sockets below a pid of seven digits.
func TestAPipedScript(t *testing.T) {
	const longest = "/tmp/" + folder + "4194304-4294967295/root/tmp/slurm-mps-2001/201760da709ce202/" +
		"jobs/2512001/0/pipe/control_privileged"
	if len(longest) > 107 {
		t.Errorf("a socket's path can have %d bytes: %s", len(longest), longest)
	}
	path := filepath.Join(t.TempDir(), "script")
	script := "exec 2>&1\nsrun -Q --gres=gpu:1 -n2 mpirun-wrap --own --share=even ./app\n" +
		"salloc -Q --gres=gpu:1 --constraint=mps -n2 srun mpirun-wrap --share=even ./app\necho the last line: $?\n"
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	text := begin(t, stdin, nil, "-play").ends(0)
	if strings.Count(text, ": 66 SMs") != 4 || !strings.Contains(text, "\nthe last line: 0\n") ||
		!strings.Contains(text, "no\nshards") {
		t.Errorf("want two ranks by --own, two by the prolog, the last line, and a word about shards:\n%s", text)
	}
}

// TestInterrupted sends Ctrl-C at several times, and closes the terminal.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, at string
		signal   syscall.Signal
		args     []string
	}{
		{"at the start", "", syscall.SIGINT, nil},
		{"beside an MPS without slurm-mps", "./bare-mps", syscall.SIGINT, []string{"-act", "2"}},
		{"while an epilog hangs", "Submitted", syscall.SIGTERM, []string{"-act", "4"}},
		{"in the shell", "Ten things", syscall.SIGHUP, []string{"-play"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := begin(t, strings.NewReader("srun --gres=gpu:1 --constraint=mps mpirun-wrap ./app 100\n"), nil, c.args...)
			d.prints(c.at)
			time.Sleep(time.Second) // time for the next step to begin
			if err := d.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			if text := d.ends(1); !strings.Contains(text, "demo: ended by a signal\n") {
				t.Errorf("the text about the end is missing:\n%s", text)
			}
		})
	}
}

// TestTheAdminsShell checks that an admin's shell works, and that it ends with the user's shell.
func TestTheAdminsShell(t *testing.T) {
	stdin, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	d := begin(t, stdin, nil, "-play")
	d.prints("Ten things")
	path := regexp.MustCompile(`/tmp/\S+/bin/admin`).FindString(d.output.String())
	admin := exec.Command(path)
	admin.Stdin = strings.NewReader("id -un && mpsctl status && scontrol ping && sleep 1000\n")
	admin.Stdout, admin.SysProcAttr = d.output, &syscall.SysProcAttr{Setsid: true}
	if err := admin.Start(); err != nil {
		t.Fatal(err)
	}
	d.prints("is UP")
	input.Close()
	if text := d.ends(0); !strings.Contains(text, "root\n") || !strings.Contains(text, "4 GPUs, 0 jobs") {
		t.Errorf("the output for root is wrong:\n%s", text)
	}
	_ = admin.Wait() // the demo killed this shell
}

// prints waits until the demo has printed the text.
func (d *demo) prints(text string) {
	d.t.Helper()
	for began := time.Now(); !strings.Contains(d.output.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > testLimit/2 {
			d.t.Fatalf("%q is not printed:\n%s", text, d.output)
		}
	}
}

// TestAnActThatDoesNotHappen uses a wrapper that does not divide the GPUs. The act must fail.
func TestAnActThatDoesNotHappen(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	shared := filepath.Dir(path)
	broken := t.TempDir()
	for dir := broken; dir != "/tmp"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	programs, _ := filepath.Glob(filepath.Join(shared, "bin", "*"))
	links := append(programs, filepath.Join(shared, "sim"))
	if err := os.Mkdir(filepath.Join(broken, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range links {
		name, _ := filepath.Rel(shared, file)
		if err := os.Symlink(file, filepath.Join(broken, name)); err != nil {
			t.Fatal(err)
		}
	}
	wrapper := filepath.Join(broken, "bin", "mpirun-wrap")
	if err := os.Remove(wrapper); err != nil {
		t.Fatal(err)
	}
	if err := node.WriteProgram(wrapper, []byte("#!/bin/sh\nshift 3\nexec \"$@\"\n")); err != nil {
		t.Fatal(err)
	}
	d := begin(t, nil, []string{"BUILT_FOLDER=" + broken}, "-act", "1")
	want := "demo: cannot show act 1: GPU 0 has 4 ranks with 264 SMs together, not 4 with 132\n"
	if text := d.ends(1); !strings.Contains(text, want) {
		t.Errorf("want %q:\n%s", want, text)
	}
}
