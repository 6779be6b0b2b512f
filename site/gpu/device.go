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
	return within(n, "list GPUs", func() (found []site.Device, err error) {
		count, err := n.count()
		for position := range count {
			d, err := n.describeAt(position)
			if err != nil {
				return nil, err
			}
			found = append(found, d)
		}
		return found, err
	})
}

// Find returns one device, a whole GPU or a MIG instance, and reads no other device.
func (n *NVML) Find(uuid site.UUID) (site.Device, error) { return on(n, "find", uuid, device.describe) }

// byPCI returns the whole GPU at a position on the PCI bus, from 0.
func (n *NVML) byPCI(position int) (site.Device, error) {
	return within(n, "find "+atPosition(position), func() (site.Device, error) { return n.describeAt(position) })
}

// ByMinor returns the whole GPU with the device file /dev/nvidiaMINOR. NVML cannot find a GPU by its minor number, so
// ByMinor reads one GPU after another. It begins at the position with the same number, which is usually right. A GPU
// that cannot be read is skipped. Its error is returned if no other GPU has the minor number.
func (n *NVML) ByMinor(minor int) (site.Device, error) {
	action := fmt.Sprintf("find GPU /dev/nvidia%d", minor)
	return within(n, action, func() (site.Device, error) {
		count, err := n.count()
		if err != nil {
			return site.Device{}, err
		}
		unread := cannot(action, errNotFound)
		for i := range count {
			d, err := n.at((max(minor, 0) + i) % count)
			if err == nil {
				number, ret := d.GetMinorNumber()
				if err = d.cannotRead("minor number", ret); err == nil && number == minor {
					return d.describe()
				}
			}
			if err != nil {
				unread = fmt.Errorf("%w; %w", unread, err)
			}
		}
		return site.Device{}, unread
	})
}

// Capability returns the compute capability of a device: 9, 0. Below 7.0 (Volta), MPS has no shares.
func (n *NVML) Capability(uuid site.UUID) (major, minor int, err error) {
	version, err := on(n, "read compute capability of", uuid, func(d device) (capability, error) {
		whole, ret := d.whole()
		if err := d.cannotRead("compute capability", ret); err != nil {
			return capability{}, err
		}
		return device{whole, d.name, false}.capability()
	})
	return version.major, version.minor, err
}

func (n *NVML) count() (int, error) {
	count, ret := n.library.DeviceGetCount()
	return count, cannot("count GPUs", because(ret))
}

// device is an open device.
type device struct {
	nvml.Device
	name     string // in errors
	instance bool   // of MIG
}

func atPosition(position int) string { return fmt.Sprintf("GPU at PCI position %d", position) }

// at opens the GPU at a position. For a position after the last, NVML returns Invalid Argument.
func (n *NVML) at(position int) (device, error) {
	handle, ret := n.library.DeviceGetHandleByIndex(position)
	d := device{handle, atPosition(position), false}
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		return d, fmt.Errorf("cannot find %s: %w", d.name, errNotFound)
	}
	return d, cannot("open "+d.name, because(ret))
}

func (n *NVML) describeAt(position int) (site.Device, error) {
	d, err := n.at(position)
	if err != nil {
		return site.Device{}, err
	}
	return d.describe()
}

// open opens the device with a UUID. NVML returns Not Found for a device that is not on the node (measured on an
// H200). For an invalid UUID, NVML's manual names Invalid Argument, which is treated the same.
func (n *NVML) open(uuid site.UUID) (device, error) {
	if !uuid.Valid() {
		return device{}, fmt.Errorf("cannot find GPU %q: not the UUID of a device: %w", uuid, errNotFound)
	}
	handle, ret := n.library.DeviceGetHandleByUUID(string(uuid))
	if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND {
		return device{}, fmt.Errorf("cannot find %s on this node: %w", uuid, errNotFound)
	}
	return device{handle, string(uuid), uuid.MIG()}, cannot("open "+string(uuid), because(ret))
}

// on opens a device and runs a function on it, with the deadline. The action is a verb, as in "find".
func on[T any](n *NVML, action string, uuid site.UUID, run func(device) (T, error)) (T, error) {
	return within(n, action+" "+string(uuid), func() (value T, err error) {
		d, err := n.open(uuid)
		if err != nil {
			return value, err
		}
		return run(d)
	})
}

// whole returns the GPU of a device: an instance's parent, or the GPU itself.
func (d device) whole() (nvml.Device, nvml.Return) {
	if !d.instance {
		return d.Device, nvml.SUCCESS
	}
	return d.GetDeviceHandleFromMigDeviceHandle()
}

// cannotRead returns nil for a success.
func (d device) cannotRead(property string, ret nvml.Return) error {
	return cannot("read "+property+" of "+d.name, because(ret))
}

// properties reads the properties of a device, until the first error.
type properties struct {
	device
	err error
}

func get[T any](p *properties, property string, call func() (T, nvml.Return)) (value T) {
	if p.err != nil {
		return value
	}
	value, ret := call()
	p.err = p.cannotRead(property, ret)
	return value
}

// describe reads the properties of a device. If it can read all but the size, it returns them with the error.
func (d device) describe() (site.Device, error) {
	p := &properties{device: d}
	whole := get(p, "parent", d.whole)
	if p.err != nil {
		return site.Device{}, p.err
	}
	found := site.Device{
		UUID: site.UUID(get(p, "UUID", d.GetUUID)), Name: get(p, "name", d.GetName), TPC: smsPerTPC,
		MemoryMiB: int(get(p, "memory", d.GetMemoryInfo).Total >> 20),
		Minor:     get(p, "minor number", whole.GetMinorNumber),
	}
	pci := get(p, "PCI bus id", whole.GetPciInfo)
	if p.err != nil {
		return site.Device{}, p.err
	}
	found.BusID = text(pci.BusId[:])
	found.NUMA = nearestNUMA(found.BusID, whole)
	if d.instance { // NVML reports its SMs
		attributes := get(p, "SMs", d.GetAttributes)
		found.SMs = int(attributes.MultiprocessorCount)
		return found, p.err
	}
	var err error
	if found.MIGMode, err = d.inMIGMode(); err == nil && !found.MIGMode { // NVML counts no cores of a GPU in MIG mode
		found.SMs, err = d.countSMs()
	}
	return found, err
}

// nearestNUMA returns the nearest NUMA node of a GPU, or -1 if it is unknown. The kernel shows it, or else NVML's memory
// affinity. NVML has the same source as the kernel, but takes 8 ms (measured on an H200). NVML's NumaNodeId is something
// else: the node that the GPU's own memory forms on some machines.
func nearestNUMA(bus string, gpu nvml.Device) int {
	short := strings.ToLower(strings.TrimPrefix(bus, "0000")) // NVML's domain has eight digits, the kernel's four
	if content, err := os.ReadFile("/sys/bus/pci/devices/" + short + "/numa_node"); err == nil {
		if node, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
			return node
		}
	}
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

// inMIGMode returns false for a GPU without MIG.
func (d device) inMIGMode() (bool, error) {
	mode, _, ret := d.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	return mode == nvml.DEVICE_MIG_ENABLE, d.cannotRead("MIG mode", ret)
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
