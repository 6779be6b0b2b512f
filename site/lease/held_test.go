// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testMiB = 1 << 20

// jobFS makes the file system of a job of user 2001. inUse returns what is in use of it, also after it is unmounted.
func jobFS(t *testing.T, j *Store, job uint32) (dir string, inUse func() usage) {
	t.Helper()
	l := leaseOf(job, gpuA)
	daemon := j.DaemonDir(job, 0)
	l.Daemons = []Daemon{{PipeDir: filepath.Join(daemon, "pipe"), LogDir: filepath.Join(daemon, "log")}}
	if err := j.MakeDirs(l); err != nil {
		t.Fatal(err)
	}
	if own, err := otherDevice(j.JobDir(job), j.dir); err != nil || !own {
		t.Skip("this process may not mount a file system")
	}
	top, err := os.Open(j.JobDir(job))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { top.Close() })
	return l.Daemons[0].PipeDir, func() usage {
		used, err := usageOf(fmt.Sprintf("/proc/self/fd/%d", top.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return used
	}
}

// fat makes a file of some MiB and opens it.
func fat(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, flags|os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		_, err = file.Write(make([]byte, 20*testMiB))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func mapped(t *testing.T, file *os.File) {
	t.Helper()
	memory, err := unix.Mmap(int(file.Fd()), 0, 20*testMiB, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	memory[0] = 1
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	file.Close()
}

// goesOnWriting writes into a file until the test ends.
func goesOnWriting(t *testing.T, file *os.File) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for buffer := make([]byte, 64<<10); ; {
			select {
			case <-stop:
				return
			default:
				_, _ = file.WriteAt(buffer, 0)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}

// inAnotherNamespace starts a process with the mounts as they are now, which no later change of ours reaches.
func inAnotherNamespace(t *testing.T, script string, args ...string) {
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
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if n, err := out.Read(make([]byte, 16)); n == 0 {
		t.Fatalf("the process does not start: %v", err)
	}
}

// What processes outside of the job hold of the job's file system. No page of it stays in use.
var holders = map[string]func(t *testing.T, dir string){
	"an open file": func(t *testing.T, dir string) { fat(t, dir+"/fat", 0) },
	"a removed file": func(t *testing.T, dir string) {
		fat(t, dir+"/fat", 0)
		if err := os.Remove(dir + "/fat"); err != nil {
			t.Fatal(err)
		}
	},
	"a removed file that only a read-only mount of another namespace shows": func(t *testing.T, dir string) {
		fat(t, dir+"/fat", 0).Close()
		inAnotherNamespace(t, `mount -o remount,bind,ro "$2"; exec 9<"$1"`, dir+"/fat", filepath.Dir(filepath.Dir(dir)))
		if err := os.Remove(dir + "/fat"); err != nil {
			t.Fatal(err)
		}
	},
	"a mapped file": func(t *testing.T, dir string) { mapped(t, fat(t, dir+"/fat", 0)) },
	"a mapped file that is removed": func(t *testing.T, dir string) {
		file := fat(t, dir+"/fat", 0)
		if err := os.Remove(dir + "/fat"); err != nil {
			t.Fatal(err)
		}
		mapped(t, file)
	},
	"a file that is written all the time": func(t *testing.T, dir string) { goesOnWriting(t, fat(t, dir+"/fat", 0)) },
	"a removed file that is written all the time": func(t *testing.T, dir string) {
		file := fat(t, dir+"/fat", 0)
		if err := os.Remove(dir + "/fat"); err != nil {
			t.Fatal(err)
		}
		goesOnWriting(t, file)
	},
	"a file whose end is far": func(t *testing.T, dir string) {
		if err := unix.Fallocate(int(fat(t, dir+"/fat", 0).Fd()), 0, 1<<40, 20*testMiB); err != nil {
			t.Fatal(err)
		}
	},
	"a copy of the mount in another namespace": func(t *testing.T, dir string) {
		fat(t, dir+"/fat", 0).Close()
		inAnotherNamespace(t, `cd "$1"`, dir)
	},
	"a working folder, which is moved and removed": func(t *testing.T, dir string) {
		if err := os.MkdirAll(dir+"/a/b", 0o700); err != nil {
			t.Fatal(err)
		}
		fat(t, dir+"/a/b/fat", 0)
		inAnotherNamespace(t, `cd "$1"`, dir+"/a/b")
	},
	"more removed files than are opened at once": func(t *testing.T, dir string) {
		for n := range maxOpen + 400 {
			file, err := os.Create(dir + "/file")
			if err == nil {
				_, err = file.Write(make([]byte, 32<<10))
			}
			if err = errors.Join(err, os.Remove(dir+"/file")); err != nil {
				t.Fatal(n, err)
			}
			t.Cleanup(func() { file.Close() })
		}
	},
	"many files": func(t *testing.T, dir string) {
		for n := range 60 {
			file, err := os.Create(fmt.Sprintf("%s/%d", dir, n))
			if err == nil {
				_, err = file.Write(make([]byte, testMiB))
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { file.Close() })
			if n%2 == 0 {
				err = os.Remove(file.Name())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	},
}

// Contract: R9
func TestNoPageOfAJobStays(t *testing.T) {
	for name, hold := range holders {
		t.Run(name, func(t *testing.T) {
			j := newStore(t)
			dir, inUse := jobFS(t, j, 7)
			t.Cleanup(func() { _ = j.FreeHeld(func(Held) bool { return true }) }) // the files are closed then
			hold(t, dir)
			before, began := inUse(), time.Now()
			if err := j.RemoveDirs(Job{ID: 7, UID: 2001}); err != nil {
				t.Fatal(err)
			}
			after := inUse()
			t.Logf("%+v, then %+v, in %v", before, after, time.Since(began))
			manyFiles := before.files > maxOpen // their inodes stay
			most := uint64(0)
			if strings.Contains(name, "all the time") {
				most = spareBlocks
			}
			if before.blocks < 20*testMiB/before.blockSize || after.blocks > most ||
				!manyFiles && after.files > spareFiles {
				t.Errorf("%d blocks and %d files stay of %d", after.blocks, after.files, before.blocks)
			}
			if all, err := j.Held(); err != nil || len(all) > 0 && !manyFiles {
				t.Errorf("held: %+v, %v", all, err)
			}
		})
	}
}

// After the epilog, a process that has a file or a folder open cannot make the file system larger.
func TestAClosedJobsFileSystemDoesNotGrow(t *testing.T) {
	j := newStore(t)
	dir, inUse := jobFS(t, j, 7)
	file := fat(t, dir+"/fat", os.O_APPEND)
	folder, err := unix.Open(filepath.Dir(dir), unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(folder)
	if err := j.RemoveDirs(Job{ID: 7, UID: 2001}); err != nil {
		t.Fatal(err)
	}
	_, failed := file.Write(make([]byte, testMiB))
	if used := inUse(); used.blocks > 1 || !errors.Is(failed, unix.ENOSPC) && failed == nil {
		t.Errorf("a writer: %d blocks, %v", used.blocks, failed)
	}
	if err := unix.Mkdirat(folder, "new", 0o700); err == nil {
		t.Error("a folder was made")
	}
}

// inFlight sends a removed file over a socket that no process reads, so that no process has it open.
func inFlight(t *testing.T, file *os.File) (receive func()) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		sent := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(file.Fd())), nil, 0)
		err = errors.Join(sent, os.Remove(file.Name()), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	receive = func() { unix.Close(pair[0]); unix.Close(pair[1]); pair = [2]int{-1, -1} }
	t.Cleanup(receive)
	return receive
}

// What cannot be freed is named, with its user, stays limited, and is freed when its holder ends. A user whose jobs
// have left too much is refused; another user is not.
func TestMemoryThatCannotBeFreed(t *testing.T) {
	j := newStore(t)
	var free []func()
	for job := uint32(7); job <= 8; job++ {
		dir, _ := jobFS(t, j, job)
		file := fat(t, dir+"/fat", 0)
		if err := unix.Fallocate(int(file.Fd()), 0, 0, 140*testMiB); err != nil {
			t.Fatal(err)
		}
		free = append(free, inFlight(t, file))
		if much, err := j.HeldTooMuch(2001); much || err != nil {
			t.Errorf("before the end of job %d: %v, %v", job, much, err)
		}
		began := time.Now()
		if err := errors.Join(j.RemoveDirs(Job{ID: job, UID: 2001}), j.RemoveDirs(Job{ID: job, UID: 2001})); err != nil {
			t.Fatal(err)
		}
		t.Logf("in %v", time.Since(began))
		if _, err := os.Lstat(j.JobDir(job)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder of job %d: %v", job, err)
		}
	}
	all, err := j.Held()
	if err != nil || len(all) != 2 || all[0].Job != 7 || all[0].UID != 2001 || all[0].Bytes/testMiB != 140 {
		t.Fatalf("%+v, %v", all, err)
	}
	// The epilog of one job still runs: its file system may be free in a moment.
	lock, err := j.Lock(deadline(t, 5*time.Second), 8)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := j.HeldLeft(); err != nil || len(left) != 1 || left[0].Job != 7 {
		t.Errorf("left while an epilog runs: %+v, %v", left, err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if left, err := j.HeldLeft(); err != nil || len(left) != 2 {
		t.Errorf("left: %+v, %v", left, err)
	}
	for uid, want := range map[uint32]bool{2001: true, 2002: false} {
		if much, err := j.HeldTooMuch(uid); much != want || err != nil {
			t.Errorf("user %d: %v, %v", uid, much, err)
		}
	}
	free[0]()
	if much, err := j.HeldTooMuch(2001); much || err != nil {
		t.Errorf("after one was freed: %v, %v", much, err)
	}
	free[1]()
	if err := j.FreeHeld(func(Held) bool { return true }); err != nil {
		t.Error(err)
	}
	if all, err := j.Held(); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// The process that empties a file system hangs. It is given up, what it leaves is named, and the next try frees it.
func TestAnEmptyingThatHangs(t *testing.T) {
	j := newStore(t)
	dir, inUse := jobFS(t, j, 7)
	fat(t, dir+"/fat", 0)
	j.Emptier = []string{"/bin/sh", "-c", "exec sleep 20"}
	began := time.Now()
	if err := j.RemoveDirs(Job{ID: 7, UID: 2001}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < emptyWait || took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	if all, err := j.Held(); err != nil || len(all) != 1 || all[0].Bytes < 20*testMiB {
		t.Errorf("%+v, %v", all, err)
	}
	j.Emptier = nil
	if err := j.RemoveDirs(Job{ID: 7, UID: 2001}); err != nil || inUse().blocks > 0 {
		t.Errorf("%v, %d blocks", err, inUse().blocks)
	}
}

// A user may keep many file systems that have little memory.
func TestFileSystemsWithoutNumber(t *testing.T) {
	j := newStore(t)
	var free []func()
	for job := uint32(1); job <= maxHeldCount; job++ {
		if much, err := j.HeldTooMuch(2001); much || err != nil {
			t.Fatalf("%d: %v, %v", job, much, err)
		}
		dir, _ := jobFS(t, j, job)
		file, err := os.Create(dir + "/little")
		if err == nil {
			_, err = file.Write(make([]byte, 2*spareBlocks*os.Getpagesize()))
		}
		if err != nil {
			t.Fatal(err)
		}
		free = append(free, inFlight(t, file))
		if err := j.RemoveDirs(Job{ID: job, UID: 2001}); err != nil {
			t.Fatal(err)
		}
	}
	if much, err := j.HeldTooMuch(2001); !much || err != nil {
		t.Errorf("%v, %v", much, err)
	}
	for _, one := range free {
		one()
	}
	if much, err := j.HeldTooMuch(2001); much || err != nil {
		t.Errorf("after all were freed: %v, %v", much, err)
	}
}

// An epilog that is killed at any moment leaves what the next one finishes.
//
// Contract: R9
func TestAnEmptyingThatWasKilled(t *testing.T) {
	for name, begin := range map[string]func(j *Store) error{
		"before the mount": func(j *Store) error { return os.MkdirAll(filepath.Join(j.heldDir(), heldName(j, 7)), 0o700) },
		"after the mount":  func(j *Store) error { return j.hold(Job{ID: 7, UID: 2001}) },
		"after the detach": func(j *Store) error {
			return errors.Join(j.hold(Job{ID: 7, UID: 2001}), unix.Unmount(j.JobDir(7), unix.MNT_DETACH))
		},
		"after the emptying": func(j *Store) error {
			name := heldName(j, 7)
			return errors.Join(j.hold(Job{ID: 7, UID: 2001}), unix.Unmount(j.JobDir(7), unix.MNT_DETACH), Empty(j.dir, name))
		},
	} {
		j := newStore(t)
		dir, inUse := jobFS(t, j, 7)
		fat(t, dir+"/fat", 0)
		if err := begin(j); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.RemoveDirs(Job{ID: 7, UID: 2001}), j.RemoveDirs(Job{ID: 7, UID: 2001})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if used := inUse(); used.blocks > 0 {
			t.Errorf("%s: %d blocks", name, used.blocks)
		}
		if all, _ := os.ReadDir(j.heldDir()); len(all) > 0 {
			t.Errorf("%s: left %v", name, all)
		}
		if mounts, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(mounts), j.dir) {
			t.Errorf("%s: a mount is left", name)
		}
	}
}

func heldName(j *Store, job uint32) string {
	var st unix.Stat_t
	_ = unix.Lstat(j.JobDir(job), &st)
	return fmt.Sprintf("2001-%d-%d", job, st.Dev)
}

// Only a file system of a closed job is emptied, and nothing that lies outside of it.
func TestWhatIsNotEmptied(t *testing.T) {
	j := newStore(t)
	precious := filepath.Join(j.dir, "held", "folder", "precious")
	if err := os.MkdirAll(filepath.Dir(precious), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"folder", "..", ".", "", "../jobs", "missing"} {
		if err := Empty(j.dir, name); err == nil {
			t.Errorf("%q was emptied", name)
		}
	}
	dir, _ := jobFS(t, j, 7)
	if err := os.Symlink(precious, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := j.RemoveDirs(Job{ID: 7}); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(precious); err != nil || string(content) != "x" {
		t.Errorf("%q, %v", content, err)
	}
	if err := os.RemoveAll(filepath.Dir(precious)); err != nil {
		t.Fatal(err)
	}
}

// The pages of a removed memory control group are freed, too.
func TestNoPageStaysInAMemoryGroup(t *testing.T) {
	const groups = "/sys/fs/cgroup/memory" // version 1
	top := fmt.Sprintf("%s/slurm-mps-test-%d", groups, os.Getpid())
	group := top + "/job"
	if _, err := os.Stat(groups + "/memory.usage_in_bytes"); err != nil || os.MkdirAll(group, 0o755) != nil {
		t.Skip("no memory control groups of version 1")
	}
	t.Cleanup(func() { _, _ = os.Remove(group), os.Remove(top) })
	if err := os.WriteFile(top+"/memory.use_hierarchy", []byte("1"), 0); err != nil {
		t.Log(err) // it is the only kind of newer kernels
	}
	charged := func() int {
		content, err := os.ReadFile(top + "/memory.usage_in_bytes")
		n, err2 := strconv.Atoi(strings.TrimSpace(string(content)))
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return n
	}
	j := newStore(t)
	dir, _ := jobFS(t, j, 7)
	const script = `echo $$ >"$1"; head -c 60000000 /dev/zero >"$2"`
	writer := exec.Command("/bin/sh", "-ec", script, "sh", group+"/cgroup.procs", dir+"/fat")
	if out, err := writer.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fat, err := os.Open(dir + "/fat")
	if err != nil {
		t.Fatal(err)
	}
	defer fat.Close()
	for end := time.Now().Add(5 * time.Second); unix.Rmdir(group) != nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := os.Remove(fat.Name()); err != nil { // without a name
		t.Fatal(err)
	}
	before := charged()
	if err := j.RemoveDirs(Job{ID: 7, UID: 2001}); err != nil {
		t.Fatal(err)
	}
	after := charged()
	for end := time.Now().Add(5 * time.Second); after > 10*testMiB && time.Now().Before(end); after = charged() {
		time.Sleep(10 * time.Millisecond) // the kernel counts in batches
	}
	if t.Logf("charged %d, then %d", before, after); before < 50*testMiB || after > 10*testMiB {
		t.Errorf("charged %d, then %d", before, after)
	}
}
