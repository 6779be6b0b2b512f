// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ReserveMiB is what the driver keeps of a GPU's memory before any client comes: an H200 has 143771 MiB by NVML and
// 143155 MiB by CUDA (measured, driver 580).
const ReserveMiB = 616

// ContextMiB is what a client's own context takes of the GPU's memory, from the SMs that it may use. The recorded sweep
// of an H200 (132 MiB at 8 SMs, 590 at 132) lies on a line of 3.7 MiB an SM; this one is never below the recording and
// at most 8 MiB above it. For other GPUs it is an estimate.
func ContextMiB(sms int) int { return (1040 + 37*sms + 9) / 10 }

// MemoryRule says how much of its GPU's memory one rank may use. The zero rule is none. Rules compare with ==.
type MemoryRule struct {
	even bool
	mib  int // usable, above 0 where a size is given
}

// None says that a rank has no limit.
func (r MemoryRule) None() bool { return r == MemoryRule{} }

// String is the rule as ParseMemory reads it.
func (r MemoryRule) String() string {
	switch {
	case r.even:
		return "even"
	case r.mib == 0:
		return "none"
	}
	return strconv.Itoa(r.mib) + "M"
}

// mibIn are MiB in a unit; units are binary, as CUDA reads them in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT.
var mibIn = map[byte]int64{'M': 1, 'G': 1 << 10, 'T': 1 << 20}

// maxMemoryMiB is 1 PiB: more than any GPU has.
const maxMemoryMiB = 1 << 30

// ParseMemory reads a rule: none, even, or a size like 8G, 1.5G or 16384M. 8GB and 8GiB are 8G. A size is what the program can use. A bare
// number is refused, since it says no unit and Slurm, CUDA and people differ about the one that is meant.
func ParseMemory(s string) (MemoryRule, error) {
	switch s {
	case "none":
		return MemoryRule{}, nil
	case "even":
		return MemoryRule{even: true}, nil
	}
	mib, ok := size(s)
	if !ok {
		return MemoryRule{}, fmt.Errorf("cannot read memory %q: want none, even, or a size of whole MiB, like 8G or 16384M", s)
	}
	return MemoryRule{mib: mib}, nil
}

func size(s string) (mib int, ok bool) {
	s, binary := strings.CutSuffix(s, "iB")
	if !binary {
		s = strings.TrimSuffix(s, "B")
	}
	if s == "" {
		return 0, false
	}
	last := len(s) - 1
	unit, known := mibIn[s[last]]
	amount, err := millionths(s[:last])
	if !known || err != nil || amount == 0 || amount > maxMemoryMiB*one/unit || amount*unit%one != 0 {
		return 0, false
	}
	return int(amount * unit / one), true
}

// ParseOvercommit reads how many times over memory may be promised: a number from 1 to 48.
func ParseOvercommit(s string) (float64, error) {
	factor, err := millionths(s)
	if err != nil || factor < one || factor > maxOverlap*one {
		return 0, fmt.Errorf("cannot read overcommit %q: want a factor from 1 to 48, like 1.5", s)
	}
	return float64(factor) / one, nil
}

// Memory is one rank's part of a GPU's memory. Zero is no limit.
type Memory struct {
	// LimitMiB is what CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is set to. The client's context counts against it.
	LimitMiB int
	// UsableMiB is what is left for the program: the limit less the context.
	UsableMiB int
}

// MemoryPerRank is what the rule gives to one of the ranks that share a GPU of totalMiB (as NVML says it), where the rank's
// context takes contextMiB (ContextMiB of its SMs).
//
// Even divides what the driver does not reserve by the ranks; overlap, 1 or more, is how many times over the memory is
// promised, and no rank gets a limit above the GPU. A size is the rank's to use, so its context comes on top of it in the
// limit. Sizes may add up to more than the GPU: a limit reserves nothing. It errs where a rank would have nothing left
// beside its context, and where a size does not fit the GPU beside it.
func MemoryPerRank(totalMiB, contextMiB, ranks int, overlap float64, rule MemoryRule) (Memory, error) {
	if rule.None() {
		return Memory{}, nil
	}
	if ranks <= 0 {
		return Memory{}, fmt.Errorf("cannot divide memory among %d ranks", ranks)
	}
	all := totalMiB - ReserveMiB
	if all <= contextMiB {
		return Memory{}, fmt.Errorf("cannot limit memory of a GPU of %d MiB: the driver takes %d MiB of it and a context %d MiB", totalMiB, ReserveMiB, contextMiB)
	}
	if rule.even {
		return evenMemory(all, contextMiB, ranks, overlap)
	}
	if rule.mib > all-contextMiB {
		return Memory{}, fmt.Errorf("cannot give a rank %d MiB: the GPU has %d MiB beside the rank's context: ask for %dM or less", rule.mib, all-contextMiB, all-contextMiB)
	}
	return Memory{LimitMiB: rule.mib + contextMiB, UsableMiB: rule.mib}, nil
}

func evenMemory(all, contextMiB, ranks int, overlap float64) (Memory, error) {
	limit := int(math.Floor(min(float64(all), float64(all)*max(overlap, 1)/float64(ranks))))
	if limit <= contextMiB {
		return Memory{}, fmt.Errorf("cannot divide %d MiB among %d ranks: each would have %d MiB and its context takes %d MiB: run fewer ranks on the GPU", all, ranks, limit, contextMiB)
	}
	return Memory{LimitMiB: limit, UsableMiB: limit - contextMiB}, nil
}
