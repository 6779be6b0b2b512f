// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// factAttributes is the table of the site file.
var factAttributes = []attribute[site.Config]{
	stringAttribute("nvml_library", absolute, func(f *site.Config, s string) { f.NVMLLibrary = s }),
	stringAttribute("mps_control", absolute, func(f *site.Config, s string) { f.Control = s }),
	stringAttribute("library_path", anything, func(f *site.Config, s string) { f.LibraryPath = s }),
	stringAttribute("gres_conf", absolute, func(f *site.Config, s string) { f.GresConf = s }),
	durationAttribute("prolog_deadline", time.Second, time.Hour, func(f *site.Config, d time.Duration) { f.PrologDeadline = d }),
	stringAttribute("hpc_job_mapping_dir", absolute, func(f *site.Config, s string) { f.JobMappingDir = filepath.Clean(s) }),
	durationOrZero("usage_interval", time.Second, time.Hour, func(f *site.Config, d time.Duration) { f.UsageInterval = d }),
	durationAttribute("epilog_deadline", 5*time.Second, time.Hour, func(f *site.Config, d time.Duration) { f.EpilogDeadline = d }),
}

// ParseFacts reads the site's file. Settings that it does not have keep the given defaults.
func ParseFacts(source []byte, name string, facts site.Config) (site.Config, error) {
	f := file{name: name, source: source}
	j := newTypeChecker()
	if j.wrong = parse(&f); !j.wrong.HasErrors() {
		constants(j, factAttributes, f.hcl.Body, &facts)
	}
	return facts, complain(j.wrong, []file{f})
}

func absolute(path string) string {
	if path == "" || path[0] != '/' {
		return "is a path from /, not \"" + path + "\""
	}
	return ""
}
