// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// reconfigure makes Slurm read its changed files.
const reconfigure = ", on slurmctld's host and every node, then: scontrol reconfigure"

func slurmReads(n Node) []Finding {
	if n.SlurmErr == nil {
		return nil
	}
	do := "correct that line"
	if errors.Is(n.SlurmErr, fs.ErrNotExist) {
		do = "name it: mpsctl doctor --slurm-conf FILE"
	}
	return []Finding{fault("slurm-conf", n.Conf, do, "%v", n.SlurmErr)}
}

// flag reports whether a list of Slurm's contains a value, in upper or lower case.
func flag(list, name string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(item string) bool { return strings.EqualFold(strings.TrimSpace(item), name) })
}

// at returns the file and line that set a name, or the file if nothing sets it.
func (s Slurm) at(name string) string {
	if last, ok := s.Value(name); ok {
		return last.From
	}
	return s.Path
}

func (s Slurm) value(name string) string {
	last, _ := s.Value(name)
	return last.Value
}

// write returns the repair of a line of slurm.conf.
func (s Slurm) write(line string) string { return "write " + line + " in " + s.Path + reconfigure }

// home returns the path of a program in docs/operator.md.
func home(n Node, program string) string {
	for _, p := range n.Programs {
		if p.Name == program && p.Err == nil {
			return p.Path
		}
	}
	return libexec + program
}

// hooksOurs checks that Slurm starts our programs. Without TaskProlog= a rank needs mpirun-wrap, so that is a
// warning.
func hooksOurs(n Node) (found []Finding) {
	if n.Slurm == nil {
		return nil
	}
	for _, h := range n.Slurm.Hooks {
		if slices.ContainsFunc(h.Scripts, func(s Script) bool { return s.Starts == h.Ours }) || h.broken() {
			continue
		}
		found = append(found, h.notOurs(n))
	}
	return found
}

// missed is the effect of a missing hook.
var missed = map[string]string{
	"Prolog": "no job gets MPS", "Epilog": "nothing undoes what the prolog did",
	"TaskProlog": "ranks that start without mpirun-wrap run outside MPS, or fail on an exclusive GPU",
}

func (h Hook) notOurs(n Node) Finding {
	f := fault("hook-not-ours", n.Slurm.Path, n.Slurm.write(h.Name+"="+home(n, h.Ours)), "%s= is not set: %s", h.Name, missed[h.Name])
	if h.Name == "TaskProlog" {
		f.Level = Warning
	}
	if len(h.Settings) == 0 {
		return f
	}
	last := h.Settings[len(h.Settings)-1]
	f.Where = last.From
	f.What = fmt.Sprintf("%s=%s neither is nor starts our %s: %s", h.Name, last.Value, h.Ours, missed[h.Name])
	if other := h.other(); other != "" {
		f.What = fmt.Sprintf("%s=%s starts our %s in place of our %s: %s", h.Name, last.Value, other, h.Ours, missed[h.Name])
	}
	return f
}

// broken reports a path that slurm.conf names and that does not exist. It is not known which program it should be.
func (h Hook) broken() bool {
	return slices.ContainsFunc(h.Scripts, func(s Script) bool { return s.Err != nil })
}

// other reports one of our programs at the wrong hook.
func (h Hook) other() string {
	for _, s := range h.Scripts {
		if s.Starts != "" {
			return s.Starts
		}
	}
	return ""
}

// hooksRunnable judges the scripts between Slurm and our programs. programsThere judges the programs.
func hooksRunnable(n Node) (found []Finding) {
	if n.Slurm == nil {
		return nil
	}
	for _, h := range n.Slurm.Hooks {
		for _, s := range h.Scripts {
			need := needs(h.Ours)
			switch {
			case s.Err != nil:
				found = append(found, fault("hook-missing", s.Path, "put it there, or "+n.Slurm.write(h.Name+"="+home(n, h.Ours)), "%s= names it and it cannot be found (%v): every job fails", h.Name, s.Err))
			case s.By != s.Path && s.Mode&need != need:
				found = append(found, fault("hook-mode", s.Path, "chmod 755 "+s.Path, "%s= names it, and its mode is %04o: Slurm takes no file that it may not read as well as execute", h.Name, s.Mode.Perm()))
			}
		}
	}
	return found
}

// hookOrder checks that ours is the last of several prologs and the first of several epilogs. A script that fails
// stops the later ones: if our epilog never runs, GPUs stay exclusive. A later prolog that changes GPUs would disturb
// our daemon.
func hookOrder(n Node) (found []Finding) {
	if n.Slurm == nil {
		return nil
	}
	for _, h := range n.Slurm.Hooks {
		at := slices.IndexFunc(h.Scripts, func(s Script) bool { return s.Starts == h.Ours })
		if at < 0 {
			continue
		}
		dir, base := filepath.Split(h.Scripts[at].Path)
		switch {
		case h.Name == "Prolog" && at < len(h.Scripts)-1:
			found = append(found, warning("hook-order", h.Scripts[at].Path, fmt.Sprintf("let its name sort first: mv %s%s %s0-%s", dir, base, dir, bare(base)),
				"Slurm runs prologs in the reverse order of their names, so %s runs after it, on GPUs that have a daemon by then", h.Scripts[at+1].Path))
		case h.Name == "Epilog" && at > 0:
			found = append(found, warning("hook-order", h.Scripts[at].Path, fmt.Sprintf("let its name sort last: mv %s%s %szz-%s", dir, base, dir, bare(base)),
				"Slurm runs epilogs in the reverse order of their names and stops at the first that fails: if %s fails, ours never runs", h.Scripts[at-1].Path))
		}
	}
	return found
}

// bare returns a name without the number before it.
func bare(name string) string { return strings.TrimLeft(name, "0123456789-_.") }

func prologFlags(n Node) (found []Finding) {
	if n.Slurm == nil {
		return nil
	}
	flags, where := n.Slurm.value("PrologFlags"), n.Slurm.at("PrologFlags")
	contain := flag(flags, "Contain") || flag(flags, "X11") || flag(flags, "RunInJob")
	if flag(flags, "RunInJob") {
		return []Finding{warning("run-in-job", where, n.Slurm.write("PrologFlags=Alloc,Contain"), "PrologFlags has RunInJob, which slurm-mps does not need: the daemon lives in the job's control groups, its memory counts as the job's, and on cgroup v2 Slurm kills it when the ranks are gone")}
	}
	switch {
	case !contain && !flag(flags, "Alloc") && !flag(flags, "ForceRequeueOnFail"): // the other flags imply it
		found = append(found, fault("prolog-flags-alloc", where, n.Slurm.write("PrologFlags=Alloc,Contain"),
			"PrologFlags lacks Alloc: the prolog runs with a job's first step only, so that the epilog of an salloc without a step has nothing to close, and a batch job's prolog has BatchStartTimeout (%s) to end", orValue(n.Slurm.value("BatchStartTimeout"), "10 s")))
	case !contain:
		found = append(found, warning("prolog-flags-contain", where, n.Slurm.write("PrologFlags=Alloc,Contain"),
			"PrologFlags lacks Contain: what a user starts over ssh belongs to no step, outlives the job, and is the epilog's to end"))
	}
	return found
}

func orValue(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value + " s"
}

// seconds reads a time of slurm.conf. forever is true if the time has no end.
func seconds(text string) (d time.Duration, forever, ok bool) {
	if strings.EqualFold(text, "INFINITE") || strings.EqualFold(text, "UNLIMITED") || text == "65534" || text == "65535" {
		return 0, true, true
	}
	s, err := strconv.Atoi(text)
	return time.Duration(s) * time.Second, s < 0, err == nil
}

// prologTimeouts checks that Slurm waits until our programs end by themselves, because a killed program undoes
// nothing. Since 25.05 each timeout has its own name, and PrologEpilogTimeout applies to those that are not set. If
// none is set, Slurm waits for ever.
func prologTimeouts(n Node) (found []Finding) {
	if n.Slurm == nil || !n.known() {
		return nil
	}
	prolog, epilog := n.Config.MaxDurations()
	for _, c := range []struct {
		name, fact string
		minimum    time.Duration
	}{{"PrologEpilogTimeout", "prolog_deadline and epilog_deadline", max(prolog, epilog)}, {"PrologTimeout", "prolog_deadline", prolog}, {"EpilogTimeout", "epilog_deadline", epilog}} {
		if c.name == "PrologEpilogTimeout" && n.Slurm.value("PrologTimeout") != "" && n.Slurm.value("EpilogTimeout") != "" {
			continue
		}
		set, there := n.Slurm.Value(c.name)
		d, forever, ok := seconds(set.Value)
		if there && ok && !forever && d < c.minimum {
			found = append(found, fault("hook-timeout", set.From, n.Slurm.write(fmt.Sprintf("%s=%d", c.name, int(c.minimum.Seconds())))+fmt.Sprintf("; or lower %s in %s", c.fact, n.Paths.ConfigFile()),
				"%s=%s, and ours may take %d s with the undo: Slurm kills it halfway", c.name, set.Value, int(c.minimum.Seconds())))
		}
	}
	return found
}

func gresTypes(n Node) []Finding {
	if n.Slurm == nil || flag(n.Slurm.value("GresTypes"), "gpu") {
		return nil
	}
	return []Finding{fault("gres-types", n.Slurm.at("GresTypes"), n.Slurm.write("GresTypes=gpu"), "GresTypes lacks gpu: Slurm hands out no GPU")}
}

func nodeLine(n Node) []Finding {
	switch {
	case n.Slurm == nil:
		return nil
	case errors.Is(n.Slurm.NodeErr, slurm.ErrNoNode):
		return []Finding{warning("node-unknown", n.Slurm.Path, "give the node's name: mpsctl doctor --node NAME; or "+n.Slurm.write("NodeName="+n.Name+" Gres=gpu:N Feature=mps"),
			"no NodeName= line names %s: a node that registers itself has no features and no count of GPUs that a prolog can read", n.Name)}
	case n.Slurm.NodeErr != nil:
		return []Finding{fault("node-line", n.Slurm.Path, "correct that line", "%v", n.Slurm.NodeErr)}
	case n.Slurm.Gres != nil && n.Slurm.count() == 0:
		return []Finding{fault("node-gres", n.Slurm.at("NodeName"), n.Slurm.write(fmt.Sprintf("Gres=gpu:%d on the line of node %s", max(1, len(n.gpus())), n.Name)), "slurm.conf gives node %s no GPU", n.Name)}
	}
	return nil
}

// count returns the number of GPUs that slurm.conf gives the node.
func (s Slurm) count() (all int) {
	for _, w := range s.Gres.Configured {
		all += w.Count
	}
	return all
}

func nodeFeature(n Node) []Finding {
	if n.Slurm == nil || n.Policy.Trigger == nil || n.Policy.Trigger.Constraint == "" || n.Slurm.NodeErr != nil {
		return nil
	}
	name := n.Policy.Trigger.Constraint
	if slices.Contains(n.Slurm.Features, name) {
		return nil
	}
	return []Finding{fault("node-feature", n.Slurm.at("NodeName"), n.Slurm.write(fmt.Sprintf("Feature=%s on the line of node %s", strings.Join(append(slices.Clone(n.Slurm.Features), name), ","), n.Name)),
		"node %s has no Feature %s, by which the policy's trigger lets jobs ask: sbatch --constraint=%s never runs here", n.Name, name, name)}
}

func gresReads(n Node) []Finding {
	if n.Slurm == nil || n.Slurm.GresErr == nil {
		return nil
	}
	do := "correct that line; slurmd -G prints what slurmd makes of it"
	if errors.Is(n.Slurm.GresErr, fs.ErrNotExist) {
		do = "write it, as in " + examples + "gres.conf; or name it by gres_conf in " + n.Paths.ConfigFile()
	}
	return []Finding{fault("gres-conf", "gres.conf", do, "%v", n.Slurm.GresErr)}
}

// slurmdReads checks that slurmd starts with these files. If slurmd refuses a file, no job comes to the node.
func slurmdReads(n Node) []Finding {
	if n.Slurm == nil || n.Slurm.ListErr == nil || n.Slurm.GresErr != nil {
		return nil
	}
	return []Finding{fault("slurmd-refuses", n.Slurm.Path, "correct what slurmd -G complains of", "slurmd does not list its GPUs: %v", n.Slurm.ListErr)}
}

// types returns the types of GPUs that Slurm distinguishes on the node.
func (s Slurm) types() []string {
	var types []string
	for _, w := range s.Gres.Configured {
		types = append(types, w.Type)
	}
	if s.Gres.Configured == nil {
		for _, e := range s.Gres.Entries {
			types = append(types, e.Type)
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

func oneType(n Node) []Finding {
	if n.Slurm == nil || n.Slurm.Gres == nil || len(n.Slurm.types()) < 2 {
		return nil
	}
	return []Finding{fault("gpu-types", n.Slurm.at("Gres"), "give the node's GPUs one type, the same in Gres= and Type=, or none",
		"node %s has GPUs of types %s: of a request for two of them Slurm may tell the prolog a part only, so that every such node's jobs are refused", n.Name, strings.Join(n.Slurm.types(), " and "))}
}

// gresAgrees finds the device of each GPU that Slurm allocates, as a prolog does.
func gresAgrees(n Node) []Finding {
	if n.Slurm == nil || n.Slurm.Gres == nil || n.Driver == nil || len(n.gpus()) < len(n.Driver.GPUs) || len(n.gpus()) == 0 || len(n.Slurm.types()) > 1 || n.Slurm.Gres.EnvUUID {
		return nil
	}
	var devices []site.Device
	for _, g := range n.gpus() {
		if g.Device.MIGMode && n.Slurm.Gres.Detect == slurm.DetectNVML {
			return nil // Slurm names instances itself
		}
		devices = append(devices, g.Device)
	}
	for position := range n.Slurm.count() {
		refs, err := slurm.ResolvePositions(*n.Slurm.Gres, slurm.Job{GPUs: []int{position}})
		if err == nil {
			var picked []site.Device
			if picked, err = slurm.MatchDevices(*n.Slurm.Gres, refs, devices); err == nil {
				err = n.Slurm.lists(position, picked[0])
			}
		} else if inner := errors.Unwrap(err); inner != nil {
			err = inner // without a job number, because there is no job
		}
		if err != nil {
			return []Finding{fault("gres-differs", n.Slurm.Gres.Path, fmt.Sprintf("make Gres= of node %s, %s and the %d GPUs of nvidia-smi -L agree; slurmd -G prints Slurm's list. Slurm 26.05 and later names GPUs by UUID with Flags=env_uuid there", n.Name, n.Slurm.Gres.Path, len(devices)),
				"of the %d GPUs that slurm.conf gives node %s, number %d cannot be found: %v", n.Slurm.count(), n.Name, position, err)}
		}
	}
	return nil
}

// lists is an error if slurmd has another device at a position.
func (s Slurm) lists(position int, device site.Device) error {
	switch {
	case s.SlurmdGPUs == nil:
		return nil
	case position >= len(s.SlurmdGPUs):
		return fmt.Errorf("slurmd lists %d", len(s.SlurmdGPUs))
	case s.SlurmdGPUs[position] != device.Minor:
		return fmt.Errorf("slurmd has /dev/nvidia%d there, and we read /dev/nvidia%d", s.SlurmdGPUs[position], device.Minor)
	}
	return nil
}

// noShares checks that Slurm does not share GPUs among jobs in its own way.
func noShares(n Node) (found []Finding) {
	for _, shared := range []struct{ name, what string }{
		{"mps", "Slurm shares GPUs by gres/mps of its own: it takes CUDA_MPS_ACTIVE_THREAD_PERCENTAGE from the ranks of gpu jobs, and its daemon and ours want the same GPUs"},
		{"shard", "Slurm shares GPUs by gres/shard, and does not tell a prolog whether a job has a whole one: every job that asks for MPS is refused on this node"},
	} {
		found = append(found, noShare(n, shared.name, shared.what)...)
	}
	return found
}

func noShare(n Node, name, what string) []Finding {
	if n.Slurm == nil {
		return nil
	}
	inTypes, inFile := flag(n.Slurm.value("GresTypes"), name), n.Slurm.Gres != nil && slices.Contains(n.Slurm.Gres.Shared, name)
	if name == "shard" { // other nodes may have shards
		inTypes = false
	}
	if !inTypes && !inFile {
		return nil
	}
	where, do := n.Slurm.at("GresTypes"), "take "+name+" out of GresTypes and Gres= in "+n.Slurm.Path
	if inFile {
		do += " and its lines out of " + n.Slurm.Gres.Path
	}
	if name == "shard" {
		do = "take shard out of this node's Gres= in " + n.Slurm.Path + " and its lines out of " + n.Slurm.Gres.Path
	}
	if !inTypes {
		where = n.Slurm.Gres.Path
	}
	return []Finding{fault(Kind("gres-"+name), where, do+reconfigure, "%s", what)}
}

// private returns the folders that each job has for itself, and the setting that has them.
func (s Slurm) private() (dirs []string, from string) {
	kind := s.value("JobContainerType") + s.value("NamespaceType")
	if strings.HasSuffix(kind, "/linux") {
		if s.Namespace == nil {
			return nil, ""
		}
		return append(slices.Clone(s.Namespace.Dirs), s.Namespace.Base), s.Namespace.From
	}
	if !strings.HasSuffix(kind, "/tmpfs") {
		return nil, ""
	}
	from, dirs = s.at("JobContainerType"), []string{"/tmp", "/dev/shm"}
	if s.value("JobContainerType") == "" {
		from = s.at("NamespaceType")
	}
	if s.Container == nil {
		return dirs, from
	}
	if set, ok := s.Container.Value("Dirs"); ok {
		dirs, from = strings.Split(set.Value, ","), set.From
	}
	if set, ok := s.Container.Value("BasePath"); ok && set.Value != "none" {
		dirs = append(dirs, set.Value)
	}
	return dirs, from
}

// stateShared checks that ranks see the folder with their daemon's sockets. Slurm makes a job's private folders after
// the prolog.
func stateShared(n Node) []Finding {
	if n.Slurm == nil {
		return nil
	}
	dirs, from := n.Slurm.private()
	run := n.Paths.Run()
	file := "job_container.conf"
	if n.Slurm.Namespace != nil {
		file = "namespace.yaml"
	}
	for _, dir := range dirs {
		if dir = filepath.Clean(dir); run == dir || strings.HasPrefix(run, strings.TrimSuffix(dir, "/")+"/") {
			return []Finding{fault("state-private", from, "take "+dir+" out of the folders of jobs in "+file+", or move ours out of it with another --root",
				"%s lies below %s, of which every job has its own: its ranks never see their daemon's sockets", run, dir)}
		}
	}
	return nil
}

func devicesConstrained(n Node) []Finding {
	if n.Slurm == nil {
		return nil
	}
	if !flag(n.Slurm.value("TaskPlugin"), "task/cgroup") && !flag(n.Slurm.value("TaskPlugin"), "cgroup") {
		return []Finding{warning("devices-open", n.Slurm.at("TaskPlugin"), n.Slurm.write("TaskPlugin=task/cgroup,task/affinity")+"; and ConstrainDevices=yes in cgroup.conf",
			"TaskPlugin lacks task/cgroup: a job's processes can open GPUs that it was not given, past MPS")}
	}
	set, value := slurm.ConfValue{From: filepath.Join(filepath.Dir(n.Slurm.Path), "cgroup.conf")}, ""
	if n.Slurm.Cgroup != nil {
		if last, ok := n.Slurm.Cgroup.Value("ConstrainDevices"); ok {
			set, value = last, last.Value
		}
	}
	if strings.EqualFold(value, "yes") || strings.EqualFold(value, "true") || value == "1" {
		return nil
	}
	return []Finding{warning("devices-open", set.From, "write ConstrainDevices=yes in cgroup.conf"+reconfigure, "ConstrainDevices is not yes: a job's processes can open GPUs that it was not given, past MPS")}
}

// spankFits checks that --mps works on this node, if the policy's trigger takes it. Slurm loads a plugin of its own
// release only, whatever the patch level (run: 22.05, 24.11, 26.05).
func spankFits(n Node) []Finding {
	if n.Slurm == nil {
		return nil
	}
	p := n.Slurm.Plugin
	switch {
	case p == nil && (n.Policy.Trigger == nil || !n.Policy.Trigger.Option):
		return nil
	case p == nil:
		return []Finding{warning("spank-plugin", n.Slurm.Plugstack, n.installPlugin()+", or take option = true out of the policy's trigger",
			"it names no %s: srun, sbatch and salloc on this node do not know --mps, which the policy's trigger takes", pluginFile)}
	case p.Err != nil:
		return []Finding{p.unfit(n.installPlugin(), fmt.Sprintf("it names %s, which cannot be found (%v)", p.Path, p.Err))}
	case p.Release != "" && n.Slurm.Release != "" && p.Release != n.Slurm.Release:
		return []Finding{p.unfit(n.installPlugin(), fmt.Sprintf("%s is built for Slurm %s, and slurmd is %s", p.Path, p.Release, n.Slurm.Release))}
	}
	return nil
}

// installPlugin is the repair. The release is slurmd's, if it is known.
func (n Node) installPlugin() string {
	release := n.Slurm.Release
	if release == "" {
		release = "RELEASE"
	}
	return "install the package slurm-mps-spank-" + release + ", or build the plugin: make spank"
}

func (p SpankPlugin) unfit(do, what string) Finding {
	if p.Required {
		return fault("spank-plugin", p.From, do, "%s: every job fails, because the line says required", what)
	}
	return warning("spank-plugin", p.From, do, "%s: commands print two lines of warning and do not know --mps", what)
}
