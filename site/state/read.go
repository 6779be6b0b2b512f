// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/clientenv"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/slurm/steps"
	"github.com/slurm-mps/slurm-mps/site/wait"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// daemons asks control daemons: one question at a time, each with a deadline.
type daemons interface {
	State(context.Context, lease.Job, lease.Daemon) (mps.State, error)
}

// Driver lists the GPUs and their processes.
type Driver interface {
	List() ([]gpu.Status, error)
	Instance(site.UUID) gpu.Status
}

// Reader reads the state of a node, any number of times, one at a time.
type Reader struct {
	Store   *lease.Store
	Run     string                 // the folder of state
	Daemons daemons                // nil asks no daemon
	Driver  func() (Driver, error) // opens the driver at its first use
	Name    string                 // the node's name
	Conf    string                 // of Slurm; a status without it finds no lease-without-step
	Paths   site.Paths             // for the commands in findings
	Clock   func() time.Time
	Root    bool
	Files   func() (policy, config policyfile.FileStatus) // of the admins' files; nil if that is not needed
}

// The limits of one reading of the node, even if a daemon or the driver hangs.
const (
	inspectDeadline = 30 * time.Second
	driverDeadline  = 15 * time.Second // a driver without persistence initialises its GPUs first
)

// tries bounds how often a look is repeated because a prolog or an epilog changed the records at the same time.
const tries = 5

// Inspect reads the node, and returns the findings that report selects. A finding was seen twice, while the records
// stayed the same. Otherwise a prolog, an epilog or a starting client could be seen half way.
func (r *Reader) Inspect(ctx context.Context, reported func([]Finding) []Finding) (Node, []Finding) {
	for try := 1; ; try++ {
		n := r.once(ctx)
		found := reported(diagnose(n))
		if len(found) == 0 {
			return n, found
		}
		if try < tries && ctx.Err() == nil && r.moved(n) {
			continue
		}
		var pause time.Duration
		for _, f := range found {
			pause = max(pause, passes[f.Kind])
		}
		wait.Sleep(ctx, pause)
		again := r.once(ctx)
		agreed := both(reported(diagnose(again)), found)
		if ctx.Err() == nil {
			return again, agreed
		}
		n.missed("all of the node twice: no time was left for a whole second look")
		return n, agreed
	}
}

// passes are the times in which states end that only look like findings: a process of a guard that has ended, and a job
// between its prolog and its first step, or between its last step and its epilog.
var passes = map[Kind]time.Duration{TakersStuck: 100 * time.Millisecond, LeaseWithoutStep: 5 * time.Second}

// moved reports whether the records have changed since a look began.
func (r *Reader) moved(n Node) bool {
	var now Node
	r.readRecords(&now)
	return now.records != n.records
}

// both returns the findings of the later look that the earlier look had too.
func both(later, earlier []Finding) []Finding {
	return slices.DeleteFunc(later, func(f Finding) bool { return !slices.ContainsFunc(earlier, f.same) })
}

// once reads the node once. It asks the driver before the daemons, so a client that the driver lists is known to its
// daemon by then.
func (r *Reader) once(ctx context.Context) Node {
	ctx, cancel := context.WithTimeout(ctx, inspectDeadline)
	defer cancel()
	n := Node{
		Name: r.Name, Time: r.Clock(), Root: r.Root, Jobs: []Job{}, GPUs: []GPU{}, Incomplete: []string{},
		run: r.Run, paths: r.Paths,
	}
	r.readFiles(&n)
	r.readRecords(&n)
	r.readSteps(&n)
	r.readCensus(ctx, &n)
	r.readDriver(ctx, &n)
	r.readDaemons(ctx, &n)
	r.readClients(ctx, &n)
	return n
}

// readFiles finds out whether the policy and the site's file can be used. Only root may be able to read them.
func (r *Reader) readFiles(n *Node) {
	if r.Files == nil {
		return
	}
	n.policy, n.config = r.Files()
	for _, s := range []*policyfile.FileStatus{&n.policy, &n.config} {
		if errors.Is(s.Err, fs.ErrPermission) && !r.Root {
			n.missed("a file of the site's: %v", s.Err)
			*s = policyfile.FileStatus{}
		}
	}
}

func (n *Node) missed(format string, args ...any) {
	n.Incomplete = append(n.Incomplete, fmt.Sprintf(format, args...))
}

// keepsStep matches the PrologFlags with which each job has a step of its own on the node, the extern step.
var keepsStep = regexp.MustCompile(`(?i)\b(contain|x11|runinjob)\b`)

// readSteps notes the jobs without a step. Without the extern step that means nothing: an idle salloc has none.
func (r *Reader) readSteps(n *Node) {
	conf, err := slurm.ReadConfFile(r.Conf, r.Name)
	if flags, _ := conf.Value("PrologFlags"); err != nil || !r.Root || !keepsStep.MatchString(flags.Value) {
		return
	}
	running, err := steps.Find()
	if err != nil {
		n.missed("%v", err)
		return
	}
	for i, j := range n.Jobs {
		n.Jobs[i].stepless = !lease.IsShared(j.ID) && running.Sign(j.ID, j.sluid) == ""
	}
}

// readCensus finds the processes of MPS, and which of the recorded daemons still run.
func (r *Reader) readCensus(ctx context.Context, n *Node) {
	var err error
	n.census, err = mps.FindAll(ctx)
	if err != nil {
		n.missed("the processes of MPS: %v", err)
		return
	}
	proc.ReadStats(ctx, n.recorded()) // all at once, because each that does not answer would take a second
	if silence := proc.Silence(); silence != "" {
		n.missed("%s", silence)
	}
	hidden := 0
	for _, p := range n.census {
		if p.Err != nil && p.Role == mps.RoleDaemon && !n.ofLease(p) {
			hidden++
		}
	}
	if hidden > 0 {
		n.missed("the pipe folders of %s of other users", words.Count(hidden, "MPS daemon"))
	}
	for i := range n.Jobs {
		for k := range n.Jobs[i].Daemons {
			n.Jobs[i].Daemons[k].look(n.census, n.Jobs[i].UID)
		}
	}
}

// recorded returns the pids of the recorded daemons and of the processes that the guards have seen outside of MPS.
func (n *Node) recorded() (pids []int) {
	for _, j := range n.Jobs {
		for _, d := range j.Daemons {
			pids = append(pids, d.record.Proc.PID)
		}
		if j.Guard != nil {
			for _, o := range j.Guard.Outside {
				pids = append(pids, o.Proc.PID)
			}
		}
	}
	return pids
}

// look compares the recorded process with those that run. A process with its pipe folder counts as a replacement only
// if it belongs to the job's user, because anyone can name a folder.
func (d *Daemon) look(census []mps.Process, uid uint32) {
	if d.record.Proc.PID == 0 {
		d.State = NotStarted
		return
	}
	if slices.ContainsFunc(census, func(p mps.Process) bool { return p.Process == d.record.Proc }) {
		return
	}
	other := slices.IndexFunc(census, func(p mps.Process) bool {
		return p.Role == mps.RoleDaemon && p.UID == uid && p.PipeDir == d.PipeDir && p.Process != d.record.Proc
	})
	switch {
	case d.record.Proc.Running():
		d.State, d.Reason = Replaced, fmt.Sprintf("%s runs another program by now", d.record.Proc)
	case other >= 0:
		d.State = Replaced
		d.Reason = fmt.Sprintf("%s has ended, and %s has its pipe folder", d.record.Proc, census[other].Process)
	default:
		d.State, d.Reason = Gone, fmt.Sprintf("%s has ended", d.record.Proc)
	}
}

// readDriver asks the driver for all GPUs and for the instances that jobs have. It does not wait for a driver that
// hangs.
func (r *Reader) readDriver(ctx context.Context, n *Node) {
	ctx, cancel := context.WithTimeout(ctx, driverDeadline)
	defer cancel()
	instances := n.instances()
	seen, err := wait.Within(ctx, func() ([]gpu.Status, error) { return r.askDriver(instances) })
	switch {
	case err != nil && ctx.Err() != nil:
		n.missed("the GPUs: the driver does not answer within %v", driverDeadline)
		return
	case err != nil:
		n.missed("the GPUs: %v", err)
		return
	}
	n.driverAnswered = true
	r.takeGPUs(n, seen)
}

func (r *Reader) askDriver(instances []site.UUID) ([]gpu.Status, error) {
	driver, err := r.Driver()
	if err != nil {
		return nil, err
	}
	seen, err := driver.List()
	if err != nil {
		return nil, err
	}
	for _, uuid := range instances {
		instance := driver.Instance(uuid)
		instance.Device.UUID = uuid
		seen = append(seen, instance)
	}
	return seen, nil
}

// instances returns the MIG instances that jobs have, because the driver does not list instances.
func (n Node) instances() []site.UUID {
	var all []site.UUID
	for _, j := range n.Jobs {
		for _, held := range j.Devices {
			if held.UUID.MIG() && !slices.Contains(all, held.UUID) {
				all = append(all, held.UUID)
			}
		}
	}
	return all
}

func (r *Reader) takeGPUs(n *Node, seen []gpu.Status) {
	for _, s := range seen {
		g := GPU{
			Index: s.Index, Minor: s.Device.Minor, UUID: s.Device.UUID, Name: s.Device.Name, SMs: s.Device.SMs, Mode: s.Mode,
			Processes: []Process{}, tpc: s.Device.TPC,
		}
		if s.Err != nil {
			g.Error = strings.ReplaceAll(s.Err.Error(), "\n", "; ")
			n.missed("%s: %s", g, g.Error)
		}
		g.Holder = n.heldBy(g.UUID)
		g.Held = g.Holder != nil || g.Mode == site.ModeExclusiveProcess && n.unread()
		g.Holders = n.sharers(g.UUID)
		for _, p := range s.Processes {
			if proc.Exists(p.PID) { // the driver may list a dead process while the guard holds its files
				g.Processes = append(g.Processes, Process{
					PID: p.PID, Kind: n.kind(p, g), Name: clientenv.Command(p.PID), UsedMiB: p.MiB,
				})
			}
		}
		slices.SortFunc(g.Processes, func(a, b Process) int { return a.PID - b.PID })
		n.GPUs = append(n.GPUs, g)
	}
}

// unread reports whether there is a lease of which is not known what it holds.
func (n Node) unread() bool {
	return len(n.hidden) > 0 || slices.ContainsFunc(n.Jobs, func(j Job) bool { return j.Phase == Unreadable })
}

// leased reports whether a job has a lease of this boot.
func (n Node) leased(job uint32) bool {
	return slices.ContainsFunc(n.Jobs, func(j Job) bool { return j.ID == job && j.leased })
}

// sharers returns the jobs that share a device, in order. The daemon of several jobs is none.
func (n Node) sharers(uuid site.UUID) (jobs []uint32) {
	for _, j := range n.Jobs {
		if j.holds(uuid) && j.Part.Shared() && !lease.IsShared(j.ID) {
			jobs = append(jobs, j.ID)
		}
	}
	return jobs
}

// heldBy returns the job that has a device by its lease or ticket, nil if there is no such job that the caller may
// know.
func (n Node) heldBy(uuid site.UUID) *uint32 {
	for _, j := range n.Jobs {
		if j.holds(uuid) {
			return &j.ID
		}
	}
	return nil
}

// holds reports whether a job with MPS has a device by its lease or ticket.
func (j Job) holds(uuid site.UUID) bool {
	has := func(h Held) bool { return h.UUID == uuid }
	return j.leased && !j.noMPS && slices.ContainsFunc(j.Devices, has)
}

// kind distinguishes a server from a process that computes without MPS. The driver does not distinguish them.
func (n Node) kind(p gpu.Process, g GPU) string {
	if p.MPS {
		return KindClient
	}
	for _, j := range n.Jobs {
		for _, d := range j.Daemons {
			served := slices.ContainsFunc(n.census, func(c mps.Process) bool {
				return c.PID == p.PID && mps.IsServerOf(c, d.record.Proc)
			})
			if served && slices.Contains(d.Devices, g.UUID) {
				return kindServer
			}
		}
	}
	return KindCompute
}

// readDaemons asks all daemons side by side, so that one that does not answer delays no other. Each is asked one
// question at a time, because parallel questions to one daemon fail (measured).
func (r *Reader) readDaemons(ctx context.Context, n *Node) {
	if r.Daemons == nil {
		return
	}
	var asked sync.WaitGroup
	for i := range n.Jobs {
		j := &n.Jobs[i]
		for k := range j.Daemons {
			d := &j.Daemons[k]
			switch {
			case d.State != Alive:
			case !r.Root && j.UID != uint32(os.Geteuid()):
				n.missed("the daemon of job %d: only its user and root may ask it", j.ID)
			case ctx.Err() != nil:
				n.missed("the daemon of job %d: no time was left to ask it", j.ID)
			default:
				asked.Go(func() { r.ask(ctx, j, d) })
			}
		}
	}
	asked.Wait()
}

func (r *Reader) ask(ctx context.Context, j *Job, d *Daemon) {
	state, err := r.Daemons.State(ctx, j.owner, d.record)
	d.State = servingOf(err)
	if err != nil {
		d.Reason = err.Error()
		return
	}
	d.Ceiling, d.rows = &state.Ceiling, state.Clients
	d.Servers = append(d.Servers, state.Servers...)
}

func servingOf(err error) daemonState {
	switch {
	case err == nil:
		return Serves
	case errors.Is(err, site.ErrDaemonDown):
		return NotServing
	case errors.Is(err, site.ErrNoAnswer):
		return NoAnswer
	}
	return Unclear
}

// jobList returns "job 7", or "jobs 7, 8" with at most ten numbers.
func jobList(jobs []uint32) string {
	const limit = 10
	text := strings.ReplaceAll(strings.Trim(fmt.Sprint(jobs[:min(len(jobs), limit)]), "[]"), " ", ", ")
	switch {
	case len(jobs) == 1:
		return "job " + text
	case len(jobs) > limit:
		text += fmt.Sprintf(" and %d more", len(jobs)-limit)
	}
	return "jobs " + text
}

// SlurmConf returns the slurm.conf that slurmd reads: the named one, the site's own, or the copy of a node without one.
func SlurmConf(named string) string {
	const usual = "/etc/slurm/slurm.conf"
	for _, path := range []string{usual, "/run/slurm/conf/slurm.conf"} {
		if _, err := os.Stat(path); err == nil && named == "" {
			return path
		}
	}
	return cmp.Or(named, usual)
}

// Open makes a reader of this node, with the path of slurm.conf. If asking is true, it asks the daemons. If the site's
// file cannot be used, every reading of the node reports that.
func Open(paths site.Paths, conf string, asking bool) (*Reader, error) {
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot find out which node this is: %w", err)
	}
	config, _ := policyfile.ReadConfig(paths)
	r := &Reader{
		Store: lease.OpenReadOnly(paths.Run(), boot), Run: paths.Run(), Name: name, Conf: conf, Paths: paths,
		Clock: time.Now, Root: os.Geteuid() == 0, Driver: opening(config.NVMLLibrary),
		Files: func() (policy, config policyfile.FileStatus) {
			_, policy = policyfile.ReadPolicy(paths)
			_, config = policyfile.ReadConfig(paths)
			return policy, config
		},
	}
	if asking {
		r.Daemons = mps.ControlProgram{Path: config.Control, LibraryPath: config.LibraryPath}
	}
	return r, nil
}

// opening opens NVML at its first use, once, because that takes 8 ms (measured). It does not repeat a call that hung.
func opening(library string) func() (Driver, error) {
	return sync.OnceValues(func() (Driver, error) {
		nvml, err := gpu.Open(library)
		if err != nil {
			return nil, err
		}
		return nvml, nil
	})
}
