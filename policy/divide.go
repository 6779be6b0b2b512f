// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// MinSMs is the driver's minimum for a client. It silently raises a smaller share to this (measured on an H200: 1 to
// 7 % all give 8 SMs).
const MinSMs = 8

// GPU is what division needs to know about a device.
type GPU struct {
	SMs       int // multiprocessors
	SMsPerTPC int // SMs in a TPC. Shares are whole TPCs, because the driver rounds down to one
	// Part is the job's part of the GPU. The ranks divide it, and none exceeds it. 0 is the whole GPU.
	Part Percent
}

// Share is one rank's part of a GPU.
type Share struct {
	SMs int
	// Percent is the value of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. Zero means no cap: the variable is not set.
	Percent Percent
}

// Percent is a percentage in millionths of a percent, so that arithmetic is exact: 33333334 is 33.333334 %.
type Percent int64

// String returns the shortest decimal, "33.333334" or "50".
func (p Percent) String() string {
	s := strconv.FormatInt(int64(p)/1e6, 10) + "." + strconv.FormatInt(1e6+int64(p)%1e6, 10)[1:]
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// MarshalJSON writes a number, or null if there is no cap.
func (p Percent) MarshalJSON() ([]byte, error) {
	if p == 0 {
		return []byte("null"), nil
	}
	return []byte(p.String()), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Percent) UnmarshalJSON(content []byte) (err error) {
	if *p = 0; string(content) != "null" {
		*p, err = ParsePercent(string(content))
	}
	return err
}

// percentOf returns the smallest percentage with six decimals that the driver rounds to exactly sms of the GPU's SMs.
// The driver gives the largest multiple of a TPC that is at most SMs × p / 100. So 44 of 132 is 33.333334, not 33.33.
func (g GPU) percentOf(sms int) Percent {
	return Percent((int64(sms)*100_000_000 + int64(g.SMs) - 1) / int64(g.SMs))
}

// SMsAt returns what the driver makes of a percentage: whole TPCs, rounded down, and at least MinSMs. The recorded
// sweep of an H200, 1 to 100 %, agrees at every point.
func (g GPU) SMsAt(p Percent) int {
	sms := int(int64(g.SMs) * int64(p) / 100_000_000)
	return min(g.SMs, max(sms-sms%g.SMsPerTPC, g.minShare()))
}

// partSMs returns the SMs of the job's part, in whole TPCs if it is not the whole GPU.
func (g GPU) partSMs() int {
	if g.Part == 0 || g.Part >= wholeGPU {
		return g.SMs
	}
	return g.SMsAt(g.Part)
}

const wholeGPU Percent = 100 * one

// PartOf returns units of count as a percentage, rounded up, so that 1 of 3 is a third of the TPCs. It is 100 % if count
// is not above units.
func PartOf(units, count int) Percent {
	if units >= count {
		return wholeGPU
	}
	return Percent((int64(units)*int64(wholeGPU) + int64(count) - 1) / int64(count))
}

// PartMiB returns the memory, as NVML would report it, of a GPU that has only a part of totalMiB. The driver's reserve is
// not divided.
func PartMiB(totalMiB int, part Percent) int {
	if part == 0 || part >= wholeGPU {
		return totalMiB
	}
	return ReserveMiB + int(int64(max(totalMiB-ReserveMiB, 0))*int64(part)/int64(wholeGPU))
}

// minShare returns the smallest share in SMs that the driver does not change.
func (g GPU) minShare() int { return min(g.SMs, (MinSMs+g.SMsPerTPC-1)/g.SMsPerTPC*g.SMsPerTPC) }

// ParsePercent reads a percentage above 0 and up to 100, with at most six decimals.
func ParsePercent(s string) (Percent, error) {
	f, err := strconv.ParseFloat(s, 64)
	_, decimals, _ := strings.Cut(s, ".")
	if err != nil || !(f > 0 && f <= 100) || len(decimals) > 6 {
		return 0, fmt.Errorf("cannot read percentage %q: want a number above 0 and up to 100, with at most six decimals", s)
	}
	return PercentFrom(f), nil
}

// PercentFrom returns f percent, to the nearest millionth.
func PercentFrom(f float64) Percent { return Percent(math.Round(f * 1e6)) }

// EvenShares is SplitSMs by the grant's rule and ceiling.
func EvenShares(g GPU, ranks int, grant Grant) ([]Share, error) {
	return SplitSMs(g, grant.Share, ranks, PercentFrom(grant.Ceiling))
}

// share bounds sms from both sides. A share of the whole GPU needs no percentage.
func (g GPU) share(sms, most int) Share {
	sms = max(min(sms, most), g.minShare())
	if sms >= g.SMs-g.SMs%g.SMsPerTPC {
		return Share{SMs: g.SMs}
	}
	return Share{SMs: sms, Percent: g.percentOf(sms)}
}
