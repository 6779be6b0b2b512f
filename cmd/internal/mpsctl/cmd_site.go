// SPDX-License-Identifier: Apache-2.0

// This file is mpsctl site: the example files for a site, as this program was built with them.

package mpsctl

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/slurm-mps/slurm-mps/cmd/internal/cli"
	"github.com/slurm-mps/slurm-mps/site/etc"
	"github.com/spf13/cobra"
)

// item is one example file.
type item struct {
	Name  string `json:"name"`
	Place string `json:"place"` // where a site installs it
	About string `json:"about"`
}

// items lists all files of site/etc, in the order in which an admin needs them.
var items = []item{
	{"policy.hcl", "/etc/slurm-mps/policy.hcl", "who gets what"},
	{"policy_test.hcl", "/etc/slurm-mps/policy_test.hcl", "tests of policy.hcl, for mpsctl policy test"},
	{"site.hcl", "/etc/slurm-mps/site.hcl", "where helper programs are"},
	{"slurm.conf", "/etc/slurm/slurm.conf", "lines that slurm.conf needs"},
	{"gres.conf", "/etc/slurm/gres.conf", "lines for a node's GPUs"},
	{"tmpfiles.conf", "/usr/lib/tmpfiles.d/slurm-mps.conf", "folders that are there from the boot on"},
	{"logrotate.conf", "/etc/logrotate.d/slurm-mps", "how long the log is kept"},
	{"reap.service", "/usr/lib/systemd/system/slurm-mps-reap.service", "mpsctl reap before each start of slurmd"},
	{"metrics.service", "/usr/lib/systemd/system/slurm-mps-metrics.service", "mpsctl metrics for node_exporter"},
	{"metrics.timer", "/usr/lib/systemd/system/slurm-mps-metrics.timer", "the same each minute"},
	{"grafana.json", "/usr/share/slurm-mps/grafana.json", "a dashboard of the metrics, to import into Grafana"},
	{"alerts.yml", "/usr/share/slurm-mps/alerts.yml", "alert rules of the metrics, for Prometheus"},
	{"job_submit.lua", "/etc/slurm/job_submit.lua", "jobs with MPS go to nodes that have it"},
	{"cli_filter.lua", "/etc/slurm/cli_filter.lua", "mistakes are printed before a job is sent"},
}

const siteHelp = `site shows the files that docs/operator.md has a site install: policy, facts, and lines for Slurm's files.`

// siteCommand is mpsctl site.
func siteCommand(call *Invocation) *cobra.Command {
	c := &cobra.Command{
		Use: "site", Short: "show the files that a site installs", Long: siteHelp,
		Example: "  mpsctl site list\n  mpsctl site show policy.hcl >/etc/slurm-mps/policy.hcl",
		Args:    NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("cannot run: no command is given: see mpsctl site --help")
		},
	}
	c.AddCommand(list(call), show(call))
	return c
}

func list(call *Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "print the names of the files", Args: NoArgs, DisableFlagsInUseLine: true,
		Example: "  mpsctl site list",
		RunE: func(*cobra.Command, []string) error {
			return written(call, struct {
				Files []item `json:"files"`
			}{items}, itemsText())
		},
	}
}

func itemsText() string {
	var b strings.Builder
	for _, i := range items {
		fmt.Fprintf(&b, "%-16s %-53s %s\n", i.Name, i.Place, i.About)
	}
	return b.String()
}

func show(call *Invocation) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "print a file", DisableFlagsInUseLine: true, ValidArgs: names(),
		Example: "  mpsctl site show slurm.conf\n  mpsctl site show policy.hcl >/etc/slurm-mps/policy.hcl",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && find(args[0]) != nil {
				return nil
			}
			return fmt.Errorf("cannot show %q: name one file: %s", args, strings.Join(names(), ", "))
		},
		RunE: func(_ *cobra.Command, args []string) error {
			content, err := etc.Files.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("cannot show %s: %w", args[0], err)
			}
			return written(call, struct {
				item
				Content string `json:"content"`
			}{*find(args[0]), string(content)}, string(content))
		},
	}
}

func names() (all []string) {
	for _, i := range items {
		all = append(all, i.Name)
	}
	return all
}

// find returns an example file, nil for none.
func find(name string) *item {
	for i := range items {
		if items[i].Name == name {
			return &items[i]
		}
	}
	return nil
}

func written(call *Invocation, answer any, text string) error {
	if call.JSON {
		return WriteError("site", cli.WriteJSON(call.Out, answer))
	}
	_, err := io.WriteString(call.Out, text)
	return WriteError("site", err)
}
