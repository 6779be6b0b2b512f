// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// record is one trial, a line of room.jsonl.
type record struct {
	Time    time.Time `json:"time"`
	Part    string    `json:"part"`
	Method  string    `json:"method"`
	Trial   int       `json:"trial"`
	Policy  string    `json:"policy,omitempty"` // attributes besides compute_mode
	Ranks   string    `json:"ranks"`            // torch, or driver on a simulated GPU
	Valid   bool      `json:"valid"`            // the trial could be made
	Good    bool      `json:"good"`             // no one was harmed
	Seconds float64   `json:"seconds"`
	Note    string    `json:"note,omitempty"`
	// Values are the parameters and results of the part, for example alive and of. Times are in seconds unless the
	// name ends in _ms.
	Values   map[string]any    `json:"values"`
	Released map[string]int    `json:"released,omitempty"` // dead clients by reason, during the trial
	Pauses   []json.RawMessage `json:"pauses,omitempty"`   // lines of the guard's log with paused_ms
}

// records is the file of results.
type records struct {
	file *os.File
	all  []record
}

// openRecords reads the records of earlier runs, and copies those of another folder.
func openRecords(path, earlier string) (*records, error) {
	r := &records{}
	own, err := readRecords(path)
	if err != nil {
		return nil, err
	}
	r.all = own
	if r.file, err = appendTo(path); err != nil || earlier == "" {
		return r, err
	}
	others, err := readRecords(earlier)
	for _, other := range others {
		if !r.has(other.Part, other.Method, other.Trial) {
			err = errors.Join(err, r.add(other))
		}
	}
	return r, err
}

// readRecords reads a file of records. A last line that is not whole is left out.
func readRecords(path string) (all []record, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one record
		if json.Unmarshal(lines.Bytes(), &one) == nil {
			all = append(all, one)
		}
	}
	return all, lines.Err()
}

// has reports whether a trial could be made already.
func (r *records) has(part, method string, trial int) bool {
	return slices.ContainsFunc(r.all, func(one record) bool {
		return one.Valid && one.Part == part && one.Method == method && one.Trial == trial
	})
}

func (r *records) add(one record) error {
	line, err := json.Marshal(one)
	if err != nil {
		return fmt.Errorf("cannot record a trial: %w", err)
	}
	r.all = append(r.all, one)
	if _, err = r.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot record a trial: %w", err)
	}
	return nil
}

// text is a record in one line, for people.
func (one record) text() string {
	words := []string{map[bool]string{true: "good", false: "HARM"}[one.Good]}
	if !one.Valid {
		words = []string{"not made: " + one.Note}
	}
	for _, name := range slices.Sorted(maps.Keys(one.Values)) {
		if v, ok := one.Values[name].(float64); ok {
			words = append(words, fmt.Sprintf("%s=%.4g", name, v))
		} else {
			words = append(words, fmt.Sprintf("%s=%v", name, one.Values[name]))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(one.Released)) {
		words = append(words, fmt.Sprintf("%q:%d", reason, one.Released[reason]))
	}
	if pauses := one.pauseTimes(); len(pauses) > 0 {
		words = append(words, fmt.Sprintf("pauses=%d", len(pauses)))
	}
	return strings.Join(append(words, fmt.Sprintf("(%.1f s)", one.Seconds)), " ")
}

// number returns a value as a number. A value read from a file is a float64.
func (one record) number(name string) float64 {
	switch v := one.Values[name].(type) {
	case float64:
		return v
	case int:
		return float64(v)
	}
	return 0
}

// summary writes a line for each part and method.
func (r *records) summary(out io.Writer, path string) error {
	var b strings.Builder
	for _, p := range allParts() {
		for _, method := range p.methods {
			r.summarize(&b, p, method)
		}
	}
	_, err := io.WriteString(out, "\n"+b.String())
	return errors.Join(err, os.WriteFile(path, []byte(b.String()), 0o644))
}

func (r *records) summarize(b *strings.Builder, p part, method string) {
	made, good, alive, of := 0, 0, 0.0, 0.0
	var pauses []float64
	released := map[string]int{}
	var rates []float64
	unit := "members"
	for _, one := range r.all {
		if one.Part != p.name || one.Method != method || !one.Valid {
			continue
		}
		made++
		if one.Good {
			good++
		}
		alive, of, pauses = alive+one.number("alive"), of+one.number("of"), append(pauses, one.pauseTimes()...)
		for reason, count := range one.Released {
			released[reason] += count
		}
		if rate := one.number("members_per_s"); rate > 0 {
			rates = append(rates, rate)
		}
		if rate := one.number("kernels_per_s"); rate > 0 {
			rates, unit = append(rates, rate), "kernels"
		}
	}
	if made == 0 {
		return
	}
	fmt.Fprintf(b, "%-8s %-5s %2d of %2d trials, %2d without harm, %g of %g alive or done", p.name, method, made, p.trials, good, alive, of)
	if len(rates) > 0 {
		slices.Sort(rates)
		fmt.Fprintf(b, ", median %.4f %s/s", rates[len(rates)/2], unit)
	}
	for _, reason := range slices.Sorted(maps.Keys(released)) {
		fmt.Fprintf(b, ", %q: %d", reason, released[reason])
	}
	if len(pauses) > 0 {
		fmt.Fprintf(b, ", %d pauses of %.0f ms (median), %.0f ms at most", len(pauses), median(pauses), slices.Max(pauses))
	}
	fmt.Fprintln(b)
}

// guardLine has the fields of a line of the guard's log that are counted.
type guardLine struct {
	Reason string   `json:"reason"`    // why a dead client's files were closed
	Paused *float64 `json:"paused_ms"` // the length of a pause; the first line of a guard has its limit, as "pause"
}

// pauseTimes are the lengths of a trial's pauses in ms.
func (one record) pauseTimes() (times []float64) {
	for _, line := range one.Pauses {
		var entry guardLine
		if json.Unmarshal(line, &entry) == nil && entry.Paused != nil {
			times = append(times, *entry.Paused)
		}
	}
	return times
}
