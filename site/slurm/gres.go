// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// detect is slurmd's way to find the node's GPUs: AutoDetect= of gres.conf.
type detect string

// The values of AutoDetect= whose order of devices is known.
const (
	detectUnset  detect = ""
	DetectOff    detect = "off"
	DetectNVML   detect = "nvml"
	detectNvidia detect = "nvidia" // Slurm 24.11 on
)

// detects are the words for which Slurm searches inside the value, in its order, so "nvml,x" is nvml. "off" must be the
// whole value.
var detects = []detect{"full", DetectNVML, "rsmi", "oneapi", "nrt", detectNvidia}

// GresEntry is one position in the node's list of GPUs.
type GresEntry struct {
	Minor    int    // N of /dev/nvidiaN, -1 if the line has no File=, names several files for one position, or Other
	Type     string // Type= of the line, or ""
	Multiple bool   // MultipleFiles=: a MIG instance
	Other    string // the file, if it is not the device of a whole GPU, such as that of a MIG instance
	From     string // file and line
}

// Gres is one node's GPUs as gres.conf describes them, and slurm.conf if it was read.
type Gres struct {
	Path    string // path of gres.conf
	Node    string
	Detect  detect
	Entries []GresEntry // in the order of Slurm's indices as long as Detect is off
	EnvUUID bool        // Flags=env_uuid of Slurm 26.05: prologs get UUIDs, and positions have no meaning
	Shared  []string    // sorted names of the node's other GRES (mps, shard, nic), from the file and from Add

	// Configured is the node's GPUs in slurm.conf by type, or nil if slurm.conf was not read. Slurm takes the lines
	// of gres.conf in the order of these types, and no more than their counts.
	Configured []configuredGres

	Units           []SharedUnits  // lines of gres.conf that make units of GPUs, such as shards
	ConfiguredUnits map[string]int // counts of Shared in slurm.conf, or nil if slurm.conf was not read
}

// configuredGres is one item of Gres= in slurm.conf.
type configuredGres struct {
	Type  string // "" if slurm.conf names no type
	Count int    // devices
}

// ReadGres reads the gres.conf at path and its includes, and keeps the lines about node. The error for a missing file
// wraps fs.ErrNotExist. A line with which slurmd would not start is an error, too.
//
//	AutoDetect=off
//	NodeName=gpu[01-16] Name=gpu Type=h200 File=/dev/nvidia[0-3] Cores=0-31
//	Name=shard Count=16
func ReadGres(path, node string) (Gres, error) {
	return readGres(openFile, path, node)
}

func readGres(opener open, path, node string) (Gres, error) {
	lines, err := readConf(opener, path)
	if err != nil {
		return Gres{}, err
	}
	return parseGres(lines, path, node)
}

// gresKeys are the names that slurmd knows on a line of gres.conf. With another name it does not start.
var gresKeys = []string{"autodetect", "count", "cpus", "cores", "file", "files", "flags", "link", "links", "multiplefiles", "name", "type"}

// gresLine is a line of gres.conf about this node.
type gresLine struct {
	conf   confLine
	values map[string]string // by lower-case name
}

// gresFile collects the lines of a gres.conf about one node.
type gresFile struct {
	node          string
	global, local detect     // AutoDetect= for all nodes, and for this one
	everywhere    []gresLine // lines that begin with Name=
	here          []gresLine // lines that begin with NodeName= and name this node
}

// parseGres sorts the lines as Slurm does. All lines that begin with Name= come before all that begin with NodeName=,
// in whatever order the file has them (measured with slurmd -G, Slurm 22.05.8).
func parseGres(lines []confLine, path, node string) (Gres, error) {
	file := gresFile{node: node}
	for _, line := range lines {
		if err := file.add(line); err != nil {
			return Gres{}, err
		}
	}
	gres := Gres{Path: path, Node: node, Detect: cmp.Or(file.local, file.global)}
	if err := gres.fill(append(file.everywhere, file.here...)); err != nil {
		return Gres{}, err
	}
	return gres, nil
}

// add adds a line by its first name. With a line of another kind slurmd does not start.
func (f *gresFile) add(line confLine) error {
	all, err := pairs(line)
	if err != nil {
		return err
	}
	switch strings.ToLower(all[0].name) {
	case "autodetect":
		return f.addDetect(line, all)
	case "name":
		values, err := gresValues(line, all)
		f.everywhere = append(f.everywhere, gresLine{line, values})
		return err
	case "nodename":
		return f.addNode(line, all)
	}
	return fmt.Errorf("cannot read %s: a line begins with Name=, NodeName= or AutoDetect=, not with %s=", line, all[0].name)
}

func (f *gresFile) addDetect(line confLine, all []pair) (err error) {
	if len(all) > 1 {
		return fmt.Errorf("cannot read %s: AutoDetect= for all nodes must stand on a line of its own: put NodeName= "+
			"before it, or %s= on the next line", line, all[1].name)
	}
	f.global, err = parseDetect(line, all[0].value) // the last counts, as in Slurm
	return err
}

// addNode checks the line, whichever node it names, as slurmd does. It keeps the line if it names this node. AutoDetect=
// has no effect in Slurm on a line that begins with Name=.
func (f *gresFile) addNode(line confLine, all []pair) error {
	values, err := gresValues(line, all[1:])
	if err != nil {
		return err
	}
	ours, err := hasHost(all[0].value, f.node)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", line, err)
	}
	if !ours {
		return nil
	}
	if value, ok := values["autodetect"]; ok {
		before := f.local
		if f.local, err = parseDetect(line, value); err != nil {
			return err
		}
		if before != detectUnset && f.local != before {
			return fmt.Errorf("cannot read %s: AutoDetect=%s, an earlier line for this node says %s: keep one", line, f.local, before)
		}
	}
	f.here = append(f.here, gresLine{line, values})
	return nil
}

// hasHost reports whether the hostlist names the node.
func hasHost(list, node string) (bool, error) {
	hosts, err := ExpandHostlist(list)
	return slices.Contains(hosts, node), err
}

func gresValues(line confLine, all []pair) (map[string]string, error) {
	values := map[string]string{}
	for _, p := range all {
		key := strings.ToLower(p.name)
		if !slices.Contains(gresKeys, key) {
			return nil, fmt.Errorf("cannot read %s: %s= is not a name of gres.conf: correct it, slurmd does not start with it", line, p.name)
		}
		values[key] = p.value // the last counts, as in Slurm
	}
	return values, nil
}

func parseDetect(line confLine, value string) (detect, error) {
	lower := strings.ToLower(value)
	for _, d := range detects {
		if strings.Contains(lower, string(d)) {
			return d, nil
		}
	}
	if lower == string(DetectOff) {
		return DetectOff, nil
	}
	return "", fmt.Errorf("cannot read %s: AutoDetect=%s is not known: nvml, nvidia or off", line, value)
}

// fill makes entries from the lines and makes slurmd's checks.
func (g *Gres) fill(lines []gresLine) error {
	var first *gresLine
	for _, line := range lines {
		name, ok := line.values["name"]
		if !ok {
			continue // only AutoDetect=; slurmd logs any other line and continues
		}
		if !strings.EqualFold(name, "gpu") {
			g.Shared = append(g.Shared, name)
			g.Units = append(g.Units, line.units())
			continue
		}
		if first == nil {
			first = &line
		}
		g.EnvUUID = g.EnvUUID || slices.Contains(strings.Split(strings.ToLower(line.values["flags"]), ","), "env_uuid")
		if err := g.addGPUs(line, *first); err != nil {
			return err
		}
	}
	g.share(nil)
	return twice(g.Entries)
}

// Add adds the node's GPUs and other GRES from slurm.conf. A shard needs no line in gres.conf, because Slurm assigns as
// many as slurm.conf counts.
func (g *Gres) Add(node Node) {
	g.Configured, g.ConfiguredUnits = node.GPUs, node.Units
	g.share(node.Others)
}

func (g *Gres) share(more []string) {
	g.Shared = append(g.Shared, more...)
	slices.Sort(g.Shared)
	g.Shared = slices.Compact(g.Shared)
}

func (g *Gres) addGPUs(line, first gresLine) error {
	if name := line.values["name"]; name != "gpu" {
		return fmt.Errorf("cannot read %s: Name=%s: Slurm makes no devices of it: write gpu", line.conf, name)
	}
	entries, err := line.entries()
	if err != nil {
		return err
	}
	if err := line.agrees(first); err != nil {
		return err
	}
	if g.Entries = append(g.Entries, entries...); len(g.Entries) > positionsMax {
		return fmt.Errorf("cannot read %s: more than %d GPUs on node %s", line.conf, positionsMax, g.Node)
	}
	return nil
}

// files returns File= or MultipleFiles=.
func (l gresLine) files() (list string, multiple, ok bool) {
	for _, name := range []string{"file", "files", "multiplefiles"} {
		if list, ok = l.values[name]; ok {
			return list, name == "multiplefiles", true
		}
	}
	return "", false, false
}

// agrees checks two rules of slurmd: all lines of a node's GPUs have File=, or none has; the same holds for Type=.
func (l gresLine) agrees(first gresLine) error {
	_, _, file := l.files()
	_, _, firstFile := first.files()
	_, typed := l.values["type"]
	_, firstTyped := first.values["type"]
	name := ""
	switch {
	case file != firstFile:
		name = "File="
	case typed != firstTyped:
		name = "Type="
	default:
		return nil
	}
	return fmt.Errorf("cannot read %s: of the node's GPU lines some have %s and some do not (%s): slurmd does not start with it",
		l.conf, name, first.conf)
}

// entries makes one entry of each file of File=, or one of all files of MultipleFiles=. Without files it makes Count=
// entries.
func (l gresLine) entries() ([]GresEntry, error) {
	list, multiple, ok := l.files()
	empty := GresEntry{Minor: -1, Type: l.values["type"], Multiple: multiple, From: l.conf.String()}
	if !ok {
		return slices.Repeat([]GresEntry{empty}, l.countOrOne()), nil
	}
	if _, ok := l.values["multiplefiles"]; ok && !multiple {
		return nil, fmt.Errorf("cannot read %s: File= and MultipleFiles= on one line: keep one", l.conf)
	}
	paths, err := ExpandHostlist(list)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", l.conf, err)
	}
	if multiple {
		return []GresEntry{empty}, l.counts(1)
	}
	entries := slices.Repeat([]GresEntry{empty}, len(paths))
	for i, path := range paths {
		if minor, err := deviceMinor(path); err == nil {
			entries[i].Minor = minor
		} else {
			entries[i].Other = path // slurmd takes any file, and jobs with other positions can run
		}
	}
	return entries, l.counts(len(entries))
}

// deviceMinors returns the numbers of a list of devices, "/dev/nvidia[0-1]", with -1 for each other file.
func deviceMinors(list string) (minors []int, err error) {
	paths, err := ExpandHostlist(list)
	for _, path := range paths {
		minor, err := deviceMinor(path)
		if err != nil {
			minor = -1
		}
		minors = append(minors, minor)
	}
	return minors, err
}

// countOrOne returns Count= of a line without files. Only the existence of such a line matters.
func (l gresLine) countOrOne() int {
	if n, err := Digits(l.values["count"]); err == nil && n <= positionsMax {
		return int(n)
	}
	return 1
}

// counts compares Count= with the number of positions that the files make.
func (l gresLine) counts(places int) error {
	value, ok := l.values["count"]
	if n, err := Digits(value); !ok || err == nil && n == uint64(places) {
		return nil
	}
	return fmt.Errorf("cannot read %s: Count=%s, but the files make %d: leave Count= out", l.conf, value, places)
}

// minorMax is the last minor number of a GPU with major number 195. 254 and 255 are nvidia-modeset and nvidiactl.
const minorMax = 253

// deviceMinor returns N of a path that ends in nvidiaN, or of the file to which such a path or another one is a link. It
// ignores the folder, so that a lab's nodes work, too.
func deviceMinor(path string) (int, error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		if minor, err := minorOf(target); err == nil {
			return minor, nil
		}
	}
	return minorOf(path)
}

func minorOf(path string) (int, error) {
	digits, ok := strings.CutPrefix(filepath.Base(path), "nvidia")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !ok || err != nil || n > 999 || strconv.FormatUint(n, 10) != digits {
		return 0, fmt.Errorf("%s is not the device of a whole NVIDIA GPU: File= wants /dev/nvidiaN", Quote(path))
	}
	if n > minorMax {
		return 0, fmt.Errorf("%s is not the device of a GPU: its number is above %d", Quote(path), minorMax)
	}
	return int(n), nil
}

func twice(entries []GresEntry) error {
	seen := map[int]string{}
	for _, e := range entries {
		if e.Minor < 0 {
			continue
		}
		if before, ok := seen[e.Minor]; ok {
			return fmt.Errorf("cannot read %s: nvidia%d stands here and at %s: slurmd does not start with it", e.From, e.Minor, before)
		}
		seen[e.Minor] = e.From
	}
	return nil
}

// ParseGresList parses the output of slurmd -G: the minor numbers of the node's GPUs, in the order of Slurm's
// positions. It returns nil if no line is about GPUs: slurmd has none, or prints them in a form that is not known. If
// slurmd failed, the error contains its messages. A device that is no whole GPU, such as a MIG instance, is -1. A time
// precedes the lines since 26.05 (run: 22.05, 24.11 and 26.05).
//
//	slurmd: Gres Name=gpu Type=(null) Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Flags=HAS_FILE,ENV_NVML
//	[2026-11-21T05:26:29] Gres Name=gpu Type=h200 Count=2 ID=7696487 File=/dev/nvidia[0-1] Flags=HAS_FILE
func ParseGresList(printed string) (list []int, err error) {
	var complaints []string
	for line := range strings.SplitSeq(printed, "\n") {
		line = withoutPrefix(line)
		if why, ok := strings.CutPrefix(line, "error: "); ok {
			complaints = append(complaints, why)
		}
		if why, ok := strings.CutPrefix(line, "fatal: "); ok {
			return nil, errors.New(strings.Join(append(complaints, why), "; "))
		}
		entry, ok := strings.CutPrefix(line, "Gres Name=gpu ")
		if !ok {
			continue
		}
		if list == nil {
			list = []int{}
		}
		for word := range strings.FieldsSeq(entry) {
			files, ok := strings.CutPrefix(word, "File=")
			if !ok {
				continue
			}
			minors, err := deviceMinors(files)
			if err != nil {
				return nil, fmt.Errorf("cannot read slurmd's list: %w", err)
			}
			list = append(list, minors...)
		}
	}
	return list, nil
}

// withoutPrefix returns a line of slurmd from where its text begins. Each LogTimeFormat puts something else before.
func withoutPrefix(line string) string {
	first := len(line)
	for _, begin := range []string{"Gres Name=gpu ", "error: ", "fatal: "} {
		if i := strings.Index(line, begin); i == 0 || i > 0 && line[i-1] == ' ' {
			first = min(first, i)
		}
	}
	return line[first:]
}
