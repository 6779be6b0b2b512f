// SPDX-License-Identifier: Apache-2.0

package own

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-mps/slurm-mps/site/guard"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"golang.org/x/sys/unix"
)

// gaugeReading is how nvidia-smi prints a line for each GPU, all of them every 100 ms:
//
//	GPU-5ed1b0a6-2a0c-0f8c-7a77-0c9d3fdc4a6e, 97, 141012, 143771
var gaugeReading = []string{"--query-gpu=uuid,utilization.gpu,memory.free,memory.total", "--format=csv,noheader,nounits", "-lms", "100"}

const (
	// longestSample is the longest time that nvidia-smi's utilisation covers, by its manual page: 1/6 s to 1 s.
	longestSample = time.Second
	// gaugeStays is how long nvidia-smi runs after a question. The guard asks only while it holds files of dead clients.
	gaugeStays = 5 * time.Second
)

// smi reads the usage of GPUs from nvidia-smi. It knows neither the clients of a GPU nor the exact time of a sample. So a
// GPU counts as idle only after longestSample without work.
type smi struct {
	path    string
	uuids   []string
	mutex   sync.Mutex
	gpus    []guard.Usage
	busy    []time.Time // of each GPU, when it last had work, or when the reading began
	process *os.Process // nil for none
	asked   time.Time
}

// gauge answers each line on stdin with the usage of the GPUs, as gpu-usage does. It ends with its stdin.
func gauge(uuids []string, env slurm.Env) error {
	path, err := findSMI(env)
	if err != nil {
		return err
	}
	s := &smi{path: path, uuids: uuids, gpus: make([]guard.Usage, len(uuids)), busy: make([]time.Time, len(uuids))}
	defer s.stop()
	questions := bufio.NewReader(os.Stdin)
	for {
		if _, err := questions.ReadByte(); err != nil {
			return nil
		}
		if err := s.answer(os.Stdout); err != nil {
			return err
		}
	}
}

func findSMI(env slurm.Env) (string, error) {
	for _, folder := range append(filepath.SplitList(env["PATH"]), "/usr/bin") {
		path := filepath.Join(folder, "nvidia-smi")
		if filepath.IsAbs(path) && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", errors.New("cannot find nvidia-smi")
}

// answer prints what was read since the last answer.
func (s *smi) answer(out io.Writer) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.asked = time.Now()
	if s.process == nil {
		if err := s.start(); err != nil {
			return err
		}
	}
	err := json.NewEncoder(out).Encode(s.gpus)
	for i := range s.gpus {
		s.gpus[i].Samples = nil
	}
	return err
}

// start starts nvidia-smi, and a goroutine that reads its output.
func (s *smi) start() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer write.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	argv := append([]string{s.path}, gaugeReading...)
	s.process, err = os.StartProcess(s.path, argv, &os.ProcAttr{Dir: "/", Env: os.Environ(), Files: []*os.File{null, write, null}})
	if err != nil {
		return err
	}
	for i := range s.busy {
		s.busy[i], s.gpus[i] = time.Now(), guard.Usage{}
	}
	go s.read(s.process, read)
	return nil
}

// read reads nvidia-smi's lines until its end, or until no one has asked for some time.
func (s *smi) read(process *os.Process, from *os.File) {
	lines := bufio.NewScanner(from)
	for lines.Scan() && s.take(lines.Text()) {
	}
	from.Close()
	_ = process.Kill()
	_, _ = process.Wait()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.process = nil
	for i := range s.gpus {
		s.gpus[i].Known = false
	}
}

// take takes a line about a GPU. It reports false if no one asks any more.
func (s *smi) take(line string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	now := time.Now()
	for i, uuid := range s.uuids {
		fields := strings.Split(line, ", ")
		if len(fields) != 4 || fields[0] != uuid {
			continue
		}
		percent, err1 := strconv.Atoi(fields[1])
		free, err2 := strconv.Atoi(fields[2])
		total, err3 := strconv.Atoi(fields[3])
		if err1 != nil || err2 != nil || err3 != nil { // "[N/A]"
			s.gpus[i].Known = false
			continue
		}
		if percent > 0 {
			s.busy[i] = now
		} else if now.Sub(s.busy[i]) < longestSample {
			percent = 1
		}
		gpu := &s.gpus[i]
		gpu.Known, gpu.ContextsUnknown, gpu.FreeMiB, gpu.TotalMiB = true, true, free, total
		gpu.Samples = append(gpu.Samples, guard.Sample{Micros: uint64(now.UnixMicro()), Percent: percent})
	}
	return now.Sub(s.asked) < gaugeStays
}

func (s *smi) stop() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.process != nil {
		_ = s.process.Kill()
	}
}
