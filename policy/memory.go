// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ReserveMiB is the part of a GPU's memory that the driver keeps before any client comes: an H200 has 143771 MiB in
// NVML and 143155 MiB in CUDA (measured, driver 580).
const ReserveMiB = 616

// ContextMiB returns the memory that a client's own context takes, by the SMs that it may use. The recorded sweep of
// an H200 (132 MiB at 8 SMs, 590 at 132) lies on a line of 3.7 MiB for each SM. This line is never below the
// recording and at most 8 MiB above it. For other GPUs it is an estimate.
func ContextMiB(sms int) int { return (1040 + 37*sms + 9) / 10 }

// MemoryRule is how much of its GPU's memory one rank may use. The zero rule is none. Rules can be compared with ==.
type MemoryRule struct {
	even bool
	mib  int // usable MiB, above 0 if a size is given
}

// EvenMemory returns the rule that ParseMemory reads from "even".
func EvenMemory() MemoryRule { return MemoryRule{even: true} }

// None reports whether a rank has no limit.
func (r MemoryRule) None() bool { return r == MemoryRule{} }

// String returns the rule as ParseMemory reads it.
func (r MemoryRule) String() string {
	switch {
	case r.even:
		return "even"
	case r.mib == 0:
		return "none"
	}
	return strconv.Itoa(r.mib) + "M"
}

// mibIn is the number of MiB in a unit. Units are binary, as CUDA reads them in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT.
var mibIn = map[byte]int64{'M': 1, 'G': 1 << 10, 'T': 1 << 20}

// maxMemoryMiB is 1 PiB: more than any GPU has.
const maxMemoryMiB = 1 << 30

const wantMemory = "want none, even, or a size of whole MiB, like 8G or 16384M"

// ParseMemory reads a rule: none, even, or a size like 8G, 1.5G or 16384M. 8GB, 8GiB and 8g are 8G. A size is what the
// program can use. A number without a unit is refused, because Slurm, CUDA and users differ about its unit.
func ParseMemory(s string) (MemoryRule, error) {
	switch s {
	case "none":
		return MemoryRule{}, nil
	case "even":
		return MemoryRule{even: true}, nil
	}
	mib, ok := size(s)
	if !ok {
		return MemoryRule{}, fmt.Errorf("cannot read memory %q: %s", s, wantMemory)
	}
	return MemoryRule{mib: mib}, nil
}

func size(s string) (mib int, ok bool) {
	s, binary := strings.CutSuffix(strings.ToUpper(s), "IB")
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

// Memory is one rank's part of a GPU's memory. Zero is no limit.
type Memory struct {
	// LimitMiB is the value of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. The client's context counts against it.
	LimitMiB int
	// UsableMiB is the part for the program: the limit less the context.
	UsableMiB int
}

// MemoryPerRank returns what the rule gives to one of the ranks that share a GPU of totalMiB, as NVML reports it. The
// rank's context takes contextMiB (ContextMiB of its SMs).
//
// Even divides the memory that the driver does not reserve by the ranks. overlap, 1 or more, is how many times the
// memory is promised, and no rank's limit is above the GPU. A size is for the rank's program, so the limit is the
// size and the context. Sizes may add up to more than the GPU, because a limit reserves nothing. It fails if the
// context leaves a rank nothing, or if the size and the context do not fit the GPU.
func MemoryPerRank(totalMiB, contextMiB, ranks int, overlap float64, rule MemoryRule) (Memory, error) {
	if rule.None() {
		return Memory{}, nil
	}
	if ranks <= 0 {
		return Memory{}, fmt.Errorf("cannot divide memory among %d ranks", ranks)
	}
	all := totalMiB - ReserveMiB
	if all <= contextMiB {
		return Memory{}, fmt.Errorf("cannot limit memory of a GPU of %d MiB: the driver takes %d MiB of it and a context %d MiB",
			totalMiB, ReserveMiB, contextMiB)
	}
	if rule.even {
		return evenMemory(all, contextMiB, ranks, overlap)
	}
	if rule.mib > all-contextMiB {
		return Memory{}, fmt.Errorf("cannot give a rank %d MiB: %d MiB of the GPU are left for it: ask for %dM or less",
			rule.mib, all-contextMiB, all-contextMiB)
	}
	return Memory{LimitMiB: rule.mib + contextMiB, UsableMiB: rule.mib}, nil
}

// MemoryRemark returns how much more memory ranks with the same size may use together than their GPU has. It is empty
// if the sizes fit.
func MemoryRemark(totalMiB, ranks int, rule MemoryRule, memory Memory) string {
	all := totalMiB - ReserveMiB
	if rule.mib == 0 || ranks*memory.LimitMiB <= all {
		return ""
	}
	return fmt.Sprintf("%d ranks with %s each need more than their GPU has (%d MiB), so some may get error 2: "+
		"--mem=even gives each an equal part", ranks, rule, all)
}

func evenMemory(all, contextMiB, ranks int, overlap float64) (Memory, error) {
	limit := int(math.Floor(min(float64(all), float64(all)*max(overlap, 1)/float64(ranks))))
	if limit <= contextMiB {
		return Memory{}, fmt.Errorf("cannot divide %d MiB among %d ranks: each would have %d MiB and its context takes %d MiB: "+
			"run fewer ranks on the GPU", all, ranks, limit, contextMiB)
	}
	return Memory{LimitMiB: limit, UsableMiB: limit - contextMiB}, nil
}
