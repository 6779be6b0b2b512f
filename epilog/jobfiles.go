// SPDX-License-Identifier: Apache-2.0

package epilog

import "github.com/slurm-mps/slurm-mps/site/lease"

// removeJobFiles removes the files that name the job for dcgm-exporter. If a GPU belongs to another job now, its file
// stays. If the claim cannot be read, the content of the file decides. A failure is logged and does not drain the
// node, because its only effect is a wrong label in a chart.
func (e Epilog) removeJobFiles(l lease.Lease) {
	for _, gpu := range l.GPUs {
		if gpu.JobFile == "" {
			continue
		}
		holder, taken, err := e.Store.Owner(gpu.UUID)
		if err == nil && taken && holder != l.Job.ID {
			continue
		}
		if err := lease.RemoveJobFile(gpu.JobFile, l.Job.ID); err != nil {
			e.Log.Warn().Err(err).Str("repair", "rm "+gpu.JobFile).Msg("dcgm-exporter still names the job: the file stays")
		}
	}
}
