// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site"
)

// Devices returns all whole GPUs of the node in NVML's order, which is the order on the PCI bus. A GPU in MIG mode
// has MIGMode set and 0 SMs, because NVML does not report SMs in that mode. Its instances are not listed. If one GPU
// cannot be read, Devices fails, because the positions of the other GPUs would shift.
func (n *NVML) Devices() ([]site.Device, error) {
	return within(n, "list GPUs", n.devices)
}

// Find returns one device, a whole GPU or a MIG instance, and reads no other device. The error is ErrNotFound if the
// node has no such device.
func (n *NVML) Find(uuid site.UUID) (site.Device, error) {
	return within(n, "find "+string(uuid), func() (site.Device, error) {
		handle, err := n.handle(uuid)
		if err != nil {
			return site.Device{}, err
		}
		return describe(string(uuid), handle, uuid.MIG())
	})
}

// ByPCI returns the whole GPU at a position on the PCI bus, from 0. The error is ErrNotFound if there are fewer GPUs.
func (n *NVML) ByPCI(position int) (site.Device, error) {
	return within(n, "find "+atPosition(position), func() (site.Device, error) {
		handle, err := n.at(position)
		if err != nil {
			return site.Device{}, err
		}
		return describe(atPosition(position), handle, false)
	})
}

// ByMinor returns the whole GPU with the device file /dev/nvidiaMINOR. NVML cannot find a GPU by its minor number, so
// ByMinor reads one GPU after another. It begins at the position with the same number, which is usually right. A GPU
// that cannot be read is skipped. Its error is returned if no other GPU has the minor number.
func (n *NVML) ByMinor(minor int) (site.Device, error) {
	return within(n, "find "+withMinor(minor), func() (site.Device, error) { return n.byMinor(minor) })
}

// Capability returns the compute capability of a device: 9, 0. Below 7.0 (Volta), MPS has no shares.
func (n *NVML) Capability(uuid site.UUID) (major, minor int, err error) {
	version, err := within(n, "read compute capability of "+string(uuid), func() (capability, error) {
		handle, err := n.handle(uuid)
		if err != nil {
			return capability{}, err
		}
		handle, err = whole(handle, uuid.MIG())
		if err != nil {
			return capability{}, cannotRead("compute capability", string(uuid), err)
		}
		return readCapability(string(uuid), handle)
	})
	return version.major, version.minor, err
}

func (n *NVML) devices() ([]site.Device, error) {
	count, err := n.count()
	if err != nil {
		return nil, err
	}
	found := make([]site.Device, 0, count)
	for position := range count {
		handle, err := n.at(position)
		if err != nil {
			return nil, err
		}
		device, err := describe(atPosition(position), handle, false)
		if err != nil {
			return nil, err
		}
		found = append(found, device)
	}
	return found, nil
}

func (n *NVML) byMinor(minor int) (site.Device, error) {
	count, err := n.count()
	if err != nil {
		return site.Device{}, err
	}
	unread := cannot("find "+withMinor(minor), ErrNotFound)
	for _, position := range beginningWith(minor, count) {
		handle, found, err := n.hasMinor(position, minor)
		if found {
			return describe(atPosition(position), handle, false)
		}
		if err != nil {
			unread = fmt.Errorf("%w; %w", unread, err)
		}
	}
	return site.Device{}, unread
}

// Index returns a GPU's position, which is its number in nvidia-smi and DCGM. A GPU that cannot be opened is skipped. A
// MIG instance has no position.
func (n *NVML) Index(uuid site.UUID) (int, error) {
	return within(n, "find "+string(uuid), func() (int, error) { return n.index(uuid) })
}

func (n *NVML) index(uuid site.UUID) (int, error) {
	count, err := n.count()
	if err != nil {
		return 0, err
	}
	for position := range count {
		handle, err := n.at(position)
		if err != nil {
			continue
		}
		if at, ret := handle.GetUUID(); ret == nvml.SUCCESS && at == string(uuid) {
			return position, nil
		}
	}
	return 0, cannot("find "+string(uuid), ErrNotFound)
}

func (n *NVML) hasMinor(position, minor int) (handle nvml.Device, found bool, err error) {
	handle, err = n.at(position)
	if err != nil {
		return nil, false, err
	}
	own, ret := handle.GetMinorNumber()
	if err := because(ret); err != nil {
		return nil, false, cannotRead("minor number", atPosition(position), err)
	}
	return handle, own == minor, nil
}

// beginningWith returns the numbers below count, with likely first.
func beginningWith(likely, count int) []int {
	var order []int
	if likely >= 0 && likely < count {
		order = append(order, likely)
	}
	for i := range count {
		if i != likely {
			order = append(order, i)
		}
	}
	return order
}

func (n *NVML) count() (int, error) {
	count, ret := n.library.DeviceGetCount()
	if err := because(ret); err != nil {
		return 0, fmt.Errorf("cannot count GPUs: %w", err)
	}
	return count, nil
}

// at opens the GPU at a position. For a position after the last, NVML returns Invalid Argument.
func (n *NVML) at(position int) (nvml.Device, error) {
	handle, ret := n.library.DeviceGetHandleByIndex(position)
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		return nil, fmt.Errorf("cannot find %s: %w", atPosition(position), ErrNotFound)
	}
	if err := because(ret); err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", atPosition(position), err)
	}
	return handle, nil
}

// handle opens the device with a UUID. NVML returns Not Found for a device that is not on the node (measured on an
// H200). For an invalid UUID, NVML's manual names Invalid Argument, which is treated the same.
func (n *NVML) handle(uuid site.UUID) (nvml.Device, error) {
	if !uuid.Valid() {
		return nil, fmt.Errorf("cannot find GPU %q: not the UUID of a device: %w", uuid, ErrNotFound)
	}
	handle, ret := n.library.DeviceGetHandleByUUID(string(uuid))
	if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND {
		return nil, fmt.Errorf("cannot find %s on this node: %w", uuid, ErrNotFound)
	}
	if err := because(ret); err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", uuid, err)
	}
	return handle, nil
}

// whole returns the GPU of a handle: an instance's parent, or the GPU itself.
func whole(handle nvml.Device, instance bool) (nvml.Device, error) {
	if !instance {
		return handle, nil
	}
	parent, ret := handle.GetDeviceHandleFromMigDeviceHandle()
	return parent, because(ret)
}

func atPosition(position int) string { return fmt.Sprintf("GPU at PCI position %d", position) }

func withMinor(minor int) string { return fmt.Sprintf("GPU /dev/nvidia%d", minor) }

func cannotRead(what, device string, cause error) error {
	return fmt.Errorf("cannot read %s of %s: %w", what, device, cause)
}

// describe reads the properties of a device. named is the device's name in errors.
func describe(named string, handle nvml.Device, instance bool) (site.Device, error) {
	parent, err := whole(handle, instance)
	if err != nil {
		return site.Device{}, cannotRead("parent", named, err)
	}
	device, err := identity(named, handle)
	if err != nil {
		return site.Device{}, err
	}
	err = locate(named, parent, &device)
	if err != nil {
		return site.Device{}, err
	}
	if instance {
		return device, instanceSize(named, handle, &device)
	}
	return device, wholeSize(named, handle, &device)
}

// identity reads UUID, name and memory.
func identity(named string, handle nvml.Device) (site.Device, error) {
	uuid, ret := handle.GetUUID()
	if err := because(ret); err != nil {
		return site.Device{}, cannotRead("UUID", named, err)
	}
	name, ret := handle.GetName()
	if err := because(ret); err != nil {
		return site.Device{}, cannotRead("name", named, err)
	}
	memory, ret := handle.GetMemoryInfo()
	if err := because(ret); err != nil {
		return site.Device{}, cannotRead("memory", named, err)
	}
	return site.Device{UUID: site.UUID(uuid), Name: name, MemoryMiB: int(memory.Total >> 20), TPC: smsPerTPC}, nil
}

// locate reads the device file, the PCI bus and the NUMA node.
func locate(named string, gpu nvml.Device, device *site.Device) error {
	minor, ret := gpu.GetMinorNumber()
	if err := because(ret); err != nil {
		return cannotRead("minor number", named, err)
	}
	pci, ret := gpu.GetPciInfo()
	if err := because(ret); err != nil {
		return cannotRead("PCI bus id", named, err)
	}
	device.Minor, device.BusID, device.NUMA = minor, text(pci.BusId[:]), -1
	if node, known := kernelNUMA(device.BusID); known {
		device.NUMA = node
	} else {
		device.NUMA = nearestNUMA(gpu)
	}
	return nil
}

// kernelNUMA reads the NUMA node nearest to a PCI device from the kernel, or -1. NVML reads the same source, but takes
// 8 ms (measured on an H200).
func kernelNUMA(bus string) (node int, known bool) {
	short := strings.ToLower(strings.TrimPrefix(bus, "0000")) // NVML's domain has eight digits, the kernel's four
	content, err := os.ReadFile("/sys/bus/pci/devices/" + short + "/numa_node")
	if err != nil {
		return 0, false
	}
	node, err = strconv.Atoi(strings.TrimSpace(string(content)))
	return node, err == nil
}

// nearestNUMA returns the nearest NUMA node of a GPU that the kernel does not show, or -1 if it is unknown. It uses
// NVML's memory affinity. NVML's NumaNodeId is something else: the node that the GPU's own memory forms on some
// machines.
func nearestNUMA(gpu nvml.Device) int {
	nodes, ret := gpu.GetMemoryAffinity(maxNUMA, nvml.AffinityScope(nvml.AFFINITY_SCOPE_NODE))
	if ret != nvml.SUCCESS {
		return -1
	}
	for i, word := range nodes {
		if word != 0 {
			return i*bits.UintSize + bits.TrailingZeros(word)
		}
	}
	return -1
}

// maxNUMA limits the NUMA nodes that are read. go-nvml counts eight nodes to a word of 64 bits, so maxNUMA is eight
// words.
const maxNUMA = 64

// wholeSize reads the MIG mode and the SMs of a whole GPU.
func wholeSize(named string, handle nvml.Device, device *site.Device) error {
	mig, err := inMIGMode(named, handle)
	if err != nil {
		return err
	}
	device.MIGMode = mig
	if mig {
		return nil // NVML does not count the cores of a GPU in MIG mode
	}
	device.SMs, err = countSMs(named, handle)
	return err
}

// instanceSize reads the SMs of a MIG instance, which NVML reports itself.
func instanceSize(named string, handle nvml.Device, device *site.Device) error {
	attributes, ret := handle.GetAttributes()
	if err := because(ret); err != nil {
		return cannotRead("SMs", named, err)
	}
	device.SMs = int(attributes.MultiprocessorCount)
	return nil
}

// inMIGMode returns false for a GPU without MIG.
func inMIGMode(named string, handle nvml.Device) (bool, error) {
	mode, _, ret := handle.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	if err := because(ret); err != nil {
		return false, cannotRead("MIG mode", named, err)
	}
	return mode == nvml.DEVICE_MIG_ENABLE, nil
}

// text converts a C string in a fixed array.
func text(array []int8) string {
	var letters []byte
	for _, c := range array {
		if c == 0 {
			break
		}
		letters = append(letters, byte(c))
	}
	return string(letters)
}
