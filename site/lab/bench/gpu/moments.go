// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/peers"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// client returns the path of the program that prints CUDA's values.
func (b *bench) client() string { return filepath.Join(b.built, "sim", "bin", "cuda-client") }

// rank runs one rank that is not an MPI program, and returns its output.
func (b *bench) rank(ctx context.Context, p place, options, line []string) (string, error) {
	line = append(append(append([]string{}, p.before...), options...), line...)
	cmd, err := b.outside.Command(ctx, b.user, line[0], line[1:]...)
	if err != nil {
		return "", err
	}
	cmd.Env = append(append(cmd.Env, "LD_LIBRARY_PATH="+b.libraryPath(b.outside)), p.env...)
	if p.before != nil {
		cmd.Env = append(cmd.Env, "SLURM_LOCALID=0", "SLURM_GTIDS=0", "SLURM_STEP_ID=0")
	}
	printed, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("cannot run %q: %w: %s", line, err, printed)
	}
	return string(printed), nil
}

// firstCalls measures a rank's first CUDA call in three ways: without MPS, with a plain daemon whose server is ready,
// and through the wrapper. It takes the ways in turn. It also measures the time of each whole process.
func (b *bench) firstCalls(ctx context.Context) error {
	return b.attempt(ctx, "first-call", float64(b.trials)*1.2+3, func(ctx context.Context) (lines []record.Line, err error) {
		plain, err := b.lanes[0].open(ctx, record.FindRule("uncapped"), 1)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, plain.close(context.WithoutCancel(ctx))) }()
		ours, err := b.lanes[0].openOurs(ctx, "whole", `share = "none"`)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, ours.close(context.WithoutCancel(ctx))) }()
		ways := []struct {
			name string
			at   place
		}{{"no MPS", b.lanes[0].openNone()}, {"warm server", plain}, {"mpirun-wrap", ours}}
		inside, whole := map[string][]float64{}, map[string][]float64{}
		for trial := range b.trials {
			for i := range ways {
				way := ways[(trial+i)%len(ways)]
				began := time.Now()
				printed, err := b.rank(ctx, way.at, nil, []string{b.client(), "info"})
				if err != nil {
					return nil, err
				}
				whole[way.name] = append(whole[way.name], milliseconds(time.Since(began)))
				seconds, err := strconv.ParseFloat(field(printed, "init"), 64)
				if err != nil {
					return nil, fmt.Errorf("cannot read %q: %w", printed, err)
				}
				inside[way.name] = append(inside[way.name], 1000*seconds)
			}
		}
		for _, way := range ways {
			lines = append(lines, record.Line{Times: &record.Times{What: "first call", Way: way.name, MS: inside[way.name]}},
				record.Line{Times: &record.Times{What: "whole process", Way: way.name, MS: whole[way.name]}})
		}
		return lines, nil
	})
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// field returns the value of NAME=value in a text.
func field(text, name string) string {
	match := regexp.MustCompile(`\b` + name + `=(\d[\d.]*)`).FindStringSubmatch(text)
	if match == nil {
		return ""
	}
	return match[1]
}

// asked returns the shares of the sweep: every whole percentage, and every number of TPCs that the driver accepts.
func (b *bench) asked() []string {
	var all []string
	for percent := 1; percent <= 100; percent++ {
		all = append(all, fmt.Sprintf("%d%%", percent))
	}
	for sms := b.gpu.SMsPerTPC; sms <= b.gpu.SMs; sms += b.gpu.SMsPerTPC {
		all = append(all, fmt.Sprintf("%dsm", sms))
	}
	return all
}

// sweep asks the wrapper for each share, and then asks CUDA for the result. Only one client runs at a time, so that
// all memory in use is the client's.
func (b *bench) sweep(ctx context.Context) error {
	asked := b.asked()
	return b.attempt(ctx, "sweep", 0.25*float64(len(asked))+2, func(ctx context.Context) (lines []record.Line, err error) {
		p, err := b.lanes[0].openOurs(ctx, "whole", `share = "none"`)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.close(context.WithoutCancel(ctx))) }()
		for _, share := range asked {
			printed, err := b.rank(ctx, p, []string{"--share", share}, []string{b.client(), "info"})
			if err != nil {
				return nil, err
			}
			sms, err1 := strconv.Atoi(field(printed, "sm"))
			free, err2 := strconv.Atoi(field(printed, "free"))
			total, err3 := strconv.Atoi(field(printed, "total"))
			if err := errors.Join(err1, err2, err3); err != nil {
				return nil, fmt.Errorf("cannot read %q: %w", printed, err)
			}
			lines = append(lines, record.Line{Point: &record.Point{Asked: share, SMs: sms, ContextMiB: total - free}})
		}
		return lines, nil
	})
}

// firstKernels measures the time from sbatch to the end of the first kernel. It uses three real Slurms in turn: one
// without hooks, one with our hooks, and one with hooks in bash.
//
// It also measures the time from the moment when Slurm starts the job. Before that moment, the job waits up to a
// second for the scheduler's timer. This wait is the same in all three Slurms, and longer than the rest.
func (b *bench) firstKernels(ctx context.Context) error {
	trials := (b.trials + 1) / 2
	return b.attempt(ctx, "first-kernel", 4*float64(trials)+8, func(ctx context.Context) ([]record.Line, error) {
		plain, err1 := b.hookedLab(ctx, "plain", lab.Options{})
		s, ours, err2 := b.ourLab(ctx)
		byBash, pipe, err3 := b.bashLab(ctx)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		ways := []struct {
			name    string
			cluster *lab.Cluster
			options []string
			line    string
		}{
			{"no MPS", plain, nil, "srun -n1 "},
			{"ours", ours, []string{"--constraint=mps"}, "srun -n1 " + strings.Join(s.Command("mpirun-wrap"), " ") + " "},
			{"bash", byBash, nil, "export CUDA_MPS_PIPE_DIRECTORY=" + pipe + "\nsrun -n1 "},
		}
		fromSbatch, fromStart := map[string][]float64{}, map[string][]float64{}
		for trial := range trials {
			for i := range ways {
				way := ways[(trial+i)%len(ways)]
				began := time.Now()
				printed, err := b.job(ctx, way.cluster, append([]string{"--gres=gpu:1", "-n1"}, way.options...), "echo id=$SLURM_JOB_ID", way.line+b.client()+" first")
				if err != nil {
					return nil, fmt.Errorf("%s: %w", way.name, err)
				}
				at, err := strconv.ParseFloat(field(printed, "at"), 64)
				if err != nil {
					return nil, fmt.Errorf("cannot read %q: %w", printed, err)
				}
				started, err := startOf(way.cluster, field(printed, "id"))
				if err != nil {
					return nil, err
				}
				fromSbatch[way.name] = append(fromSbatch[way.name], 1000*(at-float64(began.UnixMicro())/1e6))
				fromStart[way.name] = append(fromStart[way.name], 1000*(at-float64(started.UnixMicro())/1e6))
			}
		}
		var lines []record.Line
		for _, way := range ways {
			lines = append(lines, record.Line{Times: &record.Times{What: "sbatch to first kernel", Way: way.name, MS: fromSbatch[way.name]}},
				record.Line{Times: &record.Times{What: "job start to first kernel", Way: way.name, MS: fromStart[way.name]}})
		}
		return lines, nil
	})
}

// startOf returns the time at which a job got its node. It reads slurmctld's log, whose times have milliseconds.
func startOf(c *lab.Cluster, id string) (time.Time, error) {
	path := filepath.Join(c.Dir(), "log", "slurmctld.log")
	log, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	match := regexp.MustCompile(`(?m)^\[([^\]]+)\] .*(?:Started|Allocate) JobId=` + id + ` `).FindSubmatch(log)
	if match == nil {
		return time.Time{}, fmt.Errorf("cannot find the start of job %s in %s", id, path)
	}
	return time.ParseInLocation("2006-01-02T15:04:05.000", string(match[1]), time.Local)
}

// bashLab returns a Slurm with hooks in bash, and the pipe folder of its daemon.
func (b *bench) bashLab(ctx context.Context) (c *lab.Cluster, pipe string, err error) {
	scripts, state := filepath.Join(b.dir, "peers"), filepath.Join(b.dir, "peers", "run")
	if err := os.MkdirAll(scripts, 0o755); err != nil {
		return nil, "", err
	}
	if err := peers.Install(scripts, b.real); err != nil {
		return nil, "", err
	}
	smi := filepath.Join(scripts, "smi.sh")
	hook := func(name string) []string { return []string{filepath.Join(scripts, name), state, b.control, smi} }
	c, err = b.hookedLab(ctx, "bash", lab.Options{Prolog: hook("prolog.sh"), Epilog: hook("epilog.sh")})
	return c, filepath.Join(state, "0", "pipe"), err
}
