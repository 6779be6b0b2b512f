// SPDX-License-Identifier: Apache-2.0

// Package clientenv reads from /proc what a client of MPS may use and which rank it is: from its environment, which its
// user can write.
package clientenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/words"
)

// Environment has the values of a client's environment. Its user can write all of it.
type Environment struct {
	Rank    int            // in the whole step, -1 if it is none
	Step    string         // of an srun, "batch" for the batch script, "" if it is not known
	Job     uint32         // 0 if it is not known
	JobName string         // with _TASK of a job array, cut at 64 bytes, printable
	Array   string         // the job's name in its array, 4711_3, "" for none
	Pipes   string         // the folder of a daemon, "" for none
	Shards  int            // of the step on this node, 0 for none
	Unknown string         // why nothing is known
	Percent policy.Percent // 0 for none
	Ignored string         // a percentage that CUDA ignores, as it was written
	memory  map[string]int // MiB by UUID or ordinal
	visible []string       // CUDA_VISIBLE_DEVICES
}

const (
	jobVariable    = "SLURM_JOB_ID"
	nameVariable   = "SLURM_JOB_NAME"
	arrayVariable  = "SLURM_ARRAY_JOB_ID"
	taskVariable   = "SLURM_ARRAY_TASK_ID"
	shardsVariable = "SLURM_SHARDS_ON_NODE"
	pipesVariable  = "CUDA_MPS_PIPE_DIRECTORY"
	// These limit a process.
	percentVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	visibleVariable = "CUDA_VISIBLE_DEVICES"
	memoryVariable  = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

// Read reads the environments of processes that must belong to the job's user, because that user's daemon
// reports the pids. It returns one for each pid.
func Read(ctx context.Context, pids []int, uid uint32) map[int]Environment {
	known := map[int]Environment{}
	without := func(why string) Environment { return Environment{Rank: -1, Unknown: why} }
	var users []int
	for _, pid := range pids {
		if _, twice := known[pid]; twice {
			continue
		}
		known[pid] = without("the process has ended")
		uids, err := proc.UIDs(pid)
		switch {
		case err != nil:
		case uids[0] != uid:
			known[pid] = without(fmt.Sprintf("it is not a process of uid %d", uid))
		default:
			users = append(users, pid)
		}
	}
	var procs []proc.Process
	for i, stat := range proc.ReadStats(ctx, users) {
		if stat.Err == nil {
			procs = append(procs, stat.Process)
		} else if errors.Is(stat.Err, proc.ErrSilent) {
			known[users[i]] = without(proc.ErrSilent.Error())
		}
	}
	names := append(slurm.RankVariables(), percentVariable, visibleVariable, memoryVariable, nameVariable,
		arrayVariable, taskVariable, shardsVariable, pipesVariable)
	environments := proc.Environments(ctx, procs, names...)
	for i, runs := range proc.Ran(procs) {
		switch err := environments[i].Err; {
		case errors.Is(err, fs.ErrPermission):
			known[procs[i].PID] = without("not yours to read")
		case errors.Is(err, proc.ErrLate), errors.Is(err, proc.ErrLong), errors.Is(err, proc.ErrOverwritten):
			known[procs[i].PID] = without(err.Error())
		case err == nil && runs:
			known[procs[i].PID] = environmentIn(environments[i].Values)
		}
	}
	return known
}

// environmentIn reads limits as CUDA does.
func environmentIn(variables map[string]string) Environment {
	var e Environment
	e.Rank, e.Step = slurm.RankOf(variables)
	e.Pipes = variables[pipesVariable]
	name := strings.TrimSuffix(variables[nameVariable]+"_"+variables[taskVariable], "_")
	e.JobName = words.Printable(name[:min(len(name), 64)])
	_, err1 := slurm.Digits(variables[arrayVariable])
	if _, err2 := slurm.Digits(variables[taskVariable]); err1 == nil && err2 == nil {
		e.Array = variables[arrayVariable] + "_" + variables[taskVariable]
	}
	_ = slurm.Number(&e.Job, 1, "a job's number")(variables[jobVariable])
	e.Shards, _ = slurm.ShardsOnNode(variables)
	if text, set := variables[percentVariable]; set {
		e.Percent, e.Ignored = parsePercent(text)
	}
	if list := variables[visibleVariable]; list != "" {
		e.visible = strings.SplitN(list, ",", maxDevices+1)
		e.visible = e.visible[:min(len(e.visible), maxDevices)]
	}
	e.memory = parseMemory(variables[memoryVariable], e.visible)
	return e
}

// parsePercent reads a percentage. CUDA silently ignores anything else (measured: 0, 101, abc, -5 and an empty text
// give the whole GPU).
func parsePercent(text string) (value policy.Percent, ignored string) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0 && f <= 100) {
		return 0, fmt.Sprintf("%.20q", text)
	}
	return max(policy.PercentFrom(f), 1), ""
}

// parseMemory reads "0=2G,GPU-…=512M". If a list names a device that the process cannot see, CUDA silently drops
// every limit (measured). If the process's device list has no UUIDs, this cannot be known, and the limits count.
func parseMemory(list string, visible []string) map[string]int {
	found := map[string]int{}
	left := maxDevices
	for entry := range strings.SplitSeq(list, ",") {
		if left--; left < 0 {
			return nil
		}
		device, size, ok := strings.Cut(entry, "=")
		mib, valid := mebibytes(size)
		if !ok || !valid {
			continue
		}
		if !sees(visible, device) {
			return nil
		}
		found[device] = mib
	}
	return found
}

// maxDevices limits what is made of a list of devices, whose length its user chooses. A node has fewer.
const maxDevices = 64

func sees(visible []string, device string) bool {
	if ordinal, err := strconv.Atoi(device); err == nil {
		return len(visible) == 0 || ordinal >= 0 && ordinal < len(visible)
	}
	uuids := slices.ContainsFunc(visible, func(v string) bool { return site.UUID(v).Valid() })
	return !uuids || slices.Contains(visible, device)
}

// mebibytes reads a size as CUDA writes it. A size below one MiB counts as one.
func mebibytes(text string) (int, bool) {
	text = strings.TrimSuffix(text, "B")
	digits := strings.TrimRight(text, "KMGT")
	n, err := strconv.ParseUint(digits, 10, 40)
	if err != nil || n == 0 {
		return 0, false
	}
	bytes := map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
	unit, known := bytes[text[len(digits):]]
	mib := math.Ceil(float64(n) * unit / (1 << 20))
	return int(mib), known && mib < 1<<30
}

// MemoryMiB returns the limit on one device: by its UUID, or by its number among the devices that the process sees.
func (e Environment) MemoryMiB(uuid site.UUID) (mib int, ok bool) {
	if mib, ok = e.memory[string(uuid)]; ok {
		return mib, true
	}
	if place := slices.Index(e.visible, string(uuid)); place >= 0 {
		mib, ok = e.memory[strconv.Itoa(place)]
		return mib, ok
	}
	uuids := slices.ContainsFunc(e.visible, func(v string) bool { return site.UUID(v).Valid() })
	for ordinal, mib := range e.memory {
		if _, err := strconv.Atoi(ordinal); err == nil && !uuids {
			return mib, true // it is not known which device the number means
		}
	}
	return 0, false
}

// SMs returns how many SMs of a GPU a client may use. ceiling is the percentage of its server, 0 for none.
func (e Environment) SMs(part policy.GPU, ceiling policy.Percent) int {
	sms := part.SMs
	for _, p := range []policy.Percent{e.Percent, ceiling} {
		if p != 0 {
			sms = min(sms, part.SMsAt(p))
		}
	}
	return sms
}

// Command returns the kernel's name for a process, printable; "" if there is none.
func Command(pid int) string {
	name, _ := proc.Name(pid)
	return words.Printable(name)
}
