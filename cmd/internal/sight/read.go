package sight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/gpu"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/mps"
)

// Daemons is what is asked of control daemons: one question at a time, each with a deadline.
type Daemons interface {
	State(context.Context, lease.Job, lease.Daemon) (mps.State, error)
}

// Driver is what is asked of the driver.
type Driver interface {
	Survey() ([]gpu.Sight, error)
	Instance(site.UUID) gpu.Sight
}

// Reader looks at a node. One reader looks often, and one look at a time.
type Reader struct {
	Journal *lease.Journal
	Run     string                 // the folder of state
	Daemons Daemons                // nil asks no daemon
	Driver  func() (Driver, error) // opens the driver at its first use
	Name    string                 // the node's
	Paths   site.Paths             // for the commands that findings name
	Clock   func() time.Time
	Root    bool

	doubt  string // what every look says that it does not know
	memory memory
}

// The bounds of a look: whatever hangs, a look ends.
const (
	lookDeadline   = 30 * time.Second
	driverDeadline = 15 * time.Second // a driver without persistence initialises its GPUs first
)

// tries bounds how often a look is begun anew because a prolog or an epilog came in between.
const tries = 5

// Look sees the node, and what is wrong with it, of those findings that the caller reports. What is wrong was seen while the
// records stayed as they were, and was seen again: a prolog, an epilog or a client that starts meanwhile would else make one
// look see half of what it does.
func (r *Reader) Look(ctx context.Context, reported func([]Finding) []Finding) (Node, []Finding) {
	for try := 1; ; try++ {
		n := r.once(ctx)
		found := reported(Judge(n))
		if len(found) == 0 {
			return n, found
		}
		if try < tries && ctx.Err() == nil && r.moved(n) {
			continue
		}
		n = r.once(ctx)
		return n, both(reported(Judge(n)), found)
	}
}

// moved reports whether the records are no longer what they were when a look began.
func (r *Reader) moved(n Node) bool {
	var now Node
	r.readRecords(&now)
	return now.records != n.records
}

// both are the findings of the later look that the earlier one had as well.
func both(later, earlier []Finding) []Finding {
	agreed := []Finding{}
	for _, f := range later {
		if slices.ContainsFunc(earlier, f.same) {
			agreed = append(agreed, f)
		}
	}
	return agreed
}

// once looks once. The driver is asked before the daemons: a client that the driver has seen is its daemon's by then.
func (r *Reader) once(ctx context.Context) Node {
	ctx, cancel := context.WithTimeout(ctx, lookDeadline)
	defer cancel()
	n := Node{Name: r.Name, Time: r.Clock(), Root: r.Root, Jobs: []Job{}, GPUs: []GPU{}, Unseen: []string{}, run: r.Run, paths: r.Paths}
	if r.doubt != "" {
		n.missed("%s", r.doubt)
	}
	r.readRecords(&n)
	r.readCensus(ctx, &n)
	r.readDriver(ctx, &n)
	r.readDaemons(ctx, &n)
	r.readClients(ctx, &n)
	return n
}

func (n *Node) missed(format string, args ...any) {
	n.Unseen = append(n.Unseen, fmt.Sprintf(format, args...))
}

// readCensus finds the processes of MPS, and which of the recorded daemons are still there.
func (r *Reader) readCensus(ctx context.Context, n *Node) {
	var err error
	n.census, err = mps.Census(func(p site.Proc, file string) ([]byte, error) { return r.memory.read(ctx, p, file) })
	if err != nil {
		n.missed("the processes of MPS: %v", err)
		return
	}
	hidden := 0
	for _, p := range n.census {
		if p.Err != nil && p.Role == mps.RoleDaemon && !n.ofLease(p) {
			hidden++
		}
	}
	if hidden > 0 {
		n.missed("the pipe folders of %d MPS %s of other users", hidden, noun(hidden, "daemon"))
	}
	for i := range n.Jobs {
		for k := range n.Jobs[i].Daemons {
			n.Jobs[i].Daemons[k].look(n.census)
		}
	}
}

// look holds the recorded process against those that are there.
func (d *Daemon) look(census []mps.Process) {
	if d.record.Proc.PID == 0 {
		d.State = NotStarted
		return
	}
	if slices.ContainsFunc(census, func(p mps.Process) bool { return p.Proc == d.record.Proc }) {
		return
	}
	other := slices.IndexFunc(census, func(p mps.Process) bool {
		return p.Role == mps.RoleDaemon && p.PipeDir == d.PipeDir && p.Proc != d.record.Proc
	})
	switch {
	case d.record.Proc.Alive():
		d.State, d.Reason = Replaced, fmt.Sprintf("%s runs another program by now", d.record.Proc)
	case other >= 0:
		d.State, d.Reason = Replaced, fmt.Sprintf("%s has ended, and %s has its pipe folder", d.record.Proc, census[other].Proc)
	default:
		d.State, d.Reason = Gone, fmt.Sprintf("%s has ended", d.record.Proc)
	}
}

// readDriver asks the driver for all GPUs and the instances that jobs hold. A driver that hangs is left behind.
func (r *Reader) readDriver(ctx context.Context, n *Node) {
	ctx, cancel := context.WithTimeout(ctx, driverDeadline)
	defer cancel()
	type answer struct {
		seen []gpu.Sight
		err  error
	}
	instances := n.instances()
	answered := make(chan answer, 1)
	go func() {
		seen, err := r.askDriver(instances)
		answered <- answer{seen, err}
	}()
	select {
	case <-ctx.Done():
		n.missed("the GPUs: the driver does not answer within %v", driverDeadline)
	case a := <-answered:
		if a.err != nil {
			n.missed("the GPUs: %v", a.err)
			return
		}
		n.drivers = true
		r.takeGPUs(n, a.seen)
	}
}

func (r *Reader) askDriver(instances []site.UUID) ([]gpu.Sight, error) {
	driver, err := r.Driver()
	if err != nil {
		return nil, err
	}
	seen, err := driver.Survey()
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

// instances are the MIG instances that jobs hold: the driver lists none by itself.
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

func (r *Reader) takeGPUs(n *Node, seen []gpu.Sight) {
	for _, s := range seen {
		g := GPU{
			Index: s.Index, Minor: s.Device.Minor, UUID: s.Device.UUID, Name: s.Device.Name, SMs: s.Device.SMs, Mode: s.Mode,
			Processes: []Process{}, tpc: s.Device.TPC, mig: s.Device.MIGMode,
		}
		if s.Err != nil {
			g.Error = strings.ReplaceAll(s.Err.Error(), "\n", "; ")
			n.missed("%s: %s", g, g.Error)
		}
		g.Holder, g.Held = n.holder(g.UUID)
		for _, p := range s.Processes {
			if !ended(p.PID) { // the driver may list one that died for as long as its wrapper holds its files
				g.Processes = append(g.Processes, Process{PID: p.PID, Kind: n.kind(p, g), Name: commandOf(p.PID)})
			}
		}
		slices.SortFunc(g.Processes, func(a, b Process) int { return a.PID - b.PID })
		n.GPUs = append(n.GPUs, g)
	}
}

// holder is who has claimed a device: a claim of a job without a lease holds nothing.
func (n Node) holder(uuid site.UUID) (job *uint32, held bool) {
	at := slices.IndexFunc(n.claims, func(c lease.Claim) bool { return c.UUID == uuid })
	if at < 0 {
		return nil, false
	}
	claim := n.claims[at]
	switch {
	case errors.Is(claim.Err, fs.ErrPermission):
		return n.heldBy(uuid), true
	case errors.Is(claim.Err, lease.ErrVoid):
		return nil, false
	case claim.Err != nil:
		return nil, true
	}
	for _, j := range n.Jobs {
		if j.ID == claim.Job && j.leased {
			return &claim.Job, true
		}
	}
	return nil, false
}

// heldBy is the job whose lease or ticket names a device, nil where that is nobody's that we may know.
func (n Node) heldBy(uuid site.UUID) *uint32 {
	for _, j := range n.Jobs {
		if j.leased && slices.ContainsFunc(j.Devices, func(h Held) bool { return h.UUID == uuid }) {
			return &j.ID
		}
	}
	return nil
}

// kind tells a server from a process that computes without MPS: to the driver they are the same.
func (n Node) kind(p gpu.Process, g GPU) string {
	if p.MPS {
		return KindClient
	}
	for _, j := range n.Jobs {
		for _, d := range j.Daemons {
			at := slices.IndexFunc(n.census, func(c mps.Process) bool { return c.PID == p.PID && mps.GenuineServer(c, d.record.Proc) })
			if at >= 0 && slices.Contains(d.Devices, g.UUID) {
				return KindServer
			}
		}
	}
	return KindCompute
}

// readDaemons asks the daemons that are there, one after the other: parallel questions fail (measured).
func (r *Reader) readDaemons(ctx context.Context, n *Node) {
	if r.Daemons == nil {
		return
	}
	for i := range n.Jobs {
		j := &n.Jobs[i]
		for k := range j.Daemons {
			if d := &j.Daemons[k]; d.State == Alive {
				r.ask(ctx, n, j, d)
			}
		}
	}
}

func (r *Reader) ask(ctx context.Context, n *Node, j *Job, d *Daemon) {
	if !r.Root && j.UID != uint32(os.Geteuid()) {
		n.missed("the daemon of job %d: only its user and root may ask it", j.ID)
		return
	}
	if ctx.Err() != nil {
		n.missed("the daemon of job %d: no time was left to ask it", j.ID)
		return
	}
	said, err := r.Daemons.State(ctx, j.owner, d.record)
	d.State = servingOf(err)
	if err != nil {
		d.Reason = err.Error()
		return
	}
	d.Ceiling, d.rows = &said.Ceiling, said.Clients
	for _, s := range said.Servers {
		d.Servers = append(d.Servers, Server{s.PID, s.Status, s.Percent, append([]string{}, s.Limits...)})
	}
}

func servingOf(err error) Serving {
	switch {
	case err == nil:
		return Serves
	case errors.Is(err, site.ErrNotServing):
		return NotServing
	case errors.Is(err, site.ErrWedged):
		return Wedged
	}
	return Unclear
}

func noun(n int, singular string) string {
	if n == 1 {
		return singular
	}
	return singular + "s"
}

// numbered is "job 7", "jobs 7, 8", and no more than ten of them.
func numbered(singular string, numbers []string) string {
	const most = 10
	if len(numbers) > most {
		return fmt.Sprintf("%ss %s and %d more", singular, strings.Join(numbers[:most], ", "), len(numbers)-most)
	}
	return noun(len(numbers), singular) + " " + strings.Join(numbers, ", ")
}
