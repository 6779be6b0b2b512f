// SPDX-License-Identifier: Apache-2.0

// Package sim is a simulated node: the programs and libraries that NVIDIA's driver brings, and the folder that stands
// for the driver itself (package node). Programs under test run on it unchanged, by nothing but a path.
//
// The promise: Build needs a C compiler and Go, not this module's source; New makes a node that shares nothing with
// another. Held against recordings of real machines by the tests of nvml and by the conformance suite.
package sim

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// The sources of every target below. They are compiled in a module of their own, without this module's dependencies, so
// Go sources here import the standard library and each other only. A C file beside Go files (tests too) begins with
// `//go:build ignore`, as the Go tool refuses it otherwise.
//
//go:embed node nvml cuda control
var sources embed.FS

// targets is everything that a simulated node has in bin/ and lib/. A target runs in the folder of this package.
var targets = []target{
	{output: "lib/libnvidia-ml.so.1", build: cLibrary("nvml/nvml.c")},
	{output: "lib/libcuda.so.1", build: cLibrary("cuda/cuda.c", "cuda/mps.c", "cuda/devices.c")},
	{output: "bin/nvidia-cuda-mps-control", build: goProgram("./control/nvidia-cuda-mps-control")},
	{output: "bin/nvidia-cuda-mps-server", build: goProgram("./control/nvidia-cuda-mps-server")},
	{output: "bin/cuda-client", build: cProgram("cuda/client.c")},
	{output: "bin/mpi-ranks", build: []string{"mpicc.openmpi", "-O2", "-Wall", "-Wextra", "cuda/mpi-ranks.c"}, needs: "mpicc.openmpi"},
}

// buildDeadline bounds one target; a Go program on a cold cache takes half a minute.
const buildDeadline = 5 * time.Minute

// target is one file to build.
type target struct {
	output string   // below the folder of the build: "bin/x", "lib/x"
	build  []string // the command without its output, which follows as "-o FILE"
	needs  string   // a program without which the target is left out, "" for none
}

// cLibrary is a shared library from C sources that exports only what it says; its soname is its file's name.
func cLibrary(arguments ...string) []string {
	return append([]string{"gcc", "-shared", "-fPIC", "-fvisibility=hidden", "-O2", "-Wall", "-Wextra", "-pthread"}, arguments...)
}

// cProgram is a program from C sources.
func cProgram(arguments ...string) []string {
	return append([]string{"gcc", "-O2", "-Wall", "-Wextra", "-pthread"}, arguments...)
}

// goProgram is a static Go program from a package's folder, "./control/cmd".
func goProgram(folder string) []string { return []string{"go", "build", "-trimpath", folder} }

// Build compiles every target into dir/bin and dir/lib. A folder that holds a build of the same sources is left as it
// is, so that test programs may share one; two that build at once wait for each other.
func Build(dir string) error {
	digest, err := digest()
	if err != nil {
		return fmt.Errorf("cannot build simulation: %w", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return fmt.Errorf("cannot build simulation in %s: %w", dir, err)
	}
	defer unlock()
	stamp := filepath.Join(dir, "content")
	if built, err := os.ReadFile(stamp); err == nil && string(built) == digest {
		return nil
	}
	if err := build(dir); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(digest), 0o644)
}

// Sim is a simulated node.
type Sim struct {
	Dir  string
	Node node.Node
}

// New makes a simulated node in dir, with these GPUs in PCI order, from a folder that Build has filled. A node that is
// there is replaced, but the files of bin/ and lib/ stay the same files, so a process that has loaded one goes on.
//
// Processes of other users need a way to dir: os.MkdirTemp and t.TempDir make folders that only their owner may search.
//
// A process can load one libnvidia-ml.so.1 in its life (the loader binds go-nvml's calls once), so tests that open NVML
// in their own process keep to one dir and call New on it again.
func New(dir, built string, models ...node.Model) (Sim, error) {
	for _, folder := range []string{"bin", "lib"} {
		if err := linkAll(filepath.Join(built, folder), filepath.Join(dir, folder)); err != nil {
			return Sim{}, fmt.Errorf("cannot create simulation in %s: %w", dir, err)
		}
	}
	made, err := node.Create(filepath.Join(dir, "node"), models)
	return Sim{Dir: dir, Node: made}, err
}

// Program is the path of a program in bin/.
func (s Sim) Program(name string) string { return filepath.Join(s.Dir, "bin", name) }

// Libraries is the folder lib/, for LD_LIBRARY_PATH.
func (s Sim) Libraries() string { return filepath.Join(s.Dir, "lib") }

// NVML is the path of the simulated libnvidia-ml.so.1.
func (s Sim) NVML() string { return filepath.Join(s.Dir, "lib", "libnvidia-ml.so.1") }

// build writes the sources into a module of their own and compiles each target there.
func build(dir string) error {
	module, err := os.MkdirTemp("", "simulation-")
	if err != nil {
		return fmt.Errorf("cannot build simulation: %w", err)
	}
	defer os.RemoveAll(module)
	here := filepath.Join(module, "site", "sim")
	if err := writeModule(module, here); err != nil {
		return fmt.Errorf("cannot write sources of simulation: %w", err)
	}
	for _, target := range targets {
		if err := target.compile(here, dir); err != nil {
			return err
		}
	}
	return nil
}

func writeModule(module, here string) error {
	if err := os.CopyFS(here, sources); err != nil {
		return err
	}
	text := "module github.com/slurm-mps/slurm-mps\n\ngo 1.26.0\n"
	return os.WriteFile(filepath.Join(module, "go.mod"), []byte(text), 0o644)
}

// compile builds beside the place and renames, since the old file may be mapped by a process that still runs.
func (t target) compile(here, dir string) error {
	if t.needs != "" {
		if _, err := exec.LookPath(t.needs); err != nil {
			return nil
		}
	}
	output, err := filepath.Abs(filepath.Join(dir, t.output))
	if err != nil {
		return fmt.Errorf("cannot build %s: %w", t.output, err)
	}
	draft := output + ".draft"
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return fmt.Errorf("cannot build %s: %w", t.output, err)
	}
	if answer, err := t.command(here, draft); err != nil {
		return fmt.Errorf("cannot build %s: %s: %w\n%s", t.output, strings.Join(t.build, " "), err, answer)
	}
	return errors.Join(os.Chmod(draft, 0o755), os.Rename(draft, output))
}

func (t target) command(here, draft string) (answer []byte, err error) {
	deadline, cancel := context.WithTimeout(context.Background(), buildDeadline)
	defer cancel()
	command := exec.CommandContext(deadline, t.build[0], t.arguments(draft)...)
	command.Dir = here
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	return command.CombinedOutput()
}

// arguments puts the output where both compilers take it: go wants its options before the package, gcc its libraries
// last.
func (t target) arguments(draft string) []string {
	if t.build[0] == "go" {
		return append([]string{"build", "-o", draft}, t.build[2:]...)
	}
	arguments := append([]string{"-o", draft}, t.build[1:]...)
	if strings.HasPrefix(t.output, "lib/") {
		arguments = append(arguments, "-Wl,-soname,"+filepath.Base(t.output))
	}
	return append(arguments, "-ldl")
}

// digest names the content: every source, and what is done with it.
func digest() (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q\n", targets)
	err := fs.WalkDir(sources, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	return fmt.Sprintf("%x\n", sum.Sum(nil)), err
}

// lock takes dir for this process. The wait ends with the other's build, which has a deadline for each target.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, err
		}
	}
}

// linkAll gives the folder `to` every file of `from`; a hard link keeps its own path, by which the file finds its node.
func linkAll(from, to string) error {
	files, err := os.ReadDir(from)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(to, 0o755)
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if err := linkOne(filepath.Join(from, file.Name()), filepath.Join(to, file.Name())); err != nil {
			return err
		}
	}
	return nil
}

// linkOne leaves a file that is the same already, and copies where no link is possible (another file system).
func linkOne(from, to string) error {
	err := os.Link(from, to)
	if !errors.Is(err, os.ErrExist) && err != nil {
		return copyFile(from, to)
	}
	if err == nil || same(from, to) {
		return nil
	}
	if err := os.Remove(to); err != nil {
		return err
	}
	return linkOne(from, to)
}

func same(from, to string) bool {
	a, errA := os.Stat(from)
	b, errB := os.Stat(to)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Chmod(0o755), target.Close())
}
