// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A slot's file has one name, because root may run a rank, and a user can link to a file of root's.
//
// Contract: K6
func TestASlotsFileWithAnotherName(t *testing.T) {
	folder := t.TempDir()
	secret := filepath.Join(folder, "secret")
	slot := (&slotTable{folder: folder}).path(0)
	must.OK(t, errors.Join(os.WriteFile(secret, []byte("root's"), 0o600), os.Link(secret, slot)))
	if file, err := openSlotFile(slot); err == nil {
		file.close()
		t.Error("a file with two names is opened")
	}
	must.OK(t, errors.Join(os.Remove(slot), os.Symlink(secret, slot)))
	if file, err := openSlotFile(slot); err == nil {
		file.close()
		t.Error("a link is followed")
	}
	if content, err := os.ReadFile(secret); string(content) != "root's" {
		t.Errorf("%q, %v", content, err)
	}
	must.OK(t, os.Remove(slot))
	file := must.Get(openSlotFile(slot))(t)
	file.close()
}

// A free slot is on the GPU with the fewest taken ones, and on one that the process may open.
//
// Contract: K6
func TestWhichSlotIsTaken(t *testing.T) {
	for _, c := range []struct {
		name   string
		taken  []int
		usable []int
		want   int
	}{
		{"none is taken", nil, []int{0, 1}, 0},
		{"one is taken", []int{0}, []int{0, 1}, 1},
		{"both GPUs have one", []int{0, 1}, []int{0, 1}, 2},
		{"the first GPU is free again", []int{1, 3}, []int{0, 1}, 0},
		{"it may open the second GPU", nil, []int{1}, 1},
		{"its GPU is full", []int{1, 3}, []int{1}, -1},
		{"all are taken", []int{0, 1, 2, 3}, []int{0, 1}, -1},
	} {
		table := slotTable{folder: t.TempDir(), gpus: []int{0, 1, 0, 1}, usable: c.usable}
		for _, slot := range c.taken {
			file, _, err := table.try(slot)
			if err != nil || file == nil {
				t.Fatal(err)
			}
			defer file.close()
		}
		if slot, ok, err := table.take(); err != nil || ok != (c.want >= 0) || ok && slot != c.want {
			t.Errorf("%s: slot %d, %v, want %d", c.name, slot, err, c.want)
		}
		closeKept(table.folder)
	}
}

// closeKept closes the descriptors that a taken slot leaves open for the program. The programs of later tests would
// inherit them.
func closeKept(folder string) {
	for fd := slotFD; fd < slotFD+16; fd++ {
		if link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil && strings.HasPrefix(link, folder) {
			syscall.Close(fd)
		}
	}
}

// A slot whose lock is held is free only if all that may have the lock is seen, and idle.
//
// Contract: K6
func TestWhoMayHaveASlot(t *testing.T) {
	self := must.Get(proc.Current())(t)
	ended := proc.Process{PID: self.PID, Start: self.Start - 1}
	for _, c := range []struct {
		name          string
		taker         proc.Process
		known, locked bool
		left          leftover
		hidden        uint64
		taken         bool
	}{
		{"it runs", self, true, true, leftover{}, 0, true},
		{"it runs without the lock", self, true, false, leftover{}, 0, true},
		{"it has ended", ended, true, false, leftover{}, 0, false},
		{"it is not known", ended, false, false, leftover{}, 0, false},
		{"its lock is held, and it is not known", ended, false, true, leftover{Process: self}, 0, true},
		{"no process with the lock is seen", ended, true, true, leftover{}, 0, true},
		{"an idle process has the lock", ended, true, true, leftover{Process: self}, 0, false},
		{"a process with the lock may use the GPU", ended, true, true, leftover{self, true}, 0, true},
		{"a later process cannot be seen", ended, true, true, leftover{Process: self}, ended.Start, true},
		{"an earlier process cannot be seen", ended, true, true, leftover{Process: self}, ended.Start - 1, false},
	} {
		table := slotTable{folder: t.TempDir(), gpus: []int{0}, looks: true}
		table.left = &leftovers{all: map[string]leftover{}, hidden: c.hidden}
		if c.left.PID != 0 {
			table.left.all[table.path(0)] = c.left
		}
		if _, taken := table.judge(0, c.taker, c.known, c.locked); taken != c.taken {
			t.Errorf("%s: taken is %v", c.name, taken)
		}
	}
}

// All processes of a job use the same number of slots, while one of them has a slot.
//
// Contract: K6
func TestProcessesAgreeOnTheNumberOfSlots(t *testing.T) {
	folder := t.TempDir()
	agree := func(n int) error {
		table := slotTable{folder: folder, gpus: make([]int, n)}
		lock := must.Get(table.lock(t.Context()))(t)
		defer lock.close()
		return table.agree(lock)
	}
	must.OK(t, agree(4))
	held, _, err := (&slotTable{folder: folder}).try(3)
	must.OK(t, err)
	must.OK(t, agree(4))
	for _, n := range []int{1, 3, 5} {
		if err := agree(n); err == nil || !strings.Contains(err.Error(), "other processes of this job use 4") {
			t.Errorf("%d slots beside a process that has one of 4: %v", n, err)
		}
	}
	held.close()
	must.OK(t, agree(2))
}
