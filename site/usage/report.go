// SPDX-License-Identifier: Apache-2.0

// Package usage has the report of a job's use of its GPUs on one node.
package usage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/slurm-mps/slurm-mps/site/proc"
)

// Schema is the version of Report as JSON.
const Schema = 1

// Report is the use of GPUs by one job on one node. End is zero while the job runs.
type Report struct {
	Schema    int    `json:"schema"`
	Job       uint32 `json:"job"`
	Node      string `json:"node"`
	User      string `json:"user"`
	Partition string `json:"partition,omitempty"`
	Account   string `json:"account,omitempty"`
	// NodeList are all nodes of the job, as Slurm writes them: n[1-4]. "" means not known.
	NodeList string `json:"node_list,omitempty"`
	// Name is the job's name, and Array its name in a job array, 4711_3. They are from its first client's environment.
	Name  string `json:"name,omitempty"`
	Array string `json:"array,omitempty"`
	Rule  string `json:"rule"`
	Share string `json:"share,omitempty"` // the rule's share, as in the policy: even, overlap:2, 3:1, none
	// NoMPS is a job that the policy records although it ran without MPS. It has no guard, so no exit and no ending of its
	// processes is known, and a process that lived between two samples alone is not in it.
	NoMPS bool      `json:"no_mps,omitempty"`
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end,omitzero"`
	// Part is the job's part of each GPU. Shards are those that its clients have in their environment.
	Part    lease.Part   `json:"part,omitzero"`
	GPUs    list[GPU]    `json:"gpus"`
	Clients list[Client] `json:"clients"`
	// SharedWith are the other jobs that had the same daemon at the latest sample.
	SharedWith []uint32 `json:"shared_with,omitempty"`
	Totals
	Faults list[Fault] `json:"faults,omitempty"`
	// DaemonGone is when the recorder or the epilog found that a daemon had ended before the job.
	DaemonGone time.Time `json:"daemon_gone,omitzero"`
}

// Totals are the counts of a job. mpsctl status, report and metrics and the epilog's summary have them by these names.
type Totals struct {
	// Counts are the guard's. ClientsSeen is larger than len(Clients) if there were more than MaxClients.
	lease.Counts
	// BadEnds counts the clients that ended badly before the job's end, as BadEnd says.
	BadEnds int `json:"bad_ends"`
	// EnergyJ is the energy of the job's GPUs in joules, 0 if it is not known. MIG instances have no energy of their own.
	// Of a part of a GPU, it is that part of the GPU's energy.
	EnergyJ int `json:"energy_j,omitempty"`
}

// These bounds keep a report short, even if a job has many clients or runs for many days.
const (
	MaxClients = 512
	MaxSamples = 720
	MaxFaults  = 64
	MaxGPUs    = 64
)

// list is a list in a report. A user may have written the report, in which three bytes, {}, are a client of 200 bytes.
// So a list that is too long is refused before more of it is made.
type list[T interface{ bound() int }] []T

func (GPU) bound() int    { return MaxGPUs }
func (Client) bound() int { return MaxClients }
func (Sample) bound() int { return MaxSamples }
func (Fault) bound() int  { return MaxFaults }

// UnmarshalJSON reads a list up to its bound.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	var none T
	elements := json.NewDecoder(bytes.NewReader(text))
	if start, err := elements.Token(); err != nil || start != json.Delim('[') {
		return err // null
	}
	for *l = nil; elements.More(); {
		var element T
		if len(*l) == none.bound() {
			return fmt.Errorf("a list has more than %d elements", none.bound())
		}
		if err := elements.Decode(&element); err != nil {
			return err
		}
		*l = append(*l, element)
	}
	return nil
}

// GPU is one GPU of the job, with its use over time.
type GPU struct {
	Node      string    `json:"node,omitempty"` // in a report of several nodes
	Index     int       `json:"index"`          // N of /dev/nvidiaN
	UUID      site.UUID `json:"uuid"`
	Name      string    `json:"name"`
	SMs       int       `json:"sms"`
	MemoryMiB int       `json:"memory_mib"`
	// Others is how many other jobs with MPS had a part of the GPU at the same time, at most.
	Others int `json:"others,omitempty"`
	// Source is where the percentages were read: "GPM", "process utilization", or "" if there are none, as with MIG and
	// on a GPU of several jobs.
	Source string `json:"source"`
	// Each sample covers at least Resolution seconds, except the first and the last. The recorder doubles Resolution
	// when there are MaxSamples.
	Resolution int          `json:"resolution"`
	EnergyJ    int          `json:"energy_j,omitempty"` // as in Totals, of this GPU
	Samples    list[Sample] `json:"samples"`
}

// Sample is the use of a GPU from the previous sample, or from Begin, until At. Its figures are percentages from 0 to
// 100. -1 means not known.
type Sample struct {
	At time.Time `json:"at"`
	// SMUtil is the part of the time in which any process had a kernel on the GPU.
	SMUtil float64 `json:"sm_util"`
	// SMActive is the average part of the SMs that had work. Only GPM has this value.
	SMActive float64 `json:"sm_active"`
	// DRAM is the part of the memory's bandwidth that was used. Only GPM has this value.
	DRAM float64 `json:"dram"`
	// UsedMiB and Clients are the maximum values in the time.
	UsedMiB float64 `json:"used_mib"`
	Clients int     `json:"clients"`
}

// Client is a process that was a client of MPS on one GPU.
type Client struct {
	PID int `json:"pid"`
	GPU int `json:"gpu"` // an index into Report.GPUs, -1 if it is not known
	// Rank and Step are from the process's environment, and Program is the kernel's name for it. Its user can write all
	// of them. -1 and "" mean not known.
	Rank    int    `json:"rank"`
	Step    string `json:"step,omitempty"`
	Program string `json:"program,omitempty"`
	Outside bool   `json:"outside,omitempty"` // it ended badly, and its environment named none of the job's MPS daemons
	// SMs is the share: 0 is the whole GPU, -1 means not known. LimitMiB is the memory limit: 0 means no limit.
	SMs      int       `json:"sms"`
	LimitMiB int       `json:"limit_mib"`
	PeakMiB  int       `json:"peak_mib"` // the maximum of the measured memory
	Begin    time.Time `json:"begin"`
	End      time.Time `json:"end,omitzero"`
	// Exit is how the process ended, as in "status 3" or "signal 9". It is "" if that is not known.
	Exit string `json:"exit,omitempty"`
	// Ending is the effect of the end on the GPU, as far as the guard and the server know. It is "" until the guard has
	// closed the files.
	Ending Ending `json:"ending,omitempty"`
	// Unharmed counts the other clients of the GPU that lived on after this client's end, while its files were held.
	Unharmed int `json:"unharmed,omitempty"`
}

// Ending is the effect of a client's end on its GPU.
type Ending string

const (
	Ended Ending = "ended" // no other client lived on the GPU, or the GPU had no work after the client's end
	// InFlight means that other clients lived and that the GPU had work after the client's end, its own or theirs.
	// The guard held its files.
	InFlight Ending = "inflight"
	Faulted  Ending = "fault"  // a fatal GPU error
	AtEpilog Ending = "epilog" // the client outlived the job
)

// Fault is a fatal GPU error, which ends all clients of the GPU. It is read from the server's log, which the job's
// user can write.
type Fault struct {
	At  time.Time `json:"at"`
	GPU int       `json:"gpu"` // an index into Report.GPUs
	// PID is the client that caused the error: a client that ended just before, or else the client that the server
	// names. 0 means not known.
	PID int `json:"pid"`
}

// InOrder is the exit of a client that ended with status 0.
const InOrder = "status 0"

// BadEnd reports whether a client is known to have ended badly: with a fatal GPU error, by a signal, or with a status
// other than 0. A client that outlived the job was ended by the epilog, and does not count.
func BadEnd(exit string, ending Ending) bool {
	return ending == Faulted || exit != "" && exit != InOrder && ending != AtEpilog
}

// Whole reports whether the figures of the whole GPUs are the job's own. Otherwise the report has no percentages, and
// its memory is that of the job's own clients.
func (r Report) Whole() bool { return r.Part.Fraction() == 1 && r.Others() == 0 }

// Others returns how many other jobs had one of the GPUs at the same time.
func (r Report) Others() (n int) {
	for _, g := range r.GPUs {
		n = max(n, g.Others)
	}
	return n
}

// memoryMiB returns the memory of a GPU that is the job's.
func (r Report) memoryMiB(g GPU) float64 {
	if part := r.Part.Fraction(); part > 0 {
		return part * float64(g.MemoryMiB)
	}
	return float64(g.MemoryMiB)
}

// ScaleEnergy adds the energy from the latest samples until a time, if the job has a part of a GPU, as if its power had
// been the same all the time. Nothing tells the recorder of a shared daemon that one of its jobs ends.
func (r *Report) ScaleEnergy(end time.Time) {
	if r.Whole() {
		return
	}
	r.EnergyJ = 0
	for n := range r.GPUs {
		g := &r.GPUs[n]
		if lasted := g.Mean(r.Begin).At.Sub(r.Begin); len(g.Samples) > 0 && lasted > 0 {
			g.EnergyJ = int(float64(g.EnergyJ)*float64(end.Sub(r.Begin))/float64(lasted) + 0.5)
		}
		r.EnergyJ += g.EnergyJ
	}
}

// HarmTime is the time in which the end of a client can end its neighbours. The measured time is 0.13 to 0.19 s (on an
// H200).
const HarmTime = 500 * time.Millisecond

// Event is a report of a job's guard to the job's recorder, as a line of JSON. Each event has the guard's counts,
// so a lost event loses none. An event without a process has only these.
type Event struct {
	Proc  proc.Process `json:"proc,omitzero"`
	GPUs  uint64       `json:"gpus"` // bit n: the client has the job's n-th GPU open; 0 if no GPU is known
	Begin time.Time    `json:"begin,omitzero"`
	End   time.Time    `json:"end,omitzero"`
	Exit  string       `json:"exit,omitempty"` // as in Client
	// Ending and Unharmed are as in Client. They are known later than End.
	Ending   Ending `json:"ending,omitempty"`
	Unharmed int    `json:"unharmed,omitempty"`
	NoClient bool   `json:"no_client,omitempty"` // the process was counted as a client of the job and is not a client
	lease.Counts
}

// Running is the name of a running job's report in the job's folder.
const Running = "report.json"

// RunningOf returns the name of a running job's report in the folder of the lease whose daemons serve the job.
func RunningOf(job, joined uint32) string {
	if joined == 0 {
		return Running
	}
	return fmt.Sprintf("report-%d.json", job)
}

// Read reads a report that only root could write. The error may wrap fs.ErrNotExist or fs.ErrPermission.
func Read(path string) (Report, error) { return read(path, osfile.ReadRootOwnedInContainer) }

// ReadOwn reads a copy of a report, which is a user's own.
func ReadOwn(path string, owner uint32) (Report, error) {
	return read(path, func(path string) ([]byte, error) { return osfile.ReadOwn(path, owner) })
}

func read(path string, readFile func(string) ([]byte, error)) (r Report, err error) {
	content, err := readFile(path)
	if err != nil {
		return Report{}, err
	}
	switch err = json.Unmarshal(content, &r); {
	case r.Schema > Schema:
		return Report{}, fmt.Errorf("cannot read %s: a newer slurm-mps has written it: use its mpsctl", path)
	case err != nil || !r.sound():
		return Report{}, fmt.Errorf("cannot read %s: it is not a report of slurm-mps", path)
	}
	return r, nil
}

// sound reports whether the report has a known schema and all of its indexes are valid.
func (r Report) sound() bool {
	exists := func(gpu int) bool { return gpu >= 0 && gpu < len(r.GPUs) }
	for _, c := range r.Clients {
		if c.GPU != -1 && !exists(c.GPU) {
			return false
		}
	}
	for _, f := range r.Faults {
		if !exists(f.GPU) {
			return false
		}
	}
	return r.Schema == Schema && r.Job > 0
}

// Write writes a report into an open folder of root. The job's user may read the file, and no group, because at some
// sites all users have one group. A reader sees the old report or the new report. After a crash of the node, the file
// may be missing.
func (r Report) Write(dir *os.File, name string, uid uint32) error {
	content, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write report of job %d: %w", r.Job, err)
	}
	return osfile.File{Content: append(content, '\n'), Mode: 0o600, Reader: uid}.Write(dir, name)
}
