// SPDX-License-Identifier: Apache-2.0

// Package source_test checks the source and the documents. This file checks which package imports which
// (docs/development.md, Imports).
package source_test

import (
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/e2e"
)

// packages lists what each package may import. Other imports are not allowed, except those of the standard library that
// are not in guarded.
var packages = map[string][]string{
	"policy":              {},
	"policy/plan":         {"policy", "site/words"},
	"policy/policyfile":   {"policy", "site", "site/osfile", "site/words", "github.com/hashicorp/hcl/v2", "github.com/hashicorp/hcl/v2/ext/tryfunc", "github.com/hashicorp/hcl/v2/hclsyntax", "github.com/zclconf/go-cty/cty", "github.com/zclconf/go-cty/cty/function", "github.com/zclconf/go-cty/cty/function/stdlib"},
	"policy/lint":         {"policy", "policy/policyfile", "site/words", "github.com/hashicorp/hcl/v2", "github.com/hashicorp/hcl/v2/hclsyntax", "github.com/zclconf/go-cty/cty"},
	"site":                {"site/words"},
	"site/proc":           {"golang.org/x/sys/unix"},
	"site/cgroup":         {"site", "site/proc", "site/wait", "golang.org/x/sys/unix"},
	"site/slurm":          {"policy", "site", "site/words"},
	"site/serverlog":      {"golang.org/x/sys/unix"},
	"site/usage":          {"site", "site/lease", "site/osfile", "site/proc"},
	"site/usage/page":     {},
	"site/lease":          {"policy", "site", "site/osfile", "site/proc", "golang.org/x/sys/unix"},
	"site/gpu":            {"site", "site/usage", "site/wait", "github.com/NVIDIA/go-nvml/pkg/dl", "github.com/NVIDIA/go-nvml/pkg/nvml"},
	"site/mps":            {"policy", "site", "site/cgroup", "site/lease", "site/osfile", "site/proc", "site/serverlog", "site/wait", "site/words", "golang.org/x/sys/unix"},
	"site/guard":          {"site/cgroup", "site/guard/gauge", "site/guard/pause", "site/guard/take", "site/lease", "site/proc", "site/slurm/witness", "site/usage", "site/wait", "site/words", "golang.org/x/sys/unix"},
	"prolog":              {"policy", "site", "site/lease", "site/proc", "site/slurm", "site/wait", "github.com/rs/zerolog"},
	"epilog":              {"policy", "site", "site/lease", "site/osfile", "site/proc", "site/serverlog", "site/usage", "site/wait", "site/words", "github.com/rs/zerolog", "golang.org/x/sys/unix"},
	"mpirun-wrap":         {"policy", "site", "site/cli", "site/lease", "site/osfile", "site/proc", "site/serverlog", "site/slurm", "site/slurm/launch", "site/slurm/witness", "site/wait", "site/words", "golang.org/x/sys/unix"},
	"site/cli":            {"site/words"},
	"site/logfile":        {"github.com/rs/zerolog"},
	"site/guard/gpuusage": {"policy", "site", "site/cli", "site/clientenv", "site/gpu", "site/guard/gauge", "site/lease", "site/logfile", "site/osfile", "site/proc", "site/serverlog", "site/usage", "github.com/rs/zerolog", "golang.org/x/sys/unix"},
	"site/guard/program":  {"site", "site/cgroup", "site/cli", "site/guard", "site/guard/pause", "site/guard/take", "site/lease", "site/logfile", "site/proc", "site/slurm", "site/slurm/witness", "site/wait", "site/words", "github.com/rs/zerolog", "github.com/rs/zerolog/diode", "golang.org/x/sys/unix"},
	"cmd/guard":           {"site/cli", "site/guard/program"},
	"prolog/frame":        {"epilog", "policy", "policy/policyfile", "prolog", "site", "site/cgroup", "site/cli", "site/driver", "site/etc", "site/gpu", "site/guard", "site/lease", "site/logfile", "site/mps", "site/proc", "site/slurm", "site/wait", "github.com/rs/zerolog"},
	"mpirun-wrap/own":     {"policy", "site", "site/driver", "site/guard", "site/guard/gauge", "site/guard/pause", "site/guard/take", "site/lease", "site/mps", "site/osfile", "site/proc", "site/serverlog", "site/slurm", "site/slurm/launch", "site/slurm/witness", "site/wait", "golang.org/x/sys/unix"},
	"site/driver":         {"policy", "site", "site/osfile"},
	"cmd/prolog":          {"prolog/frame", "site/cli"},
	"cmd/epilog":          {"prolog/frame", "site/cli", "site/guard/gpuusage"},
	"cmd/mpirun-wrap":     {"mpirun-wrap", "mpirun-wrap/own", "site/cli"},
	"cmd/task-prolog":     {"mpirun-wrap", "site/cli"},
	"site/etc":            {},
	"site/slurm/steps":    {"site/proc", "site/slurm/witness"},
	"site/slurm/witness":  {"site/proc", "site/slurm"},
	"site/clientenv":      {"policy", "site", "site/proc", "site/slurm", "site/slurm/witness", "site/words"},
	"site/state":          {"policy", "policy/policyfile", "site", "site/clientenv", "site/gpu", "site/lease", "site/mps", "site/proc", "site/slurm", "site/slurm/steps", "site/usage", "site/wait", "site/words"},
	"site/doctor":         {"policy", "policy/policyfile", "site", "site/cgroup", "site/gpu", "site/mps", "site/osfile", "site/proc", "site/slurm", "site/state", "site/words", "golang.org/x/sys/unix", "os/exec"},
	"site/command":        {"site", "site/cli", "site/words", "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/sys/unix"},
	"cmd/mpsctl":          {"cmd/mpsctl/tune", "epilog", "policy", "policy/lint", "policy/plan", "policy/policyfile", "prolog/frame", "site", "site/cli", "site/command", "site/doctor", "site/lease", "site/osfile", "site/proc", "site/slurm", "site/state", "site/usage", "site/usage/judge", "site/usage/page", "site/wait", "site/words", "github.com/spf13/cobra", "golang.org/x/sys/unix", "os/exec"},
	"cmd/mpsctl/tune":     {"mpirun-wrap", "policy", "site/cli", "site/command", "site/lease", "site/proc", "site/slurm", "site/words", "github.com/spf13/cobra", "golang.org/x/sys/unix", "os/exec"}, // a user's own program, as the user
	"site/words":          {},
	"site/osfile":         {"site/proc", "site/wait", "golang.org/x/sys/unix"},
	"site/wait":           {"golang.org/x/sys/unix"},
	"site/guard/take":     {"site/lease", "site/proc", "site/wait", "golang.org/x/sys/unix"},
	"site/guard/pause":    {"site/proc", "site/wait", "site/words", "golang.org/x/sys/unix"},
	"site/guard/gauge":    {"site/proc"},
	"site/slurm/launch":   {"site/slurm"},
	"site/usage/judge":    {"policy", "site/usage", "site/words", "golang.org/x/sys/unix"},
}

// outside are folders of tools and tests, which are not installed on a node. They may import anything, and no installed
// package may import them.
var outside = []string{"cmd/e2e", "site/sim", "site/lab", "site/pkg"}

// guarded are packages of the standard library that only a package that lists them may import.
var guarded = []string{"os/exec", "C", "net", "net/http", "plugin"}

// forGuard are what the guard may not link, directly or indirectly. It must be small, because it runs as long as its job.
var forGuard = []string{"runtime/cgo", "C", "github.com/NVIDIA/", "github.com/hashicorp/", "github.com/zclconf/",
	"github.com/spf13/", "os/exec", "os/user", "net/http"}

// forRanks are what programs of ranks may not link.
var forRanks = append(slices.Clone(forGuard), "net")

// forHooks are what prolog and epilog may not link: unneeded packages that start slowly, and packages that could start
// programs or use a network as root.
var forHooks = []string{e2e.Module + "policy/lint", "github.com/spf13/", "github.com/hashicorp/hcl/v2/hclwrite", "github.com/google/go-cmp/", "os/exec", "net/http"}

// forUsage are what the parts of gpu-usage may not link: it only reads GPUs, beside each job.
var forUsage = []string{"github.com/spf13/", "github.com/hashicorp/", "github.com/zclconf/", "os/exec", "net/http", e2e.Module + "prolog",
	e2e.Module + "epilog", e2e.Module + "policy/policyfile", e2e.Module + "site/mps"}

func TestImports(t *testing.T) {
	edges := list(t, "-f", "{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}\n{{end}}", e2e.Module+"...")
	if len(edges) < 50 {
		t.Fatalf("only %d imports found: want 50 or more", len(edges))
	}
	for _, edge := range edges {
		from, to, _ := strings.Cut(strings.ReplaceAll(edge, e2e.Module, ""), " ")
		if from != "" && !tool(from) && !allowed(from, to) {
			t.Errorf("%s imports %s: this import is not in the list", from, to)
		}
	}
}

// allowed reports whether a package is known, and may import another one.
func allowed(from, to string) bool {
	targets, known := packages[from]
	standard := !strings.Contains(strings.SplitN(to, "/", 2)[0], ".") && packages[to] == nil && !tool(to)
	return known && (slices.Contains(targets, to) || standard && !slices.Contains(guarded, to))
}

func tool(pkg string) bool {
	return slices.ContainsFunc(outside, func(o string) bool { return pkg == o || strings.HasPrefix(pkg, o+"/") })
}

// foreign are the modules of others that programs link which run as root. Those after the first four come with hcl and
// zerolog.
var foreign = []string{"github.com/NVIDIA/go-nvml", "github.com/hashicorp/hcl/v2", "github.com/rs/zerolog", "golang.org/x/sys",
	"github.com/agext/levenshtein", "github.com/apparentlymart/go-textseg/v15", "github.com/mattn/go-colorable",
	"github.com/mattn/go-isatty", "github.com/mitchellh/go-wordwrap", "github.com/zclconf/go-cty", "golang.org/x/text"}

func TestProgramsLinkNoMoreThanTheyMay(t *testing.T) {
	root, modules := map[string]bool{}, map[string]bool{} // our packages that slurmd or the prolog runs as root, and modules of others
	for program, forbidden := range map[string][]string{"mpirun-wrap": forRanks, "task-prolog": forRanks,
		"guard": forGuard, "prolog": forHooks, "epilog": forHooks, "../site/guard/gpuusage": forUsage} {
		byRoot := slices.Contains([]string{"prolog", "epilog", "guard"}, program)
		for _, line := range list(t, "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "../../../cmd/"+program) {
			dependency, module, _ := strings.Cut(line, " ")
			for _, f := range forbidden {
				if dependency == f || strings.HasSuffix(f, "/") && strings.HasPrefix(dependency, f) {
					t.Errorf("%s links %s", program, dependency)
				}
			}
			if name, own := strings.CutPrefix(dependency, e2e.Module); own && byRoot {
				root[name] = true
			} else if module != "" && byRoot {
				modules[module] = true
			}
		}
	}
	lines := 0
	for name := range root {
		lines += strings.Count(text(t, name+"/*.go"), "\n")
	}
	names := slices.Sorted(maps.Keys(modules))
	t.Logf("root's programs link %d lines of %d packages, and %d foreign modules: %q", lines, len(root), len(names), names)
	for _, name := range names {
		if !slices.Contains(foreign, name) {
			t.Errorf("root's programs link %s", name)
		}
	}
}

// lockers lock a thread for the time of the program. control.go and release.go unlock it again. That of
// report_nodes.go ends, and mpsctl report starts no program.
var lockers = []string{
	"cmd/mpirun-wrap/signals.go", "cmd/mpsctl/report_nodes.go", "mpirun-wrap/own/gauge.go",
	"mpirun-wrap/own/yama.go", "site/guard/control.go", "site/guard/pause/pause.go", "site/guard/release.go",
}

// No thread of a shipped program ends before the program, because the kernel kills children with the thread that has
// started them (PR_SET_PDEATHSIG in site/mps/fork.go and site/guard/pause). Go ends a thread if a goroutine ends that
// is locked to it.
func TestNoThreadEnds(t *testing.T) {
	var found []string
	for _, file := range shipped(t, folders()...) {
		if strings.Contains(e2e.Read(t, file), "runtime.LockOSThread") {
			found = append(found, strings.TrimPrefix(file, "../../../"))
		}
	}
	if slices.Sort(found); !slices.Equal(found, lockers) {
		t.Errorf("threads are locked in %q, want %q", found, lockers)
	}
}

// askers are the commands of Slurm that ask slurmctld. A program that runs one has its name as a whole text.
var askers = regexp.MustCompile("[\"`](?:[^\"`\\s]*/)?" +
	"(?:scontrol|squeue|sinfo|sacct|sacctmgr|sstat|sprio|sdiag|scancel)[\"`]")

// No shipped program asks slurmctld, which a site of 10,000 nodes has once (docs/scale.md).
func TestNoProgramAsksSlurmctld(t *testing.T) {
	files := shipped(t, folders()...)
	for _, file := range files {
		if found := askers.FindString(e2e.Read(t, file)); found != "" {
			t.Errorf("%s has %s: it would ask slurmctld", file, found)
		}
	}
	if len(files) < 150 {
		t.Errorf("only %d files found", len(files))
	}
}

// folders are patterns for the files of the shipped packages.
func folders() (patterns []string) {
	for name := range packages {
		patterns = append(patterns, name+"/*.go")
	}
	return patterns
}

func list(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=1")
	if strings.Contains(strings.Join(args, " "), "-deps") {
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0") // as the programs of ranks are built
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %q: %v", cmd.Args, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
