// SPDX-License-Identifier: Apache-2.0

package epilog

import "github.com/slurm-mps/slurm-mps/site/lease"

// removeJobFiles removes the files that name the job for dcgm-exporter. If a GPU belongs to another job now, its file
// stays. If the claim cannot be read, the content of the file decides. A failure is logged and does not drain the
// node, because its only effect is a wrong label in a chart.
func (e Epilog) removeJobFiles(l lease.Lease) {
	for _, held := range l.Held {
		if held.JobFile == "" {
			continue
		}
		holder, taken, err := e.Store.Owner(held.UUID)
		if err == nil && taken && holder != l.Job.ID {
			continue
		}
		if err := lease.RemoveJobFile(held.JobFile, l.Job.ID); err != nil {
			e.Log.Warn().Err(err).Str("repair", "rm "+held.JobFile).Msg("dcgm-exporter still names the job: the file stays")
		}
	}
}
