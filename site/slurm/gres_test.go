// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

// files is a file system in memory: the texts of files, by path.
type files map[string]string

func (f files) open(path string) (io.ReadCloser, error) {
	text, ok := f[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

// show formats a Gres on one line: its detection, its entries as minor:type, the other names.
func show(g Gres) string {
	var entries []string
	for _, e := range g.Entries {
		entry := fmt.Sprint(e.Minor)
		if e.Multiple {
			entry = "mig"
		}
		if e.Type != "" {
			entry += ":" + e.Type
		}
		entries = append(entries, entry)
	}
	return fmt.Sprintf("%s[%s]%s", g.Detect, strings.Join(entries, " "), strings.Join(g.Shared, ","))
}

func TestReadGres(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", "[]"},
		{"a range", "Name=gpu File=/dev/nvidia[0-3]\n", "[0 1 2 3]"},
		{"line order", "Name=gpu File=/dev/nvidia3\nName=gpu File=/dev/nvidia1\n", "[3 1]"},
		{"a list", "Name=gpu File=/dev/nvidia0,/dev/nvidia2\n", "[0 2]"},
		{"a list in brackets, unsorted", "Name=gpu File=/dev/nvidia[3,1]\n", "[3 1]"},
		{"a lab's folder", "Name=gpu File=/tmp/x/dev/nvidia[2-3]\n", "[2 3]"},
		{"Files=", "Name=gpu Files=/dev/nvidia0\n", "[0]"},
		{"any case of the names", "name=gpu FILE=/dev/nvidia1 TYPE=a cOuNt=1\n", "[1:a]"},
		{"spaces around =", "Name = gpu File =/dev/nvidia1\n", "[1]"},
		{"quotes", `Name=gpu Type="a b" File="/dev/nvidia[0-1]"`, "[0:a b 1:a b]"},
		{"a comment within quotes", "Name=gpu File=/dev/nvidia0 Type=\"a#b\"\n", "[0:\"a]"},
		{"comments", "# x\nName=gpu File=/dev/nvidia0 # File=/dev/nvidia9\n#Name=gpu File=/dev/nvidia1\n", "[0]"},
		{"continuation", "Name=gpu \\\n  File=/dev/nvidia0 \\  \n Type=a\n", "[0:a]"},
		{"two backslashes go on with nothing", "Name=gpu File=/dev/nvidia0 Type=a\\\\\nName=gpu File=/dev/nvidia1 Type=b\n", "[0:a\\ 1:b]"},
		{"carriage returns", "Name=gpu File=/dev/nvidia0\r\nName=gpu File=/dev/nvidia1\r\n", "[0 1]"},
		{"no newline at the end", "Name=gpu File=/dev/nvidia0", "[0]"},
		{"other nodes", "NodeName=n2 Name=gpu File=/dev/nvidia0\nNodeName=n[3-4],n1 Name=gpu File=/dev/nvidia1\n", "[1]"},
		{"padding is part of a name", "NodeName=n[01-03] Name=gpu File=/dev/nvidia0\n", "[]"},
		{"two brackets", "NodeName=n[0-1],r[1-2]n[1-4] Name=gpu File=/dev/nvidia0\n", "[0]"},
		{"Name= before NodeName=", "NodeName=n1 Name=gpu File=/dev/nvidia4\nName=gpu File=/dev/nvidia0\n", "[0 4]"},
		{"NodeName= in the middle is no key", "NodeName=n1 Name=gpu Type=a File=/dev/nvidia0 Cores=0-3 Links=-1,0 Flags=nvidia_gpu_env\n", "[0:a]"},
		{"other GRES", "Name=gpu File=/dev/nvidia0\nName=mps Count=100 File=/dev/nvidia0\nName=nic File=/dev/ib[0-1]\nName=mps Count=100\n", "[0]mps,nic"},
		{"AutoDetect", "AutoDetect=nvml\n", "nvml[]"},
		{"AutoDetect, any case", "autodetect=NVML\n", "nvml[]"},
		{"AutoDetect, the last counts", "AutoDetect=nvml\nAutoDetect=off\n", "off[]"},
		{"AutoDetect for the node", "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia[0-1]\n", "off[0 1]"},
		{"AutoDetect for the node, first", "NodeName=n1 AutoDetect=nvidia\nAutoDetect=nvml\n", "nvidia[]"},
		{"AutoDetect for another node", "AutoDetect=nvml\nNodeName=n2 AutoDetect=off\n", "nvml[]"},
		{"AutoDetect behind Name has no effect", "Name=gpu File=/dev/nvidia0 AutoDetect=nvml\n", "[0]"},
		{"AutoDetect twice the same", "NodeName=n1 AutoDetect=nvml\nNodeName=n[1-2] AutoDetect=nvml Name=gpu File=/dev/nvidia0\n", "nvml[0]"},
		{"a type alone", "AutoDetect=nvml\nName=gpu Type=a Count=2\n", "nvml[-1:a -1:a]"},
		{"MultipleFiles", "Name=gpu MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap30 Type=1g\nName=gpu Type=2g File=/dev/nvidia0\n", "[mig:1g 0:2g]"},
		{"a line without Name", "NodeName=n1 Count=2\n", "[]"},
		{"include", "include more.conf\nInclude /abs/gres.conf\nName=gpu File=/dev/nvidia2\n", "[0 1 2]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := files{"/etc/slurm/gres.conf": tt.text, "/etc/slurm/more.conf": "Name=gpu File=/dev/nvidia0\n", "/abs/gres.conf": "Name=gpu File=/dev/nvidia1"}
			got := must.Get(readGres(all.open, "/etc/slurm/gres.conf", "n1"))(t)
			must.Equal(t, "got", show(got), tt.want)
		})
	}
}

func TestReadGresSaysWhere(t *testing.T) {
	all := files{"/e/g": "# x\nName=gpu \\\n File=/dev/nvidia0\nInclude h\n", "/e/h": "\nName=gpu File=/dev/nvidia1"}
	got := must.Get(readGres(all.open, "/e/g", "n1"))(t)
	want := []GresEntry{{Minor: 0, From: "/e/g:2"}, {Minor: 1, From: "/e/h:2"}}
	must.Hold(t, reflect.DeepEqual(got.Entries, want), "got %+v, want %+v", got.Entries, want)
}

func TestReadGresRefuses(t *testing.T) {
	const at = "cannot read /g:1: "
	tests := []struct{ text, want string }{
		{"gpu\n", at + `"gpu" is not NAME=value`},
		{"Name=gpu File=/dev/nvidia0 rubbish\n", at + `"rubbish" is not NAME=value`},
		{"Name=gpu File=/dev/nvidia0 Foo=3\n", at + "Foo= is not a name of gres.conf: correct it, slurmd does not start with it"},
		{"NodeName=n2 Foo=3\n", at + "Foo= is not a name of gres.conf: correct it, slurmd does not start with it"},
		{"DEFAULT=1\n", at + "a line begins with Name=, NodeName= or AutoDetect=, not with DEFAULT="},
		{"File=/dev/nvidia0 Name=gpu\n", at + "a line begins with Name=, NodeName= or AutoDetect=, not with File="},
		{"AutoDetect=nvml Name=gpu\n", at + "AutoDetect= for all nodes must stand on a line of its own: put NodeName= before it, or Name= on the next line"},
		{"AutoDetect=magic\n", at + "AutoDetect=magic is not known: nvml, nvidia or off"},
		{"NodeName=n1 AutoDetect=nvml\nNodeName=n1 AutoDetect=off\n", "cannot read /g:2: AutoDetect=off, an earlier line for this node says nvml: keep one"},
		{"NodeName=n[1 Name=gpu\n", at + `cannot expand "n[1": the brackets do not match`},
		{"Name=GPU File=/dev/nvidia0\n", at + "Name=GPU: Slurm makes no devices of it: write gpu"},
		{"Name=gpu File=/dev/nvidia[1-0]\n", at + `cannot expand "/dev/nvidia[1-0]": range "1-0" runs backwards`},
		{"Name=gpu File=/dev/nvidia[0-1] Count=3\n", at + "Count=3, but the files make 2: leave Count= out"},
		{"Name=gpu File=/dev/nvidia0 MultipleFiles=/dev/nvidia1\n", at + "File= and MultipleFiles= on one line: keep one"},
		{"Name=gpu File=/dev/nvidia0\nName=gpu File=/x/nvidia0\n", "cannot read /g:2: nvidia0 stands here and at /g:1: slurmd does not start with it"},
		{"Name=gpu File=/dev/nvidia0\nName=gpu Count=1\n", "cannot read /g:2: of the node's GPU lines some have File= and " +
			"some do not (/g:1): slurmd does not start with it"},
		{"Name=gpu File=/dev/nvidia0\nName=gpu Type=a File=/dev/nvidia1\n", "cannot read /g:2: of the node's GPU lines " +
			"some have Type= and some do not (/g:1): slurmd does not start with it"},
		{"a\x00b\n", at + "a NUL byte: this is not a text file"},
		{"Include\t%n.conf\n", at + `include of "%n.conf" is not understood: write the path out`},
		{"include /none\n", "cannot read /none: open /none: file does not exist"},
		{"include /g\n", "cannot read /g: more than 16 files include one another"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			if _, err := readGres(files{"/g": tt.text}.open, "/g", "n1"); recorded.Message(err) != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestReadGresFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "gres.conf")
	if _, err := ReadGres(path, "n1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	must.OK(t, os.WriteFile(path, []byte("Name=gpu File=/dev/nvidia[0-1]\n"), 0o600))
	got, err := ReadGres(path, "n1")
	must.Hold(t, err == nil && show(got) == "[0 1]" && got.Path == path && got.Node == "n1", "got %+v, %v", got, err)
}

func TestReadNode(t *testing.T) {
	tests := []struct {
		name, text string
		want       []configuredGres
		others     []string
	}{
		{"count", "NodeName=n[1-2] CPUs=4 Gres=gpu:4 State=UNKNOWN\n", []configuredGres{{"", 4}}, nil},
		{"type", "NodeName=n1 Gres=gpu:a100:4(S:0-1),mps:400\n", []configuredGres{{"a100", 4}}, []string{"mps"}},
		{"types", "nodename=n1 gres=gpu:a:1,nic:1,gpu:b:2,gpu:a:1\n", []configuredGres{{"a", 2}, {"b", 2}}, []string{"nic"}},
		{"no count", "NodeName=n1 Gres=gpu:a\n", []configuredGres{{"a", 1}}, nil},
		{"the name alone", "NodeName=n1 Gres=gpu\n", []configuredGres{{"", 1}}, nil},
		{"no_consume", "NodeName=n1 Gres=gpu:no_consume:2\n", []configuredGres{{"", 2}}, nil},
		{"none", "NodeName=n1 CPUs=1\n", []configuredGres{}, nil},
		{"by default", "NodeName=DEFAULT Gres=gpu:2\nNodeName=n1\n", []configuredGres{{"", 2}}, nil},
		{"a default overruled", "NodeName=DEFAULT Gres=gpu:2\nNodeName=n1 Gres=gpu:3\n", []configuredGres{{"", 3}}, nil},
		{"a later default", "NodeName=n1 CPUs=1\nNodeName=DEFAULT Gres=gpu:2\n", []configuredGres{}, nil},
		{"among the rest", "SlurmctldHost=a(127.0.0.1)\nnot a pair\nNodeName=n2 Gres=gpu:9\nNodeName=n1 " +
			"Gres=gpu:1\nPartitionName=main Nodes=ALL\n", []configuredGres{{"", 1}}, nil},
		{"included", "Include nodes.conf\n", []configuredGres{{"", 7}}, nil},
		{"included by the cluster's name", "# x\n clustername=\"NoDes\" \nInclude %c.conf\n", []configuredGres{{"", 7}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readNode(files{"/e/s": tt.text, "/e/nodes.conf": "NodeName=n1 Gres=gpu:7"}.open, "/e/s", "n1")
			must.Hold(t, err == nil && reflect.DeepEqual(got.GPUs, tt.want) && slices.Equal(got.Others, tt.others),
				"got %+v, %v, want %v, %q", got, err, tt.want, tt.others)
		})
	}
}

func TestReadNodeRefuses(t *testing.T) {
	tests := []struct{ text, want string }{
		{"NodeName=n2 Gres=gpu:4\n", "cannot read node n1 in /s: no NodeName= line names it"},
		{"NodeName=n1\nNodeName=n[1-2]\n", "cannot read /s:2: an earlier line names node n1 too: keep one"},
		{"NodeName=n1 Gres=gpu:a:b:1\n", "cannot read /s:1: Gres=gpu:a:b:1: gpu:a:b:1: want gpu[:type][:count]"},
		{"NodeName=n1 Gres=gpu:5000\n", "cannot read /s:1: Gres=gpu:5000: gpu:5000: more than 1024 GPUs"},
		{"NodeName=n[ Gres=gpu:1\n", `cannot read /s:1: cannot expand "n[": the brackets do not match`},
		{"NodeName=n1 x\n", `cannot read /s:1: "x" is not NAME=value`},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			if _, err := readNode(files{"/s": tt.text}.open, "/s", "n1"); recorded.Message(err) != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	if _, err := readNode(files{"/s": ""}.open, "/s", "n1"); !errors.Is(err, ErrNoNode) {
		t.Errorf("got %v", err)
	}
	if _, err := ReadNode(filepath.Join(t.TempDir(), "none"), "n1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func FuzzReadGres(f *testing.F) {
	for _, seed := range []string{"Name=gpu File=/dev/nvidia[0-3]\n", "NodeName=n[1-3] AutoDetect=nvml Name=gpu " +
		"Type=\"a b\" \\\n File=/x/nvidia1 # c\n", "Include x\n", "AutoDetect=off\\", "Name=gpu MultipleFiles=a,b Count=9\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all := files{"/g": text, "/x": "Name=mps Count=1"}
		if node, err := readNode(all.open, "/g", "n1"); err == nil && node.GPUs == nil {
			t.Error("no error and no answer")
		}
		gres, err := readGres(all.open, "/g", "n1")
		if err != nil {
			return
		}
		must.Hold(t, len(gres.Entries) <= positionsMax, "%d entries", len(gres.Entries))
		seen := map[int]bool{}
		for _, e := range gres.Entries {
			must.Hold(t, e.Minor <= minorMax && e.Minor >= -1 && (e.Minor < 0 || !seen[e.Minor]), "entry %+v of %q", e, text)
			seen[e.Minor] = true
		}
	})
}
