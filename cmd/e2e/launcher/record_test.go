// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
	"github.com/slurm-mps/slurm-mps/site/sim/txtar"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
)

// Goldens are the environments of real launches: go test ./cmd/e2e/launcher -run TestPlacements -args -record ARCHIVE. It
// writes a file for each launch and node, with the environments of the ranks in order (site/sim/recorded/launches.txtar).
var recordTo = flag.String("record", "", "absolute path of the archive for the environments of the ranks of every launch")

// recordScript records the environment that a rank in its place sees, and then becomes that rank.
const recordScript = `#!/bin/sh
open=$(for f in %[1]s/lab/dev/nvidia*; do [ -r $f ] && [ -w $f ] && echo ${f##*nvidia}; done)
{ /usr/bin/env; echo RANK_PID=$$; echo RANK_OPEN=$open; } >%[1]s/said/$1.$(/bin/hostname).$$
shift
exec "$@"
`

// recorder returns the command that precedes the wrapper in a recorded launch.
func (s *launchCluster) recorder(number int) string {
	if *recordTo == "" {
		return ""
	}
	path := filepath.Join(s.Top, "record")
	must.OK(s.T, node.WriteProgram(path, []byte(fmt.Sprintf(recordScript, s.Top))))
	must.OK(s.T, os.MkdirAll(filepath.Join(s.Top, "said"), 0o777))
	must.OK(s.T, os.Chmod(filepath.Join(s.Top, "said"), 0o777))
	return fmt.Sprintf("%s %d ", path, number)
}

// keep writes a launch's recordings into the archive.
func (s *launchCluster) keep(number int, l launchCase) {
	if *recordTo == "" {
		return
	}
	for _, name := range s.Nodes() {
		paths := must.Get(filepath.Glob(fmt.Sprintf("%s/said/%d.%s.*", s.Top, number, name)))(s.T)
		var ranks []slurm.Env
		for _, path := range paths {
			ranks = append(ranks, slurm.ParseEnv(strings.Split(e2e.Read(s.T, path), "\n")))
			must.OK(s.T, os.Remove(path))
		}
		if len(ranks) == 0 {
			continue
		}
		slices.SortFunc(ranks, func(a, b slurm.Env) int { return s.localRank(a) - s.localRank(b) })
		var text strings.Builder
		for _, env := range ranks {
			text.WriteString(s.plain(env, name) + "\n")
		}
		file := s.name + "." + strings.NewReplacer(", ", "-", " ", "-", ":", "-", "*", "x", ",", "-").Replace(l.name)
		if len(s.Nodes()) == 1 {
			name = "n1"
		}
		must.OK(s.T, txtar.Put(*recordTo, file+"."+name, text.String()))
	}
}

func (s *launchCluster) localRank(env slurm.Env) int {
	pid, _ := strconv.Atoi(env["RANK_PID"])
	task := must.Get(launch.ReadTask(env, pid))(s.T)
	return task.LocalRank
}

// plain returns the lines that describe a launch and not the machine on which it ran.
func (s *launchCluster) plain(env slurm.Env, name string) string {
	var lines []string
	for variable, value := range env {
		if variable == "_" {
			value = "/usr/bin/" + filepath.Base(value) // the program's folder differs between machines
		} else if strings.HasPrefix(value, "/") || !describesLaunch(variable) {
			continue
		}
		if len(s.Nodes()) == 1 && value == name {
			value = "n1"
		}
		lines = append(lines, variable+"="+value+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// describesLaunch reports whether a variable describes a launch and not the machine.
func describesLaunch(variable string) bool {
	for _, part := range []string{"HOST", "PORT", "ADDR", "CLUSTER", "JOB_NAME", "SLURM_CONF", "_UID", "_TIME", "_DIR", "_GID", "_USER", "UMASK",
		"PACK_GROUP", "ALIASES", "PRIO", "JOBID", "STEPID", "NPROCS", "PARTITION", "NODELIST"} {
		if strings.Contains(variable, part) {
			return false
		}
	}
	for _, prefix := range []string{"SLURM_", "SLURMD_TRES", "OMPI_COMM_", "OMPI_NUM_APP", "OMPI_MCA_ess_base_jobid", "PMI_RANK", "PMI_SIZE",
		"PMIX_RANK", "PMIX_NAMESPACE", "PMIX_MCA_mca", "MPI_LOCAL", "IPATH_NO", "HFI_NO", "RANK_", "_", "CUDA_VISIBLE"} {
		if strings.HasPrefix(variable, prefix) {
			return true
		}
	}
	return false
}
