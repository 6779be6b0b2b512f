// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab"
	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// tidy bounds the closing of a place, whether the measurement succeeded or not.
const tidy = 30 * time.Second

// measure runs a cell's programs and returns a line for each.
func (l *lane) measure(ctx context.Context, c cell) (lines []record.Line, err error) {
	if c.kind == "slurm" {
		return l.measureSlurm(ctx, c)
	}
	p, err := l.open(ctx, c.rule, c.ranks)
	if err != nil {
		return nil, err
	}
	defer func() {
		bound, cancel := context.WithTimeout(context.Background(), tidy)
		defer cancel()
		if closed := p.close(bound); closed != nil {
			err = errors.Join(err, fmt.Errorf("cannot close %s: %w", c.rule.Name, closed))
		}
	}()
	program, err := l.program(c)
	if err != nil {
		return nil, err
	}
	printed, err := l.mpirun(ctx, c.ranks, p.env, append(p.before, program...))
	if err != nil {
		return nil, err
	}
	return read(printed, c, "mpirun")
}

// program returns a rank's command line.
func (b *bench) program(c cell) ([]string, error) {
	warm, windows, window := fmt.Sprint(b.warm), strconv.Itoa(b.windows), fmt.Sprint(b.window)
	if c.kind != "torch" {
		return []string{b.ranks, b.library, c.programs, warm, windows, window}, nil
	}
	meet, err := os.MkdirTemp(b.dir, "meet")
	if err != nil {
		return nil, err
	}
	return []string{b.python, filepath.Join(b.dir, "ranks.py"), meet, c.programs, warm, windows, window}, os.Chown(meet, uid, uid)
}

// mpirun starts ranks on this machine as the jobs' user, outside Slurm jobs.
func (l *lane) mpirun(ctx context.Context, n int, env, line []string) (string, error) {
	line = append(l.bound("mpirun.openmpi", "-np", strconv.Itoa(n), "--oversubscribe", "--bind-to", "none"), line...)
	cmd, err := l.outside.Command(ctx, l.user, line[0], line[1:]...)
	if err != nil {
		return "", err
	}
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+l.libraryPath(l.outside), "OMPI_MCA_btl=self,vader", "OMPI_MCA_mpi_yield_when_idle=1",
		"OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Env = append(cmd.Env, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cannot run %d ranks: %w: %s", n, errors.Join(err, ctx.Err()), lastLines(errs.String()+out.String()))
	}
	return out.String(), nil
}

func lastLines(s string) string { return s[max(0, len(s)-1500):] }

// read parses the lines of JSON that rank 0 printed.
func read(printed string, c cell, through string) ([]record.Line, error) {
	var lines []record.Line
	for text := range strings.Lines(printed) {
		if !strings.HasPrefix(text, `{"program"`) {
			continue
		}
		t := record.Throughput{Rule: c.rule.Name, Ranks: c.ranks, Round: c.round, Through: through}
		if err := json.Unmarshal([]byte(text), &t); err != nil {
			return nil, err
		}
		if err := t.Check(); err != nil {
			return nil, err
		}
		lines = append(lines, record.Line{Throughput: &t})
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("no program reported: %s", lastLines(printed))
	}
	if want := strings.Count(c.programs, ",") + 1; len(lines) != want {
		lines = append(lines, record.Line{Failed: fmt.Sprintf("%d of %d programs reported", len(lines), want)})
	}
	return lines, nil
}

// measureSlurm measures a cell through a real Slurm: sbatch starts the job, srun starts its ranks, and the hooks are
// our prolog and epilog.
func (b *bench) measureSlurm(ctx context.Context, c cell) ([]record.Line, error) {
	s, cluster, err := b.ourLab(ctx)
	if err != nil {
		return nil, err
	}
	line, err := b.program(c)
	if err != nil {
		return nil, err
	}
	options := []string{"--gres=gpu:1", fmt.Sprintf("-n%d", c.ranks)}
	if c.rule.Daemon == record.Ours {
		line, options = append(s.Command("mpirun-wrap"), line...), append(options, "--constraint=mps")
	}
	printed, err := b.job(ctx, cluster, options, fmt.Sprintf("srun --mpi=pmix -n%d %s", c.ranks, strings.Join(line, " ")))
	if err != nil {
		return nil, err
	}
	return read(printed, c, "srun")
}

// job runs a script with sbatch, waits until the job is over, and returns its output.
func (b *bench) job(ctx context.Context, c *lab.Cluster, options []string, lines ...string) (string, error) {
	home, err := c.Home(b.user)
	if err != nil {
		return "", err
	}
	script := filepath.Join(home, fmt.Sprintf("job%d.sh", b.newJob()))
	text := "#!/bin/bash\nexport OMPI_MCA_btl=self,vader OMPI_MCA_mpi_yield_when_idle=1 LD_LIBRARY_PATH=" +
		b.libraryPath(c) + "\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		return "", err
	}
	id, err := c.Submit(ctx, b.user, append(options, "-o", filepath.Join(home, "%j.out"), script)...)
	if err != nil {
		return "", err
	}
	job, err := c.WaitJob(ctx, id)
	printed, _ := os.ReadFile(filepath.Join(home, fmt.Sprintf("%d.out", id)))
	if err == nil && job.State != "COMPLETED" {
		err = fmt.Errorf("job %d is %s: %s", id, job.State, lastLines(string(printed)))
	}
	return string(printed), err
}
