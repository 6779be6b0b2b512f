package mpirunwrap

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site"
	"golang.org/x/sys/unix"
)

// device is a file that stands for the memory driver's, which a shell may open.
func (r *rank) device(name string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name, "dev", "nvidia-uvm")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// held are the memory driver's files that the wrapper has open.
func (r *rank) held() (files []string) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.cmd.Process.Pid))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasSuffix(target, "/dev/nvidia-uvm") {
			files = append(files, target)
		}
	}
	return files
}

func (r *rank) holds(want int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d files held", want), func() bool { return len(r.held()) == want })
}

// A process and what it forks have the same open file: it is held once. A second opening is another file.
func TestAnOpenFileIsHeldOnce(t *testing.T) {
	r := newRank(t)
	device := r.device("a")
	r.sh([]string{"-device", device}, "exec 3<"+device+"; sleep 60 & sleep 60 & until [ -e more ]; do sleep 0.05; done; exec 4<"+device+"; echo $$ >opened; wait")
	r.holds(1)
	if err := os.WriteFile(filepath.Join(r.dir, "more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.proc("opened")
	r.holds(2)
	site.Pause(t.Context(), 300*time.Millisecond) // some looks
	if got := r.held(); len(got) != 2 {
		t.Errorf("held %q", got)
	}
	r.signal(syscall.SIGTERM)
	if code := r.code(); code != 128+15 {
		t.Errorf("code %d", code)
	}
}

// The kernel closes an ending process's files from the highest number down, and the control device's must go last. A number
// below it becomes free between two openings here.
func TestTheControlDevicesFileHasTheLowestNumber(t *testing.T) {
	r := &rank{t: t, dir: t.TempDir(), said: &bytes.Buffer{}}
	memory := r.device("a")
	control := filepath.Join(filepath.Dir(memory), "nvidiactl")
	if err := os.WriteFile(control, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.start("sh", "-c", "exec 3<"+control+" 4<"+memory+"; echo $$ >first; until [ -e more ]; do sleep 0.05; done; exec 5<"+memory+"; echo $$ >second; sleep 60")
	p := r.proc("first")
	below, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	k := newKeeper("", t.Logf)
	t.Cleanup(func() {
		for _, h := range k.files {
			unix.Close(h.file)
		}
	})
	k.take(p)
	below.Close()
	if err := os.WriteFile(filepath.Join(r.dir, "more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.proc("second")
	k.take(p)
	var kinds []string
	for _, h := range k.files {
		kinds = append(kinds, h.kind)
		if h.file < k.files[0].file {
			t.Errorf("%s is held by number %d, the control device's file by %d", h.kind, h.file, k.files[0].file)
		}
	}
	if want := []string{controlFile, memoryFile, memoryFile}; !slices.Equal(kinds, want) {
		t.Errorf("held %q, want %q", kinds, want)
	}
}

// A file that is watched from nowhere (a container's own) is found without its opening being told, and the next opening of
// it is told.
func TestAnotherDeviceFileIsFoundAndWatched(t *testing.T) {
	r := newRank(t)
	watched, other := r.device("a"), r.device("b")
	r.sh([]string{"-device", watched}, "sleep 1; exec 3<"+other+"; until [ -e more ]; do sleep 0.05; done; exec 4<"+other+"; echo $$ >opened; sleep 60")
	r.holds(1)
	if err := os.WriteFile(filepath.Join(r.dir, "more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.proc("opened")
	r.holds(2)
	r.signal(syscall.SIGTERM)
	r.code()
}

// How long a wrapper stays for the sake of its program's files, and by which code it tells of the program's end.
func TestHowLongFilesAreHeld(t *testing.T) {
	for _, c := range []struct {
		name, end   string
		code        int
		least, most time.Duration
	}{
		{"ends well", "exit 0", 0, 0, afterDeath},
		{"an error", "exit 3", 3, 300 * time.Millisecond, afterDeath},
		{"a signal", "kill -SEGV $$", 139, afterDeath, afterDeath + 30*time.Second},
		{"a shell tells of a signal", "exit 137", 137, afterDeath, afterDeath + 30*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRank(t)
			device := r.device("a")
			r.sh([]string{"-device", device, "-drain", "100ms"}, "exec 3<"+device+"; until [ -e end ]; do sleep 0.05; done; echo $$ >pid; "+c.end)
			r.holds(1)
			if err := os.WriteFile(filepath.Join(r.dir, "end"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if code := r.code(); code != c.code {
				t.Errorf("code %d, want %d", code, c.code)
			}
			if took := time.Since(began); took < c.least || took > c.most {
				t.Errorf("it took %v, want %v to %v", took, c.least, c.most)
			}
		})
	}
}

// A program that dies of a signal which reaches the wrapper too is held like one that crashes.
func TestACrashThatASignalFinds(t *testing.T) {
	r := newRank(t)
	device := r.device("a")
	r.sh([]string{"-device", device, "-drain", "100ms"}, "exec 3<"+device+"; exec /usr/bin/python3 -c '"+`
import os, signal, time
def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, end)
print(os.getpid(), file=open("pid", "w"), flush=True)
while True: time.sleep(1)'`)
	program := r.proc("pid")
	r.holds(1)
	r.signal(syscall.SIGTERM)
	r.until("end of the program", func() bool { return !program.Alive() })
	if got := r.held(); len(got) != 1 {
		t.Errorf("held %q", got)
	}
	began := time.Now()
	site.Pause(t.Context(), 300*time.Millisecond) // what comes sooner is an echo of the first
	r.signal(syscall.SIGTERM)
	if code := r.code(); code != 128+15 || time.Since(began) > 3*time.Second {
		t.Errorf("code %d after %v", code, time.Since(began))
	}
}

// The kernel compares open files, and not only what they are files of.
func TestCompareFiles(t *testing.T) {
	first, err1 := os.Open("/dev/null")
	second, err2 := os.Open("/dev/null")
	again, err3 := unix.Dup(int(first.Fd()))
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	if order, err := compareFiles(int(first.Fd()), again); order != 0 || err != nil {
		t.Errorf("a duplicate: %d, %v", order, err)
	}
	if order, err := compareFiles(int(first.Fd()), int(second.Fd())); order == 0 || err != nil {
		t.Errorf("another opening: %d, %v", order, err)
	}
}
