// SPDX-License-Identifier: Apache-2.0

package usage

import "fmt"

// Figure is a quantity of a sample. mpsctl status, report and metrics, the page and the summary have it by one name.
type Figure struct {
	Key   string // in JSON, in the summary and in the names of metrics
	Name  string // for people
	Means string
	Of    func(Sample) float64
}

// Percentages are the figures from 0 to 100, in the order in which they are shown.
var Percentages = []Figure{
	{"sm_active", "SM active", "the part of the SMs that had work, on average (Hopper and newer)",
		func(s Sample) float64 { return s.SMActive }},
	{"sm_util", "SM util", "the part of the time in which a kernel was on the GPU",
		func(s Sample) float64 { return s.SMUtil }},
	{"dram", "DRAM", "the part of the memory's bandwidth in use (Hopper and newer)",
		func(s Sample) float64 { return s.DRAM }},
}

// MemoryUsed is the memory in use on a GPU, in MiB. Over several samples it is the maximum.
var MemoryUsed = Figure{"used_mib", "memory used", "the maximum memory in use on the GPU, of all its processes",
	func(s Sample) float64 { return float64(s.UsedMiB) }}

// Percent returns a percentage as text, "-" if it is not known.
func Percent(percent float64) string {
	if percent < 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", percent)
}

// Energy returns an amount of joules as text, "-" if it is not known.
func Energy(joules int) string {
	switch wh := float64(joules) / 3600; {
	case joules <= 0:
		return "-"
	case wh < 10:
		return fmt.Sprintf("%.1f Wh", wh)
	case wh < 1000:
		return fmt.Sprintf("%.0f Wh", wh)
	default:
		return fmt.Sprintf("%.1f kWh", wh/1000)
	}
}
