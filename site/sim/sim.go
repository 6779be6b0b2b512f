// SPDX-License-Identifier: Apache-2.0

// Package sim is a simulated node: the programs and libraries of NVIDIA's driver, and a folder that simulates the
// driver itself (package node). The programs under test run on it unchanged; only paths differ.
//
// Build needs a C compiler and Go, but not this module's source. Two nodes that New makes share nothing. The tests of
// nvml and the conformance suite compare the simulation with recordings of real machines.
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

// sources are the sources of every target below. They are compiled in a separate module without this module's
// dependencies. So these Go sources import only the standard library and each other. A C file in a folder with Go
// files (also tests) begins with `//go:build ignore`, because otherwise the Go tool refuses it.
//
//go:embed node nvml cuda control
var sources embed.FS

// targets are all files in bin/ and lib/ of a simulated node. Each is built in the folder of this package.
var targets = []target{
	{output: "lib/libnvidia-ml.so.1", build: cLibrary("nvml/nvml.c")},
	{output: "lib/libcuda.so.1", build: cLibrary("cuda/cuda.c", "cuda/mps.c", "cuda/devices.c")},
	{output: "bin/nvidia-cuda-mps-control", build: goProgram("./control/nvidia-cuda-mps-control")},
	{output: "bin/nvidia-cuda-mps-server", build: goProgram("./control/nvidia-cuda-mps-server")},
	{output: "bin/nvidia-smi", build: cProgram("nvml/nvidia-smi.c")},
	{output: "bin/cuda-client", build: cProgram("cuda/client.c")},
	{output: "bin/mpi-ranks", build: []string{"mpicc.openmpi", "-O2", "-Wall", "-Wextra", "cuda/mpi-ranks.c"}, needs: "mpicc.openmpi"},
}

// buildDeadline bounds the build of one target. A Go program with a cold cache takes half a minute.
const buildDeadline = 5 * time.Minute

// target is one file to build.
type target struct {
	output string   // below the folder of the build: "bin/x", "lib/x"
	build  []string // the command without the output option; "-o FILE" is added
	needs  string   // a program that the build needs; if it is missing, the target is left out
}

// cLibrary is a shared library from C sources. It exports only the marked symbols, and its soname is its file's name.
func cLibrary(arguments ...string) []string {
	return append([]string{"gcc", "-shared", "-fPIC", "-fvisibility=hidden", "-O2", "-Wall", "-Wextra", "-pthread"}, arguments...)
}

// cProgram is a program from C sources.
func cProgram(arguments ...string) []string {
	return append([]string{"gcc", "-O2", "-Wall", "-Wextra", "-pthread"}, arguments...)
}

// goProgram is a static Go program from a package's folder, such as "./control/cmd".
func goProgram(folder string) []string {
	return []string{"go", "build", "-trimpath", "-tags=simulation", "-ldflags=-checklinkname=0", folder}
}

// Build compiles every target into dir/bin and dir/lib. If dir holds a build of the same sources, Build changes
// nothing, so several test programs may share a folder. Two builds of one folder at the same time run one after the
// other.
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

// New makes a simulated node in dir, with these GPUs in PCI order, from a folder that Build has filled. It replaces
// the node in dir, but it does not replace the files of bin/ and lib/. So a process that has loaded one of them
// continues.
//
// Processes of other users must be able to reach dir. os.MkdirTemp and t.TempDir make folders that only their owner
// may search.
//
// A process can load only one libnvidia-ml.so.1, because the loader binds go-nvml's calls once. So tests that open
// NVML in their own process use one dir and call New on it again.
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

// build writes the sources into a separate module and compiles each target there.
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

// compile builds a file beside the old one and renames it, because a running process may have mapped the old file.
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

// arguments adds the output option where each compiler accepts it. go wants its options before the package, and gcc
// wants its libraries last.
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

// digest is a hash of every source and of the commands that build them.
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

// lock locks dir for this process. The wait ends with the other build, which has a deadline for each target.
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

// linkAll links every file of `from` into the folder `to`. A hard link has its own path, and by this path the file
// finds its node.
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

// linkOne keeps a file that is already the same. It copies the file if a link is not possible (another file system).
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
