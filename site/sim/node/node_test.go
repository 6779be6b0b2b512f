// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/firstthread"
)

func created(t *testing.T, models ...Model) Node {
	t.Helper()
	made, err := Create(filepath.Join(t.TempDir(), "node"), models)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// own is the pid of the test's own process. other starts a child that waits until its input ends.
func own() int { return os.Getpid() }

func other(t *testing.T) int {
	t.Helper()
	waiting := exec.Command("cat")
	input, err := waiting.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		waiting.Wait()
	})
	return waiting.Process.Pid
}

func context(t *testing.T, pid int, kind string) Context {
	t.Helper()
	start, alive := Start(pid)
	if !alive {
		t.Fatalf("process %d is not alive", pid)
	}
	return Context{PID: pid, Start: start, Type: kind, MemoryMiB: 500, Instance: Whole}
}

func TestAComputeModeAdmits(t *testing.T) {
	cases := []struct {
		name        string
		mode        int
		held, added string
		same        bool // both contexts are of the same process
		admitted    bool
	}{
		{"default takes any number", Default, Compute, Compute, false, true},
		{"exclusive takes the first", ExclusiveProcess, "", Compute, false, true},
		{"exclusive refuses the second", ExclusiveProcess, Compute, Compute, false, false},
		{"exclusive refuses a process beside a server", ExclusiveProcess, Server, Compute, false, false},
		{"exclusive refuses a second server", ExclusiveProcess, Server, Server, false, false},
		{"exclusive refuses a server beside a process", ExclusiveProcess, Compute, Server, false, false},
		{"exclusive takes a server's client", ExclusiveProcess, Server, Client, false, true},
		{"a client does not hold the GPU", ExclusiveProcess, Client, Server, false, true},
		{"exclusive takes the same process again", ExclusiveProcess, Compute, Compute, true, true},
		{"exclusive thread is exclusive", ExclusiveThread, Compute, Compute, false, false},
		{"prohibited refuses the first", Prohibited, "", Compute, false, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			forms := map[string]func(GPU, Context) error{"Go": GPU.AddContext, "C": addInC(t)}
			for language, add := range forms {
				gpu := created(t, H200).GPU(0)
				first := own()
				if c.held != "" {
					if err := gpu.AddContext(context(t, first, c.held)); err != nil {
						t.Fatal(err)
					}
				}
				if err := gpu.SetMode(c.mode); err != nil {
					t.Fatal(err)
				}
				second := first
				if !c.same {
					second = other(t)
				}
				err := add(gpu, context(t, second, c.added))
				if (err == nil) != c.admitted || (err != nil && !errors.Is(err, ErrBusy)) {
					t.Errorf("%s: answer %v, admitted should be %v", language, err, c.admitted)
				}
				expectHeld(t, language, gpu, c.held, c.added, c.admitted, c.same)
			}
		})
	}
}

// expectHeld checks the folder's state after an attempt to add a context.
func expectHeld(t *testing.T, language string, gpu GPU, held, added string, admitted, same bool) {
	t.Helper()
	var expected []string
	if held != "" && !(same && admitted) {
		expected = append(expected, held)
	}
	if admitted {
		expected = append(expected, added)
	}
	contexts, err := gpu.Contexts()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, context := range contexts {
		kinds = append(kinds, context.Type)
	}
	if len(kinds) != len(expected) || strings.Count(strings.Join(kinds, " "), added) < strings.Count(strings.Join(expected, " "), added) {
		t.Errorf("%s: contexts %v, want %v", language, kinds, expected)
	}
}

var program string // the path of the C program when it is built

// addInC is AddContext with node.h, in a separate C program. The two must give the same result.
func addInC(t *testing.T) func(GPU, Context) error {
	t.Helper()
	if program == "" {
		dir, err := os.MkdirTemp("", "node-c-")
		if err != nil {
			t.Fatal(err)
		}
		// The go tool caches a test's result while the files that the test itself has read stay the same.
		for _, source := range []string{"node.h", "testdata/add.c"} {
			if _, err := os.ReadFile(source); err != nil {
				t.Fatal(err)
			}
		}
		built := filepath.Join(dir, "add")
		answer, err := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-O2", "-I.", "-o", built, "testdata/add.c", "-ldl").CombinedOutput()
		if err != nil {
			t.Fatalf("cannot compile testdata/add.c: %v\n%s", err, answer)
		}
		program = built
	}
	return func(gpu GPU, added Context) error {
		answer, err := exec.Command(program, gpu.Dir, strconv.Itoa(added.PID), added.Type, strconv.Itoa(added.MemoryMiB)).Output()
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(answer)) == "busy" {
			return ErrBusy
		}
		return nil
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if program != "" {
		os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

func TestContextsOfTheDeadCountForNothing(t *testing.T) {
	gpu := created(t, H200).GPU(0)
	dead := context(t, own(), Compute)
	dead.Start++ // the pid lives, but as another process
	if err := gpu.AddContext(dead); err != nil {
		t.Fatal(err)
	}
	if held, err := gpu.Contexts(); err != nil || len(held) != 0 {
		t.Errorf("held %v, %v", held, err)
	}
	if err := gpu.SetMode(ExclusiveProcess); err != nil {
		t.Fatal(err)
	}
	living := other(t)
	if err := gpu.AddContext(context(t, living, Compute)); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(gpu.Dir, "contexts"))
	if err != nil || len(files) != 1 || files[0].Name() != strconv.Itoa(living) {
		t.Errorf("contexts/ holds %v, %v; want %d alone", files, err, living)
	}
}

// A dead process keeps its contexts while any process has one of its driver files open. Go and C agree on it.
func TestContextsOfTheDeadCountWhileTheirFilesAreHeld(t *testing.T) {
	for _, c := range []struct {
		name string
		held []string // the files, in the order in which they are closed
	}{
		{"all", []string{"nvidia-uvm", "nvidia-uvm", "nvidia0", "nvidiactl"}},
		{"one of the memory files", []string{"nvidia-uvm"}},
		{"none", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			gpu := created(t, H200, H200).GPU(0)
			holder := exec.Command("cat")
			if _, err := holder.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			dying := holder.Process.Pid
			if err := gpu.AddContext(context(t, dying, Compute)); err != nil {
				t.Fatal(err)
			}
			var files []*os.File
			for i, name := range c.held {
				at := dying
				if name == "nvidia-uvm" {
					at = 2*dying + i
				}
				files = append(files, lockByte(t, filepath.Join(filepath.Dir(gpu.Dir), "dev", name), at))
			}
			holder.Process.Kill()
			holder.Wait()
			if err := gpu.SetMode(ExclusiveProcess); err != nil {
				t.Fatal(err)
			}
			added := context(t, own(), Compute)
			for len(files) > 0 {
				if held, err := gpu.Contexts(); err != nil || len(held) != 1 || held[0].PID != dying {
					t.Fatalf("%d files held: contexts %v, %v", len(files), held, err)
				}
				for language, add := range map[string]func(GPU, Context) error{"Go": GPU.AddContext, "C": addInC(t)} {
					if err := add(gpu, added); !errors.Is(err, ErrBusy) {
						t.Errorf("%d files held, %s: %v", len(files), language, err)
					}
				}
				files[0].Close()
				files = files[1:]
			}
			if held, err := gpu.Contexts(); err != nil || len(held) != 0 {
				t.Errorf("no file held: contexts %v, %v", held, err)
			}
			if err := addInC(t)(gpu, added); err != nil {
				t.Errorf("no file held: %v", err)
			}
		})
	}
}

// lockByte opens a driver's file and locks a byte as the CUDA library does.
func lockByte(t *testing.T, path string, at int) *os.File {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	const ofdSetLock = 37
	lock := syscall.Flock_t{Type: syscall.F_RDLCK, Start: int64(at), Len: 1}
	if err := syscall.FcntlFlock(file.Fd(), ofdSetLock, &lock); err != nil {
		t.Fatal(err)
	}
	return file
}

// A process lives while it has threads, also after its first thread has ended. The real driver serves it, and its
// context ends with its last thread.
func TestAContextLivesWithoutTheFirstThread(t *testing.T) {
	library, err := firstthread.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for language, add := range map[string]func(GPU, Context) error{"Go": GPU.AddContext, "C": addInC(t)} {
		gpu := created(t, H200).GPU(0)
		cmd := exec.Command("sh", "-c", "echo ready; read x")
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+library)
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if stat, err := proc.ReadStat(cmd.Process.Pid); err != nil || stat.State != 'Z' || stat.Threads < 2 {
			t.Fatalf("the first thread has not ended: %+v, %v", stat, err)
		}
		added := Context{PID: cmd.Process.Pid, Type: Compute, MemoryMiB: 500, Instance: Whole}
		added.Start, _ = Start(cmd.Process.Pid)
		if err := add(gpu, added); err != nil {
			t.Errorf("%s: %v", language, err)
		}
		if held, err := gpu.Contexts(); err != nil || len(held) != 1 {
			t.Errorf("%s: while it lives: %v, %v", language, held, err)
		}
		in.Close()
		for began := time.Now(); ; time.Sleep(time.Millisecond) { // it is a zombie until it is waited for
			held, err := gpu.Contexts()
			if err == nil && len(held) == 0 {
				break
			}
			if time.Since(began) > 10*time.Second {
				t.Fatalf("%s: after its end: %v, %v", language, held, err)
			}
		}
		_ = cmd.Wait()
	}
}
