// SPDX-License-Identifier: Apache-2.0

package epilog

import "github.com/slurm-mps/slurm-mps/site/lease"

// removeJobFiles removes the files that name the job for dcgm-exporter. That of a GPU which is another job's by now
// stays. A failure is logged and drains no node: a wrong label in a chart is not worth a node.
func (c Epilog) removeJobFiles(l lease.Lease) {
	for _, held := range l.Held {
		if held.JobFile == "" {
			continue
		}
		holder, taken, err := c.Store.Owner(held.UUID)
		if err == nil && taken && holder != l.Job.ID {
			continue
		}
		if err == nil {
			err = lease.RemoveJobFile(held.JobFile, l.Job.ID)
		}
		if err != nil {
			c.Log.Warn().Err(err).Str("repair", "rm "+held.JobFile).Msg("dcgm-exporter still names the job: the file stays")
		}
	}
}
