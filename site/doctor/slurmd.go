// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// slurmds are the usual paths of slurmd. --slurmd names another path.
var slurmds = []string{"/usr/sbin/slurmd", "/usr/local/sbin/slurmd", "/opt/slurm/sbin/slurmd"}

// LeaveSlurmd means that slurmd is not run.
const LeaveSlurmd = "none"

// slurmdTimeout bounds slurmd -G, which waits 19 s for a missing device file (22.05 and 24.11, run).
const slurmdTimeout = 30 * time.Second

var slurmVersion = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+`)

// askSlurmd runs slurmd to print its list of the node's GPUs, because slurmd's reading of its files decides. -L keeps
// this run out of the node's slurmd.log.
func (s *slurmFiles) askSlurmd(ctx context.Context, q Question) {
	path := cmp.Or(q.Slurmd, firstExisting(slurmds))
	unread := func(format string, args ...any) {
		s.Unread = append(s.Unread, fmt.Sprintf("slurmd's own list of GPUs: "+format, args...))
	}
	if path == "" {
		unread("it is in none of %q: name it by --slurmd", slurmds)
		return
	}
	if f := look("slurmd", path); f.Err != nil || f.Loose != "" {
		unread("%s is not there, or not root's own: name slurmd by --slurmd", path)
		return
	}
	version, _ := run(ctx, versionTimeout, path, "-V")
	s.Version = slurmVersion.FindString(version)
	printed, err := run(ctx, slurmdTimeout, path, "-G", "-N", q.Node, "-f", q.Conf, "-L", os.DevNull)
	if s.SlurmdGPUs, s.ListErr = slurm.ParseGresList(printed); s.ListErr == nil && err != nil {
		s.ListErr = fmt.Errorf("%s -G: %w", path, err)
	}
	if s.SlurmdGPUs == nil && s.ListErr == nil && s.Gres != nil && s.count() > 0 {
		unread("%s -G prints none in a form that is known: read it and compare it with %s", path, q.Conf)
	}
}

func firstExisting(paths []string) string {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}
