// SPDX-License-Identifier: Apache-2.0

package mpirunwrap

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// A task that can open only its own GPU is on this GPU, whatever --gpu says.
func TestATaskThatIsConfinedToItsGPU(t *testing.T) {
	devices := ticketOf(4, policy.ScopeJob, 1).Devices
	for minor := range devices {
		devices[minor].Minor = minor
	}
	task := slurm.Task{LocalRank: 0, LocalSize: 4, Source: slurm.SourceStepd}
	for _, choice := range []Choice{Auto, Cyclic, Block, Nearest} {
		for own := range devices {
			at := chooseGPU(devices, task, slurm.Binding{}, choice, HostInfo{NUMA: -1, CanOpen: func(minor int) bool { return minor == own }})
			if !slices.Equal(at.devices, []int{own}) {
				t.Errorf("--gpu=%s: GPU %v of a task that can open %d", choice, at.devices, own)
			}
		}
	}
}

// A slot's file has one name, because root may run a rank, and a user can link to a file of root's.
//
// Contract: K6
func TestASlotsFileWithAnotherName(t *testing.T) {
	folder := t.TempDir()
	secret := filepath.Join(folder, "secret")
	slot := slotTable{folder: folder}.path(0)
	if err := errors.Join(os.WriteFile(secret, []byte("root's"), 0o600), os.Link(secret, slot)); err != nil {
		t.Fatal(err)
	}
	if file, err := openSlotFile(slot); err == nil {
		file.Close()
		t.Error("a file with two names is opened")
	}
	if err := errors.Join(os.Remove(slot), os.Symlink(secret, slot)); err != nil {
		t.Fatal(err)
	}
	if file, err := openSlotFile(slot); err == nil {
		file.Close()
		t.Error("a link is followed")
	}
	if content, err := os.ReadFile(secret); string(content) != "root's" {
		t.Errorf("%q, %v", content, err)
	}
	if err := os.Remove(slot); err != nil {
		t.Fatal(err)
	}
	file, err := openSlotFile(slot)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
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
			defer file.Close()
		}
		if slot, err := table.take(); err != nil || slot != c.want {
			t.Errorf("%s: slot %d, %v, want %d", c.name, slot, err, c.want)
		}
	}
}
