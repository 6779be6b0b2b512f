// SPDX-License-Identifier: Apache-2.0

package serverlog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestParse(t *testing.T) {
	type said struct {
		failed, disconnected int
		fault                bool
	}
	for text, want := range map[string]said{
		"Client {PID: 906, Context ID: 0} connected":                   {},
		"Client {906, 0} encountered a fatal GPU error.":               {failed: 906},
		"Client {PID: 906, Context: 1} encountered a fatal GPU error.": {failed: 906},
		"Server is handling a fatal GPU error.":                        {fault: true},
		"Client process 957 disconnected":                              {disconnected: 957},
		"Client termination succeeded.":                                {},
		"Client {x, 0} connected":                                      {},
		"Client process x disconnected":                                {},
	} {
		l, ok := Parse([]byte("[2026-11-21 05:26:29.938 Server   829] " + text + "\n"))
		var got said
		if pid, ok := l.Failed(); ok {
			got.failed = pid
		}
		if pid, ok := l.Disconnected(); ok {
			got.disconnected = pid
		}
		got.fault = l.Fault()
		must.Hold(t, ok && got == want && l.Server == "829", "%s: %+v of %s, want %+v", text, got, l.Server, want)
		if at := time.Date(2026, 11, 21, 5, 26, 29, 938e6, time.Local); !l.At().Equal(at) {
			t.Errorf("%s: at %v, want %v", text, l.At(), at)
		}
	}
	if l, ok := Parse([]byte("] x\n")); !ok || !l.At().IsZero() {
		t.Error("a line without a time has one")
	}
	if _, ok := Parse([]byte("Server is handling a fatal GPU error.\n")); ok {
		t.Error("a line without a head counts as a server's line")
	}
}

func TestOpenRefusesWhatIsNotTheUsersOwnFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log", Name)
	must.OK(t, errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("said\n"), 0o600)))
	file, size, err := Open(filepath.Dir(path), Name, uint32(os.Getuid()))
	must.Have(t, err == nil && size == 5, "%d bytes, %v", size, err)
	file.Close()
	if _, _, err := Open(filepath.Dir(path), Name, uint32(os.Getuid())+1); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("another user's file: %v", err)
	}
	must.OK(t, errors.Join(os.Rename(path, path+".x"), os.Symlink(path+".x", path)))
	if _, _, err := Open(filepath.Dir(path), Name, uint32(os.Getuid())); err == nil {
		t.Error("a link was followed")
	}
}
