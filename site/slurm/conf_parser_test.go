// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// keyValue reads the same from a text as Slurm's own pattern.
func FuzzKeyValue(f *testing.F) {
	for _, seed := range []string{"A=b", ` a.b_1 += "x y" c=d`, `A="x"y z`, `A="x`, "A= \t=b", "A=", "=b", "A-=b",
		"A -+=b", `A=""`, "é=1", "A=\xff\v\x00 b", "NodeName", "A\v=b", `A="b"` + "\vc"} {
		f.Add(seed)
	}
	pattern := regexp.MustCompile(`^\s*([[:alnum:]_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?:\s|$)`)
	f.Fuzz(func(t *testing.T, text string) {
		got, rest, ok := keyValue(text)
		m := pattern.FindStringSubmatchIndex(text)
		if ok != (m != nil) {
			t.Fatalf("%q: %v, and the pattern gives %v", text, ok, m)
		}
		if !ok {
			return
		}
		from, to, after := m[6], m[7], m[7]
		if m[4] >= 0 {
			from, to, after = m[4], m[5], m[5]+1
		}
		if want := (pair{text[m[2]:m[3]], text[from:to]}); got != want || rest != text[after:] {
			t.Errorf("%q: %q and %q, want %q and %q", text, got, rest, want, text[after:])
		}
	})
}

// Names may have any case, a backslash continues a line, and an include is replaced by the file. A line about another
// node or about a partition is no setting of the cluster.
func TestSettings(t *testing.T) {
	f := files{
		"/e/slurm.conf": "prologflags=Alloc, # x\nPROLOG=/a\nInclude more.conf\nNodeName=DEFAULT Gres=gpu:1\nNodeName=n[1-2] Gres=gpu:2 \\\n Feature=mps\n" +
			"NodeName=n3 Gres=gpu:3\nPartitionName=DEFAULT State=UP\npartitionname=p Nodes=n1 Gres=none\n",
		"/e/more.conf": "Prolog=/b\n",
	}
	s := must.Get(readSettings(f.open, "/e/slurm.conf", "n2"))(t)
	want := map[string][]ConfValue{
		"PrologFlags": {{"Alloc,", "/e/slurm.conf:1"}},
		"prolog":      {{"/a", "/e/slurm.conf:2"}, {"/b", "/e/more.conf:1"}},
		"Gres":        {{"gpu:1", "/e/slurm.conf:4"}, {"gpu:2", "/e/slurm.conf:5"}},
		"feature":     {{"mps", "/e/slurm.conf:5"}},
		"Epilog":      nil,
	}
	for name, all := range want {
		if got := s.Values(name); !reflect.DeepEqual(got, all) {
			t.Errorf("%s: %v, want %v", name, got, all)
		}
	}
	if !slices.Equal(s.Partitions, []string{"p"}) {
		t.Errorf("partitions %q", s.Partitions)
	}
	if last, ok := s.Value("gres"); !ok || last.Value != "gpu:2" {
		t.Errorf("last %v, %v", last, ok)
	}
	if _, ok := s.Value("Epilog"); ok {
		t.Error("Epilog is set")
	}
}

func TestSettingsRefused(t *testing.T) {
	for content, want := range map[string]string{
		"Prolog\n":           "cannot read /e/slurm.conf:1: ",
		"NodeName=n[1 X=1\n": "cannot read /e/slurm.conf:1: ",
		"include a%b\n":      "cannot read /e/slurm.conf:1: include",
	} {
		if _, err := readSettings(files{"/e/slurm.conf": content}.open, "/e/slurm.conf", "n1"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", content, err, want)
		}
	}
	if _, err := readSettings(files{}.open, "/e/slurm.conf", "n1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Whatever slurm.conf contains, the result is values with their lines, or an error that names a line.
func FuzzReadSettings(f *testing.F) {
	for _, seed := range []string{
		"PrologFlags=Alloc,Contain # x\nProlog=/a\nInclude x\nNodeName=DEFAULT Gres=gpu:1\nNodeName=n[1-2] Gres=gpu:2 \\\n Feature=mps\n",
		"PartitionName=p Nodes=n1 Default=YES\nNodeSet=a Feature=b\nProlog=\"/a b\"\n", "NodeName=n[1 X=1\n", "Epilog=/e\\#x\\", "include x\ninclude %h\n", "=\x00", "include \x1b\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := readSettings(files{"/s": text, "/x": "Prolog=/b\nGres=none"}.open, "/s", "n1")
		if err != nil {
			if line := err.Error(); !strings.HasPrefix(line, "cannot read /") || strings.ContainsAny(line, "\n\x00") {
				t.Errorf("an error that breaks a log: %q", line)
			}
			return
		}
		for name, all := range s.values {
			if name != strings.ToLower(name) || len(all) == 0 {
				t.Errorf("%q: %v", name, all)
			}
			if last, ok := s.Value(strings.ToUpper(name)); strings.ToLower(strings.ToUpper(name)) == name && (!ok || last != all[len(all)-1]) {
				t.Errorf("the last %q of %v is %v", name, all, last)
			}
			for _, one := range all {
				file, line := "", 0
				if _, err := fmt.Sscanf(one.From, "/%1s:%d", &file, &line); err != nil || line < 1 || line > strings.Count(text, "\n")+1 && file == "s" {
					t.Errorf("%q has the place %q", one.Value, one.From)
				}
			}
		}
	})
}
