// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// limits are the limits that a server is started with.
type limits struct {
	percentage float64           // of the threads of each device, up to 100
	pinned     map[string]string // device ordinal → "4G"
	priority   int               // 0 normal, 1 below normal
}

// limitsOf returns the limits that the daemon's environment sets. A value that is no limit is ignored silently.
func limitsOf(variable func(string) string) limits {
	set := limits{percentage: 100, pinned: map[string]string{}}
	set.setPercentage(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"))
	for _, entry := range strings.Split(variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), ",") {
		device, value, _ := strings.Cut(entry, "=")
		set.setPinned(device, value)
	}
	return set
}

// setPercentage ignores a text that is no number, and a number that is not above 0 and at most 100.
func (l *limits) setPercentage(text string) {
	value, err := strconv.ParseFloat(text, 64)
	if err == nil && value > 0 && value <= 100 && !math.IsNaN(value) {
		l.percentage = value
	}
}

var amount = regexp.MustCompile(`^[0-9]+[KMG]?$`)

// setPinned ignores a device that is no ordinal (also a UUID: measured) and a value that is no amount of memory.
func (l *limits) setPinned(device, value string) {
	if _, err := strconv.ParseUint(device, 10, 16); err == nil && amount.MatchString(value) {
		l.pinned[device] = value
	}
}

// shown returns a percentage as the control program prints it. It has one decimal; the stored number keeps all
// decimals.
func shown(percentage float64) string { return strconv.FormatFloat(percentage, 'f', 1, 64) }

// text returns the limits in the form that a server reads: "33.333334 0 0=4G,1=2G".
func (l limits) text() string {
	var pinned []string
	for device, value := range l.pinned {
		pinned = append(pinned, device+"="+value)
	}
	sort.Strings(pinned)
	return fmt.Sprintf("%s %d %s", strconv.FormatFloat(l.percentage, 'g', -1, 64), l.priority, strings.Join(pinned, ","))
}
