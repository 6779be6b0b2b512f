// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

// task is a recorded environment of a task, and the step in which the node shows it.
type task struct{ path, step string }

// tasks are of each kind and of three releases. A launcher's ranks have the variables of the task that started it.
func tasks(t *testing.T) (all []task) {
	for _, path := range slices.Concat(recordings(t, "slurm-env/*/*.task*", 50), recordings(t, "shared/*-batch*.env", 100), recordings(t, "shared/*-task*[0-9].env", 100)) {
		step := ParseEnv(recorded.Lines(t, path))["SLURM_STEP_ID"]
		if step == "" || step[0] == '-' {
			step = "batch"
		}
		all = append(all, task{path, step})
	}
	for _, release := range []string{"", "24.11/", "26.05/"} {
		all = append(all, task{"launches/" + release + "interactive.mpirun.n1", "interactive"})
	}
	return append(all, task{"launches/three.both-groups.n1", "0"})
}

// environment is that of a recording's first process.
func (k task) environment(t *testing.T) Env {
	text, _, _ := strings.Cut(strings.Join(recorded.Lines(t, k.path), "\n"), "\n\n")
	return ParseEnv(strings.Split(text, "\n"))
}

// Slurm overwrites in each task what the table says, so no submitter's value is left. srun itself removes the number of
// GPUs for a step without one.
func TestSlurmSetsWhatTheTableSays(t *testing.T) {
	for _, k := range tasks(t) {
		if strings.HasPrefix(k.path, "launches/") { // they have only what places a rank
			continue
		}
		env := k.environment(t)
		for _, v := range variables {
			_, set := env[v.name]
			hasGPU := !strings.Contains(k.path, "i-nogpu") && !strings.Contains(k.path, "step-none")
			left := v.name == "SLURM_TASK_PID" && strings.HasPrefix(k.path, "shared/") // left out of the archive
			needed := v.witness == ByTask && !strings.Contains(v.from, "since") && !left || v.witness == ByGPUs && hasGPU
			must.Hold(t, !needed || set, "%s has no %s", k.path, v.name)
		}
	}
}

// A job that a process of another job submits has what its own task would have, and no more, for each variable of the
// table: batch script, step, interactive shell, array's task, component of a heterogeneous job; also with --export=NIL.
// What Slurm overwrites is tested above, what launchers set in package launch, and MPS's in mpirun-wrap.
func TestSubmittedFromInside(t *testing.T) {
	submitters := Env{"SLURM_HET_SIZE": "3"}
	for _, v := range variables {
		if prefix, many := strings.CutSuffix(v.name, "*"); many {
			for n := range 4 {
				submitters[prefix+fmt.Sprint(n)] = fmt.Sprint(7770 + n)
			}
		} else if submitters[v.name] == "" {
			submitters[v.name] = "7770"
		}
	}
	for _, k := range tasks(t) {
		own := k.environment(t)
		for _, export := range []string{"ALL", "NIL"} {
			env := maps.Clone(submitters)
			maps.DeleteFunc(env, func(name, _ string) bool { return export == "NIL" && !strings.HasPrefix(name, "SLURM_") })
			maps.Copy(env, own)
			env, want := env.Witnessed(k.step), own.Witnessed(k.step)
			_, err := Digits(k.step)
			for name, value := range env {
				w, _ := witnessOf(name)
				checked := w == BySlurmd || w == ByComponent || w == ByStep && err != nil
				if checked && value != want[name] {
					t.Errorf("%s --export=%s: %s=%s of the submitter counts, want %q", k.path, export, name, value, want[name])
				}
			}
		}
	}
}
