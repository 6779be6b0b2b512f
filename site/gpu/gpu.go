// SPDX-License-Identifier: Apache-2.0

// Package gpu finds the node's GPUs and sets their compute modes through NVML, NVIDIA's management library. It is the only
// importer of go-nvml in this house.
//
// The promise: a device is named by its UUID, every error names the device and NVML's own word for the cause, and no call
// waits for ever. A mode that SetMode has set is not read back here: whoever needs proof asks Mode.
package gpu

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Causes to test for with errors.Is.
var (
	ErrNotFound     = errors.New("not found")            // no such device on this node
	ErrLost         = errors.New("lost")                 // fallen off the bus, or unusable until it is reset
	ErrPermission   = errors.New("not permitted")        // root alone may do it
	ErrNotSupported = errors.New("not supported")        // this device cannot do it
	ErrHung         = errors.New("NVML does not answer") // it did not answer in time, now or in an earlier call
)

// callDeadline bounds one method of NVML. It is generous because the driver initialises a GPU at its first use where no
// persistence daemon holds it, which takes seconds a GPU, and Devices uses all of them.
const callDeadline = 60 * time.Second

// library is the name by which the loader finds NVML.
const library = "libnvidia-ml.so.1"

// required are the functions that this package calls. go-nvml binds them when they are called, and the loader ends the
// process for one that is missing, so Open asks first.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlSystemGetDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetNumGpuCores", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryInfo",
	"nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetMigMode", "nvmlDeviceGetAttributes_v2",
	"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode",
	"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	"nvmlDeviceGetPersistenceMode", "nvmlDeviceGetProcessUtilization",
}

// NVML is the library, loaded and initialised.
type NVML struct {
	library  nvml.Interface
	deadline time.Duration
	hung     atomic.Bool
	closing  sync.Once
}

// Open loads and initialises NVML from a path, or from where the loader finds libnvidia-ml.so.1 if it is "".
// A process can use one library file in its life; Open refuses a second.
func Open(path string) (*NVML, error) { return OpenTimeout(path, callDeadline) }

// OpenTimeout is Open for an act that has less time: it bounds each method by that.
func OpenTimeout(path string, deadline time.Duration) (*NVML, error) {
	if path == "" {
		path = library
	}
	return open(path, min(deadline, callDeadline))
}

// Close shuts NVML down, once. It does nothing after a hang: the library holds its lock then, and the process's end
// takes everything.
func (n *NVML) Close() error {
	var err error
	n.closing.Do(func() {
		_, err = within(n, "shut NVML down", func() (struct{}, error) {
			return struct{}{}, cannot("shut NVML down", because(n.library.Shutdown()))
		})
	})
	return err
}

// Driver is the version of NVIDIA's driver, "580.159.04".
func (n *NVML) Driver() (string, error) {
	return within(n, "read driver version", func() (string, error) {
		version, ret := n.library.SystemGetDriverVersion()
		return version, cannot("read driver version", because(ret))
	})
}

func open(path string, deadline time.Duration) (*NVML, error) {
	if err := bind(path); err != nil {
		return nil, fmt.Errorf("cannot open NVML library %s: %w", path, err)
	}
	opened := &NVML{library: nvml.New(nvml.WithLibraryPath(path)), deadline: deadline}
	// After a failed Init no other call may be made, Shutdown included.
	_, err := within(opened, "initialise NVML", func() (struct{}, error) {
		return struct{}{}, cannot("initialise NVML", because(opened.library.Init()))
	})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// bound is the library file to which the loader has bound this process's NVML calls.
var bound struct {
	sync.Mutex
	path string
}

// bind loads the library for good and proves that it has all that will be called. The loader binds each call to the first
// library that offers it and never again, so a second file would be loaded and not used: that is refused instead.
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
	bound.path = path
	return nil
}

// within runs a call of NVML under the deadline. A call that hangs cannot be taken back, and it may hold the library's
// lock, so after one no other is made. act names the call in the error of a hang: "find GPU-…".
func within[T any](n *NVML, act string, call func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	var none T
	if n.hung.Load() {
		return none, cannot(act, ErrHung)
	}
	answered := make(chan outcome, 1)
	go func() {
		value, err := call()
		answered <- outcome{value, err}
	}()
	alarm := time.NewTimer(n.deadline)
	defer alarm.Stop()
	select {
	case answer := <-answered:
		return answer.value, answer.err
	case <-alarm.C:
		n.hung.Store(true)
		return none, fmt.Errorf("cannot %s: %w (waited %v)", act, ErrHung, n.deadline)
	}
}

// cannot is nil for no cause.
func cannot(act string, cause error) error {
	if cause == nil {
		return nil
	}
	return fmt.Errorf("cannot %s: %w", act, cause)
}

// failure is a call that NVML refused. It keeps NVML's text, since the library may be closed when it is read.
type failure struct {
	ret  nvml.Return
	text string
}

// because is the error of a Return; nvml.SUCCESS is itself a non-nil error, so no Return may be handed on as one.
func because(ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return failure{ret: ret, text: ret.Error()}
}

// Error is NVML's own text, "Insufficient Permissions".
func (f failure) Error() string { return f.text }

// Is maps NVML's numbers to this package's causes.
func (f failure) Is(cause error) bool {
	switch f.ret {
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_NOT_FOUND:
		return cause == ErrNotFound
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		return cause == ErrLost
	case nvml.ERROR_NO_PERMISSION:
		return cause == ErrPermission
	case nvml.ERROR_NOT_SUPPORTED:
		return cause == ErrNotSupported
	}
	return false
}
