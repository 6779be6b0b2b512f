// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site"
)

// refKind is the meaning of a reference's number.
type refKind string

// The ways in which Slurm refers to a device.
const (
	ByMinor      refKind = "minor"      // N of /dev/nvidiaN
	byPCI        refKind = "pci"        // position, from 0, among the node's GPUs by PCI bus id (AutoDetect=nvml)
	byMinorOrder refKind = "minor rank" // position, from 0, among the node's GPUs by minor number (AutoDetect=nvidia)
	ByUUID       refKind = "uuid"       // Slurm names the device itself: a MIG instance, or Flags=env_uuid
)

// DeviceRef is a reference to one of the job's devices.
type DeviceRef struct {
	By   refKind
	N    int       // for all kinds except ByUUID
	UUID site.UUID // for ByUUID
}

// ResolvePositions returns references to the job's GPUs, in the order of SLURM_JOB_GPUS. It returns none for a job
// without a GPU on this node. It fails if a position is ambiguous. MatchDevices finds the devices of the result.
func ResolvePositions(gres Gres, job Job) ([]DeviceRef, error) {
	if len(job.GPUs) == 0 && len(job.MIG) == 0 && len(job.UUIDs) == 0 {
		return nil, nil
	}
	refs, err := gres.resolve(job)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve GPUs of job %d: %w", job.ID, err)
	}
	return refs, nil
}

func (g Gres) resolve(job Job) ([]DeviceRef, error) {
	if err := g.checkTypes(); err != nil {
		return nil, err
	}
	if len(job.MIG)+len(job.UUIDs) > 0 {
		return namedRefs(job)
	}
	if n, again := repeated(job.GPUs); again {
		return nil, fmt.Errorf("SLURM_JOB_GPUS names position %d twice", n)
	}
	kind, err := g.order()
	if err != nil {
		return nil, err
	}
	refs := make([]DeviceRef, 0, len(job.GPUs))
	for _, position := range job.GPUs {
		ref, err := g.ref(kind, position)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// namedRefs is for a job whose CUDA_VISIBLE_DEVICES names the devices themselves.
func namedRefs(job Job) ([]DeviceRef, error) {
	named := slices.Concat(job.MIG, job.UUIDs)
	if len(job.MIG) > 0 && len(named) > len(job.MIG) || len(named) != len(job.Visible) {
		return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES is %s, a mix of MIG instances and whole GPUs: give MPS jobs a node with one kind",
			Quote(strings.Join(job.Visible, ",")))
	}
	if len(job.GPUs) > 0 && len(job.GPUs) != len(named) {
		return nil, fmt.Errorf("SLURM_JOB_GPUS names %d devices and CUDA_VISIBLE_DEVICES %d", len(job.GPUs), len(named))
	}
	if uuid, again := repeated(named); again {
		return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES names %s twice", uuid)
	}
	refs := make([]DeviceRef, 0, len(named))
	for _, uuid := range named {
		refs = append(refs, DeviceRef{By: ByUUID, UUID: uuid})
	}
	return refs, nil
}

func repeated[T comparable](items []T) (T, bool) {
	for i, item := range items {
		if slices.Contains(items[:i], item) {
			return item, true
		}
	}
	var none T
	return none, false
}

// checkTypes refuses a node with GPUs of several types. If a job requested two types, Slurm 22.05's prolog saw only
// the last type's GPUs (measured). If slurm.conf was read, its types count, because Slurm drops the types that it
// lacks.
func (g Gres) checkTypes() error {
	var types []string
	file := "gres.conf"
	if g.Configured != nil {
		file = "slurm.conf"
		for _, w := range g.Configured {
			types = append(types, w.Type)
		}
	} else {
		for _, e := range g.Entries {
			types = append(types, e.Type)
		}
	}
	slices.Sort(types)
	types = slices.Compact(types)
	if len(types) < 2 {
		return nil
	}
	return fmt.Errorf("node %s has GPU types %s in %s, and Slurm may name only a part of the job's GPUs: give MPS jobs a node with one type",
		g.Node, strings.Join(types, " and "), file)
}

// order returns the order of the node's list in Slurm.
func (g Gres) order() (refKind, error) {
	switch g.Detect {
	case detectUnset, DetectOff:
		return ByMinor, nil
	case DetectNVML:
		return byPCI, nil
	case detectNvidia:
		return byMinorOrder, nil
	}
	return "", fmt.Errorf("AutoDetect=%s in %s: which GPU a position means is not known: use nvml, nvidia or File= "+
		"lines; or Flags=env_uuid, with Slurm 26.05 and later", g.Detect, g.Path)
}

func (g Gres) ref(kind refKind, position int) (DeviceRef, error) {
	listed := g.listed()
	if kind != ByMinor {
		if want := g.count(); g.Configured != nil && position >= want {
			return DeviceRef{}, fmt.Errorf("position %d, but slurm.conf gives node %s %d GPUs", position, g.Node, want)
		}
		return DeviceRef{By: kind, N: position}, nil
	}
	if len(listed) == 0 && len(Gres{Entries: g.Entries}.listed()) > 0 {
		return DeviceRef{}, fmt.Errorf("of the GPUs in %s none has a type that slurm.conf gives node %s: make Type= and Gres= agree", g.Path, g.Node)
	}
	if len(listed) == 0 {
		return DeviceRef{}, fmt.Errorf("%s has neither File= of a GPU nor AutoDetect= for node %s: add Name=gpu "+
			"File=/dev/nvidia[0-N] or AutoDetect=nvml", g.Path, g.Node)
	}
	if position < 0 || position >= len(listed) {
		return DeviceRef{}, fmt.Errorf("position %d, but node %s has %d GPUs in %s", position, g.Node, len(listed), g.Path)
	}
	entry := listed[position]
	if entry.Multiple {
		return DeviceRef{}, fmt.Errorf("position %d is MultipleFiles= (%s), a MIG instance, and CUDA_VISIBLE_DEVICES does "+
			"not name it: use AutoDetect=nvml", position, entry.From)
	}
	if entry.Other != "" {
		_, err := minorOf(entry.Other)
		return DeviceRef{}, fmt.Errorf("position %d (%s): %w", position, entry.From, err)
	}
	return DeviceRef{By: ByMinor, N: entry.Minor}, nil
}

// count returns the number of the node's GPUs in slurm.conf.
func (g Gres) count() int {
	n := 0
	for _, w := range g.Configured {
		n += w.Count
	}
	return n
}

// listed returns the list of devices that Slurm makes of the entries: those with a file. If slurm.conf was read,
// Slurm takes them type after type, up to the type's count (_merge_config in Slurm's gres.c).
func (g Gres) listed() []GresEntry {
	left := slices.DeleteFunc(slices.Clone(g.Entries), func(e GresEntry) bool { return e.Minor < 0 && !e.Multiple && e.Other == "" })
	if g.Configured == nil {
		return left
	}
	var taken []GresEntry
	for _, want := range g.Configured {
		n := 0
		left = slices.DeleteFunc(left, func(e GresEntry) bool {
			match := n < want.Count && (want.Type == "" || strings.EqualFold(want.Type, e.Type))
			if match {
				n++
				taken = append(taken, e)
			}
			return match
		})
	}
	return taken
}

// MatchDevices finds the devices of refs among all of the node's devices, in the order of refs. Positions by PCI bus
// id or by minor number count the devices that slurmd detected, and slurmd may not have taken all of them. So
// MatchDevices succeeds only if every list that slurmd may have made has the same device in that position.
func MatchDevices(gres Gres, refs []DeviceRef, devices []site.Device) ([]site.Device, error) {
	picked := make([]site.Device, 0, len(refs))
	for _, ref := range refs {
		device, err := gres.pick(ref, devices)
		if err != nil {
			return nil, fmt.Errorf("cannot find GPU of node %s: %w", gres.Node, err)
		}
		picked = append(picked, device)
	}
	return picked, nil
}

func (g Gres) pick(ref DeviceRef, devices []site.Device) (site.Device, error) {
	if ref.By == ByUUID {
		return one(devices, func(d site.Device) bool { return d.UUID == ref.UUID }, string(ref.UUID))
	}
	whole := slices.DeleteFunc(slices.Clone(devices), func(d site.Device) bool { return d.UUID.MIG() })
	if ref.By == ByMinor {
		return one(whole, func(d site.Device) bool { return d.Minor == ref.N }, fmt.Sprintf("/dev/nvidia%d", ref.N))
	}
	if i := slices.IndexFunc(whole, func(d site.Device) bool { return d.MIGMode }); i >= 0 {
		return site.Device{}, fmt.Errorf("place %d: with %s in MIG mode Slurm's list counts its instances too: give MPS "+
			"jobs a node without MIG", ref.N, whole[i].UUID)
	}
	ordered, err := g.ordered(ref.By, whole)
	if err != nil {
		return site.Device{}, fmt.Errorf("place %d: %w", ref.N, err)
	}
	if ref.N < 0 || ref.N >= len(ordered) {
		return site.Device{}, fmt.Errorf("place %d of %d GPUs", ref.N, len(ordered))
	}
	return ordered[ref.N], nil
}

func one(devices []site.Device, matches func(site.Device) bool, name string) (site.Device, error) {
	i := slices.IndexFunc(devices, matches)
	if i < 0 {
		return site.Device{}, fmt.Errorf("%s is in Slurm's list and not on the node", name)
	}
	return devices[i], nil
}

func byBus(a, b site.Device) int {
	return cmp.Compare(strings.ToUpper(a.BusID), strings.ToUpper(b.BusID))
}
func byMinor(a, b site.Device) int { return cmp.Compare(a.Minor, b.Minor) }

// ordered returns slurmd's list of the node's whole GPUs. Slurm's source (_merge_system_gres_conf in gres_gpu.c)
// takes detected devices in the natural order of their files, at most as many as slurm.conf counts. Devices with
// File= lines come first. It then sorts them: by PCI bus id with nvml, by file with nvidia. A slurmd built without
// the library keeps the order of the File= lines.
func (g Gres) ordered(kind refKind, devices []site.Device) ([]site.Device, error) {
	sorted := slices.SortedFunc(slices.Values(devices), byBus)
	if kind == byMinorOrder {
		sorted = slices.SortedFunc(slices.Values(devices), byMinor)
	}
	if err := g.checkKinds(devices); err != nil {
		return nil, err
	}
	if listed := g.listed(); len(listed) > 0 {
		return g.orderedFiles(listed, sorted)
	}
	if kind == byMinorOrder || slices.IsSortedFunc(sorted, byMinor) {
		return sorted, nil // the lowest files have the first positions, so the count does not matter
	}
	if g.Configured == nil {
		return nil, fmt.Errorf("PCI order differs from minor order, and slurm.conf (not read) is needed to tell how many of the %d GPUs "+
			"Slurm uses: set SLURM_CONF", len(sorted))
	}
	if g.count() < len(sorted) {
		return nil, fmt.Errorf("PCI order differs from minor order, and slurm.conf uses %d of %d GPUs: name them by File= lines with "+
			"AutoDetect=off", g.count(), len(sorted))
	}
	return sorted, nil
}

// checkKinds refuses a type together with several products, because their names decide which of them Slurm matched
// with the type.
func (g Gres) checkKinds(devices []site.Device) error {
	typed := slices.ContainsFunc(g.Entries, func(e GresEntry) bool { return e.Type != "" }) ||
		slices.ContainsFunc(g.Configured, func(w configuredGres) bool { return w.Type != "" })
	for _, d := range devices {
		if typed && d.Name != devices[0].Name {
			return fmt.Errorf("GPUs %s and %s under one type with AutoDetect=%s: name them by File= lines with AutoDetect=off", devices[0].Name, d.Name, g.Detect)
		}
	}
	return nil
}

// orderedFiles is for File= lines with AutoDetect=. The positions are certain if the lines are in the order into
// which the detection sorts, by its key and by file. In addition, no GPU without a line may come between them.
func (g Gres) orderedFiles(listed []GresEntry, sorted []site.Device) ([]site.Device, error) {
	refuse := fmt.Errorf("%s mixes AutoDetect=%s with File= lines, and which GPU comes first is not certain: list all "+
		"GPUs in the order of their PCI bus ids, or set AutoDetect=off", g.Path, g.Detect)
	complete := g.Configured != nil && g.count() <= len(listed)
	var places []site.Device
	for _, d := range sorted {
		isListed := slices.ContainsFunc(listed, func(e GresEntry) bool { return e.Minor == d.Minor })
		switch {
		case isListed:
			places = append(places, d)
		case !complete && len(places) < len(listed):
			return nil, refuse
		}
	}
	if len(places) != len(listed) {
		return nil, fmt.Errorf("%s lists %d GPUs by File= and %d of them are on the node", g.Path, len(listed), len(places))
	}
	for i, d := range places {
		if listed[i].Minor != d.Minor {
			return nil, refuse
		}
	}
	typed := slices.ContainsFunc(listed, func(e GresEntry) bool { return e.Type != "" })
	if g.Detect == DetectNVML && typed && !slices.IsSortedFunc(places, byMinor) {
		return nil, refuse // if the type is not in the product's name, Slurm sorts by file
	}
	return places, nil
}
