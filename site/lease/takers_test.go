// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"golang.org/x/sys/unix"
)

// takes takes a place and starts a process that keeps it, as a guard does.
func takes(t *testing.T, j *Store, of Taker) (*TakerPlace, *os.Process) {
	t.Helper()
	place := must.Get(j.TakerPlace(of))(t)
	taker := exec.Command("/bin/sleep", "100")
	taker.Stdout = place.Descriptor()
	must.OK(t, taker.Start())
	t.Cleanup(func() { _ = taker.Process.Kill(); _ = taker.Wait() })
	stat := must.Get(proc.ReadStat(taker.Process.Pid))(t)
	place.Started(stat.Process)
	return place, taker.Process
}

// left returns how many takers are left.
func left(t *testing.T, j *Store) int {
	t.Helper()
	all := must.Get(j.TakersLeft())(t)
	return len(all)
}

// A taker keeps its place until it ends, also after its guard. With maxTakersLeft of them, the user gets no place, and
// other users do. When one ends, its user gets a place again.
func TestTakersThatAreLeft(t *testing.T) {
	j := OpenReadOnly(t.TempDir(), "boot")
	must.Hold(t, left(t, j) == 0, "takers without a file")
	self := must.Get(proc.Current())(t)
	mine := Taker{Job: 7, UID: 2001, Guard: self}
	ofEnded := Taker{Job: 8, UID: 2001, Guard: proc.Process{PID: 1 << 22, Start: 1}}
	used, _ := takes(t, j, mine)
	defer used.Leave()
	if n := left(t, j); n != 0 {
		t.Errorf("%d: the guard uses it", n)
	}
	var processes []*os.Process
	for i := range maxTakersLeft {
		of := mine
		if i%2 == 0 { // its guard is killed
			of = ofEnded
		}
		place, taker := takes(t, j, of)
		processes = append(processes, taker)
		if i%2 == 0 {
			place.file.Close()
		} else if err := place.Leave(); err != nil {
			t.Fatal(err)
		}
		if n := left(t, j); n != i+1 {
			t.Fatalf("%d are left: want %d", n, i+1)
		}
	}
	if place, err := j.TakerPlace(mine); !errors.Is(err, ErrTakers) {
		t.Fatalf("%v, %v", place, err)
	}
	other, err := j.TakerPlace(Taker{Job: 9, UID: 2002, Guard: self})
	must.Have(t, err == nil, "another user gets no place: %v", err)
	_ = other.Leave()
	must.OK(t, processes[3].Kill())
	for began := time.Now(); left(t, j) == maxTakersLeft; time.Sleep(time.Millisecond) {
		must.Have(t, time.Since(began) <= 10*time.Second, "one that has ended keeps its place")
	}
	again := must.Get(j.TakerPlace(mine))(t)
	_ = again.Leave()
}

// A node has a limit of places for all users.
func TestPlacesOfTakers(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Cur < 2*maxTakers {
		t.Skipf("this process may open %d files: %v", files.Cur, err)
	}
	j := OpenReadOnly(t.TempDir(), "boot")
	self := must.Get(proc.Current())(t)
	for user := range uint32(maxTakers) {
		place, err := j.TakerPlace(Taker{Job: user, UID: user, Guard: self})
		must.Have(t, err == nil, "place %d: %v", user, err)
		defer place.Leave()
	}
	if _, err := j.TakerPlace(Taker{Job: 1, UID: 1 << 20, Guard: self}); !errors.Is(err, ErrTakers) {
		t.Error(err)
	}
	info, err := os.Stat(j.takersPath())
	must.Hold(t, err == nil && info.Size() <= maxTakers*takerSize && info.Mode().Perm() == 0o600, "%v, %v", info, err)
}

// A guard's promise is read as it was written.
func TestAGuardsPromise(t *testing.T) {
	s := newStore(t)
	lock := must.Get(s.LockGuard(t.Context(), 7))(t)
	by := time.Now().Add(7 * time.Second)
	must.OK(t, lock.Promise(by))
	if got, err := s.GuardPromise(7); err != nil || got.Sub(by).Abs() > time.Millisecond {
		t.Errorf("%v, %v: want %v", got, err, by)
	}
	if _, err := s.GuardPromise(8); err == nil {
		t.Error("a promise of no guard")
	}
}
