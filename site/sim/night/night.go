// SPDX-License-Identifier: Apache-2.0

// Package night says whether tests are whole. By day, a test with many rows of one kind tries some of each kind.
package night

import "os"

// Whole reports whether this is a run of `make nightly`, which has time.
func Whole() bool { return os.Getenv("NIGHTLY") == "1" }

// Of returns the number for the night, or the smaller one for the day.
func Of(night, day int) int {
	if Whole() {
		return night
	}
	return day
}
