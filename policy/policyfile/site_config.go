// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// configAttributes is the table of site.hcl.
var configAttributes = []attribute[site.Config]{
	stringAttribute("nvml_library", absolute, func(c *site.Config, s string) { c.NVMLLibrary = s }),
	stringAttribute("mps_control", absolute, func(c *site.Config, s string) { c.Control = s }),
	stringAttribute("library_path", anything, func(c *site.Config, s string) { c.LibraryPath = s }),
	stringAttribute("gres_conf", absolute, func(c *site.Config, s string) { c.GresConf = s }),
	durationAttribute("prolog_deadline", time.Second, time.Hour, func(c *site.Config, d time.Duration) { c.PrologDeadline = d }),
	stringAttribute("hpc_job_mapping_dir", absolute, func(c *site.Config, s string) { c.JobMappingDir = filepath.Clean(s) }),
	durationOrZero("usage_interval", time.Second, time.Hour, func(c *site.Config, d time.Duration) { c.UsageInterval = d }),
	durationAttribute("epilog_deadline", 5*time.Second, time.Hour, func(c *site.Config, d time.Duration) { c.EpilogDeadline = d }),
}

// ParseConfig reads site.hcl. Settings that it does not have keep the given defaults.
func ParseConfig(source []byte, name string, config site.Config) (site.Config, error) {
	f := file{name: name, source: source}
	c := newTypeChecker()
	if c.wrong = parse(&f); !c.wrong.HasErrors() {
		constants(c, configAttributes, f.hcl.Body, &config)
	}
	return config, complain(c.wrong, []file{f})
}

func absolute(path string) string {
	if path == "" || path[0] != '/' {
		return "is a path from /, not \"" + path + "\""
	}
	return ""
}
