// SPDX-License-Identifier: Apache-2.0

package tuned

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"golang.org/x/sys/unix"
)

const h200 = "NVIDIA H200"

func rule(t testing.TB, text string) policy.ShareRule {
	t.Helper()
	r, err := policy.ParseShare(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A saved share is found by the same key and by no other key. A later result replaces the earlier result. Lines of
// other keys are kept. Only the user can read the file.
func TestSaveAndFind(t *testing.T) {
	path := UserFile("", t.TempDir())
	app8 := NewKey("./bin/app", 16, 2, h200)
	if app8 != (Key{"app", 8, "H200"}) {
		t.Errorf("%+v", app8)
	}
	app4 := NewKey("app", 7, 2, h200)
	for _, saved := range [][]Entry{nil, {{app8, rule(t, "even")}, {app4, rule(t, "none")}}, {{app8, rule(t, "overlap:2")}}} {
		if err := Save(path, saved); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	if want := head + "app 4 H200 none\napp 8 H200 overlap:2\n"; err != nil || string(content) != want {
		t.Errorf("%v:\n%swant\n%s", err, content, want)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(names) != 1 {
		t.Errorf("the folder contains %v, %v", names, err)
	}
	if r, from, err := Find(path, "/absent", app8); err != nil || from != path || r != rule(t, "overlap:2") {
		t.Errorf("%s from %s: %v", r, from, err)
	}
	for _, other := range []Key{NewKey("app2", 16, 2, h200), NewKey("app", 16, 1, h200), NewKey("app", 16, 2, "NVIDIA H100 PCIe"),
		NewKey("app", 16, 2, h200+" MIG 1g.18gb")} {
		if r, _, err := Find(path, "/absent", other); err == nil {
			t.Errorf("%s has %s", other, r)
		}
	}
}

// The user's line counts before the site's line. A site's file that another user could write is not used.
func TestTheUsersFileIsFirst(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the site's file must be owned by root")
	}
	dir, key := t.TempDir(), NewKey("app", 8, 1, h200)
	own := write(t, filepath.Join(dir, "own"), "app 8 H200 even\n")
	ours := write(t, filepath.Join(dir, "site"), "app 8 H200 none\nother 8 H200 25%\n")
	for _, c := range []struct {
		user, program, want string
	}{{own, "app", "even"}, {own, "other", "25%"}, {"", "app", "none"}, {dir + "/absent", "app", "none"}, {own + "/below", "app", "none"}} {
		key.Program = c.program
		if r, _, err := Find(c.user, ours, key); err != nil || r.String() != c.want {
			t.Errorf("%+v: %s, %v", c, r, err)
		}
	}
	if err := os.Chmod(ours, 0o666); err != nil {
		t.Fatal(err)
	}
	if r, _, err := Find("", ours, key); err == nil || !strings.Contains(err.Error(), "lets others write") {
		t.Errorf("%s, %v", r, err)
	}
}

// A broken file is an error in one sentence. A line of another program is no error.
func TestBrokenFiles(t *testing.T) {
	dir, key := t.TempDir(), NewKey("app", 8, 1, h200)
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, want string }{
		"a bad share":    {write(t, dir+"/bad", "# x\napp 8 H200 150%\n"), `cannot read line 2 of ` + dir + `/bad: cannot read share "150%": want a percentage`},
		"large":          {write(t, dir+"/large", strings.Repeat("#\n", maxBytes)), "cannot read " + dir + "/large: larger than 65536 bytes: correct or remove"},
		"a pipe":         {fifo, "cannot read " + fifo + ": it is not a regular file"},
		"a folder":       {dir, "cannot read " + dir + ": it is not a regular file"},
		"endless":        {"/dev/zero", "cannot read /dev/zero: it is not a regular file"},
		"nothing":        {"", `cannot find the tuned share of "app" with 8 ranks on each H200: no line of /absent has it: run mps-tune --save`},
		"of other lines": {write(t, dir+"/odd", "app 8 H200\napp 8 H200 even x\n\x00\xff 8 H200 even\napp 08 H200 even"), "cannot find the tuned share"},
	} {
		if _, _, err := Find(c.path, "/absent", key); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
	if err := Save(fifo, nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
	full := write(t, dir+"/full", strings.Repeat("#\n", maxBytes/2))
	if err := Save(full, []Entry{{key, rule(t, "even")}}); err == nil || !strings.Contains(err.Error(), "it would be larger than 65536 bytes") {
		t.Error(err)
	}
	if err := Save("", nil); err == nil {
		t.Error("an empty path is accepted")
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"app": true, "my-app_1.2": true, "größe": true, "": false, "a b": false,
		"#app": false, "a\n": false, "a\u202e": false, strings.Repeat("a", 101): false} {
		if err := (Key{Program: name}).Check(); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, c := range [][3]string{{"/x", "/h", "/x/slurm-mps/tuned"}, {"x", "/h", "/h/.config/slurm-mps/tuned"}, {"", "", ""}} {
		if got := UserFile(c[0], c[1]); got != c[2] {
			t.Errorf("%q: %s", c, got)
		}
	}
}

// Whatever a file contains, the answer is a rule or a bounded error. After a save, the saved share is found.
func FuzzFile(f *testing.F) {
	f.Add("app 8 H200 even\n", "overlap:2")
	f.Add("app 8 H200 weight:1e9\r\napp 8 H200 \x1b[31m", "none")
	key := Key{"app", 8, "H200"}
	f.Fuzz(func(t *testing.T, content, share string) {
		if _, err := key.in([]byte(content), "FILE"); err != nil && !strings.HasPrefix(err.Error(), "cannot read line ") {
			t.Error(err)
		}
		r, err := policy.ParseShare(share)
		if err != nil {
			return
		}
		if got, err := key.in([]byte(merge(content, []Entry{{key, r}})), "FILE"); err != nil || got != r {
			t.Errorf("saved %s, found %s, %v", r, got, err)
		}
	})
}
