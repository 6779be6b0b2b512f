// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestSearch(t *testing.T) {
	long := strings.Repeat("x", bufferBytes)
	for _, c := range []struct {
		name, environment string
		want              map[string]string
		err               error
	}{
		{"one", "A=1\x00", map[string]string{"A": "1"}, nil},
		{"the last has no end", "X=2\x00A=1", map[string]string{"A": "1"}, nil},
		{"the first counts", "A=1\x00A=2\x00", map[string]string{"A": "1"}, nil},
		{"both, and an empty one", "PIPE=\x00A=1\x00", map[string]string{"A": "1", "PIPE": ""}, nil},
		{"parts of names", "AA=1\x00PIPES=1\x00A\x00=A=1\x00XA=1\x00PIPE", map[string]string{}, nil},
		{"an equals sign in it", "A=b=c\x00", map[string]string{"A": "b=c"}, nil},
		{"nothing", "", map[string]string{}, nil},
		{"nothing but ends", strings.Repeat("\x00", 100_000), map[string]string{}, ErrOverwritten},
		{"a title", "VLLM::EngineCore\x00", map[string]string{}, ErrOverwritten},
		{"a title over a part", "Worker\x00B=2\x00A=1\x00", map[string]string{"A": "1"}, ErrOverwritten},
		{"a title with an equals sign", "TP=0\x00" + strings.Repeat("\x00", 3*bufferBytes), map[string]string{}, ErrOverwritten},
		{"zeros at its end", "X=2\x00A=1\x00\x00", map[string]string{"A": "1"}, ErrOverwritten},
		{"behind much", strings.Repeat("X=12345678\x00", 50_000) + "PIPE=/run\x00A=1", map[string]string{"A": "1", "PIPE": "/run"}, nil},
		{"behind an entry larger than the buffer", "X=" + long + long + "\x00A=1\x00", map[string]string{"A": "1"}, nil},
		{"a value larger than the buffer", "A=" + long + "\x00", map[string]string{}, ErrLong},
		{"an environment larger than the bound", strings.Repeat("X=12345678\x00", (maxBytes+bufferBytes)/11+1) + "A=1\x00", map[string]string{}, ErrLong},
	} {
		for name, text := range map[string]io.Reader{
			"whole": strings.NewReader(c.environment), "halves": iotest.HalfReader(strings.NewReader(c.environment)),
			"at its end": iotest.DataErrReader(strings.NewReader(c.environment)), "bytes": iotest.OneByteReader(strings.NewReader(c.environment)),
		} {
			got, err := search(text, []string{"A", "PIPE"})
			if fmt.Sprint(got.Values) != fmt.Sprint(c.want) || !errors.Is(err, c.err) || got.Empty != (c.environment == "") {
				t.Errorf("%s, %s: %v, empty %v, %v", c.name, name, got.Values, got.Empty, err)
			}
		}
	}
}

// An entry is found wherever the boundary between two reads is.
func TestSearchAtEveryEdge(t *testing.T) {
	for before := bufferBytes - 40; before < bufferBytes+5; before++ {
		got, err := search(strings.NewReader("X="+strings.Repeat("x", before)+"\x00PIPE=/run/pipe\x00A=1\x00"), []string{"PIPE", "A"})
		must.Hold(t, err == nil && got.Values["PIPE"] == "/run/pipe" && got.Values["A"] == "1",
			"behind %d bytes: %v, %v", before, got, err)
	}
}

// FuzzSearch compares the search with a simple search.
func FuzzSearch(f *testing.F) {
	f.Add([]byte("A=1\x00PIPE=2"), 3)
	f.Add([]byte("A\x00A=\x00PIPE=A=1\x00\x00"), 1)
	f.Fuzz(func(t *testing.T, environment []byte, size int) {
		want := map[string]string{}
		for entry := range bytes.SplitSeq(environment, []byte{0}) {
			name, value, ok := strings.Cut(string(entry), "=")
			if _, twice := want[name]; ok && !twice && (name == "A" || name == "PIPE") {
				want[name] = value
			}
		}
		got, err := search(short{bytes.NewReader(environment), max(1, size)}, []string{"A", "PIPE"})
		if err != nil && len(environment) < bufferBytes/2 || err == nil && fmt.Sprint(got.Values) != fmt.Sprint(want) {
			t.Errorf("%q: %v, %v, want %v", environment, got.Values, err, want)
		}
	})
}

// short reads a few bytes at a time.
type short struct {
	io.Reader
	size int
}

func (s short) Read(b []byte) (int, error) { return s.Reader.Read(b[:min(len(b), s.size)]) }

func TestVariables(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{"X=" + string(bytes.Repeat([]byte("x"), 100_000)), "A=here"}
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	stat := must.Get(ReadStat(cmd.Process.Pid))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for Variables(ctx, stat.Process, "A").Values["A"] != "here" { // between fork and exec the child has this process's environment
		if time.Sleep(time.Millisecond); ctx.Err() != nil {
			t.Fatalf("the environment is not read: %+v", Variables(t.Context(), stat.Process, "A"))
		}
	}
	if line := CommandLines(ctx, []Process{stat.Process})[0]; line.Err != nil || strings.Join(line.Args, " ") != "sleep 60" {
		t.Errorf("command line %q, %v", line.Args, line.Err)
	}
	if got := Variables(ctx, Process{PID: 1 << 30}, "A"); !errors.Is(got.Err, fs.ErrNotExist) {
		t.Errorf("the variables of a process that does not exist: %+v", got)
	}
}

func TestUIDs(t *testing.T) {
	own := uint32(os.Getuid())
	if uids, err := UIDs(os.Getpid()); err != nil || uids != [4]uint32{own, own, own, own} {
		t.Errorf("%d, %v", uids, err)
	}
	if _, err := UIDs(1 << 30); err == nil {
		t.Error("a process that does not exist has an owner")
	}
}

// held are files whose readers block until letGo is closed, except the files of process 1.
type held struct{ letGo chan struct{} }

func (h held) open(path string) (io.ReadCloser, error) {
	if path == "/proc/1/environ" {
		return io.NopCloser(strings.NewReader("A=free\x00")), nil
	}
	<-h.letGo
	return io.NopCloser(strings.NewReader("A=late\x00")), nil
}

func newHeld() (*readers, held) {
	h := held{make(chan struct{})}
	r := newReaders(maxReaders)
	r.open = h.open
	return r, h
}

// Processes that block their readers cost one deadline together, however many there are. Other processes are read at
// the same time. A blocked process is not read again before its readers have returned.
func TestProcessesThatHoldUpTheirReaders(t *testing.T) {
	r, h := newHeld()
	var procs []Process
	for pid := range 100 {
		procs = append(procs, Process{PID: pid + 2})
	}
	procs = append(procs, Process{PID: 1})
	for round, wait := range []time.Duration{deadline, 0} {
		began := time.Now()
		found := r.environments(t.Context(), procs, []string{"A"})
		if took := time.Since(began); took < wait || took > wait+700*time.Millisecond {
			t.Errorf("round %d took %v", round, took)
		}
		for i, environment := range found[:100] {
			must.Hold(t, errors.Is(environment.Err, ErrLate), "round %d, process %d: %+v", round, i, environment)
		}
		if free := found[100]; free.Err != nil || free.Values["A"] != "free" {
			t.Errorf("round %d, the free process: %+v", round, free)
		}
		if r.running != 100 || len(r.left) != 100 {
			t.Errorf("round %d: %d readers, %d left behind", round, r.running, len(r.left))
		}
	}
	close(h.letGo)
	for began := time.Now(); r.environments(t.Context(), procs[:1], []string{"A"})[0].Values["A"] != "late"; {
		must.Have(t, time.Since(began) <= 5*time.Second, "the reader has returned, but the process is not read")
	}
}

// The number of readers has a limit, whatever the processes do.
func TestReadersHaveABound(t *testing.T) {
	r, h := newHeld()
	defer close(h.letGo)
	var procs []Process
	for pid := range 2 * maxReaders {
		procs = append(procs, Process{PID: pid + 2})
	}
	for range 3 {
		r.environments(t.Context(), procs, []string{"A"})
	}
	if r.running != maxReaders {
		t.Errorf("%d readers, want %d", r.running, maxReaders)
	}
}
