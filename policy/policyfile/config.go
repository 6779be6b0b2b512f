// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/osfile"
)

// ReadConfig reads the site's file, or the last copy of it that could be used. Settings in neither have their
// defaults.
func ReadConfig(paths site.Paths) (site.Config, FileStatus) {
	parse := func(content []byte) (site.Config, error) {
		return parseConfig(content, paths.ConfigFile(), site.DefaultConfig())
	}
	content, err := osfile.ReadRootOwned(paths.ConfigFile())
	if errors.Is(err, fs.ErrNotExist) {
		return site.DefaultConfig(), FileStatus{}
	}
	var c site.Config
	if err == nil {
		c, err = parse(content)
	}
	return orKept(paths, keptConfig, c, err, site.DefaultConfig(), parse)
}

// KeepConfig keeps a copy of the site's file, which can be used. If the file does not exist, the copy is removed.
func KeepConfig(paths site.Paths) error {
	content, err := osfile.ReadRootOwned(paths.ConfigFile())
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Remove(filepath.Join(paths.Kept(), keptConfig)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove copy: %w", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	return keep(paths, keptConfig, content)
}

var configAttributes = []attribute[site.Config]{
	stringAttribute("nvml_library", absolute, func(c *site.Config, s string) { c.NVMLLibrary = s }),
	stringAttribute("mps_control", absolute, func(c *site.Config, s string) { c.Control = s }),
	stringAttribute("library_path", func(string) string { return "" }, func(c *site.Config, s string) { c.LibraryPath = s }),
	stringAttribute("gres_conf", absolute, func(c *site.Config, s string) { c.GresConf = s }),
	duration("prolog_deadline", time.Second, time.Hour, func(c *site.Config, d time.Duration) { c.PrologDeadline = d }),
	stringAttribute("shared_reports", absolute, func(c *site.Config, s string) { c.SharedReports = s }),
	duration("usage_interval", -time.Second, time.Hour, func(c *site.Config, d time.Duration) { c.UsageInterval = d }),
	duration("epilog_deadline", 5*time.Second, time.Hour, func(c *site.Config, d time.Duration) { c.EpilogDeadline = d }),
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
