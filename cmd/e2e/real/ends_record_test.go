// SPDX-License-Identifier: Apache-2.0

package real_test

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// endsRow is the result of one ending.
type endsRow struct {
	at            time.Time
	gpu           int
	method, how   string
	atOnce        int
	kind, ending  string
	inFlight      float64       // seconds, as the victim measured it, or as it was planned
	before, alive int           // number of neighbours at the ending, and 3 s later
	died          time.Duration // from the ending to the end of the first neighbour; 0 if none ended
	client        bool          // the new client computed
	clientTook    time.Duration
	end           time.Duration // from the ending until the process was gone
	note          string
}

// endsRecord keeps what was seen of all endings. It writes each row to a file at once.
type endsRecord struct {
	mutex    sync.Mutex
	machine  string
	rows     []endsRow
	table    *csv.Writer
	evidence io.Writer
	notes    []string
	dir      string
}

func newEndsRecord(t *testing.T, dir, machine string) *endsRecord {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	r := &endsRecord{dir: dir, machine: machine}
	rows, err := os.Create(filepath.Join(dir, "ends.csv"))
	if err != nil {
		t.Fatal(err)
	}
	evidence, err := os.Create(filepath.Join(dir, "ends-evidence.txt"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rows.Close(); evidence.Close() })
	r.table, r.evidence = csv.NewWriter(rows), evidence
	_ = r.table.Write(strings.Split("time,machine,GPU,method,started by,at once,victim,ending,s in flight,neighbours before,neighbours alive 3 s later,"+
		"s to a neighbour's end,new client works,s of the new client,s until the victim was gone,note", ","))
	return r
}

func endsSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }

// add writes the rows of a wave.
func (r *endsRecord) add(rows []endsRow) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, row := range rows {
		r.rows = append(r.rows, row)
		_ = r.table.Write([]string{row.at.UTC().Format("2006-01-02T15:04:05.000Z"), r.machine, fmt.Sprint(row.gpu),
			row.method, row.how, fmt.Sprint(row.atOnce), row.kind,
			row.ending, fmt.Sprintf("%.3f", row.inFlight), fmt.Sprint(row.before), fmt.Sprint(row.alive), endsSeconds(row.died), fmt.Sprint(row.client),
			endsSeconds(row.clientTook), endsSeconds(row.end), row.note})
	}
	r.table.Flush()
}

// harmed reports whether a neighbour died after an ending.
func (row endsRow) harmed() bool { return row.alive < row.before }

// tell records an event that has no row. The line goes into the summary, and more goes into the file of evidence.
func (r *endsRecord) tell(gpu int, line, more string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	line = fmt.Sprintf("%s GPU %d: %s", time.Now().UTC().Format("15:04:05"), gpu, line)
	fmt.Println(line)
	r.notes = append(r.notes, line)
	fmt.Fprintf(r.evidence, "=== %s\n%s\n", line, more)
}

// summary writes the tables, and returns them.
func (r *endsRecord) summary(missing []string) string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var out strings.Builder
	for _, method := range r.distinct(func(row endsRow) string { return row.method }) {
		var rows []endsRow
		for _, row := range r.rows {
			if row.method == method {
				rows = append(rows, row)
			}
		}
		harmed, failed := 0, 0
		for _, row := range rows {
			if row.harmed() {
				harmed++
			}
			if !row.client {
				failed++
			}
		}
		fmt.Fprintf(&out, "\n%s: %d endings; after %d of them a neighbour was dead, after %d the new client failed\n", method, len(rows), harmed, failed)
		fmt.Fprintf(&out, "endings with all neighbours alive, of all:\n%s",
			endsTable(rows, func(row endsRow) string { return row.kind }, func(row endsRow) string { return row.ending }))
		fmt.Fprintf(&out, "by how they were started and how many at once:\n%s",
			endsTable(rows, func(row endsRow) string { return fmt.Sprintf("%s, %s", row.how, endsCrowd(row.atOnce)) },
				func(row endsRow) string { return row.ending }))
		var took []time.Duration
		for _, row := range rows {
			if row.client {
				took = append(took, row.clientTook)
			}
		}
		if slices.Sort(took); len(took) > 0 {
			fmt.Fprintf(&out, "a new client works after %s s (median; %s to %s)\n", endsSeconds(took[len(took)/2]), endsSeconds(took[0]), endsSeconds(took[len(took)-1]))
		}
	}
	fmt.Fprintf(&out, "\ncells with the guard that were not reached:\n%s\n", strings.Join(missing, "\n"))
	fmt.Fprintf(&out, "\nseen beside that:\n%s\n", strings.Join(r.notes, "\n"))
	text := out.String()
	_ = os.WriteFile(filepath.Join(r.dir, "ends-summary.txt"), []byte(text), 0o644)
	return text
}

func endsCrowd(n int) string {
	switch {
	case n == 1:
		return "1"
	case n <= 8:
		return "2 to 8"
	}
	return "more"
}

func (r *endsRecord) distinct(key func(endsRow) string) []string {
	var all []string
	for _, row := range r.rows {
		if !slices.Contains(all, key(row)) {
			all = append(all, key(row))
		}
	}
	return all
}

// endsTable counts the rows whose neighbours all lived, and all rows.
func endsTable(rows []endsRow, line, column func(endsRow) string) string {
	var lines, columns []string
	all, lived := map[[2]string]int{}, map[[2]string]int{}
	for _, row := range rows {
		key := [2]string{line(row), column(row)}
		if !slices.Contains(lines, key[0]) {
			lines = append(lines, key[0])
		}
		if !slices.Contains(columns, key[1]) {
			columns = append(columns, key[1])
		}
		all[key]++
		if !row.harmed() {
			lived[key]++
		}
	}
	slices.Sort(lines)
	slices.Sort(columns)
	var out strings.Builder
	fmt.Fprintf(&out, "%-18s", "")
	for _, c := range columns {
		fmt.Fprintf(&out, "%13s", c)
	}
	out.WriteString("\n")
	for _, l := range lines {
		fmt.Fprintf(&out, "%-18s", l)
		for _, c := range columns {
			cell := "-"
			if n := all[[2]string{l, c}]; n > 0 {
				cell = fmt.Sprintf("%d/%d", lived[[2]string{l, c}], n)
			}
			fmt.Fprintf(&out, "%13s", cell)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// endsCell is the name of a cell of the full table.
func endsCell(how, kind, ending string) string { return how + "/" + kind + "/" + ending }

// missing returns the cells of a round for which there is no row with the guard.
func (r *endsRecord) missing(round []endsWave) []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	seen := map[string]bool{}
	for _, row := range r.rows {
		if row.method == "guard" {
			seen[endsCell(row.how, row.kind, row.ending)] = true
		}
	}
	var missing []string
	for _, w := range round {
		for _, v := range w.victims {
			cell := endsCell(w.how, v.kind.name, v.ending)
			if !seen[cell] {
				seen[cell] = true
				missing = append(missing, cell)
			}
		}
	}
	slices.Sort(missing)
	var lines []string // one for each way to start and each victim
	for _, cell := range missing {
		i := strings.LastIndex(cell, "/")
		if last := len(lines) - 1; last >= 0 && strings.HasPrefix(lines[last], cell[:i+1]) {
			lines[last] += " " + cell[i+1:]
		} else {
			lines = append(lines, cell)
		}
	}
	return lines
}
