// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/sim"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// The tests run go-nvml on the simulated library. A process can load only one library, so the tests share the folders,
// and each makes a new node.
var built, place string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if len(os.Args) == 5 && os.Args[1] == "set-mode" {
		return 0, setModeIn(os.Args[2], site.UUID(os.Args[3]), site.Mode(os.Args[4]))
	}
	if real() {
		return m.Run(), nil
	}
	scratch, err := os.MkdirTemp("", "gpu-")
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

// setModeIn runs in the second process of TestModeIsSharedBetweenProcesses.
func setModeIn(library string, uuid site.UUID, mode site.Mode) error {
	opened, err := Open(library)
	if err != nil {
		return err
	}
	return errors.Join(opened.SetMode(uuid, mode), opened.Close())
}

func created(t *testing.T, models ...node.Model) sim.Sim {
	t.Helper()
	made, err := sim.New(place, built, models...)
	must.OK(t, err)
	return made
}

func opened(t *testing.T, models ...node.Model) (sim.Sim, *NVML) {
	t.Helper()
	made := created(t, models...)
	nvml, err := Open(made.NVML())
	must.OK(t, err)
	t.Cleanup(func() {
		if err := nvml.Close(); err != nil && !errors.Is(err, ErrHung) {
			t.Error(err)
		}
	})
	return made, nvml
}

func uuidOf(t *testing.T, gpu node.GPU, attribute string) site.UUID {
	t.Helper()
	text, err := gpu.Text(attribute)
	must.OK(t, err)
	return site.UUID(text)
}

// refused checks an error's cause and its text.
func refused(t *testing.T, err, cause error, words string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", words)
	}
	if cause != nil && !errors.Is(err, cause) {
		t.Errorf("error %q is not %q", err, cause)
	}
	if err.Error() != words {
		t.Errorf("error %q, want %q", err, words)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	must.Root(t)
}

// The SMs are those of NVIDIA's data sheets, repeated here. The models contain cores, too, so a wrong table is
// detected.
func TestDevicesKnowsEveryModel(t *testing.T) {
	cases := []struct {
		model  node.Model
		sms    int
		memory int
	}{
		{node.P100, 56, 16384}, {node.V100, 80, 16384}, {node.T4, 40, 15360}, {node.A100SXM40, 108, 40960},
		{node.A100SXM80, 108, 81920}, {node.A30, 56, 24576}, {node.A40, 84, 46068}, {node.L4, 58, 23034},
		{node.L40S, 142, 46068}, {node.H100PCIe, 114, 81559}, {node.H100SXM, 132, 81559}, {node.H200, 132, 143771},
		{node.GH200, 132, 97871}, {node.B200, 148, 183359},
	}
	var models []node.Model
	for _, c := range cases {
		models = append(models, c.model)
	}
	made, nvml := opened(t, models...)
	devices, err := nvml.Devices()
	must.OK(t, err)
	if len(devices) != len(cases) {
		t.Fatalf("%d devices, want %d", len(devices), len(cases))
	}
	for i, c := range cases {
		expected := site.Device{
			UUID: uuidOf(t, made.Node.GPU(i), "uuid"), Name: c.model.Name, Minor: i,
			BusID: fmt.Sprintf("00000000:%02X:00.0", 16*(i+1)), SMs: c.sms, TPC: 2, MemoryMiB: c.memory, NUMA: i / 4,
		}
		if devices[i] != expected {
			t.Errorf("device %d\n got %+v\nwant %+v", i, devices[i], expected)
		}
	}
}

// The minor numbers have another order than the PCI bus, as on many machines.
func TestOneDeviceIsFoundInEveryWay(t *testing.T) {
	made, nvml := opened(t, node.H200, node.L40S, node.T4)
	for i, minor := range []string{"2", "0", "1"} {
		must.OK(t, made.Node.GPU(i).Set("minor", minor))
	}
	all, err := nvml.Devices()
	must.OK(t, err)
	for position, minor := range []int{2, 0, 1} {
		byUUID, err := nvml.Find(all[position].UUID)
		must.OK(t, err)
		byPCI, err := nvml.byPCI(position)
		must.OK(t, err)
		byMinor, err := nvml.ByMinor(minor)
		must.OK(t, err)
		for way, found := range map[string]site.Device{"UUID": byUUID, "PCI": byPCI, "minor": byMinor} {
			if found != all[position] || found.Minor != minor {
				t.Errorf("by %s %+v, want %+v", way, found, all[position])
			}
		}
	}
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	made, nvml := opened(t, node.H200, node.H200)
	none := site.UUID("GPU-00000000-0000-0000-0000-000000000000")
	_, err := nvml.Find(none)
	refused(t, err, errNotFound, "cannot find "+string(none)+" on this node: not found")
	_, err = nvml.Find("0")
	refused(t, err, errNotFound, `cannot find GPU "0": not the UUID of a device: not found`)
	_, err = nvml.byPCI(2)
	refused(t, err, errNotFound, "cannot find GPU at PCI position 2: not found")
	_, err = nvml.byPCI(-1)
	refused(t, err, errNotFound, "cannot find GPU at PCI position -1: not found")
	_, err = nvml.ByMinor(7)
	refused(t, err, errNotFound, "cannot find GPU /dev/nvidia7: not found")
	_, err = nvml.Mode(none)
	refused(t, err, errNotFound, "cannot find "+string(none)+" on this node: not found")
	must.OK(t, made.Node.GPU(1).Fail("nvmlDeviceGetHandleByIndex_v2", 15, 0))
	_, err = nvml.ByMinor(1)
	refused(t, err, nil, "cannot find GPU /dev/nvidia1: not found; cannot open GPU at PCI position 1: GPU is lost")
}

// Find and ByPCI read only the one device: every call for another device fails.
func TestOneDeviceIsFoundBesideLostOnes(t *testing.T) {
	made, nvml := opened(t, node.H200, node.H200, node.H200)
	for _, i := range []int{0, 2} {
		for _, function := range []string{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMinorNumber"} {
			must.OK(t, made.Node.GPU(i).Fail(function, 15, 0))
		}
	}
	uuid := uuidOf(t, made.Node.GPU(1), "uuid")
	ways := map[string]func() (site.Device, error){
		"UUID":  func() (site.Device, error) { return nvml.Find(uuid) },
		"PCI":   func() (site.Device, error) { return nvml.byPCI(1) },
		"minor": func() (site.Device, error) { return nvml.ByMinor(1) },
	}
	for way, find := range ways {
		if found, err := find(); err != nil || found.UUID != uuid {
			t.Errorf("by %s: %v, %v", way, found, err)
		}
	}
	_, err := nvml.Devices()
	refused(t, err, nil, "cannot open GPU at PCI position 0: GPU is lost")
}

func TestMIG(t *testing.T) {
	made, nvml := opened(t, node.H100SXM, node.A100SXM40.Cut(node.A100Slice3, node.A100Slice1))
	cut := made.Node.GPU(1)
	devices, err := nvml.Devices()
	must.OK(t, err)
	if len(devices) != 2 || !devices[1].MIGMode || devices[1].SMs != 0 || devices[0].MIGMode {
		t.Errorf("whole GPUs %+v", devices)
	}
	for k, expected := range []site.Device{
		{Name: "NVIDIA A100-SXM4-40GB MIG 3g.20gb", SMs: 42, MemoryMiB: 20096},
		{Name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb", SMs: 14, MemoryMiB: 4864},
	} {
		expected.UUID, expected.TPC = uuidOf(t, cut, fmt.Sprintf("mig/%d/uuid", k)), 2
		expected.Minor, expected.BusID = 1, "00000000:20:00.0"
		found, err := nvml.Find(expected.UUID)
		must.OK(t, err)
		if found != expected {
			t.Errorf("instance %d\n got %+v\nwant %+v", k, found, expected)
		}
	}
	instance := uuidOf(t, cut, "mig/0/uuid")
	if major, minor, err := nvml.Capability(instance); err != nil || major != 8 || minor != 0 {
		t.Errorf("capability of an instance %d.%d, %v", major, minor, err)
	}
	if os.Geteuid() == 0 {
		err = nvml.SetMode(uuidOf(t, cut, "uuid"), site.ModeExclusiveProcess)
		refused(t, err, nil, fmt.Sprintf("cannot set compute mode of %s to exclusive_process: Not Supported", uuidOf(t, cut, "uuid")))
	}
	if mode, err := nvml.Mode(instance); err != nil || mode != site.ModeDefault {
		t.Errorf("mode of an instance %v, %v", mode, err)
	}
}

func TestModeIsSharedBetweenProcesses(t *testing.T) {
	needRoot(t)
	made, nvml := opened(t, node.H200, node.H200)
	first, second := uuidOf(t, made.Node.GPU(0), "uuid"), uuidOf(t, made.Node.GPU(1), "uuid")
	other := exec.Command(os.Args[0], "set-mode", made.NVML(), string(first), "exclusive_process")
	if answer, err := other.CombinedOutput(); err != nil || len(answer) > 0 {
		t.Fatalf("other process: %v %s", err, answer)
	}
	expectMode(t, nvml, first, site.ModeExclusiveProcess)
	expectMode(t, nvml, second, site.ModeDefault)
	for _, mode := range []site.Mode{site.ModeProhibited, site.ModeExclusiveThread, site.ModeExclusiveProcess, site.ModeDefault} {
		must.OK(t, nvml.SetMode(second, mode))
		expectMode(t, nvml, second, mode)
	}
	expectMode(t, nvml, first, site.ModeExclusiveProcess)
}

func expectMode(t *testing.T, nvml *NVML, uuid site.UUID, expected site.Mode) {
	t.Helper()
	if mode, err := nvml.Mode(uuid); err != nil || mode != expected {
		t.Errorf("mode of %s: %v, %v, want %v", uuid, mode, err, expected)
	}
}

func TestSetModeIsRefused(t *testing.T) {
	needRoot(t)
	made, nvml := opened(t, node.H200)
	uuid := uuidOf(t, made.Node.GPU(0), "uuid")
	act := fmt.Sprintf("cannot set compute mode of %s", uuid)
	refused(t, nvml.SetMode(uuid, "shared"), nil, act+`: "shared" is not a compute mode`)
	must.OK(t, syscall.Seteuid(65534))
	err := nvml.SetMode(uuid, site.ModeExclusiveProcess)
	must.OK(t, syscall.Seteuid(0))
	refused(t, err, nil, act+" to exclusive_process: Insufficient Permissions")
	must.OK(t, made.Node.GPU(0).Fail("nvmlDeviceSetComputeMode", 15, 1))
	err = nvml.SetMode(uuid, site.ModeExclusiveProcess)
	refused(t, err, nil, act+" to exclusive_process: GPU is lost")
	expectMode(t, nvml, uuid, site.ModeDefault)
}

func TestEveryCallNamesItsDevice(t *testing.T) {
	made, nvml := opened(t, node.H200)
	gpu := made.Node.GPU(0)
	uuid := uuidOf(t, gpu, "uuid")
	find := func() error { _, err := nvml.Find(uuid); return err }
	mode := func() error { _, err := nvml.Mode(uuid); return err }
	processes := func() error { _, err := nvml.Processes(uuid); return err }
	capability := func() error { _, _, err := nvml.Capability(uuid); return err }
	cases := []struct {
		function, words string
		call            func() error
	}{
		{"nvmlDeviceGetHandleByUUID", "cannot open %s: GPU requires reset", find},
		{"nvmlDeviceGetUUID", "cannot read UUID of %s: GPU requires reset", find},
		{"nvmlDeviceGetName", "cannot read name of %s: GPU requires reset", find},
		{"nvmlDeviceGetMemoryInfo", "cannot read memory of %s: GPU requires reset", find},
		{"nvmlDeviceGetMinorNumber", "cannot read minor number of %s: GPU requires reset", find},
		{"nvmlDeviceGetPciInfo_v3", "cannot read PCI bus id of %s: GPU requires reset", find},
		{"nvmlDeviceGetMigMode", "cannot read MIG mode of %s: GPU requires reset", find},
		{"nvmlDeviceGetNumGpuCores", "cannot read CUDA cores of %s: GPU requires reset", find},
		{"nvmlDeviceGetCudaComputeCapability", "cannot read compute capability of %s: GPU requires reset", capability},
		{"nvmlDeviceGetComputeMode", "cannot read compute mode of %s: GPU requires reset", mode},
		{"nvmlDeviceGetComputeRunningProcesses_v3", "cannot read processes of %s: GPU requires reset", processes},
		{"nvmlDeviceGetMPSComputeRunningProcesses_v3", "cannot read MPS clients of %s: GPU requires reset", processes},
	}
	for _, c := range cases {
		t.Run(c.function, func(t *testing.T) {
			must.OK(t, gpu.Fail(c.function, 16, 1))
			refused(t, c.call(), nil, fmt.Sprintf(c.words, uuid))
			must.OK(t, c.call())
		})
	}
}

func TestNearestNUMANodeMayBeUnknown(t *testing.T) {
	made, nvml := opened(t, node.H200)
	for _, c := range []struct {
		attribute string
		numa      int
	}{{"0", 0}, {"3", 3}, {"64", 64}, {"-1", -1}} {
		must.OK(t, made.Node.GPU(0).Set("numa", c.attribute))
		if found, err := nvml.byPCI(0); err != nil || found.NUMA != c.numa {
			t.Errorf("NUMA node %d, %v, want %d", found.NUMA, err, c.numa)
		}
	}
}

func TestCapability(t *testing.T) {
	made, nvml := opened(t, node.P100, node.B200)
	for i, expected := range []string{"6.0", "10.0"} {
		major, minor, err := nvml.Capability(uuidOf(t, made.Node.GPU(i), "uuid"))
		must.OK(t, err)
		if got := fmt.Sprintf("%d.%d", major, minor); got != expected {
			t.Errorf("capability %s, want %s", got, expected)
		}
	}
}

func TestUnknownCapabilityIsSaid(t *testing.T) {
	made, nvml := opened(t, node.B200)
	must.OK(t, made.Node.GPU(0).Set("cc_major", "15"))
	_, err := nvml.byPCI(0)
	refused(t, err, nil, "cannot count SMs of GPU at PCI position 0: compute capability 15.0 is not known to this program, add its cores per SM to site/gpu")
}

func TestDivideCores(t *testing.T) {
	cases := []struct {
		cores, sms int
		version    capability
		words      string
	}{
		{16896, 132, capability{9, 0}, ""},
		{5120, 80, capability{7, 0}, ""},
		{16897, 0, capability{9, 0}, "16897 CUDA cores are not a whole number of SMs of 128"},
		{0, 0, capability{9, 0}, "0 CUDA cores are not a whole number of SMs of 128"},
		{16896, 0, capability{9, 9}, "compute capability 9.9 is not known to this program, add its cores per SM to site/gpu"},
	}
	for _, c := range cases {
		sms, err := divideCores(c.cores, c.version)
		if sms != c.sms {
			t.Errorf("%d cores of %v: %d SMs, want %d", c.cores, c.version, sms, c.sms)
		}
		if c.words != "" {
			refused(t, err, nil, c.words)
		} else if err != nil {
			t.Error(err)
		}
	}
}

func TestProcesses(t *testing.T) {
	made, nvml := opened(t, node.H200)
	gpu := made.Node.GPU(0)
	uuid := uuidOf(t, gpu, "uuid")
	if found, err := nvml.Processes(uuid); err != nil || len(found) != 0 {
		t.Errorf("processes of an idle GPU %v, %v", found, err)
	}
	var expected []Process
	for _, kind := range []string{node.Server, node.Client, node.Client} {
		pid := sleeper(t)
		start, _ := node.Start(pid)
		must.OK(t, gpu.AddContext(node.Context{PID: pid, Start: start, Type: kind, MemoryMiB: 100, Instance: node.Whole}))
		expected = append(expected, Process{PID: pid, MPS: kind == node.Client, MiB: 100})
	}
	found, err := nvml.Processes(uuid)
	must.OK(t, err)
	byPID := func(a, b Process) int { return a.PID - b.PID }
	slices.SortFunc(found, byPID)
	slices.SortFunc(expected, byPID)
	if !slices.Equal(found, expected) {
		t.Errorf("processes %v, want %v", found, expected)
	}
}

func sleeper(t *testing.T) int {
	t.Helper()
	sleeping := exec.Command("sleep", "60")
	must.OK(t, sleeping.Start())
	t.Cleanup(func() {
		sleeping.Process.Kill()
		sleeping.Wait()
	})
	return sleeping.Process.Pid
}

func TestDriver(t *testing.T) {
	made, nvml := opened(t, node.H200)
	must.OK(t, made.Node.Set("driver_version", "535.104.05"))
	if version, err := nvml.Driver(); err != nil || version != "535.104.05" {
		t.Errorf("driver %q, %v", version, err)
	}
}

func TestOpenSaysWhy(t *testing.T) {
	made := created(t, node.H200)
	must.OK(t, made.Node.Fail("nvmlInit_v2", 9, 1))
	_, err := Open(made.NVML())
	refused(t, err, nil, "cannot initialise NVML: Driver Not Loaded")
	absent := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	_, err = Open(absent)
	refused(t, err, nil, fmt.Sprintf("cannot open NVML library %s: this process uses %s already", absent, made.NVML()))
	again, err := Open(made.NVML())
	must.OK(t, err)
	must.OK(t, again.Close())
}

// Without the check, the loader would use the first library without notice.
func TestOpenOfABadLibrary(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "libempty.so")
	answer, err := exec.Command("gcc", "-shared", "-x", "c", "/dev/null", "-o", empty).CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, answer)
	}
	bound.Lock()
	before := bound.path
	bound.path = ""
	bound.Unlock()
	defer func() { bound.path = before }()
	absent := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	_, err = Open(absent)
	refused(t, err, nil, fmt.Sprintf("cannot open NVML library %s: %s: cannot open shared object file: No such file or directory", absent, absent))
	_, err = Open(empty)
	refused(t, err, nil, fmt.Sprintf("cannot open NVML library %s: the driver is too old, its library lacks nvmlInit_v2", empty))
}

func TestCloseShutsDownOnce(t *testing.T) {
	made := created(t, node.H200)
	nvml, err := Open(made.NVML())
	must.OK(t, err)
	must.OK(t, made.Node.Fail("nvmlShutdown", 999, 1))
	refused(t, nvml.Close(), nil, "cannot shut NVML down: Unknown Error")
	must.OK(t, made.Node.Fail("nvmlShutdown", 999, 1)) // a second call would fail with this number
	must.OK(t, nvml.Close())
	if _, err := made.Node.Text("errors/nvmlShutdown"); err != nil {
		t.Errorf("the second Close called NVML: %v", err)
	}
}

func TestAHangEnds(t *testing.T) {
	made := created(t, node.H200)
	nvml, err := OpenTimeout(made.NVML(), 100*time.Millisecond)
	must.OK(t, err)
	uuid := uuidOf(t, made.Node.GPU(0), "uuid")
	must.OK(t, made.Node.Delay("nvmlDeviceGetComputeMode", 1000000))
	began := time.Now()
	_, err = nvml.Mode(uuid)
	refused(t, err, ErrHung, fmt.Sprintf("cannot read compute mode of %s: NVML does not answer (waited 100ms)", uuid))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a hang of NVML ended after %v", took)
	}
	_, err = nvml.Driver()
	refused(t, err, ErrHung, "cannot read driver version: NVML does not answer")
	refused(t, nvml.Close(), ErrHung, "cannot shut NVML down: NVML does not answer")
	hungInit(t, made)
}

func hungInit(t *testing.T, made sim.Sim) {
	t.Helper()
	must.OK(t, made.Node.Delay("nvmlInit_v2", 1000000))
	_, err := OpenTimeout(made.NVML(), 50*time.Millisecond)
	refused(t, err, ErrHung, "cannot initialise NVML: NVML does not answer (waited 50ms)")
}

// The required functions are spelled as NVML exports them, as far as the simulated library shows that.
func TestRequiredFunctionsAreSpelledRight(t *testing.T) {
	made := created(t, node.H200)
	exported, err := exec.Command("nm", "-D", "--defined-only", made.NVML()).Output()
	must.OK(t, err)
	for _, function := range required {
		if !strings.Contains(string(exported), " "+function+"\n") {
			t.Errorf("%s is not exported", function)
		}
	}
}

// The loader ends the process at a call of a function that the library lacks. So each function that the sources call is
// looked for before.
func TestFunctionsThatAreCalledAreRequired(t *testing.T) {
	sources, err := filepath.Glob("*.go")
	must.OK(t, err)
	call := regexp.MustCompile(`\b(?:d|whole|gpu|library)\.((?:Device)?(?:Get|Set|Gpm|System)\w+)`)
	versions := regexp.MustCompile(`_v\d$`)
	known := map[string]bool{}
	for _, function := range slices.Concat(required, forGPM) {
		known[strings.TrimPrefix(versions.ReplaceAllString(strings.TrimPrefix(function, "nvml"), ""), "Device")] = true
	}
	calls := 0
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		must.OK(t, err)
		for _, found := range call.FindAllSubmatch(text, -1) {
			if calls++; !known[strings.TrimPrefix(string(found[1]), "Device")] {
				t.Errorf("%s calls %s, which is not required", source, found[1])
			}
		}
	}
	if calls < len(required)-3 { // but nvmlInit, nvmlShutdown and nvmlErrorString
		t.Errorf("found only %d calls", calls)
	}
}
