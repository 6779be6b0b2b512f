// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// describe makes the files in which the kernel and the driver show the node to every user: below proc/driver/nvidia and
// sys/bus/pci of the node's folder. README.md describes them.
func (n Node) describe(gpus int) error {
	driver, err := n.Text("driver_version")
	if err != nil {
		return err
	}
	const build = "  Release Build  (builder@host)\n"
	err = errors.Join(
		n.show("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+driver+build+
			"GCC version:  gcc version 13.3.0"),
		n.show("proc/driver/nvidia/capabilities/mig/config", capability(1)),
		n.show("proc/driver/nvidia/capabilities/mig/monitor", capability(2)),
		n.makeFolders("sys/bus/pci/devices"),
		n.makeFolders("proc/driver/nvidia/gpus"),
	)
	for i := range gpus {
		err = errors.Join(err, n.describeGPU(n.GPU(i), driver))
	}
	return err
}

func (n Node) describeGPU(g GPU, driver string) error {
	text := map[string]string{}
	for _, name := range []string{"name", "uuid", "minor", "bus_id", "numa"} {
		var err error
		if text[name], err = g.Text(name); err != nil {
			return err
		}
	}
	bus := strings.ToLower(strings.TrimPrefix(text["bus_id"], "0000")) // NVML writes eight digits for the domain
	information := fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t ??.??.??.??.??\n"+
		"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\n"+
		"Device Minor: \t %s\nGPU Firmware: \t %s\nGPU Excluded:\t No",
		text["name"], 255+g.Index, text["uuid"], bus, text["minor"], driver)
	err := errors.Join(
		n.show("proc/driver/nvidia/gpus/"+bus+"/information", information),
		n.show("sys/bus/pci/devices/"+bus+"/numa_node", text["numa"]),
	)
	instances, err2 := g.Instances()
	err = errors.Join(err, err2)
	for _, k := range instances {
		part := filepath.Join("mig", strconv.Itoa(k))
		gi, err1 := g.Text(filepath.Join(part, "gi"))
		ci, err2 := g.Text(filepath.Join(part, "ci"))
		dir := "proc/driver/nvidia/capabilities/gpu" + text["minor"] + "/mig/gi" + gi
		err = errors.Join(err, err1, err2,
			n.show(dir+"/access", capability(3+2*k)), n.show(dir+"/ci"+ci+"/access", capability(4+2*k)))
	}
	return err
}

// capability is the text of a file in capabilities/: a minor number of /dev/nvidia-caps and a mode.
func capability(minor int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1", minor, 0o444)
}

// show writes a file below the node's folder, in folders that every user may search.
func (n Node) show(path, text string) error {
	return errors.Join(n.makeFolders(filepath.Dir(path)), writeText(n.Dir, path, text))
}

func (n Node) makeFolders(path string) error {
	dir := n.Dir
	for _, part := range strings.Split(path, "/") {
		dir = filepath.Join(dir, part)
		if err := makeFolder(dir, 0o755); err != nil {
			return fmt.Errorf("cannot make folder: %w", err)
		}
	}
	return nil
}

// makeDevice makes a device file. Every user may open it, as on a real node.
func makeDevice(dir, name string) error {
	return errors.Join(writeText(dir, name, ""), os.Chmod(filepath.Join(dir, name), 0o666))
}
