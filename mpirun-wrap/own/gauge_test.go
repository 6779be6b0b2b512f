// SPDX-License-Identifier: Apache-2.0

package own

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// twoGPUs reads the GPUs A and B, which had work at this time.
func twoGPUs(busy time.Time) *smi {
	return &smi{uuids: []string{"GPU-a", "GPU-b"}, read: make(chan struct{}), gpus: make([]gauge.Usage, 2), busy: []time.Time{busy, busy}}
}

// nvidia-smi's lines become usages. Unknown figures and other forms make a GPU unknown, and other GPUs do not count.
func TestTake(t *testing.T) {
	s := twoGPUs(time.Now())
	lines := "GPU-a, 97, 141012, 143771\nGPU-other, 5, 1, 2\nGPU-b, [N/A], 10, 20\nGPU-b, 3, 10\nNo devices were found\n"
	must.OK(t, s.take(bufio.NewScanner(strings.NewReader(lines))))
	select {
	case <-s.read:
	default:
		t.Error("it still waits for the first lines")
	}
	var out bytes.Buffer
	if err := s.answer(bufio.NewReader(strings.NewReader("\n\n")), &out); err == nil {
		t.Error("the end of the questions is no end")
	}
	var answers [2][]gauge.Usage
	d := json.NewDecoder(&out)
	for i := range answers {
		must.OK(t, d.Decode(&answers[i]))
	}
	a, b := answers[0][0], answers[0][1]
	if !a.Known || !a.ContextsUnknown || a.FreeMiB != 141012 || a.TotalMiB != 143771 || len(a.Samples) != 1 || a.Samples[0].Percent != 97 || b.Known {
		t.Errorf("%+v, %+v", a, b)
	}
	if again := answers[1][0]; !again.Known || len(again.Samples) != 0 {
		t.Errorf("the second answer: %+v", again)
	}
}

// A sample of 0 may cover a second with work in it, so it counts as 0 only after a second without work.
func TestIdleOnlyAfterALongSample(t *testing.T) {
	began := time.Unix(1000, 0)
	s := twoGPUs(began)
	for _, c := range []struct {
		after time.Duration
		reads string
		want  int
	}{
		{0, "0", 1}, {900 * time.Millisecond, "0", 1}, {time.Second, "0", 0}, {1100 * time.Millisecond, "40", 40}, {2 * time.Second, "0", 1},
		{2100 * time.Millisecond, "0", 0},
	} {
		s.takeOne(0, c.reads+", 10, 20", began.Add(c.after))
		samples := s.gpus[0].Samples
		must.Equal(t, fmt.Sprintf("after %v", c.after), samples[len(samples)-1].Percent, c.want)
	}
	for _, unknown := range []string{"[N/A], 10, 20", "3, 10", "3, 10, 20, 30"} {
		s.takeOne(1, "3, 10, 20", began)
		if s.takeOne(1, unknown, began); s.gpus[1].Known {
			t.Errorf("%s: %+v", unknown, s.gpus[1])
		}
	}
	for range 3 * maxSamples {
		s.takeOne(0, "1, 10, 20", began)
	}
	if got := len(s.gpus[0].Samples); got != maxSamples {
		t.Errorf("%d samples are kept", got)
	}
}

func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/program": 0o644, "b/program": 0o755} {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, nil, mode))
	}
	path := slurm.Env{"PATH": ":relative:" + dir + "/a:" + dir + "/b"}
	if got, err := lookUp("program", path); got != dir+"/b/program" || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	_, err := lookUp("no-such-program", path)
	if want := "cannot find no-such-program on PATH or in /usr/bin: it comes with NVIDIA's driver"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
