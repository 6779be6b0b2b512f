// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func created(t *testing.T, models ...Model) Node {
	t.Helper()
	made := must.Get(Create(filepath.Join(t.TempDir(), "node"), models))(t)
	return made
}

// own is the pid of the test's own process. other starts a child that waits until its input ends.
func own() int { return os.Getpid() }

func other(t *testing.T) int {
	t.Helper()
	waiting := exec.Command("cat")
	input := must.Get(waiting.StdinPipe())(t)
	must.OK(t, waiting.Start())
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
					must.OK(t, gpu.AddContext(context(t, first, c.held)))
				}
				must.OK(t, gpu.SetMode(c.mode))
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
	contexts := must.Get(gpu.Contexts())(t)
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
		dir := must.Get(os.MkdirTemp("", "node-c-"))(t)
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
