// SPDX-License-Identifier: Apache-2.0

// Package etc is what a site installs, as files that a program carries along: the binary shows what it was built with.
package etc

import "embed"

// Files are the files of this folder.
//
//go:embed policy.hcl policy_test.hcl site.hcl slurm.conf gres.conf tmpfiles.conf logrotate.conf reap.service metrics.service metrics.timer grafana.json alerts.yml job_submit.lua cli_filter.lua
var Files embed.FS
