// SPDX-License-Identifier: Apache-2.0

// Package nvml_test compares the simulated libnvidia-ml.so.1 with a recording of an H200 and with NVIDIA's ABI. It
// uses go-nvml, as the production code does.
package nvml_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// The process can load only one library. So all tests share these folders, and each test makes its node again.
var built, place string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	scratch, err := os.MkdirTemp("", "nvml-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(scratch)
	if err := os.Chmod(scratch, 0o755); err != nil { // some tests run as another user
		return 1, err
	}
	built, place = filepath.Join(scratch, "built"), filepath.Join(scratch, "sim")
	if err := sim.Build(built); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// opened makes a node with these GPUs and initialises its library until the test ends.
func opened(t *testing.T, models ...node.Model) (sim.Sim, nvml.Interface) {
	t.Helper()
	made, lib := created(t, models...)
	ok(t, lib.Init())
	t.Cleanup(func() { lib.Shutdown() })
	return made, lib
}

func created(t *testing.T, models ...node.Model) (sim.Sim, nvml.Interface) {
	t.Helper()
	made := must.Get(sim.New(place, built, models...))(t)
	return made, nvml.New(nvml.WithLibraryPath(made.NVML()))
}

func ok(t *testing.T, ret nvml.Return) {
	t.Helper()
	want(t, "answer", ret, nvml.SUCCESS)
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	must.Hold(t, got == want, "%s = %v, want %v", what, got, want)
}

// The recording is of calls on a real H200 with driver 580.159.04. The test makes each call again and compares the
// line that it prints with the recorded line.
func TestH200AnswersAsRecorded(t *testing.T) {
	recording := must.Get(os.ReadFile("testdata/nvml-h200.txt"))(t)
	lines := strings.Split(strings.TrimSpace(string(recording)), "\n")
	made, lib := created(t, node.H200)
	must.OK(t, made.Node.GPU(0).Set("uuid", strings.Fields(lines[2])[0]))
	got := record(lib)
	must.Have(t, len(got) == len(lines), "%d answers for %d recorded lines", len(got), len(lines))
	for i, line := range lines {
		if isTimed(line) {
			holdTime(t, got[i], line)
			continue
		}
		want(t, fmt.Sprintf("line %d", i+1), got[i], line)
	}
}

// record makes the calls of the recording.
func record(lib nvml.Interface) []string {
	start := time.Now()
	ret := lib.Init()
	out := []string{fmt.Sprintf("init %v %.2f ms", ret, milliseconds(start))}
	add := func(format string, words ...any) { out = append(out, fmt.Sprintf(format, words...)) }
	count, ret := lib.DeviceGetCount()
	add("count %d %v", count, ret)
	device, _ := lib.DeviceGetHandleByIndex(0)
	uuid, ret := device.GetUUID()
	add("%s %v", uuid, ret)
	mode, ret := device.GetComputeMode()
	add("compute mode %d %v", int(mode), ret)
	cores, ret := device.GetNumGpuCores()
	add("cores %d %v", cores, ret)
	architecture, ret := device.GetArchitecture()
	add("architecture %d %v", architecture, ret)
	_, ret = device.GetAttributes()
	add("attributes %v", ret)
	mig, _, ret := device.GetMigMode()
	add("MIG mode %d %v", mig, ret)
	major, minor, ret := device.GetCudaComputeCapability()
	add("compute capability %d %d %v", major, minor, ret)
	number, ret := device.GetMinorNumber()
	add("minor %d %v", number, ret)
	processes, ret := device.GetComputeRunningProcesses()
	add("compute processes %v %v", processes, ret)
	clients, ret := device.GetMPSComputeRunningProcesses()
	add("MPS compute processes %v %v", clients, ret)
	memory, ret := device.GetMemoryInfo()
	add("memory total %d MiB %v", memory.Total>>20, ret)
	start = time.Now()
	lib.Shutdown()
	add("shutdown %.2f ms", milliseconds(start))
	return out
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

func isTimed(line string) bool { return strings.HasSuffix(line, " ms") }

// holdTime compares the words and the time. The time must be at least half of the recorded time. The upper limit only
// detects a hang, because the machine may be busy.
func holdTime(t *testing.T, got, recorded string) {
	t.Helper()
	gotWords, wantWords := strings.Fields(got), strings.Fields(recorded)
	at := len(wantWords) - 2
	want(t, "words", strings.Join(gotWords[:at], " "), strings.Join(wantWords[:at], " "))
	took, _ := strconv.ParseFloat(gotWords[at], 64)
	recordedMS, _ := strconv.ParseFloat(wantWords[at], 64)
	if took < recordedMS/2 || took > 1000+recordedMS {
		t.Errorf("%q took %v ms, %v were recorded", gotWords[0], took, recordedMS)
	}
}

// These refusals were recorded on an H200 without MIG, with driver 580.159.04.
func TestH200RefusesAsRecorded(t *testing.T) {
	_, lib := opened(t, node.H200)
	device, _ := lib.DeviceGetHandleByIndex(0)
	_, ret := lib.DeviceGetHandleByIndex(9)
	want(t, "index 9", ret, nvml.ERROR_INVALID_ARGUMENT)
	for _, uuid := range []string{"x", "GPU-00000000-0000-0000-0000-000000000000", "MIG-00000000-0000-0000-0000-000000000000"} {
		_, ret = lib.DeviceGetHandleByUUID(uuid)
		want(t, uuid, ret, nvml.ERROR_NOT_FOUND)
	}
	for _, index := range []int{0, 50} {
		_, ret = device.GetMigDeviceHandleByIndex(index)
		want(t, fmt.Sprintf("MIG instance %d", index), ret, nvml.ERROR_NOT_FOUND)
	}
	limit, ret := device.GetMaxMigDeviceCount()
	want(t, "maximum of instances", limit, 0)
	ok(t, ret)
	is, ret := device.IsMigDeviceHandle()
	want(t, "is an instance", is, false)
	ok(t, ret)
	_, ret = device.GetGpuInstanceId()
	want(t, "GPU instance", ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = device.GetNumaNodeId()
	want(t, "NUMA node that the GPU is", ret, nvml.ERROR_NOT_SUPPORTED)
}

// The texts are those of the library of driver 580.159.04.
func TestErrorTextsAreAsRecorded(t *testing.T) {
	recording := must.Get(os.ReadFile("testdata/nvml-h200-returns.txt"))(t)
	opened(t, node.H200)
	for line := range strings.Lines(string(recording)) {
		number, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		code := must.Get(strconv.Atoi(number))(t)
		want(t, "text of "+number, nvml.Return(code).Error(), text)
	}
}
