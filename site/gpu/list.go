// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"

	"github.com/slurm-mps/slurm-mps/site"
)

// Status is the present state of a device. Err lists the values that could not be read, and the other fields are valid.
type Status struct {
	Index     int // the number in NVML and nvidia-smi; -1 for a MIG instance, which has no number
	Device    site.Device
	Mode      site.Mode // "" for a MIG instance, which has no mode
	Processes []Process
	Err       error
}

// List reads every whole GPU of the node. Unlike Devices it continues after a GPU that cannot be read, and reports that
// GPU with its error.
func (n *NVML) List() ([]Status, error) {
	count, err := within(n, "count GPUs", n.count)
	if err != nil {
		return nil, err
	}
	all := make([]Status, count)
	for position := range all {
		device, err := n.byPCI(position)
		all[position] = Status{Index: position, Device: device, Err: err}
		if device.UUID != "" {
			all[position].read(n)
		}
	}
	return all, nil
}

// Instance reads one MIG instance.
func (n *NVML) Instance(uuid site.UUID) Status {
	device, err := n.Find(uuid)
	seen := Status{Index: -1, Device: device, Err: err}
	if err == nil {
		seen.Processes, seen.Err = n.Processes(uuid)
	}
	return seen
}

// read reads the mode and the processes.
func (s *Status) read(n *NVML) {
	var mode, processes error
	s.Mode, mode = n.Mode(s.Device.UUID)
	s.Processes, processes = n.Processes(s.Device.UUID)
	s.Err = errors.Join(s.Err, mode, processes)
}

// smsPerTPC is 2 for every GPU since Volta (NVIDIA's architecture white papers). MPS divides a GPU in whole TPCs: on
// an H200 the shares are the even numbers (measured). Older GPUs have no shares.
const smsPerTPC = 2

// capability is a compute capability.
type capability struct{ major, minor int }

// coresPerSM is the number of CUDA cores in an SM by compute capability. It follows the CUDA samples' table
// (_ConvertSMVer2Cores in helper_cuda.h) and NVIDIA's architecture white papers. NVML reports cores, but not SMs.
var coresPerSM = map[capability]int{
	{6, 0}: 64, {6, 1}: 128, {6, 2}: 128, // Pascal
	{7, 0}: 64, {7, 2}: 64, // Volta
	{7, 5}: 64,                           // Turing
	{8, 0}: 64, {8, 6}: 128, {8, 7}: 128, // Ampere
	{8, 9}:  128,                                                                       // Ada
	{9, 0}:  128,                                                                       // Hopper: 16896 cores of an H200 are 132 SMs, as CUDA reports (measured)
	{10, 0}: 128, {10, 1}: 128, {10, 3}: 128, {11, 0}: 128, {12, 0}: 128, {12, 1}: 128, // Blackwell
}

func (d device) capability() (capability, error) {
	major, minor, ret := d.GetCudaComputeCapability()
	return capability{major, minor}, d.cannotRead("compute capability", ret)
}

// countSMs returns the number of SMs of a whole GPU that is not in MIG mode.
func (d device) countSMs() (int, error) {
	version, err := d.capability()
	if err != nil {
		return 0, err
	}
	cores, ret := d.GetNumGpuCores()
	if err := d.cannotRead("CUDA cores", ret); err != nil {
		return 0, err
	}
	sms, err := divideCores(cores, version)
	return sms, cannot("count SMs of "+d.name, err)
}

// divideCores divides cores by the cores of an SM. An unknown capability or a remainder is an error, because a wrong
// number of SMs would make every share wrong without notice.
func divideCores(cores int, version capability) (int, error) {
	each, known := coresPerSM[version]
	if !known {
		return 0, fmt.Errorf("compute capability %d.%d is not known to this program, add its cores per SM to site/gpu",
			version.major, version.minor)
	}
	if cores <= 0 || cores%each != 0 {
		return 0, fmt.Errorf("%d CUDA cores are not a whole number of SMs of %d", cores, each)
	}
	return cores / each, nil
}
