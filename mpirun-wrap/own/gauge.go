// SPDX-License-Identifier: Apache-2.0

package own

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard/gauge"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"golang.org/x/sys/unix"
)

// gaugeReading is how nvidia-smi prints a line for each GPU, all of them ten times a second:
//
//	GPU-5ed1b0a6-2a0c-0f8c-7a77-0c9d3fdc4a6e, 97, 141012, 143771
var gaugeReading = []string{"--query-gpu=uuid,utilization.gpu,memory.free,memory.total", "--format=csv,noheader,nounits", "-lms", "100"}

const (
	// longestSample is the longest time that nvidia-smi's utilisation covers, by its manual page: 1/6 s to 1 s.
	longestSample = time.Second
	// firstReading limits the wait for the first lines.
	firstReading = 2 * time.Second
)

// smi reads the usage of GPUs from nvidia-smi. It knows neither the clients of a GPU nor the exact time of a sample. So a
// GPU counts as idle only after longestSample without work.
type smi struct {
	uuids []string
	read  chan struct{} // closed after the first line of the last GPU
	mutex sync.Mutex
	gpus  []gauge.Usage
	busy  []time.Time // of each GPU, when it last had work, or when the reading began
}

// runGauge answers each line on stdin with the usage of the GPUs, as gpu-usage does. It ends with its stdin, or with
// nvidia-smi.
func runGauge(path, libraries string, uuids []string) error {
	s := &smi{uuids: uuids, read: make(chan struct{}), gpus: make([]gauge.Usage, len(uuids))}
	s.busy = slices.Repeat([]time.Time{time.Now()}, len(uuids))
	lines, stop, err := startReading(path, libraries)
	if err != nil {
		return err
	}
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- s.take(lines) }()
	go func() { ended <- s.answer(bufio.NewReader(os.Stdin), os.Stdout) }()
	return <-ended
}

// startReading starts nvidia-smi. It dies with this process.
func startReading(path, libraries string) (lines *bufio.Scanner, stop func(), err error) {
	runtime.LockOSThread() // the kernel kills the child when this thread ends
	from, to, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer to.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	process, err := os.StartProcess(path, append([]string{path}, gaugeReading...), &os.ProcAttr{
		Dir: "/", Env: []string{"LD_LIBRARY_PATH=" + libraries}, Files: []*os.File{null, to, null}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return nil, nil, err
	}
	return bufio.NewScanner(from), func() { _ = process.Kill() }, nil
}

// answer prints what was read since the last answer, for each line of the guard.
func (s *smi) answer(questions *bufio.Reader, out io.Writer) error {
	encoder := json.NewEncoder(out)
	for {
		if _, err := questions.ReadByte(); err != nil {
			return err
		}
		select {
		case <-s.read:
		case <-time.After(firstReading):
		}
		s.mutex.Lock()
		err := encoder.Encode(s.gpus)
		for i := range s.gpus {
			s.gpus[i].Samples = nil
		}
		s.mutex.Unlock()
		if err != nil {
			return err
		}
	}
}

// take takes nvidia-smi's lines until its end.
func (s *smi) take(lines *bufio.Scanner) error {
	first := true
	for lines.Scan() {
		uuid, figures, _ := strings.Cut(lines.Text(), ", ")
		i := slices.Index(s.uuids, uuid)
		if i < 0 {
			continue // another GPU of the node
		}
		s.takeOne(i, figures, time.Now())
		if first && i == len(s.uuids)-1 {
			first = false
			close(s.read)
		}
	}
	return lines.Err()
}

// maxSamples limits the samples between two questions. The guard may not ask for hours.
const maxSamples = 16

// takeOne takes the figures of a GPU: percent of the time with work, free and total memory in MiB. An unknown one is
// "[N/A]".
func (s *smi) takeOne(i int, figures string, now time.Time) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var percent, free, total int
	if _, err := fmt.Sscanf(figures+"\n", "%d, %d, %d\n", &percent, &free, &total); err != nil {
		s.gpus[i] = gauge.Usage{}
		return
	}
	if percent > 0 {
		s.busy[i] = now
	} else if now.Sub(s.busy[i]) < longestSample {
		percent = 1
	}
	samples := append(s.gpus[i].Samples, gauge.Sample{Micros: uint64(now.UnixMicro()), Percent: percent})
	s.gpus[i] = gauge.Usage{
		Known: true, ContextsUnknown: true, FreeMiB: free, TotalMiB: total, Samples: samples[max(0, len(samples)-maxSamples):],
	}
}

// lookUp finds a program of the driver: on PATH, or in /usr/bin.
func lookUp(name string, env slurm.Env) (string, error) {
	path := firstOf(append(filepath.SplitList(env["PATH"]), "/usr/bin"), name, unix.X_OK)
	if path == "" {
		return "", fmt.Errorf("cannot find %s on PATH or in /usr/bin: it comes with NVIDIA's driver", name)
	}
	return path, nil
}

// firstOf returns the first path of a file that this process may use so, or "". Relative folders are left out.
func firstOf(folders []string, name string, use uint32) string {
	for _, folder := range folders {
		if path := filepath.Join(folder, name); filepath.IsAbs(path) && unix.Access(path, use) == nil {
			return path
		}
	}
	return ""
}
