// SPDX-License-Identifier: Apache-2.0

// Package gpu finds the node's GPUs and sets their compute modes by NVML, NVIDIA's management library. No other package
// imports go-nvml.
//
// A device is named by its UUID. Every error names the device and gives NVML's own text for the cause. Every call has
// a limit in time. SetMode does not read the mode back: a caller that needs proof calls Mode.
package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/slurm-mps/slurm-mps/site/wait"
)

var (
	errNotFound = errors.New("not found")            // no such device on this node
	ErrHung     = errors.New("NVML does not answer") // this call or an earlier one got no answer in time
)

// callDeadline bounds one method of NVML. It is long, because without a persistence daemon the driver initialises a GPU
// at its first use. That takes seconds for each GPU, and Devices uses all of them.
const callDeadline = 60 * time.Second

// library is the name by which the loader finds NVML.
const library = "libnvidia-ml.so.1"

// required are the functions that this package calls. go-nvml binds a function at its first call, and the loader ends
// the process if the function is missing. So Open checks them first.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryInfo",
	"nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetMigMode", "nvmlDeviceGetAttributes_v2",
	"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode",
	"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	"nvmlDeviceGetPersistenceMode", "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetSamples",
	"nvmlDeviceGetTotalEnergyConsumption",
}

// forGPM are the functions of GPM, which drivers before 525 lack. They are not required.
var forGPM = []string{"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"}

// NVML is the library. It is loaded and initialised at the first use, which takes 8 to 15 ms: a job without MPS, and an
// epilog without a mode to restore, do not need it. A program need not call Close, which takes up to 12 ms more. The end
// of the process does the same and takes no longer for it (measured on H200s).
type NVML struct {
	path     string
	deadline time.Duration
	opening  sync.Once
	failed   error // of the opening
	library  nvml.Interface
	hung     atomic.Bool
	closing  sync.Once
}

// New returns NVML of a path, with a limit in time for each method. If the path is "", the loader finds
// libnvidia-ml.so.1. A process can use only one library file, so a second one is refused.
func New(path string, deadline time.Duration) *NVML {
	return &NVML{path: cmp.Or(path, library), deadline: min(deadline, callDeadline)}
}

// Open is New with the longest limit, and opens the library at once.
func Open(path string) (*NVML, error) { return OpenTimeout(path, callDeadline) }

// OpenTimeout is Open with a shorter limit for each method.
func OpenTimeout(path string, deadline time.Duration) (*NVML, error) {
	n := New(path, deadline)
	if err := n.opened(); err != nil {
		return nil, err
	}
	return n, nil
}

// Close shuts NVML down, once. It does nothing after a hang, because the library then holds its lock. The end of the
// process frees everything.
func (n *NVML) Close() error {
	if n.library == nil {
		return nil
	}
	var err error
	n.closing.Do(func() {
		_, err = within(n, "shut NVML down", func() (struct{}, error) {
			return struct{}{}, cannot("shut NVML down", because(n.library.Shutdown()))
		})
	})
	return err
}

// Driver returns the version of NVIDIA's driver, "580.159.04".
func (n *NVML) Driver() (string, error) {
	return within(n, "read driver version", func() (string, error) {
		version, ret := n.library.SystemGetDriverVersion()
		return version, cannot("read driver version", because(ret))
	})
}

// opened opens the library once. After a failed Init, no other function may be called, not even Shutdown.
func (n *NVML) opened() error {
	n.opening.Do(func() {
		if err := bind(n.path); err != nil {
			n.failed = fmt.Errorf("cannot open NVML library %s: %w", n.path, err)
			return
		}
		opened := nvml.New(nvml.WithLibraryPath(n.path))
		_, n.failed = bounded(n, "initialise NVML", func() (struct{}, error) {
			return struct{}{}, cannot("initialise NVML", because(opened.Init()))
		})
		n.library = opened
	})
	return n.failed
}

// bound is the library file to which the loader has bound this process's calls of NVML.
var bound struct {
	sync.Mutex
	path string
	gpm  bool // it has all functions of GPM
}

// bind loads the library for good and checks that it has all required functions. The loader binds each call once, to
// the first library that has the function. A second file would be loaded but not used, so it is refused.
func bind(path string) error {
	bound.Lock()
	defer bound.Unlock()
	if bound.path == path {
		return nil
	}
	if bound.path != "" {
		return fmt.Errorf("this process uses %s already", bound.path)
	}
	loaded := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := loaded.Open(); err != nil {
		return err
	}
	for _, function := range required {
		if err := loaded.Lookup(function); err != nil {
			return errors.Join(fmt.Errorf("the driver is too old, its library lacks %s", function), loaded.Close())
		}
	}
	bound.path, bound.gpm = path, true
	for _, function := range forGPM {
		bound.gpm = bound.gpm && loaded.Lookup(function) == nil
	}
	return nil
}

func hasGPM() bool {
	bound.Lock()
	defer bound.Unlock()
	return bound.gpm
}

// within opens the library if it is not open yet, and runs a call of NVML with the deadline.
func within[T any](n *NVML, action string, call func() (T, error)) (none T, err error) {
	if err := n.opened(); err != nil {
		return none, err
	}
	return bounded(n, action, call)
}

// bounded runs a call with the deadline. A hanging call cannot be cancelled and may hold the library's lock, so no
// further call is made after a hang. action names the call in the error: "find GPU-…".
func bounded[T any](n *NVML, action string, call func() (T, error)) (T, error) {
	if n.hung.Load() {
		var none T
		return none, cannot(action, ErrHung)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), n.deadline, ErrHung)
	defer cancel()
	value, err := wait.Within(ctx, call)
	if errors.Is(err, ErrHung) {
		n.hung.Store(true)
		err = fmt.Errorf("cannot %s: %w (waited %v)", action, ErrHung, n.deadline)
	}
	return value, err
}

// cannot returns nil if there is no cause.
func cannot(action string, cause error) error {
	if cause == nil {
		return nil
	}
	return fmt.Errorf("cannot %s: %w", action, cause)
}

// because returns the error of a Return, with NVML's own text, "Insufficient Permissions". nvml.SUCCESS itself is a
// non-nil error, and the library may be closed when an error is printed, so no Return may be returned as an error.
func because(ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return errors.New(ret.Error())
}
