package mpirunwrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
)

// Verify is what is done about a rank that uses a GPU outside MPS.
type Verify string

// The zero value is VerifyWarn.
const (
	VerifyOff  Verify = "off"  // nobody looks
	VerifyWarn Verify = "warn" // one line on stderr for all ranks of a launch on the node
	VerifyFail Verify = "fail" // the line, and every such rank is ended with code 125
)

func setVerify(o *Options, value string) error {
	switch v := Verify(value); v {
	case VerifyOff, VerifyWarn, VerifyFail:
		o.Verify = v
		return nil
	}
	return errors.New("want off, warn or fail")
}

// Verification is how a guard finds out whether what its program does on a GPU is done under MPS: CUDA itself starts
// without MPS and says nothing where it does not find the daemon (measured).
//
// The promise: silence unless a process of the rank is seen twice, 3 s apart, after its cuInit and unknown to the server.
// What cannot be seen (a pid namespace of its own, a log that is another) is no reason for a word.
type Verification struct {
	Device          site.UUID
	PipeDir, LogDir string
	Fail            bool // end the rank
	// Clients are the pids of the daemon's clients. It has returned at the end of ctx, and has waited for any process
	// that it started. The error wraps fs.ErrNotExist or fs.ErrPermission where nobody can be asked.
	Clients func(ctx context.Context) ([]int, error)
	// First reports whether no other rank of the launch on this node has said it.
	First func() bool

	log *attached
}

// looks are when the guard looks, from the start of the program. A client that has been seen to be one ends them: that
// costs 0.03 ms, and a tree of processes without one up to 0.1 ms a thread. They end, so that an idle node is not woken
// for ever.
var looks = []time.Duration{2 * time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour}

const (
	// secondLook is between the two looks that it takes to find a process outside: one may be on its way into MPS.
	secondLook = 3 * time.Second
	// clientsPatience is for the daemon's answer.
	clientsPatience = 2 * time.Second
	// outsideCode is a rank's that was ended for being outside: the wrapper's own failure.
	outsideCode = 125
)

// verify looks until a process of the rank is a client, one is found outside, the rank ends or the looks do.
func (g *guard) verify(began time.Time) {
	for _, at := range looks {
		if !g.idle(time.Until(began.Add(at))) {
			return
		}
		suspect, inside := g.look()
		if suspect.PID != 0 {
			if !g.unknown(suspect.PID) || !g.idle(secondLook) {
				continue
			}
			var again site.Proc
			if again, inside = g.look(); again == suspect {
				g.found(suspect)
				return
			}
		}
		if inside {
			g.say("it is under MPS")
			return
		}
	}
}

// idle waits and reports whether the rank still lives and nobody is ending it.
func (g *guard) idle(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-g.ended:
		return false
	case <-timer.C:
		return g.fate.Load() == undecided
	}
}

// look looks at the processes of the rank that use CUDA: one that is a client is enough; else the first that is not. Its
// children may have its files without being clients, so one speaks for all.
func (g *guard) look() (suspect site.Proc, inside bool) {
	all := g.Verify.log.read()
	clients := g.Verify.log.pids
	if clients[g.program] || !all {
		return site.Proc{}, clients[g.program] // mostly: to look at processes takes longer
	}
	for _, p := range descendants() {
		if !initialised(p.PID) || !loadsCUDA(p.PID) {
			continue
		}
		switch names := pidsOf(p.PID); {
		case anyIn(names, clients):
			return site.Proc{}, true
		case len(names) == 1 && suspect.PID == 0: // more: the server knows it by a number of another namespace
			suspect = p
		}
	}
	return suspect, false
}

// unknown asks the daemon whether a process is none of its clients. Where the daemon cannot be asked from here the log's
// word counts; where it does not answer, nothing is known. Nobody else waits for the children of whoever asks meanwhile.
func (g *guard) unknown(pid int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), clientsPatience)
	defer cancel()
	g.reaping.Lock()
	defer g.reaping.Unlock()
	clients, err := g.Verify.Clients(ctx)
	for _, client := range clients {
		if client == pid {
			return false
		}
	}
	return err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// found says that a process is outside, or that it is and the rank is ended.
func (g *guard) found(p site.Proc) {
	v := g.Verify
	cause := v.cause(p.PID)
	if !p.Alive() || g.fate.Load() != undecided {
		return
	}
	if v.First() {
		ends := ""
		if v.Fail {
			ends = ", and is ended for it (--verify=fail), as every such rank is"
		}
		fmt.Fprintf(g.Err, "mpirun-wrap: rank %d (%s) uses %s outside MPS%s: %s; said once for this node\n", g.Rank, p, v.Device, ends, cause)
	}
	if v.Fail {
		g.outside <- struct{}{}
	}
}

// cause is the likely reason why a process did not find the daemon, and what to do, from the environment that its program
// began with.
func (v *Verification) cause(pid int) string {
	const variable = "CUDA_MPS_PIPE_DIRECTORY"
	value, set, err := startedWith(pid, variable)
	root := filepath.Join("/proc", strconv.Itoa(pid), "root")
	_, missing := os.Lstat(filepath.Join(root, v.PipeDir, "control"))
	switch {
	case err != nil, missing != nil && !errors.Is(missing, fs.ErrNotExist):
		return "see that " + variable + " reaches it as mpirun-wrap set it"
	case !set:
		return "it was started without " + variable + ": what starts it (a script, env -i, a container) must keep it as mpirun-wrap set it"
	case value != v.PipeDir:
		return fmt.Sprintf("it was started with %s=%q: what starts it must keep it as mpirun-wrap set it, %s", variable, value, v.PipeDir)
	case errors.Is(missing, fs.ErrNotExist):
		return fmt.Sprintf("its container has no %[1]s: mount it there, as apptainer exec --bind %[1]s does", v.PipeDir)
	}
	return "it changes " + variable + " itself, after its start: let it be"
}

// mostEnvironment bounds what is read of a process's environment.
const mostEnvironment = 1 << 20

// startedWith is a variable of the environment that a process's program began with.
func startedWith(pid int, name string) (value string, set bool, err error) {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return "", false, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, mostEnvironment))
	for entry := range bytes.SplitSeq(content, []byte{0}) {
		if rest, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			return string(rest), true, err
		}
	}
	return "", false, err
}

// initialised reports whether a process has called cuInit: it has the memory driver's file open then, under MPS and
// without, and with CUDA's library loaded alone it has not (measured). The GPU's own file says less, since NVML opens it
// too. What may not be seen counts as no.
func initialised(pid int) bool {
	memory, _ := driverFiles(pid)
	return len(memory) > 0
}

// loadsCUDA reports whether a process has loaded the driver's library. What may not be seen counts as no.
func loadsCUDA(pid int) bool {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return false
	}
	defer file.Close()
	return contains(file, "/libcuda.so")
}

// contains reports whether a text has a word in it. It reads in chunks: the maps of a large program have a megabyte, and
// this process is to stay small.
func contains(text io.Reader, word string) bool {
	buffer := make([]byte, 32<<10)
	kept := 0 // of the chunk before, for a word across two
	for {
		n, err := text.Read(buffer[kept:])
		if bytes.Contains(buffer[:kept+n], []byte(word)) {
			return true
		}
		if err != nil {
			return false
		}
		kept = copy(buffer, buffer[max(0, kept+n-len(word)):kept+n])
	}
}

// pidsOf are a process's pids, in this namespace and in those below it where it lives in one.
func pidsOf(pid int) (pids []int) {
	content, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	_, rest, _ := bytes.Cut(content, []byte("\nNSpid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	for word := range bytes.FieldsSeq(line) {
		if n, err := strconv.Atoi(string(word)); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

func anyIn(pids []int, known map[int]bool) bool {
	for _, pid := range pids {
		if known[pid] {
			return true
		}
	}
	return false
}
