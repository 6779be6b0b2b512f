// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
	"github.com/slurm-mps/slurm-mps/site/sim/testnode"
)

// place is where ranks run. before comes in front of the program, env is the environment, and close removes the
// place.
type place struct {
	before []string
	env    []string
	close  func(context.Context) error
}

// open makes a place for n ranks under a rule.
func (l *lane) open(ctx context.Context, r record.Rule, n int) (place, error) {
	switch r.Daemon {
	case record.Bare:
		return l.openBare(ctx, r, n)
	case record.Ours:
		return l.openOurs(ctx, r.Name, fmt.Sprintf(`share = "overlap:%g"`, r.Overlap))
	}
	return l.openNone(), nil
}

// openNone returns a place on the GPU without MPS.
func (l *lane) openNone() place {
	return place{env: []string{"CUDA_VISIBLE_DEVICES=" + string(l.uuid)}, close: func(context.Context) error { return nil }}
}

// openBare starts a plain daemon as the user, with a server that is ready.
func (l *lane) openBare(ctx context.Context, r record.Rule, n int) (place, error) {
	dir := filepath.Join(l.dir, fmt.Sprintf("bare%d", l.minor))
	for _, path := range []string{dir, filepath.Join(dir, "pipe"), filepath.Join(dir, "log")} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return place{}, err
		}
		if err := os.Chown(path, uid, uid); err != nil {
			return place{}, err
		}
	}
	p := place{env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(dir, "pipe"), "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(dir, "log")}}
	p.close = func(ctx context.Context) error { return l.ask(ctx, p.env, "quit -t 5") }
	// With the soft limit of 1024 files, no client of 48 can finish (measured).
	err := l.asUser(ctx, append(p.env, "CUDA_VISIBLE_DEVICES="+string(l.uuid)), "", "/bin/sh", "-c", `ulimit -n 20000; exec "$0" -d`, l.control)
	if err == nil {
		err = l.ask(ctx, p.env, fmt.Sprintf("start_server -uid %d", uid))
	}
	if err == nil {
		err = l.ask(ctx, p.env, "get_server_list") // the daemon answers when the server is ready
	}
	if err != nil {
		return p, errors.Join(err, p.close(ctx))
	}
	// The daemon shows one GPU. PyTorch counts GPUs with NVML, which shows all of them. PyTorch aborts if CUDA has
	// fewer.
	p.env = append(p.env, "CUDA_VISIBLE_DEVICES=0")
	if r.Name == "integer 100/n" {
		p.env = append(p.env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", 100/n))
	}
	return p, nil
}

func (b *bench) ask(ctx context.Context, env []string, command string) error {
	return b.asUser(ctx, env, command+"\n", b.control)
}

// asUser runs a program as the jobs' user, with a constructed environment.
func (b *bench) asUser(ctx context.Context, env []string, stdin, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdin = "/", strings.NewReader(stdin)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{uid}}}
	if printed, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run %s %q: %w: %s", name, stdin, err, printed)
	}
	return nil
}

// openOurs runs the prolog of a job. The policy grants what the attributes describe, and leaves the modes unchanged.
func (l *lane) openOurs(ctx context.Context, name string, attributes ...string) (place, error) {
	s, err := l.nodeOf(name, attributes...)
	if err != nil {
		return place{}, err
	}
	job := testnode.Job{ID: l.newJob(), UID: uid, GID: uid, GPUs: strconv.Itoa(l.minor), Features: "mps", Conf: filepath.Join(filepath.Dir(s.Root), "slurm.conf")}
	hook := func(ctx context.Context, program string) error {
		result, err := s.Run(ctx, job.Environment(program+"_slurmd"), program)
		if err == nil && result.Code != 0 {
			err = fmt.Errorf("%s ends with %d: %s", program, result.Code, result.Output)
		}
		return err
	}
	p := place{
		before: append([]string{"env", fmt.Sprintf("SLURM_JOB_ID=%d", job.ID)}, s.Command("mpirun-wrap")...),
		close:  func(ctx context.Context) error { return hook(ctx, "epilog") },
	}
	return p, hook(ctx, "prolog")
}

// newJob returns a job number that no other job of the run has.
func (b *bench) newJob() uint32 {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.jobs++
	return 1000 + b.jobs
}

// nodeOf returns the test node of a policy, with all GPUs. The first call makes it.
func (b *bench) nodeOf(name string, attributes ...string) (testnode.Node, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if s, made := b.nodes[name]; made {
		return s, nil
	}
	dir := filepath.Join(b.dir, fmt.Sprintf("s%d", len(b.nodes)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return testnode.Node{}, err
	}
	text := testnode.Default(append(attributes, testnode.Unchanged)...)
	s, err := testnode.Real(dir, b.built, text)
	if err == nil && !b.real {
		facts := fmt.Sprintf("mps_control = %q\nnvml_library = %q\n", b.control, b.nodes["simulated"].Sim.NVML())
		err = os.WriteFile(s.Paths().ConfigFile(), []byte(facts), 0o644)
	}
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "slurm.conf"), fmt.Appendf(nil, "NodeName=n1 Gres=gpu:%d\n", len(b.lanes)), 0o644),
			os.WriteFile(filepath.Join(dir, "gres.conf"), []byte(s.GresConf(len(b.lanes))), 0o644))
	}
	b.nodes[name] = s
	return s, err
}

// startLab starts a Slurm below the run's folder.
func (b *bench) startLab(ctx context.Context, name string, o lab.Options) (*lab.Cluster, error) {
	o.Dir, o.SameName, o.Bundle = filepath.Join(b.dir, name), true, os.Getenv("SLURM_BUNDLE")
	if b.real && o.GPUs > 0 {
		o.DevDir = "/dev"
	}
	return lab.Start(ctx, o)
}

// hookedLab returns a Slurm with GPUs and these hooks. The first call starts it.
func (b *bench) hookedLab(ctx context.Context, name string, o lab.Options) (*lab.Cluster, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if c := b.hooked[name]; c != nil {
		return c, nil
	}
	o.GPUs, o.Features, o.PrologFlags = len(b.lanes), "mps", "Alloc"
	c, err := b.startLab(ctx, name, o)
	if err == nil {
		b.hooked[name] = c
	}
	return c, err
}

// ourLab returns a Slurm whose hooks are our prolog and epilog, and the test node of these hooks.
func (b *bench) ourLab(ctx context.Context) (s testnode.Node, c *lab.Cluster, err error) {
	if s, err = b.nodeOf("slurm"); err != nil {
		return s, nil, err
	}
	c, err = b.hookedLab(ctx, "ours", lab.Options{Prolog: s.Command("prolog"), Epilog: s.Command("epilog")})
	return s, c, err
}

// libraryPath returns the ranks' LD_LIBRARY_PATH, with the folders of CUDA and of the lab's MPI.
func (b *bench) libraryPath(c *lab.Cluster) string {
	paths := b.libraries
	for _, variable := range c.Env() {
		if value, ok := strings.CutPrefix(variable, "LD_LIBRARY_PATH="); ok {
			paths = append([]string{value}, paths...)
		}
	}
	return strings.Trim(strings.Join(paths, ":"), ":")
}
