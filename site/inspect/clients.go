// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/usage"
)

// readClients finds the clients of each device of each job, and their limits. The daemon lists the clients. If the
// daemon was not asked, the driver lists them.
func (r *Reader) readClients(ctx context.Context, n *Node) {
	for i := range n.Jobs {
		j := &n.Jobs[i]
		var pids []int
		for k := range j.Devices {
			j.Devices[k].Clients = append(j.Devices[k].Clients, n.clientsOn(*j, j.Devices[k].UUID)...)
			for _, c := range j.Devices[k].Clients {
				pids = append(pids, c.PID)
			}
		}
		known := EnvironmentsOf(ctx, pids, j.UID)
		for k := range j.Devices {
			clients := j.Devices[k].Clients
			for at := range clients {
				n.limit(&clients[at], *j, j.Devices[k].UUID, known[clients[at].PID])
			}
			slices.SortFunc(clients, byRank)
		}
		n.readUse(j)
	}
}

// byRank sorts clients by rank. Clients without a rank come last.
func byRank(a, b Client) int {
	return cmp.Or(cmp.Compare(uint(a.Rank), uint(b.Rank)), a.PID-b.PID)
}

// readUse reads a job's report, which has the latest samples.
func (n *Node) readUse(j *Job) {
	if j.Phase != Opened {
		return
	}
	report, err := usage.Read(filepath.Join(lease.OpenReadOnly(n.run, "").JobDir(j.ID), usage.Running))
	if err != nil {
		return
	}
	j.Report, j.Totals = report, &report.Totals
	for k := range j.Devices {
		for _, g := range report.GPUs {
			if g.UUID == j.Devices[k].UUID && len(g.Samples) > 0 {
				j.Devices[k].Use = &g.Samples[len(g.Samples)-1]
			}
		}
	}
}

// used returns the memory that a process has on a GPU, 0 if that is not known.
func (g *GPU) used(pid int) int {
	if g == nil {
		return 0
	}
	at := slices.IndexFunc(g.Processes, func(p Process) bool { return p.PID == pid })
	if at < 0 {
		return 0
	}
	return g.Processes[at].UsedMiB
}

// clientsOn returns the clients on one device of a job, without their limits.
func (n *Node) clientsOn(j Job, uuid site.UUID) []Client {
	at := slices.IndexFunc(j.Daemons, func(d Daemon) bool { return slices.Contains(d.Devices, uuid) })
	if at < 0 {
		return nil
	}
	d := j.Daemons[at]
	var clients []Client
	if d.State == Serves {
		for _, row := range d.rows {
			if on(row.Device, d.Devices, uuid) {
				clients = append(clients, Client{PID: row.PID, Command: path.Base(row.Command), Server: row.Server})
			}
		}
		return clients
	}
	if g := n.gpu(uuid); g != nil && d.State != Gone {
		for _, p := range g.Processes {
			if p.Kind == KindClient {
				clients = append(clients, Client{PID: p.PID, Command: p.Name})
			}
		}
	}
	return clients
}

// on reports whether a row of ps belongs to a device. The row has the beginning of a UUID. If this fits several of
// the daemon's devices, or none, the row counts for the first device, so that no client is missed.
func on(beginning string, devices []site.UUID, uuid site.UUID) bool {
	fits := func(d site.UUID) bool { return beginning != "" && strings.HasPrefix(string(d), beginning) }
	return devices[max(slices.IndexFunc(devices, fits), 0)] == uuid
}

// Environment is what a client's environment contains. Its user can write all of it.
type Environment struct {
	Rank    int            // in the whole step, -1 if it is none
	Step    string         // of an srun, "batch" for the batch script, "" if it is not known
	JobName string         // cut at 64 bytes, printable
	Unknown string         // why nothing is known
	percent policy.Percent // 0 for none
	ignored string         // a percentage that CUDA ignores, as it was written
	memory  map[string]int // MiB by UUID or ordinal
	visible []string       // CUDA_VISIBLE_DEVICES
}

// These variables limit a process.
const (
	percentVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	visibleVariable = "CUDA_VISIBLE_DEVICES"
	nameVariable    = "SLURM_JOB_NAME" // limits nothing
	memoryVariable  = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

const maxJobName = 64

// EnvironmentsOf reads the environments of processes that must belong to the job's user, because that user's daemon
// reports the pids.
func EnvironmentsOf(ctx context.Context, pids []int, uid uint32) map[int]Environment {
	known := map[int]Environment{}
	without := func(why string) Environment { return Environment{Rank: -1, Unknown: why} }
	var own []int
	for _, pid := range pids {
		if _, twice := known[pid]; twice {
			continue
		}
		known[pid] = without("the process has ended")
		uids, err := proc.UIDs(pid)
		switch {
		case err != nil:
		case uids[0] != uid:
			known[pid] = without(fmt.Sprintf("it is no process of uid %d", uid))
		default:
			own = append(own, pid)
		}
	}
	var procs []site.Process
	for i, stat := range proc.ReadStats(ctx, own) {
		if stat.Err == nil {
			procs = append(procs, stat.Process)
		} else if errors.Is(stat.Err, proc.ErrSilent) {
			known[own[i]] = without(proc.ErrSilent.Error())
		}
	}
	names := append(slurm.RankVariables(), percentVariable, visibleVariable, memoryVariable, nameVariable)
	environments := proc.Environments(ctx, procs, names...)
	for i, runs := range proc.Ran(procs) {
		switch err := environments[i].Err; {
		case errors.Is(err, fs.ErrPermission):
			known[procs[i].PID] = without("not yours to read")
		case errors.Is(err, proc.ErrLate), errors.Is(err, proc.ErrLong):
			known[procs[i].PID] = without(err.Error())
		case err == nil && runs:
			known[procs[i].PID] = environmentIn(environments[i].Values)
		}
	}
	return known
}

// environmentIn reads limits as CUDA does.
func environmentIn(variables map[string]string) Environment {
	var l Environment
	l.Rank, l.Step = slurm.RankOf(variables)
	l.JobName = printable(variables[nameVariable][:min(len(variables[nameVariable]), maxJobName)])
	if text, set := variables[percentVariable]; set {
		l.percent, l.ignored = parsePercent(text)
	}
	if list := variables[visibleVariable]; list != "" {
		l.visible = strings.Split(list, ",")
	}
	l.memory = parseMemory(variables[memoryVariable], l.visible)
	return l
}

// parsePercent reads a percentage. CUDA silently ignores anything else (measured: 0, 101, abc, -5 and an empty text
// give the whole GPU).
func parsePercent(text string) (value policy.Percent, ignored string) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0 && f <= 100) {
		return 0, fmt.Sprintf("%.20q", text)
	}
	return max(policy.PercentFrom(f), 1), ""
}

// parseMemory reads "0=2G,GPU-…=512M". If a list names a device that the process cannot see, CUDA silently drops
// every limit (measured). If the process's device list has no UUIDs, this cannot be known, and the limits count.
func parseMemory(list string, visible []string) map[string]int {
	found := map[string]int{}
	for entry := range strings.SplitSeq(list, ",") {
		device, size, ok := strings.Cut(entry, "=")
		mib, valid := mebibytes(size)
		if !ok || !valid {
			continue
		}
		if !sees(visible, device) {
			return nil
		}
		found[device] = mib
	}
	return found
}

func sees(visible []string, device string) bool {
	if ordinal, err := strconv.Atoi(device); err == nil {
		return len(visible) == 0 || ordinal >= 0 && ordinal < len(visible)
	}
	uuids := slices.ContainsFunc(visible, func(v string) bool { return site.UUID(v).Valid() })
	return !uuids || slices.Contains(visible, device)
}

// mebibytes reads a size as CUDA writes it. A size below one MiB counts as one.
func mebibytes(text string) (int, bool) {
	digits := strings.TrimRight(text, "KMGTB")
	n, err := strconv.ParseUint(digits, 10, 40)
	if err != nil || n == 0 {
		return 0, false
	}
	bytes := map[string]float64{"": 1, "B": 1, "K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "MB": 1 << 20, "G": 1 << 30, "GB": 1 << 30, "T": 1 << 40, "TB": 1 << 40}
	unit, known := bytes[text[len(digits):]]
	mib := math.Ceil(float64(n) * unit / (1 << 20))
	return int(mib), known && mib < 1<<30
}

// of returns the limit on one device: by its UUID, or by its number among the devices that the process sees.
func (l Environment) of(uuid site.UUID) (mib int, ok bool) {
	if mib, ok = l.memory[string(uuid)]; ok {
		return mib, true
	}
	if at := slices.Index(l.visible, string(uuid)); at >= 0 {
		mib, ok = l.memory[strconv.Itoa(at)]
		return mib, ok
	}
	for ordinal, mib := range l.memory {
		if _, err := strconv.Atoi(ordinal); err == nil && !slices.ContainsFunc(l.visible, func(v string) bool { return site.UUID(v).Valid() }) {
			return mib, true // it is not known which device the number means
		}
	}
	return 0, false
}

// limit sets what a client may use of a device. Its own percentage can only lower its server's (measured).
func (n *Node) limit(c *Client, j Job, uuid site.UUID, own Environment) {
	c.Unknown, c.ignored, c.Percent = own.Unknown, own.ignored, own.percent
	c.Rank, c.Step, c.UsedMiB = own.Rank, own.Step, n.gpu(uuid).used(c.PID)
	if mib, ok := own.of(uuid); ok {
		c.MemoryMiB = &mib
	}
	g := n.gpu(uuid)
	if g == nil || g.SMs == 0 || own.Unknown != "" {
		return
	}
	c.SMs = own.SMs(policy.GPU{SMs: g.SMs, SMsPerTPC: max(g.tpc, 1)}, j.serverPercent(c.Server, uuid))
}

// SMs returns how many SMs of a GPU a client may use. ceiling is the percentage of its server, 0 for none.
func (l Environment) SMs(part policy.GPU, ceiling policy.Percent) int {
	sms := part.SMs
	for _, p := range []policy.Percent{l.percent, ceiling} {
		if p != 0 {
			sms = min(sms, part.SMsAt(p))
		}
	}
	return sms
}

// MemoryMiB is a client's limit on a device, 0 for none.
func (l Environment) MemoryMiB(uuid site.UUID) int {
	mib, _ := l.of(uuid)
	return mib
}

// serverPercent returns the percentage of a client's server. The daemon prints one decimal. If that agrees with the
// job's ceiling, it is the ceiling. It returns 0 if no server reported one.
func (j Job) serverPercent(pid int, uuid site.UUID) policy.Percent {
	for _, d := range j.Daemons {
		if !slices.Contains(d.Devices, uuid) {
			continue
		}
		for _, s := range d.Servers {
			if s.PID == pid || len(d.Servers) == 1 {
				if near(s.Percent, j.Ceiling) {
					return j.Ceiling
				}
				return policy.PercentFrom(s.Percent)
			}
		}
	}
	return 0
}

// near reports whether a daemon's one decimal is a rounded percentage.
func near(reported float64, meant policy.Percent) bool {
	return math.Abs(reported-float64(meant)/1e6) <= 0.0501
}
