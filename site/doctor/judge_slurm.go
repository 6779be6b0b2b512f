// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/state"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// reconfigure makes Slurm read its changed files. What slurm.conf(5) and gres.conf(5) have of nodes, GresTypes= and
// Type= takes effect after a restart of both daemons, which ends no job.
const (
	everywhere  = "on slurmctld's host and every node, once for a file that they share"
	reconfigure = "; then: scontrol reconfigure"
	restart     = "; then on that host: systemctl restart slurmctld; then on every node: systemctl restart slurmd"
)

func (d *diagnosis) slurmReads() {
	if d.SlurmErr != nil {
		repair := "name another by --slurm-conf: find /etc /opt /run /usr -xdev -name slurm.conf"
		if !errors.Is(d.SlurmErr, fs.ErrNotExist) {
			repair = edit("correct that line", d.Conf) + "; or " + repair
		}
		d.fault("slurm-conf", d.Conf, repair, "%v", d.SlurmErr)
	}
}

// has reports whether a setting of slurm.conf is a list with a value, in upper or lower case.
func (s slurmFiles) has(name, value string) bool {
	return slices.ContainsFunc(strings.Split(s.value(name), ","), func(item string) bool {
		return strings.EqualFold(strings.TrimSpace(item), value)
	})
}

// lineOf returns the file and line that set a name, or the file if nothing sets it.
func (s slurmFiles) lineOf(name string) string {
	last, _ := s.Value(name)
	return cmp.Or(last.From, s.Path)
}

func (s slurmFiles) value(name string) string {
	last, _ := s.Value(name)
	return last.Value
}

// set returns the command that gives a setting a value, in its line or in a new one, and what makes Slurm read it.
func (s slurmFiles) set(name, value, then string) string {
	last, set := s.Value(name)
	if !set {
		return everywhere + ": " + addLine(name+"="+value, s.Path) + then
	}
	colon := strings.LastIndex(last.From, ":")
	old, changed := `[^[:space:]#]*`, strings.NewReplacer(`\`, `\\`, "&", `\&`, "~", `\~`).Replace(value)
	if quoted(last.Value) != last.Value {
		old = `"[^"]*"`
	}
	script := fmt.Sprintf(`%s s~\b%s\s*=\s*%s~%[2]s=%[4]s~I`, last.From[colon+1:], name, old, changed)
	return everywhere + ": " + words.Step("sed", "-i", "--follow-symlinks", script, last.From[:colon]) + then
}

// addLine returns the command that adds a line to a file, of which the last line may have no end.
func addLine(line, file string) string {
	return `printf '\n%s\n' ` + words.Step(line) + " >>" + words.Step(file)
}

// quoted returns a value as Slurm's files have it.
func quoted(value string) string {
	if strings.ContainsAny(value, " \t#") {
		return `"` + value + `"`
	}
	return value
}

// setNode returns the repair of a setting of the node's line.
func (s slurmFiles) setNode(name, value string) string {
	if s.Registers != nil {
		return fmt.Sprintf("write %s=%s into slurmd's --conf, and restart slurmd: systemctl cat slurmd", name, value)
	}
	node, _ := s.Value("NodeName")
	if last, set := s.Value(name); set && last.From == node.From {
		return s.set(name, value, restart)
	}
	return s.set("NodeName", node.Value+" "+name+"="+value, restart)
}

// setHook returns the repair that makes Slurm start our program. A script of the site's is not replaced.
func (d *diagnosis) setHook(h hook) string {
	path := filepath.Join(site.Libexec, h.Ours)
	for _, p := range d.Programs {
		if p.Name == h.Ours && p.Err == nil {
			path = p.Path
		}
	}
	if slices.ContainsFunc(h.Scripts, func(s hookScript) bool { return s.Err == nil && s.Starts == "" }) {
		return edit("let it start "+words.Step(path)+" too, or name that", h.Settings[len(h.Settings)-1].From) + reconfigure
	}
	return d.Slurm.set(h.Name, quoted(path), reconfigure)
}

// hooksOurs checks that Slurm starts our programs. Without TaskProlog= a rank needs mpirun-wrap, so that is a
// warning. If a path does not exist, it is not known which program it should be, and hooksRunnable judges it.
func (d *diagnosis) hooksOurs() {
	for _, h := range d.Slurm.Hooks {
		missing := slices.ContainsFunc(h.Scripts, func(s hookScript) bool { return s.Err != nil })
		if h.position() < 0 && !missing {
			d.notOurs(h)
		}
	}
}

// position returns which of a hook's scripts is or starts our program, -1 for none.
func (h hook) position() int {
	return slices.IndexFunc(h.Scripts, func(s hookScript) bool { return s.Starts == h.Ours })
}

// withoutHook is the effect of a missing hook.
var withoutHook = map[string]string{
	"Prolog": "no job gets MPS", "Epilog": "nothing undoes what the prolog did",
	"TaskProlog": "ranks that start without mpirun-wrap run outside MPS, or fail on an exclusive GPU",
}

func (d *diagnosis) notOurs(h hook) {
	where, what := d.Slurm.Path, h.Name+"= is not set"
	if len(h.Settings) > 0 {
		last := h.Settings[len(h.Settings)-1]
		where, what = last.From, fmt.Sprintf("%s=%s neither is nor starts our %s", h.Name, last.Value, h.Ours)
		other := slices.IndexFunc(h.Scripts, func(s hookScript) bool { return s.Starts != "" })
		if other >= 0 {
			what = fmt.Sprintf("%s=%s starts our %s in place of our %s",
				h.Name, last.Value, h.Scripts[other].Starts, h.Ours)
		}
	}
	found := d.fault
	if h.Name == "TaskProlog" {
		found = d.warning
	}
	found("hook-not-ours", where, d.setHook(h), "%s: %s", what, withoutHook[h.Name])
}

// hooksRunnable judges the scripts between Slurm and our programs. programsThere judges the programs.
func (d *diagnosis) hooksRunnable() {
	for _, h := range d.Slurm.Hooks {
		bits, _ := needs(h.Ours)
		for _, s := range h.Scripts {
			switch {
			case s.Err != nil:
				d.fault("hook-missing", s.Path, "put it there, or "+d.setHook(h),
					"%s= names it and it cannot be found (%v): every job fails", h.Name, s.Err)
			case s.By != s.Path && s.Mode&bits != bits:
				d.fault("hook-mode", s.Path, "chmod 755 "+words.Step(s.Path),
					"%s= names it, and its mode is %04o: Slurm must be able to read and execute it", h.Name, s.Mode.Perm())
			}
		}
	}
}

// hookOrder checks that ours is the last of several prologs and the first of several epilogs. A script that fails
// stops the later ones: if our epilog never runs, GPUs stay exclusive. A later prolog that changes GPUs would disturb
// our daemon.
func (d *diagnosis) hookOrder() {
	for _, h := range d.Slurm.Hooks {
		i := h.position()
		if i < 0 {
			continue
		}
		path := h.Scripts[i].Path
		dir, base := filepath.Split(path)
		bare := strings.TrimLeft(base, "0123456789-_.") // without the number before it
		switch {
		case h.Name == "Prolog" && i < len(h.Scripts)-1:
			d.warning("hook-order", path, "let its name sort first: "+words.Step("mv", path, dir+"0-"+bare),
				"Slurm runs prologs in the reverse order of their names, so %s runs after it, "+
					"on GPUs that have a daemon by then", h.Scripts[i+1].Path)
		case h.Name == "Epilog" && i > 0:
			d.warning("hook-order", path, "let its name sort last: "+words.Step("mv", path, dir+"zz-"+bare),
				"Slurm runs epilogs in the reverse order of their names and stops at the first that fails: "+
					"if %s fails, ours never runs", h.Scripts[i-1].Path)
		}
	}
}

var runInJob = regexp.MustCompile("(?i),?RunInJob")

func (d *diagnosis) prologFlags() {
	has := func(flag string) bool { return d.Slurm.has("PrologFlags", flag) }
	flags := runInJob.ReplaceAllString(cmp.Or(d.Slurm.value("PrologFlags"), "Alloc"), "")
	if !has("Contain") {
		flags += ",Contain"
	}
	where, fix := d.Slurm.lineOf("PrologFlags"), d.Slurm.set("PrologFlags", strings.Trim(flags, ","), reconfigure)
	switch {
	case has("RunInJob"):
		d.warning("run-in-job", where, fix, "PrologFlags has RunInJob, which slurm-mps does not need: the daemon lives "+
			"in the job's control groups, its memory counts as the job's, and on cgroup v2 Slurm kills it when the "+
			"ranks are gone")
	case has("Contain"), has("X11"):
	case has("Alloc"), has("ForceRequeueOnFail"): // which implies Alloc
		d.warning("prolog-flags-contain", where, fix, "PrologFlags lacks Contain: "+
			"what a user starts over ssh belongs to no step, outlives the job, and is the epilog's to end")
	default:
		d.fault("prolog-flags-alloc", where, fix, "PrologFlags lacks Alloc: the prolog runs with a job's first step "+
			"only, so that the epilog of an salloc without a step has nothing to close, and a batch job's prolog has "+
			"BatchStartTimeout (%s s) to end", cmp.Or(d.Slurm.value("BatchStartTimeout"), "10"))
	}
}

// prologTimeouts checks that Slurm waits until our programs end by themselves, because a killed program undoes
// nothing. Since 25.05 each timeout has its own name, and PrologEpilogTimeout applies to those that are not set. If
// none is set, Slurm waits for ever.
func (d *diagnosis) prologTimeouts() {
	if !d.known() {
		return
	}
	prolog, epilog := d.Config.MaxDurations()
	for _, c := range []struct {
		name, attribute string
		minimum         time.Duration
	}{
		{"PrologEpilogTimeout", "prolog_deadline and epilog_deadline", max(prolog, epilog)},
		{"PrologTimeout", "prolog_deadline", prolog},
		{"EpilogTimeout", "epilog_deadline", epilog},
	} {
		both := d.Slurm.value("PrologTimeout") != "" && d.Slurm.value("EpilogTimeout") != ""
		setting, _ := d.Slurm.Value(c.name)
		minimum := int(c.minimum.Seconds())
		limit, err := strconv.Atoi(setting.Value) // INFINITE and UNLIMITED, of which the number is 65534, are no limits
		if err != nil || limit < 0 || limit >= minimum || c.name == "PrologEpilogTimeout" && both {
			continue
		}
		d.fault("hook-timeout", setting.From,
			d.Slurm.set(c.name, strconv.Itoa(minimum), reconfigure)+edit("; or lower "+c.attribute, d.Paths.ConfigFile()),
			"%s=%s, and ours may take %d s with the undo: Slurm kills it halfway", c.name, setting.Value, minimum)
	}
}

func (d *diagnosis) gresTypes() {
	if !d.Slurm.has("GresTypes", "gpu") {
		d.fault("gres-types", d.Slurm.lineOf("GresTypes"), d.Slurm.set("GresTypes", strings.Trim(d.Slurm.value("GresTypes")+",gpu", ","), restart),
			"GresTypes lacks gpu: Slurm hands out no GPU")
	}
}

func (d *diagnosis) nodeLine() {
	s := d.Slurm
	switch {
	case errors.Is(s.NodeErr, slurm.ErrNoNode):
		line := addLine(fmt.Sprintf("NodeName=%s Gres=gpu:%d Feature=mps", d.Name, max(1, len(d.gpus()))), s.Path)
		d.warning("node-unknown", s.Path, "name the node by --node, if it is one of these: grep -i NodeName= "+words.Step(s.Path)+
			"; or "+everywhere+": "+line+restart, "no NodeName= line names %s: a node that registers "+
			"itself has no features and no count of GPUs that a prolog can read", d.Name)
	case s.NodeErr != nil:
		d.fault("node-line", s.Path, edit("correct that line", s.Path), "%v", s.NodeErr)
	case s.Gres != nil && s.count() == 0:
		d.fault("node-gres", s.lineOf("NodeName"), s.setNode("Gres", fmt.Sprintf("gpu:%d", max(1, len(d.gpus())))),
			"slurm.conf gives node %s no GPU", d.Name)
	}
}

// count returns the number of GPUs that slurm.conf gives the node.
func (s slurmFiles) count() (all int) {
	for _, w := range s.Gres.Configured {
		all += w.Count
	}
	return all
}

func (d *diagnosis) nodeFeature() {
	s, trigger := d.Slurm, d.Policy.Trigger
	if trigger == nil || trigger.Constraint == "" || s.NodeErr != nil || slices.Contains(s.Features, trigger.Constraint) {
		return
	}
	features := strings.Join(append(slices.Clone(s.Features), trigger.Constraint), ",")
	d.warning("node-feature", s.lineOf("NodeName"), s.setNode("Feature", features),
		"node %s has no Feature %s, by which the policy's trigger lets jobs ask: sbatch --constraint=%[2]s never runs "+
			"here", d.Name, trigger.Constraint)
}

func (d *diagnosis) gresReads() {
	if d.Slurm.GresErr != nil {
		path := cmp.Or(d.Config.GresConf, d.Slurm.inFolder("gres.conf"))
		d.fault("gres-conf", "gres.conf", edit("write it as in "+examples+"gres.conf", path)+
			edit("; or name another by gres_conf", d.Paths.ConfigFile()), "%v", d.Slurm.GresErr)
	}
}

// slurmdReads checks that slurmd starts with these files. If slurmd refuses a file, no job comes to the node.
func (d *diagnosis) slurmdReads() {
	if d.Slurm.ListErr != nil && d.Slurm.GresErr == nil {
		d.fault("slurmd-refuses", d.Slurm.Path, "correct what it complains of: "+
			words.Step("slurmd", "-G", "-N", d.Name, "-f", d.Conf), "slurmd does not list its GPUs: %v", d.Slurm.ListErr)
	}
}

// types returns the types of GPUs that Slurm distinguishes on the node.
func (s slurmFiles) types() []string {
	if s.Gres == nil {
		return nil
	}
	types := map[string]bool{}
	for _, w := range s.Gres.Configured {
		types[w.Type] = true
	}
	for _, e := range s.Gres.Entries {
		if s.Gres.Configured == nil {
			types[e.Type] = true
		}
	}
	return slices.Sorted(maps.Keys(types))
}

func (d *diagnosis) oneType() {
	if types := d.Slurm.types(); len(types) > 1 {
		d.fault("gpu-types", d.Slurm.lineOf("Gres"),
			edit("give the node's GPUs one type, the same in Gres= and Type=, or none", d.Slurm.lineOf("Gres"))+restart,
			"node %s has GPUs of types %s: of a request for two of them Slurm may tell the prolog a part only, "+
				"so that every such node's jobs are refused", d.Name, strings.Join(types, " and "))
	}
}

// gresAgrees finds the device of each GPU that Slurm allocates, as a prolog does.
func (d *diagnosis) gresAgrees() {
	s := d.Slurm
	unknown := s.Gres == nil || d.Driver == nil || len(d.gpus()) < len(d.Driver.GPUs) || len(d.gpus()) == 0
	if unknown || len(s.types()) > 1 || s.Gres.EnvUUID {
		return
	}
	var devices []site.Device
	for _, g := range d.gpus() {
		if g.Device.MIGMode && s.Gres.Detect == slurm.DetectNVML {
			return // Slurm names instances itself
		}
		devices = append(devices, g.Device)
	}
	for position := range s.count() {
		if err := s.match(position, devices); err != nil {
			d.fault("gres-differs", s.Gres.Path, fmt.Sprintf("let these and %s agree, by Flags=env_uuid from "+
				"Slurm 26.05 on: nvidia-smi -L && slurmd -G", words.Step(s.Gres.Path))+edit("; in", s.lineOf("NodeName"))+restart,
				"of the %d GPUs that slurm.conf gives node %s, number %d cannot be found: %v",
				s.count(), d.Name, position, err)
			return
		}
	}
}

// match finds the device at a position. It is an error if slurmd has another one there.
func (s slurmFiles) match(position int, devices []site.Device) error {
	refs, err := slurm.ResolvePositions(*s.Gres, slurm.Job{Job: policy.Job{GPUs: []int{position}}})
	if err != nil {
		return cmp.Or(errors.Unwrap(err), err) // without a job number, because there is no job
	}
	found, err := slurm.MatchDevices(*s.Gres, refs, devices)
	switch minors := s.SlurmdGPUs; {
	case err != nil:
		return err
	case minors != nil && position >= len(minors):
		return fmt.Errorf("slurmd lists %d", len(minors))
	case minors != nil && minors[position] < 0:
		return fmt.Errorf("slurmd has the device of no whole GPU there, and we read /dev/nvidia%d", found[0].Minor)
	case minors != nil && minors[position] != found[0].Minor:
		return fmt.Errorf("slurmd has /dev/nvidia%d there, and we read /dev/nvidia%d", minors[position], found[0].Minor)
	}
	return nil
}

// parts checks that jobs with parts of GPUs can run under MPS: the units of each GPU must be known. A GPU that stays in
// EXCLUSIVE_PROCESS mode is a finding of status.
func (d *diagnosis) parts() {
	s := d.Slurm
	if s.Gres == nil {
		return
	}
	for _, name := range []string{"shard", "mps"} {
		if !slices.Contains(s.Gres.Shared, name) {
			continue
		}
		if _, err := s.Gres.SharedCount(name, 0); err != nil {
			d.fault(state.Kind("gres-"+name), s.Gres.Path, edit("let it and Gres= of this node in "+words.Step(s.Path)+" agree", s.Gres.Path)+restart,
				"jobs of gres/%s are refused MPS: %s", name, words.OneLine(err))
		}
	}
}

// private returns the folders that each job has for itself, and the setting that has them.
func (s slurmFiles) private() (dirs []string, from string) {
	kind := s.value("JobContainerType") + s.value("NamespaceType")
	if strings.HasSuffix(kind, "/linux") && s.Namespace != nil {
		return append(slices.Clone(s.Namespace.Dirs), s.Namespace.Base), s.Namespace.From
	}
	if !strings.HasSuffix(kind, "/tmpfs") {
		return nil, ""
	}
	container, _ := s.Value("JobContainerType")
	from, dirs = cmp.Or(container.From, s.lineOf("NamespaceType")), []string{"/tmp", "/dev/shm"}
	if s.Container == nil {
		return dirs, from
	}
	if setting, ok := s.Container.Value("Dirs"); ok {
		dirs, from = strings.Split(setting.Value, ","), setting.From
	}
	if setting, ok := s.Container.Value("BasePath"); ok && setting.Value != "none" {
		dirs = append(dirs, setting.Value)
	}
	return dirs, from
}

// stateShared checks that ranks see the folder with their daemon's sockets. Slurm makes a job's private folders after
// the prolog.
func (d *diagnosis) stateShared() {
	dirs, from := d.Slurm.private()
	run, file := d.Paths.Run(), "job_container.conf"
	if d.Slurm.Namespace != nil {
		file = "namespace.yaml"
	}
	for _, dir := range dirs {
		if dir = filepath.Clean(dir); run == dir || strings.HasPrefix(run, strings.TrimSuffix(dir, "/")+"/") {
			d.fault("state-private", from,
				edit("take "+words.Step(dir)+" out of the folders of jobs, or give ours another --root", d.Slurm.inFolder(file)),
				"%s lies below %s, of which every job has its own: its ranks never see their daemon's sockets", run, dir)
			return
		}
	}
}

func (d *diagnosis) devicesConstrained() {
	const harm = "a job's processes can open GPUs that it was not given, past MPS"
	s := d.Slurm
	if !s.has("TaskPlugin", "task/cgroup") && !s.has("TaskPlugin", "cgroup") {
		d.warning("devices-open", s.lineOf("TaskPlugin"),
			s.set("TaskPlugin", "task/cgroup,task/affinity", reconfigure), "TaskPlugin lacks task/cgroup: %s", harm)
		return
	}
	conf := slurmFiles{ConfFile: *cmp.Or(s.Cgroup, &slurm.ConfFile{Path: s.inFolder("cgroup.conf")})}
	if !slices.Contains([]string{"yes", "true", "1"}, strings.ToLower(conf.value("ConstrainDevices"))) {
		d.warning("devices-open", conf.lineOf("ConstrainDevices"), conf.set("ConstrainDevices", "yes", reconfigure),
			"ConstrainDevices is not yes: %s", harm)
	}
}
