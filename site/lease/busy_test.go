// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// jobFS makes the file system of a job of user 2001, with some daemons, and returns the first one's pipe folder.
func jobFS(t *testing.T, j *Store, job uint32, daemons int) (pipe string, l Lease) {
	t.Helper()
	l = leaseOf(job, gpuA)
	l.Daemons = nil
	for n := range daemons {
		daemon := j.DaemonDir(job, n)
		l.Daemons = append(l.Daemons, Daemon{PipeDir: filepath.Join(daemon, "pipe"), LogDir: filepath.Join(daemon, "log")})
	}
	must.OK(t, j.MakeDirs(l))
	t.Cleanup(func() { _ = errors.Join(j.RemoveDirs(l.Job), j.FreeBusy(func(Busy) bool { return true })) })
	if own, err := otherDevice(j.JobDir(job), j.dir); err != nil || !own {
		t.Skip("this process may not mount a file system")
	}
	return l.Daemons[0].PipeDir, l
}

// inAnotherNamespace starts a process with the mounts as they are now, which no later change of ours reaches.
func inAnotherNamespace(t *testing.T, script string, args ...string) (end func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-ec", script + "; echo ready; exec sleep 60", "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(end)
	if n, err := out.Read(make([]byte, 16)); n == 0 {
		t.Fatalf("the process does not start: %v", err)
	}
	return end
}

func opened(t *testing.T, path string, flags int) (end func()) {
	t.Helper()
	fd := must.Get(unix.Open(path, flags|unix.O_CLOEXEC, 0o600))(t)
	end = func() { unix.Close(fd); fd = -1 }
	t.Cleanup(end)
	return end
}

// What processes outside of the job keep of its file system. Each is counted as long as it is kept.
var holders = map[string]func(t *testing.T, dir string) (end func()){
	"an open file": func(t *testing.T, dir string) func() { return opened(t, dir+"/file", unix.O_CREAT|unix.O_RDWR) },
	"a removed file that is mapped": func(t *testing.T, dir string) func() {
		end := opened(t, dir+"/file", unix.O_CREAT|unix.O_RDWR)
		file, err := os.OpenFile(dir+"/file", os.O_RDWR, 0)
		if err = errors.Join(err, file.Truncate(1<<20), os.Remove(dir+"/file")); err != nil {
			t.Fatal(err)
		}
		memory, err := unix.Mmap(int(file.Fd()), 0, 1<<20, unix.PROT_WRITE|unix.PROT_READ, unix.MAP_SHARED)
		if err = errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		end()
		return func() { _ = unix.Munmap(memory) }
	},
	"a path to a folder": func(t *testing.T, dir string) func() {
		must.OK(t, os.Mkdir(dir+"/folder", 0o700))
		return opened(t, dir+"/folder", unix.O_PATH)
	},
	"a working folder in another namespace": func(t *testing.T, dir string) func() {
		return inAnotherNamespace(t, `cd "$1"`, dir)
	},
	"a file in flight over a socket": func(t *testing.T, dir string) func() {
		pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
		file, err := os.Create(dir + "/file")
		if err = errors.Join(err, unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(file.Fd())), nil, 0), os.Remove(dir+"/file"), file.Close()); err != nil {
			t.Fatal(err)
		}
		return func() { unix.Close(pair[0]); unix.Close(pair[1]) }
	},
	"a bound socket": func(t *testing.T, dir string) func() {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/s"})
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() { unix.Close(fd) }
	},
}

// Contract: R9
func TestAFileSystemThatIsInUse(t *testing.T) {
	for name, hold := range holders {
		t.Run(name, func(t *testing.T) {
			j := newStore(t)
			dir, l := jobFS(t, j, 7, 1)
			end := hold(t, dir)
			must.OK(t, errors.Join(j.RemoveDirs(l.Job), j.RemoveDirs(l.Job)))
			all, err := j.Busy()
			must.Have(t, err == nil && len(all) == 1 && all[0].Job == 7 && all[0].UID == 2001,
				"while it is kept: %+v, %v", all, err)
			var st unix.Statfs_t
			if err := unix.Statfs(all[0].dir, &st); err != nil || st.Blocks*uint64(st.Bsize) != sizeOfJob || st.Files != filesOfJob {
				t.Errorf("it has no bound: %+v, %v", st, err)
			}
			end()
			expectNoneBusy(t, j)
		})
	}
}

// expectNoneBusy expects that nothing is left once what is not in use is unmounted. The kernel ends some uses later.
func expectNoneBusy(t *testing.T, j *Store) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		err := j.FreeBusy(func(Busy) bool { return true })
		left, _ := os.ReadDir(j.busyDir())
		mounts, _ := os.ReadFile("/proc/self/mounts")
		if err == nil && len(left) == 0 && !strings.Contains(string(mounts), j.busyDir()) {
			return
		}
		must.Have(t, !time.Now().After(end), "left: %v, %v", left, err)
	}
}

// A user whose jobs have left four file systems is refused; another one is not. What is freed counts no more.
func TestFourFileSystemsInUse(t *testing.T) {
	j := newStore(t)
	var ends []func()
	for job := uint32(1); job <= maxBusy; job++ {
		if much, err := j.TooBusy(2001); much || err != nil {
			t.Fatalf("before job %d: %v, %v", job, much, err)
		}
		dir, l := jobFS(t, j, job, 1)
		ends = append(ends, opened(t, dir, unix.O_PATH))
		must.OK(t, j.RemoveDirs(l.Job))
	}
	for uid, want := range map[uint32]bool{2001: true, 2002: false} {
		if much, err := j.TooBusy(uid); much != want || err != nil {
			t.Errorf("user %d: %v, %v", uid, much, err)
		}
	}
	lock, err := j.Lock(deadline(t, 5*time.Second), 1) // the epilog of one job still runs
	if err != nil {
		t.Fatal(err)
	}
	if left, err := j.BusyLeft(); err != nil || len(left) != maxBusy-1 {
		t.Errorf("left while an epilog runs: %+v, %v", left, err)
	}
	must.OK(t, lock.Release())
	ends[0]()
	if much, err := j.TooBusy(2001); much || err != nil {
		t.Errorf("after one was freed: %v, %v", much, err)
	}
	for _, end := range ends[1:] {
		end()
	}
	expectNoneBusy(t, j)
}

// An ordinary job on eight GPUs, with a daemon, a log and 48 clients for each, fits, and leaves nothing in use: neither
// files, a fifo and sockets with their connections, nor what a killed daemon has not removed.
func TestAnOrdinaryJobFits(t *testing.T) {
	const daemons, clients, lines = 8, 48, 10
	j := newStore(t)
	_, l := jobFS(t, j, 7, daemons)
	line := strings.Repeat("x", 99) + "\n"
	for n, d := range l.Daemons {
		var sockets []int
		for _, name := range []string{"control", "control_privileged"} {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err = errors.Join(err, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(d.PipeDir, name)}), unix.Listen(fd, clients)); err != nil {
				t.Fatal(err)
			}
			sockets = append(sockets, fd)
		}
		err := unix.Mkfifo(filepath.Join(d.PipeDir, "log"), 0o600)
		for _, name := range []string{"control_lock", "nvidia-cuda-mps-control.pid"} {
			err = errors.Join(err, os.WriteFile(filepath.Join(d.PipeDir, name), []byte(line), 0o600))
		}
		for _, name := range []string{"control.log", "server.log"} { // each client connects ten times
			err = errors.Join(err, os.WriteFile(filepath.Join(d.LogDir, name), []byte(strings.Repeat(line, 10*clients*lines)), 0o600))
		}
		for client := range clients {
			slot := fmt.Sprintf("slot.%d", n*clients+client)
			err = errors.Join(err, os.WriteFile(filepath.Join(j.ExchangeDir(7), slot), []byte(line), 0o600))
			fd, failed := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			err = errors.Join(err, failed, unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(d.PipeDir, "control")}))
			sockets = append(sockets, fd)
		}
		for _, name := range []string{"alone", "slotted", "noslot"} {
			err = errors.Join(err, os.WriteFile(filepath.Join(j.ExchangeDir(7), fmt.Sprintf("%s.%d", name, n)), []byte(line), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range sockets { // the daemon and its clients have ended when the epilog removes the folders
			unix.Close(fd)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(j.JobDir(7), &st); err != nil || st.Ffree == 0 || st.Bfree < st.Blocks/4 {
		t.Errorf("%d of %d files and %d of %d blocks are left: %v", st.Ffree, st.Files, st.Bfree, st.Blocks, err)
	}
	must.OK(t, j.RemoveDirs(l.Job))
	if all, err := j.Busy(); err != nil || len(all) > 0 {
		t.Errorf("in use: %+v, %v", all, err)
	}
}

// A job with a daemon for each of 56 MIG instances has files for all of them.
func TestFilesOfManyDaemons(t *testing.T) {
	if a, b := mountOptions(8), mountOptions(56); !strings.HasSuffix(a, "=512") || !strings.HasSuffix(b, "=1280") {
		t.Errorf("%s, %s", a, b)
	}
}

// The process that clears a file system hangs. It is given up, its file system counts, and the next try frees it.
func TestAClearingThatHangs(t *testing.T) {
	j := newStore(t)
	_, l := jobFS(t, j, 7, 1)
	j.Clearer = []string{"/bin/sh", "-c", "exec sleep 20"}
	began := time.Now()
	must.OK(t, j.RemoveDirs(l.Job))
	if took := time.Since(began); took < clearTime || took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	if all, err := j.Busy(); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	j.Clearer = nil
	expectNoneBusy(t, j)
}

// An epilog that is killed at any moment leaves what the next one finishes.
//
// Contract: R9
func TestAnUnmountThatWasKilled(t *testing.T) {
	for name, begin := range map[string]func(j *Store, l Lease) error{
		"before the mount": func(j *Store, l Lease) error { return os.MkdirAll(filepath.Join(j.busyDir(), busyName(j, 7)), 0o700) },
		"after the mount":  func(j *Store, l Lease) error { return j.setAside(l.Job) },
		"after the detach": func(j *Store, l Lease) error {
			return errors.Join(j.setAside(l.Job), unix.Unmount(j.JobDir(7), unix.MNT_DETACH))
		},
		"after the clearing": func(j *Store, l Lease) error {
			name := busyName(j, 7)
			return errors.Join(j.setAside(l.Job), unix.Unmount(j.JobDir(7), unix.MNT_DETACH), Clear(j.dir, name))
		},
	} {
		j := newStore(t)
		_, l := jobFS(t, j, 7, 1)
		must.OK(t, begin(j, l))
		if err := errors.Join(j.RemoveDirs(l.Job), j.RemoveDirs(l.Job)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if all, _ := os.ReadDir(j.busyDir()); len(all) > 0 {
			t.Errorf("%s: left %v", name, all)
		}
		if mounts, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(mounts), j.dir) {
			t.Errorf("%s: a mount is left", name)
		}
	}
}

func busyName(j *Store, job uint32) string {
	var st unix.Stat_t
	_ = unix.Lstat(j.JobDir(job), &st)
	return fmt.Sprintf("2001-%d-%d", job, st.Dev)
}

// Only a file system of a closed job is cleared, and nothing that lies outside of it.
func TestWhatIsNotCleared(t *testing.T) {
	j := newStore(t)
	precious := filepath.Join(j.busyDir(), "folder", "precious")
	must.OK(t, errors.Join(os.MkdirAll(filepath.Dir(precious), 0o700), os.WriteFile(precious, []byte("x"), 0o600)))
	for _, name := range []string{"folder", "..", ".", "", "../jobs", "missing"} {
		if err := Clear(j.dir, name); err == nil {
			t.Errorf("%q was cleared", name)
		}
	}
	dir, l := jobFS(t, j, 7, 1)
	must.OK(t, errors.Join(os.Symlink(precious, dir+"/link"), j.RemoveDirs(l.Job)))
	if content, err := os.ReadFile(precious); err != nil || string(content) != "x" {
		t.Errorf("%q, %v", content, err)
	}
}
