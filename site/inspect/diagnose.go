// SPDX-License-Identifier: Apache-2.0

package inspect

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
)

// Diagnose returns the findings of a node, job by job, then GPU by GPU. It is pure: the same node has the same
// findings. It reports only what was seen.
func Diagnose(n Node) []Finding {
	var b diagnosis
	b.files(n)
	for _, j := range n.Jobs {
		b.job(n, j)
	}
	b.claims(n)
	b.gpus(n)
	b.daemons(n)
	b.takers(n)
	return b.found
}

// diagnosis gathers findings.
type diagnosis struct{ found []Finding }

func (b *diagnosis) add(f Finding) { b.found = append(b.found, f) }

// files judges the admins' files.
func (b *diagnosis) files(n Node) {
	for _, f := range []struct {
		kind              Kind
		path, without, do string
		policyfile.FileStatus
	}{
		{PolicyUnusable, n.paths.Policy(), "jobs that ask for MPS fail, and drain the node", "see what is wrong: mpsctl policy check" + n.rooted(), n.policy},
		{ConfigUnusable, n.paths.ConfigFile(), "the defaults hold", "see what is wrong: mpsctl doctor" + n.rooted(), n.facts},
	} {
		if f.Err != nil {
			b.add(Finding{Kind: f.kind, Where: f.path, What: fmt.Sprintf("it cannot be used: %s: %s", strings.TrimSuffix(site.OneLine(f.Err), "."), f.Instead(f.without)), Do: f.do})
		}
	}
}

// rooted is the flag that changes the root of the commands' files.
func (n Node) rooted() string {
	if n.paths.Root == "" {
		return ""
	}
	return " --root " + n.paths.Root
}

// job judges one job. While a prolog or an epilog works on a job, nothing about it is a finding.
func (b *diagnosis) job(n Node, j Job) {
	switch {
	case j.Acting != 0:
	case j.Phase == Unreadable:
		b.add(j.finding(LeaseUnreadable, j.err.Error(), "look at the file; a record that is not root's own, or of another version, stays until a person moves it away"))
	case !j.leased:
		b.stray(n, j)
	case j.Phase == Opening:
		b.add(j.finding(LeaseUnfinished, "its prolog has ended before the job was ready", "undo it: "+n.again(j.ID)))
	case j.Phase == Closing:
		b.add(j.finding(LeaseUnfinished, "its epilog has ended before all was undone: the log has the reason, unless the epilog was killed", "close it again: "+n.again(j.ID)))
	case j.Phase == Opened:
		b.open(n, j)
	}
}

// stray judges the files of a job without a lease. They have no effect, and can mislead an admin.
func (b *diagnosis) stray(n Node, j Job) {
	if j.ticketed() && j.Refused == "" {
		b.add(j.finding(TicketWithoutLease, fmt.Sprintf("ranks that read %s continue as if the job had MPS", filepath.Join(n.run, "tickets", fmt.Sprintf("%d.json", j.ID))), "remove it: "+n.again(j.ID)))
	}
	if j.dir {
		b.add(j.finding(DirectoryWithoutLease, fmt.Sprintf("%s is left of a job that has been closed", filepath.Join(n.run, "jobs", strconv.FormatUint(uint64(j.ID), 10))), "remove it: "+n.again(j.ID)))
	}
}

// open judges a job that is ready for its ranks.
func (b *diagnosis) open(n Node, j Job) {
	if n.Root && j.ticket == nil {
		b.add(j.finding(LeaseWithoutTicket, fmt.Sprintf("its ranks do not start: its ticket: %v", j.tickets), "requeue the job: scontrol requeue "+strconv.FormatUint(uint64(j.ID), 10)))
	}
	for _, held := range j.Devices {
		b.held(n, j, held)
	}
	for _, d := range j.Daemons {
		b.daemon(n, j, d)
	}
	if j.Guard != nil {
		b.guard(j, *j.Guard)
	}
}

// guard judges the guard of a job, and what the guard has found.
func (b *diagnosis) guard(j Job, g Guard) {
	if !g.Running {
		f := j.finding(GuardGone, fmt.Sprintf("pid %d has ended: a client that ends with work in flight kills the other clients on its GPU", g.PID),
			fmt.Sprintf("find out who ended it, in the log and by dmesg; to have a guard again requeue the job: scontrol requeue %d", j.ID))
		f.PID = g.PID
		b.add(f)
	}
	if g.Stalled != nil {
		const what = "pid %d has not looked since %s: new clients are not protected"
		const do = "look for state T or D: ps -o pid,stat,wchan,args -p %d; to have a guard again requeue the job: scontrol requeue %d"
		f := j.finding(GuardStalled, fmt.Sprintf(what, g.PID, g.Stalled.Format("15:04:05")), fmt.Sprintf(do, g.PID, j.ID))
		f.PID = g.PID
		b.add(f)
	}
	for _, u := range g.Unguarded {
		const what = "the guard could not watch %s of the job: %s: one that ends with work in flight kills its neighbours"
		f := j.finding(ClientsUnguarded, fmt.Sprintf(what, site.Count(u.Processes, "process"), u.Cause),
			"see docs/operator.md, clients-unguarded: LimitNOFILE= of slurmd, or the file system of an exec")
		f.PID, f.Where = g.PID, f.Where+": "+u.Cause
		b.add(f)
	}
	if g.Unheld > 0 {
		f := j.finding(FilesUnheld, fmt.Sprintf("the guard could not hold %d driver files of the job's clients", g.Unheld), "the log has the reason")
		f.PID = g.PID
		b.add(f)
	}
	for _, o := range g.Outside {
		if o.Proc.Running() {
			f := j.finding(ProcessWithoutMPS, "it has a GPU of the job open and is no client of the job's MPS daemon: "+o.Cause,
				fmt.Sprintf("ask the user; to see how it was started: ps -fp %d", o.Proc.PID))
			f.PID, f.Where = o.Proc.PID, fmt.Sprintf("pid %d, %s", o.Proc.PID, f.Where)
			b.add(f)
		}
	}
}

// takers judges processes of guards that no signal ends. Each waits for a file system of a user.
func (b *diagnosis) takers(n Node) {
	users := map[uint32][]lease.Taker{}
	for _, t := range n.takers {
		users[t.UID] = append(users[t.UID], t)
	}
	for _, uid := range slices.Sorted(maps.Keys(users)) {
		const do = "end the user's processes: ps -fU %d; with 8 of root's, no guard of the user's jobs holds files"
		where := fmt.Sprintf("uid %d", uid)
		b.add(Finding{Kind: TakersStuck, Where: where, What: takersSentence(users[uid]), Do: fmt.Sprintf(do, uid)})
	}
}

// takersSentence describes the takers of one user's jobs that are left.
func takersSentence(left []lease.Taker) string {
	jobs := map[uint32]bool{}
	for _, t := range left {
		jobs[t.Job] = true
	}
	var numbers []string
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		numbers = append(numbers, fmt.Sprint(job))
	}
	verb := "wait"
	if len(left) == 1 {
		verb = "waits"
	}
	const what = "%s of root's (%s first), started by the guard of %s, %s for a file system of the user's that does not answer"
	return fmt.Sprintf(what, site.Count(len(left), "process"), left[0].Proc, numbered("job", numbers), verb)
}

// held judges a device of a job.
func (b *diagnosis) held(n Node, j Job, held Held) {
	g := n.gpu(held.UUID)
	if n.Root && !n.claimed(held.UUID, j.ID) {
		b.add(j.on(n, held.UUID, LeaseWithoutClaim, "the job holds it and has no claim on it: another job's prolog may take it", "requeue the job: scontrol requeue "+strconv.FormatUint(uint64(j.ID), 10)))
	}
	switch {
	case g == nil && n.drivers:
		b.add(j.on(n, held.UUID, GPUMissing, "the driver does not show it", "look at the kernel's log for Xid messages of this GPU: dmesg"))
	case g == nil || g.Mode == "":
	case held.Set != "" && g.Mode != held.Set:
		b.add(j.on(n, held.UUID, ModeDiffers, fmt.Sprintf("it is in mode %s, and the lease has set %s", g.Mode, held.Set),
			fmt.Sprintf("find out who set it; to set it again: nvidia-smi -i %s -c %s", held.UUID, strings.ToUpper(string(held.Set)))))
	}
	for _, c := range held.Clients {
		b.client(n, j, held, c)
	}
	b.processes(n, j, held)
}

func (n Node) claimed(uuid site.UUID, job uint32) bool {
	return slices.ContainsFunc(n.claims, func(c lease.Claim) bool { return c.UUID == uuid && c.Err == nil && c.Job == job })
}

// ofDaemon names a state that is not serving, and its effect.
var ofDaemon = map[DaemonState]struct {
	kind Kind
	what string
}{
	Gone:       {DaemonGone, "CUDA starts without MPS, or fails with error 46 on an exclusive GPU"},
	Replaced:   {DaemonReplaced, "the epilog ends what it can prove to be the daemon's"},
	NotServing: {DaemonNotServing, "its socket does not answer, and CUDA starts without MPS"},
	NoAnswer:   {DaemonNoAnswer, "no answer within 2 s: it, its server or a client is stopped, or a client is being ended; new clients wait"},
	Unclear:    {DaemonUnclear, "it answers, and not what was asked"},
}

// daemon judges a daemon of a job.
func (b *diagnosis) daemon(n Node, j Job, d Daemon) {
	if wrong, is := ofDaemon[d.State]; is {
		f := j.finding(wrong.kind, d.Reason+": "+wrong.what, "requeue the job: scontrol requeue "+strconv.FormatUint(uint64(j.ID), 10))
		if d.State == NoAnswer {
			f.What, f.Do = wrong.what, fmt.Sprintf("look for state T: ps -o pid,stat,args --ppid %d -p %d; if it stays so, requeue the job: scontrol requeue %d", d.PID, d.PID, j.ID)
		}
		f.PID, f.Where = d.PID, f.Where+", "+d.PipeDir
		b.add(f)
		return
	}
	for _, s := range d.Servers {
		if s.Status == "FAULT" {
			f := j.finding(ServerFault, "a client has failed on the GPU: its neighbours fail too, and new clients get error 807 until all of them are gone", "end the job's processes, or requeue it: scontrol requeue "+strconv.FormatUint(uint64(j.ID), 10))
			f.PID, f.Where = s.PID, f.Where+fmt.Sprintf(", server pid %d", s.PID)
			b.add(f)
		}
	}
	b.ceiling(j, d)
}

// ceiling judges the percentage that the daemon enforces for all clients. The daemon's user can change it.
func (b *diagnosis) ceiling(j Job, d Daemon) {
	if j.Ceiling == 0 || d.Ceiling == nil {
		return
	}
	reported, who := *d.Ceiling, "servers to come"
	for _, s := range d.Servers {
		if above(s.Percent, j.Ceiling) {
			reported, who = s.Percent, fmt.Sprintf("server pid %d", s.PID)
		}
	}
	if !above(reported, j.Ceiling) {
		return
	}
	f := j.finding(CeilingLifted, fmt.Sprintf("%s let a client have %.1f %% of a GPU, and the ceiling granted is %s %%: the job's user has set it", who, reported, j.Ceiling),
		"talk to the user; to end it, requeue or cancel the job: clients that are connected keep what they have")
	f.PID, f.Where = d.PID, f.Where+", "+d.PipeDir
	b.add(f)
}

func above(reported float64, ceiling policy.Percent) bool {
	return reported > float64(ceiling)/1e6 && !near(reported, ceiling)
}

// client judges the limits of a client, if the ticket of its job grants limits.
func (b *diagnosis) client(n Node, j Job, held Held, c Client) {
	if c.Unknown != "" || j.ticket == nil {
		return
	}
	if due := n.due(j, held); due != 0 && c.Percent == 0 {
		what := fmt.Sprintf("%s has no share of its own, and the rule's share among %d clients is %d SMs", c.Command, len(held.Clients), due)
		if c.ignored != "" {
			what = fmt.Sprintf("%s has the percentage %s, which CUDA ignores, and the rule's share among %d clients is %d SMs", c.Command, c.ignored, len(held.Clients), due)
		}
		b.add(j.process(n, held.UUID, c.PID, ClientWithoutShare, what, "ask the user to start it with mpirun-wrap, or whether no share was meant: --share=none"))
	}
	if j.Memory != "" && j.Memory != "none" && c.MemoryMiB == nil {
		b.add(j.process(n, held.UUID, c.PID, ClientWithoutMemoryCap, fmt.Sprintf("%s has no limit of memory, and the rule grants %s", c.Command, j.Memory),
			"ask the user to start it with mpirun-wrap"))
	}
}

// due returns the minimum that the job's rule gives to each of a device's present clients; 0 if there is no limit.
func (n Node) due(j Job, held Held) int {
	g := n.gpu(held.UUID)
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

// processes judges the other processes on a job's device.
func (b *diagnosis) processes(n Node, j Job, held Held) {
	g := n.gpu(held.UUID)
	if g == nil {
		return
	}
	for _, p := range g.Processes {
		switch {
		case p.Kind == KindCompute:
			b.add(j.process(n, held.UUID, p.PID, ProcessWithoutMPS, p.Name+" computes on the GPU beside MPS, in turns with all of the job's ranks",
				fmt.Sprintf("see whose it is: ps -fp %d; a rank of the job is there when it was started without mpirun-wrap, or lost CUDA_MPS_PIPE_DIRECTORY", p.PID)))
		case p.Kind == KindClient && j.asked(held.UUID) && !slices.ContainsFunc(held.Clients, func(c Client) bool { return c.PID == p.PID }):
			b.add(j.process(n, held.UUID, p.PID, ClientOfAnother, p.Name+" is a client of MPS, and the job's daemon does not serve it",
				fmt.Sprintf("see whose it is: ps -fp %d", p.PID)))
		}
	}
}

// asked reports whether the daemon of a device has listed its clients.
func (j Job) asked(uuid site.UUID) bool {
	return slices.ContainsFunc(j.Daemons, func(d Daemon) bool { return d.State == Serves && slices.Contains(d.Devices, uuid) })
}

// claims judges claims without effect.
func (b *diagnosis) claims(n Node) {
	settled := map[uint32]bool{} // jobs that have a lease, or will soon have none
	for _, j := range n.Jobs {
		settled[j.ID] = j.leased || j.Acting != 0
	}
	for _, job := range n.hidden {
		settled[job] = true
	}
	for _, c := range n.claims {
		if c.Err != nil || settled[c.Job] {
			continue
		}
		b.add(Finding{
			Kind: ClaimWithoutLease, Job: c.Job, GPU: c.UUID, Where: n.where(c.UUID),
			What: fmt.Sprintf("job %d has claimed it and has no lease: the claim holds nothing, and the next job's prolog takes it away", c.Job),
			Do:   "nothing, or: " + n.again(c.Job),
		})
	}
}

// gpus judges GPUs that no job has.
func (b *diagnosis) gpus(n Node) {
	for _, g := range n.GPUs {
		if g.Mode != site.ModeExclusiveProcess || g.Held || n.heldBy(g.UUID) != nil {
			continue
		}
		b.add(Finding{
			Kind: ExclusiveWithoutLease, GPU: g.UUID, Where: n.where(g.UUID),
			What: "it is in mode exclusive_process, and no job holds it: one process alone can use it",
			Do:   fmt.Sprintf("unless someone meant it: nvidia-smi -i %s -c DEFAULT", g.UUID),
		})
	}
}

// daemons judges control daemons that no lease names.
func (b *diagnosis) daemons(n Node) {
	for _, p := range n.census {
		if p.Role != mps.RoleDaemon || p.Err != nil || n.ofLease(p) {
			continue
		}
		f := Finding{Kind: DaemonUnknown, PID: p.PID, Where: fmt.Sprintf("pid %d, uid %d, %s", p.PID, p.UID, orDefault(p.PipeDir))}
		f.What = "an MPS control daemon that no lease names: GPUs that it uses are shared past the policy"
		f.Do = fmt.Sprintf("see whose it is: ps -fp %d; %s", p.PID, n.ending(p))
		if strings.HasPrefix(p.PipeDir, n.run+"/") {
			f.Kind, f.What = DaemonWithoutLease, "a control daemon of ours, and no lease names it: nothing will end it"
			f.Do = n.ending(p)
			if job, below := n.jobBelow(p.PipeDir); below {
				f.Do = "end it: " + n.again(job)
			}
		}
		b.add(f)
	}
}

// ending returns how to end a control daemon, and what ends with it. A daemon is first told to quit, and then waits
// for its clients. A daemon that is killed ends its servers, and they end their clients. Only root is told to kill it,
// because others may see a process of another node's lab or container.
func (n Node) ending(p mps.Process) string {
	const after = "that ends its servers and every program that computes through them, and later ones run without MPS"
	kill := fmt.Sprintf("; only if it does not answer (%[2]s): kill -9 %[1]d", p.PID, after)
	whose, as := "", fmt.Sprintf("sudo -u '#%d' ", p.UID)
	if !n.Root {
		whose, as, kill = "if it is yours, ", "", ""
	}
	dir := p.PipeDir
	if dir == "" {
		dir = defaultPipeDir
	}
	if !plainPath.MatchString(dir) { // its user chose it, so it must not become part of a command
		return whose + "to end it, have its control program tell it to quit" + kill
	}
	return fmt.Sprintf("%sto end it when its clients have ended: echo quit | %senv CUDA_MPS_PIPE_DIRECTORY=%s nvidia-cuda-mps-control%s", whose, as, dir, kill)
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
		if j.Phase == Unreadable && strings.HasPrefix(p.PipeDir, filepath.Join(n.run, "jobs", strconv.FormatUint(uint64(j.ID), 10))+"/") {
			return true
		}
		if slices.ContainsFunc(j.Daemons, func(d Daemon) bool { return d.record.Proc == p.Process || d.PipeDir == p.PipeDir }) {
			return true
		}
	}
	return false
}

func orDefault(pipeDir string) string {
	if pipeDir == "" {
		return defaultPipeDir
	}
	return strconv.Quote(pipeDir)
}

func (j Job) finding(kind Kind, what, do string) Finding {
	return Finding{Kind: kind, Job: j.ID, Where: fmt.Sprintf("job %d", j.ID), What: what, Do: do}
}

func (j Job) on(n Node, uuid site.UUID, kind Kind, what, do string) Finding {
	f := j.finding(kind, what, do)
	f.GPU, f.Where = uuid, f.Where+", "+n.where(uuid)
	return f
}

func (j Job) process(n Node, uuid site.UUID, pid int, kind Kind, what, do string) Finding {
	f := j.on(n, uuid, kind, what, do)
	f.PID, f.Where = pid, fmt.Sprintf("pid %d, %s", pid, f.Where)
	return f
}

func (n Node) where(uuid site.UUID) string {
	if g := n.gpu(uuid); g != nil && !uuid.MIG() {
		return fmt.Sprintf("%s (%s)", g, uuid)
	}
	return string(uuid)
}

// again returns the command that closes a job by hand.
func (n Node) again(job uint32) string { return n.paths.ReapCommand(job) }
