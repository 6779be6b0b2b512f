// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/policyfile"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// diagnose returns the findings of a node, job by job, then GPU by GPU. It is pure: the same node has the same
// findings. It reports only parts that were seen.
func diagnose(n Node) []Finding {
	d := diagnosis{Node: n}
	d.file(PolicyUnusable, n.paths.Policy(), n.policy, "jobs that ask for MPS fail, and drain the node",
		"mpsctl policy check")
	d.file(ConfigUnusable, n.paths.ConfigFile(), n.config, "the defaults hold", "mpsctl doctor")
	for _, j := range n.Jobs {
		d.job(j)
	}
	d.judgeGPUs()
	d.judgeDaemons()
	d.judgeTakers()
	for _, b := range d.busy {
		d.add(Finding{Kind: MemoryHeld, Job: b.Job, Where: fmt.Sprintf("uid %d", b.UID), What: b.String(),
			Fix: fmt.Sprintf("end the user's processes: ps -fU %d; this frees it: mpsctl reap%s", b.UID, d.paths.Flag())})
	}
	return d.found
}

// diagnosis gathers the findings of a node.
type diagnosis struct {
	Node
	found []Finding
}

func (d *diagnosis) add(f Finding) { d.found = append(d.found, f) }

// finding is a finding of a job.
func (j Job) finding(kind Kind, what, fix string) Finding {
	return Finding{Kind: kind, Job: j.ID, Where: lease.Name(j.ID), What: what, Fix: fix}
}

// in returns a finding of a process, whose place gets an addition.
func (f Finding) in(pid int, addition string) Finding {
	f.PID, f.Where = pid, f.Where+addition
	return f
}

// on is a finding of a job's device.
func (d *diagnosis) on(j Job, uuid site.UUID, kind Kind, what, fix string) Finding {
	f := j.finding(kind, what, fix).in(0, ", "+d.where(uuid))
	f.GPU = uuid
	return f
}

// process adds a finding of a process on a job's device.
func (d *diagnosis) process(j Job, uuid site.UUID, pid int, kind Kind, what, fix string) {
	f := d.on(j, uuid, kind, what, fix)
	f.PID, f.Where = pid, fmt.Sprintf("pid %d, %s", pid, f.Where)
	d.add(f)
}

func (n Node) where(uuid site.UUID) string {
	if g := n.GPU(uuid); g != nil && !uuid.MIG() {
		return fmt.Sprintf("%s (%s)", g, uuid)
	}
	return string(uuid)
}

// requeue is the repair of a job that has lost something.
func (j Job) requeue() string { return fmt.Sprintf("requeue the job: scontrol requeue %d", j.ID) }

// file judges a file of the admin's. The command shows the mistake.
func (d *diagnosis) file(kind Kind, path string, s policyfile.FileStatus, without, command string) {
	if s.Err == nil {
		return
	}
	what := fmt.Sprintf("it cannot be used: %s: %s", strings.TrimSuffix(words.OneLine(s.Err), "."), s.Instead(without))
	d.add(Finding{Kind: kind, Where: path, What: what, Fix: "see what is wrong: " + command + d.paths.Flag()})
}

// undone adds a finding of a job that reap undoes.
func (d *diagnosis) undone(j Job, kind Kind, what string, by Action) {
	f := j.finding(kind, what, fmt.Sprintf("%s it: %s", by, d.paths.ReapCommand(j.ID)))
	f.Undo = by
	d.add(f)
}

// unfinished tells what has ended too early, of a lease in whose phase a prolog or an epilog works.
var unfinished = map[Phase]string{
	Opening: "its prolog has ended before the job was ready",
	closing: "its epilog has ended before all was undone: the log has the reason, unless the epilog was killed",
}

// job judges one job. While a prolog or an epilog works on a job, nothing about it is a finding.
func (d *diagnosis) job(j Job) {
	switch {
	case j.Acting != 0:
	case j.Phase == Unreadable:
		d.add(j.finding(leaseUnreadable, j.err.Error(), stays(d.run)))
	case !j.leased:
		d.leftovers(j)
	case unfinished[j.Phase] != "":
		d.undone(j, leaseUnfinished, unfinished[j.Phase], Close)
	case j.Phase == Opened:
		d.opened(j)
	case j.Phase == Recorded && j.stepless:
		d.add(j.finding(LeaseWithoutStep, "no step of it is here, and by PrologFlags each job has one until it ends: "+
			"its epilog was killed, or never ran, and its recorder goes on", d.paths.IfGone(j.ID)))
	}
}

// leftovers judges the files of a job without a lease. They have no effect, and can mislead an admin.
func (d *diagnosis) leftovers(j Job) {
	dir := filepath.Join(d.run, "jobs", fmt.Sprint(j.ID))
	switch {
	case j.ticketed() && j.ticket == nil:
		d.add(j.finding(ticketWithoutLease, "its ticket cannot be read: "+words.OneLine(j.ticketErr), stays(d.run)))
		return
	case j.Refused != "" && j.dir:
		d.add(j.finding(directoryWithoutLease, dir+" is left of a job that was refused and may run",
			"when the job is gone: "+d.paths.ReapCommand(j.ID)))
		return
	case j.ticketed() && j.Refused == "":
		ticket := filepath.Join(d.run, "tickets", fmt.Sprintf("%d.json", j.ID))
		d.undone(j, ticketWithoutLease, "ranks that read "+ticket+" continue as if the job had MPS", remove)
	}
	if j.dir {
		d.undone(j, directoryWithoutLease, dir+" is left of a job that has been closed", remove)
	}
}

// shared judges what jobs share: a daemon that none of them names, and a job whose daemon has no lease.
func (d *diagnosis) shared(j Job) {
	uses := func(other Job) bool { return other.leased && other.Joined == j.ID }
	switch {
	case lease.IsShared(j.ID) && d.Root && !slices.ContainsFunc(d.Jobs, uses):
		d.undone(j, sharedWithoutJob, "no job's lease names this daemon, so no epilog will end it", Close)
	case j.Joined != 0 && d.Root && !d.leased(j.Joined):
		d.add(j.finding(jobWithoutShared, "the daemon that it shares has no lease: its ranks do not start", j.requeue()))
	}
}

// opened judges a job that is ready for its ranks.
func (d *diagnosis) opened(j Job) {
	d.shared(j)
	if j.stepless {
		d.add(j.finding(LeaseWithoutStep, "no step of it is here, and by PrologFlags each job has one until it ends: "+
			"its epilog was killed, or never ran, and the next job on its GPUs drains the node", d.paths.IfGone(j.ID)))
	}
	if d.Root && j.ticket == nil {
		what := fmt.Sprintf("its ranks do not start: its ticket: %v", j.ticketErr)
		d.add(j.finding(leaseWithoutTicket, what, j.requeue()))
	}
	for _, held := range j.Devices {
		d.device(j, held)
	}
	for _, daemon := range j.Daemons {
		d.daemon(j, daemon)
	}
	if j.Guard != nil {
		d.guard(j, *j.Guard)
	}
}

// guard judges the guard of a job, and the processes that it could not guard.
func (d *diagnosis) guard(j Job, g Guard) {
	another := "to have a guard again " + j.requeue()
	if !g.Running {
		const what = "pid %d has ended: a client that ends with work in flight kills the other clients on its GPU"
		d.add(j.finding(guardGone, fmt.Sprintf(what, g.PID),
			"find out who ended it, in the log and by dmesg; "+another).in(g.PID, ""))
	}
	if g.Stalled != nil {
		const what = "pid %d has not looked since %s: new clients are not protected"
		d.add(j.finding(GuardStalled, fmt.Sprintf(what, g.PID, g.Stalled.Format("15:04:05")),
			fmt.Sprintf("look for state T or D: ps -o pid,stat,wchan,args -p %d; %s", g.PID, another)).in(g.PID, ""))
	}
	for _, u := range g.Unguarded {
		what := fmt.Sprintf("the guard could not watch %s of the job: %s: one that ends with work in flight kills its "+
			"neighbours", words.Count(u.Processes, "process"), u.Cause)
		const fix = "docs/operator.md, Repair, has what to do for each cause; to see them: ps -fU %d"
		d.add(j.finding(ClientsUnguarded, what, fmt.Sprintf(fix, j.UID)).in(g.PID, ": "+u.Cause))
	}
	if g.Unheld > 0 {
		const what = "the guard could not hold %d driver files of the job's clients"
		d.add(j.finding(FilesUnheld, fmt.Sprintf(what, g.Unheld), fmt.Sprintf(`see why: grep '"job":%d,' %s`, j.ID, words.Step(d.paths.Log()))).in(g.PID, ""))
	}
	for _, o := range g.Outside {
		if o.Proc.Running() {
			f := j.finding(processWithoutMPS, "it has a GPU of the job open and is no client of the job's MPS daemon: "+o.Cause,
				fmt.Sprintf("ask the user; to see how it was started: ps -fp %d", o.Proc.PID))
			f.PID, f.Where = o.Proc.PID, fmt.Sprintf("pid %d, %s", o.Proc.PID, f.Where)
			d.add(f)
		}
	}
}

// judgeTakers judges processes of guards that no signal ends. Each waits for a file system of a user.
func (d *diagnosis) judgeTakers() {
	users := map[uint32][]lease.Taker{}
	for _, t := range d.takers {
		users[t.UID] = append(users[t.UID], t)
	}
	for _, uid := range slices.Sorted(maps.Keys(users)) {
		const fix = "end the user's processes: ps -fU %d; with 8 of root's, no guard of the user's jobs holds files"
		d.add(Finding{Kind: TakersStuck, Where: fmt.Sprintf("uid %d", uid), What: takersSentence(users[uid]),
			Fix: fmt.Sprintf(fix, uid)})
	}
}

// takersSentence describes the takers of one user's jobs that are left.
func takersSentence(left []lease.Taker) string {
	var jobs []uint32
	for _, t := range left {
		jobs = append(jobs, t.Job)
	}
	slices.Sort(jobs)
	jobs = slices.Compact(jobs)
	return fmt.Sprintf("%s of root's (%s first), started for %s: each waits for a file system of the user's "+
		"that does not answer", words.Count(len(left), "process"), left[0].Proc, jobList(jobs))
}

// device judges a device of a job.
func (d *diagnosis) device(j Job, held Held) {
	g := d.GPU(held.UUID)
	switch {
	case g == nil && d.driverAnswered:
		d.add(d.on(j, held.UUID, gpuMissing, "the driver does not show it",
			"look at the kernel's log for Xid messages of this GPU: dmesg"))
	case g == nil || g.Mode == "":
	case held.Set != "" && g.Mode != held.Set:
		d.add(d.on(j, held.UUID, modeDiffers, fmt.Sprintf("it is in mode %s, and the lease has set %s", g.Mode, held.Set),
			fmt.Sprintf("find out who set it; to set it again: nvidia-smi -i %s -c %s",
				held.UUID, strings.ToUpper(string(held.Set)))))
	}
	for _, c := range held.Clients {
		d.client(j, held, c)
	}
	d.otherProcesses(j, held)
}

// notServing is the finding of a daemon's state that is not serving, and its effect.
var notServing = map[daemonState]struct {
	kind   Kind
	effect string
}{
	Gone:       {DaemonGone, "CUDA starts without MPS, or fails with error 46 on an exclusive GPU"},
	Replaced:   {DaemonReplaced, "the epilog ends what it can prove to be the daemon's"},
	NotServing: {DaemonNotServing, "its socket does not answer, and CUDA starts without MPS"},
	NoAnswer: {DaemonNoAnswer, "no answer within 2 s: it, its server or a client is stopped, " +
		"or a client is being ended; new clients wait"},
	Unclear: {DaemonUnclear, "it answers, and not what was asked"},
}

// daemon judges a daemon of a job.
func (d *diagnosis) daemon(j Job, daemon Daemon) {
	place := ", " + daemon.PipeDir
	if wrong, found := notServing[daemon.State]; found {
		f := j.finding(wrong.kind, daemon.Reason+": "+wrong.effect, j.requeue())
		if daemon.State == NoAnswer {
			f.What, f.Fix = wrong.effect, fmt.Sprintf(
				"look for state T: ps -o pid,stat,args --ppid %d -p %[1]d; if it stays so, %s", daemon.PID, j.requeue())
		}
		d.add(f.in(daemon.PID, place))
		return
	}
	for _, s := range daemon.Servers {
		if s.Status == "FAULT" {
			d.add(j.finding(ServerFault, "a client has failed on the GPU: its neighbours fail too, "+
				"and new clients get error 807 until all of them are gone",
				"end the job's processes, or "+j.requeue()).in(s.PID, fmt.Sprintf(", server pid %d", s.PID)))
		}
	}
	// The daemon enforces its percentage for all clients, and its user can change it.
	if j.Ceiling == 0 || daemon.Ceiling == nil {
		return
	}
	reported, source := *daemon.Ceiling, "servers to come"
	for _, s := range daemon.Servers {
		if above(s.Percent, j.Ceiling) {
			reported, source = s.Percent, fmt.Sprintf("server pid %d", s.PID)
		}
	}
	if above(reported, j.Ceiling) {
		const what = "%s let a client have %.1f %% of a GPU, and the ceiling granted is %s %%: the job's user has set it"
		d.add(j.finding(CeilingLifted, fmt.Sprintf(what, source, reported, j.Ceiling),
			"talk to the user; clients that are connected keep what they have; or "+j.requeue()).in(daemon.PID, place))
	}
}

func above(reported float64, ceiling policy.Percent) bool {
	return reported > float64(ceiling)/1e6 && !near(reported, ceiling)
}

// client judges the limits of a client, if the ticket of its job grants limits.
func (d *diagnosis) client(j Job, held Held, c Client) {
	if c.Unknown != "" || j.ticket == nil {
		return
	}
	if share := d.smallestShare(j, held); share != 0 && c.Percent == 0 {
		actual := "no share of its own"
		if c.ignored != "" {
			actual = "the percentage " + c.ignored + ", which CUDA ignores"
		}
		const what = "%s has %s, and the rule's share among %d clients is %d SMs"
		d.process(j, held.UUID, c.PID, clientWithoutShare, fmt.Sprintf(what, c.Command, actual, len(held.Clients), share),
			fmt.Sprintf("ask the user to start it with mpirun-wrap, or whether no share was meant (--share=none): ps -fp %d", c.PID))
	}
	if j.Memory != "" && j.Memory != "none" && c.MemoryMiB == nil {
		d.process(j, held.UUID, c.PID, clientWithoutMemoryCap,
			fmt.Sprintf("%s has no limit of memory, and the rule grants %s", c.Command, j.Memory),
			"ask the user to start it with mpirun-wrap")
	}
}

// smallestShare returns the SMs that the job's rule gives to each of a device's present clients; 0 if there is no
// limit.
func (n Node) smallestShare(j Job, held Held) int {
	g := n.GPU(held.UUID)
	if g == nil || g.SMs == 0 {
		return 0
	}
	grant := j.ticket.Grant
	grant.Ceiling = 100
	shares, err := policy.EvenShares(policy.GPU{SMs: g.SMs, SMsPerTPC: max(g.tpc, 1)}, len(held.Clients), grant)
	if err != nil || slices.ContainsFunc(shares, func(s policy.Share) bool { return s.Percent == 0 }) {
		return 0
	}
	return shares[len(shares)-1].SMs
}

// otherProcesses judges processes on a job's device that its daemon does not serve.
func (d *diagnosis) otherProcesses(j Job, held Held) {
	g := d.GPU(held.UUID)
	if g == nil {
		return
	}
	asked := slices.ContainsFunc(j.Daemons, func(daemon Daemon) bool {
		return daemon.State == Serves && slices.Contains(daemon.Devices, held.UUID)
	})
	for _, p := range g.Processes {
		ps := fmt.Sprintf("see whose it is: ps -fp %d", p.PID)
		served := d.serves(held.UUID, p.PID)
		switch {
		case p.Kind == KindCompute:
			d.process(j, held.UUID, p.PID, processWithoutMPS,
				p.Name+" computes on the GPU beside MPS, in turns with all of the job's ranks", ps+"; a rank of the job "+
					"is there when it was started without mpirun-wrap, or lost CUDA_MPS_PIPE_DIRECTORY")
		case p.Kind == KindClient && asked && !served:
			d.process(j, held.UUID, p.PID, clientOfAnother,
				p.Name+" is a client of MPS, and the job's daemon does not serve it", ps)
		}
	}
}

// serves reports whether the daemon of any job serves a client on a device.
func (n Node) serves(uuid site.UUID, pid int) bool {
	return slices.ContainsFunc(n.Jobs, func(j Job) bool {
		return slices.ContainsFunc(j.Devices, func(h Held) bool {
			return h.UUID == uuid && slices.ContainsFunc(h.Clients, func(c Client) bool { return c.PID == pid })
		})
	})
}

// judgeGPUs judges GPUs that no job has.
func (d *diagnosis) judgeGPUs() {
	for _, g := range d.GPUs {
		if g.Mode != site.ModeExclusiveProcess || g.Held {
			continue
		}
		d.add(Finding{
			Kind: exclusiveWithoutLease, GPU: g.UUID, Where: d.where(g.UUID),
			What: "it is in mode exclusive_process, and no job holds it: one process alone can use it",
			Fix:  fmt.Sprintf("unless someone meant it: nvidia-smi -i %s -c DEFAULT", g.UUID),
		})
	}
}

// judgeDaemons judges control daemons that no lease names.
func (d *diagnosis) judgeDaemons() {
	for _, p := range d.census {
		if p.Role != mps.RoleDaemon || p.Err != nil || d.ofLease(p) {
			continue
		}
		dir := defaultPipeDir
		if p.PipeDir != "" {
			dir = strconv.Quote(p.PipeDir)
		}
		f := Finding{
			Kind: daemonUnknown, PID: p.PID, Where: fmt.Sprintf("pid %d, uid %d, %s", p.PID, p.UID, dir),
			What: "an MPS control daemon that no lease names: GPUs that it uses are shared past the policy",
			Fix:  fmt.Sprintf("see whose it is: ps -fp %d; %s", p.PID, d.ending(p)),
		}
		if strings.HasPrefix(p.PipeDir, d.run+"/") {
			f.Kind, f.Fix = daemonWithoutLease, d.ending(p)
			f.What = "a control daemon of ours, and no lease names it: nothing will end it"
			if job, below := d.jobBelow(p.PipeDir); below {
				f.Fix, f.Undo = "end it: "+d.paths.ReapCommand(job), remove
			}
		}
		d.add(f)
	}
}

// ending returns how to end a control daemon, and the processes that end with it. A daemon is first told to quit, and
// then waits for its clients. A daemon that is killed ends its servers, and they end their clients. Only root is told
// to kill it, because others may see a process of another node's lab or container.
func (n Node) ending(p mps.Process) string {
	const after = "that ends its servers and every program that computes through them, and later ones run without MPS"
	kill := fmt.Sprintf("; only if it does not answer (%[2]s): kill -9 %[1]d", p.PID, after)
	whose, sudo := "", fmt.Sprintf("sudo -u '#%d' ", p.UID)
	if !n.Root {
		whose, sudo, kill = "if it is yours, ", "", ""
	}
	dir := p.PipeDir
	if dir == "" {
		dir = defaultPipeDir
	}
	if !plainPath.MatchString(dir) { // its user chose it, so it must not become part of a command
		return whose + "to end it, have its control program tell it to quit" + kill
	}
	return fmt.Sprintf("%sto end it when its clients have ended: echo quit | %senv CUDA_MPS_PIPE_DIRECTORY=%s "+
		"nvidia-cuda-mps-control%s", whose, sudo, dir, kill)
}

const defaultPipeDir = "/tmp/nvidia-mps"

// plainPath matches a path that needs no quoting in a shell.
var plainPath = regexp.MustCompile(`^/[A-Za-z0-9_./-]*$`)

// jobBelow returns the job whose folder contains a pipe folder, because mpsctl reap then ends its daemon.
func (n Node) jobBelow(pipeDir string) (job uint32, below bool) {
	rest, below := strings.CutPrefix(pipeDir, filepath.Join(n.run, "jobs")+"/")
	number, _, _ := strings.Cut(rest, "/")
	id, err := strconv.ParseUint(number, 10, 32)
	return uint32(id), below && err == nil
}

// ofLease reports whether a daemon belongs to a lease: the recorded daemon, or one with the lease's pipe folder,
// which is judged there. A lease that cannot be read, or that is root's to read, may name any daemon below its job's
// folder, so all of them count.
func (n Node) ofLease(p mps.Process) bool {
	if job, below := n.jobBelow(p.PipeDir); below && slices.Contains(n.hidden, job) {
		return true
	}
	for _, j := range n.Jobs {
		if !j.leased {
			continue
		}
		dir := filepath.Join(n.run, "jobs", fmt.Sprint(j.ID)) + "/"
		named := func(d Daemon) bool { return d.record.Proc == p.Process || d.PipeDir == p.PipeDir }
		if j.Phase == Unreadable && strings.HasPrefix(p.PipeDir, dir) || slices.ContainsFunc(j.Daemons, named) {
			return true
		}
	}
	return false
}
