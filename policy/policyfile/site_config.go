// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

type config = site.Config

var configAttributes = []attribute[config]{
	stringAttribute("nvml_library", absolute, func(c *config, s string) { c.NVMLLibrary = s }),
	stringAttribute("mps_control", absolute, func(c *config, s string) { c.Control = s }),
	stringAttribute("library_path", func(string) string { return "" }, func(c *config, s string) { c.LibraryPath = s }),
	stringAttribute("gres_conf", absolute, func(c *config, s string) { c.GresConf = s }),
	duration("prolog_deadline", time.Second, time.Hour, func(c *config, d time.Duration) { c.PrologDeadline = d }),
	stringAttribute("hpc_job_mapping_dir", absolute, func(c *config, s string) { c.JobMappingDir = filepath.Clean(s) }),
	duration("usage_interval", -time.Second, time.Hour, func(c *config, d time.Duration) { c.UsageInterval = d }),
	duration("epilog_deadline", 5*time.Second, time.Hour, func(c *config, d time.Duration) { c.EpilogDeadline = d }),
}

// parseConfig reads site.hcl. Settings that it does not have keep the given defaults.
//
//	nvml_library    = "/usr/lib64/libnvidia-ml.so.1"
//	prolog_deadline = "50s"
func parseConfig(source []byte, name string, defaults site.Config) (site.Config, error) {
	f := file{name: name, source: source}
	c := newTypeChecker()
	if c.wrong = parse(&f); !c.wrong.HasErrors() {
		constants(c, configAttributes, f.hcl.Body, &defaults)
	}
	return defaults, complain(c.wrong, []file{f})
}

func absolute(path string) string {
	if path == "" || path[0] != '/' {
		return "is a path from /, not \"" + path + "\""
	}
	return ""
}
