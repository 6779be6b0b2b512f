package main

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// ends is what became of the neighbours of ranks that ended with work in flight.
type ends struct{ cancelled, crashed []trial }

// trial is one end: some ranks at once, beside neighbours.
type trial struct {
	ranks   int
	work    work
	by      string // in the words of its file
	signals string // protect or pass
	lived   bool   // all of the neighbours
	seconds float64
}

// work is what each rank had in flight: kernels, one after the other.
type work struct{ kernels, ms int }

func (w work) String() string {
	switch {
	case w.kernels > 1:
		return fmt.Sprintf("%d x %d ms", w.kernels, w.ms)
	case w.ms >= 1000:
		return fmt.Sprintf("%g s", float64(w.ms)/1000)
	}
	return fmt.Sprintf("%d ms", w.ms)
}

// cancels are the ways to cancel ranks, in the order of the tables. Those without a warning have a table of their own,
// since nothing is promised there.
var cancels = []struct {
	by, text string
	warns    bool
}{
	{"scancel --signal=TERM of the step", "`scancel --signal=TERM JOB.STEP`", true},
	{"SIGINT to srun -X", "SIGINT to `srun -X`", true},
	{"SIGTERM to mpirun", "SIGTERM to `mpirun`", true},
	{"scancel of the step", "`scancel JOB.STEP`", false},
	{"SIGINT to srun twice", "SIGINT to `srun` twice within a second", false},
}

// cancelOf is a way's place in cancels, -1 for an unknown one.
func cancelOf(by string) int {
	for i, c := range cancels {
		if c.by == by {
			return i
		}
	}
	return -1
}

func readEnds(measurements string) (e ends, err error) {
	if e.cancelled, err = readTrials(filepath.Join(measurements, "3-h200", "cancelled-through-slurm.csv"), cancelledTrial); err != nil {
		return e, err
	}
	e.crashed, err = readTrials(filepath.Join(measurements, "3-h200", "crashed-ranks.csv"), crashedTrial)
	return e, err
}

func cancelledTrial(r *row) trial {
	t := trial{ranks: r.number("ranks"), work: r.work("work"), by: r.text("by"), signals: r.oneOf("signals", "protect", "pass"),
		lived: r.number("neighbours alive") == r.number("of"), seconds: float64(r.number("ms to the end")) / 1000}
	if cancelOf(t.by) < 0 {
		r.fail("%q is no way to cancel that the tables have", t.by)
	}
	return t
}

func crashedTrial(r *row) trial {
	return trial{ranks: r.number("ranks"), work: r.work("work"), by: r.oneOf("died by", "SIGKILL", "SIGSEGV", "_exit(1)"),
		signals: r.oneOf("signals", "protect", "pass"), lived: r.oneOf("neighbours alive", "true", "false") == "true"}
}

// readTrials reads a file of a trial a line below a line of column names; lines that begin with # are remarks.
func readTrials(path string, take func(*row) trial) ([]trial, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	lines := csv.NewReader(bytes.NewReader(content))
	lines.Comment = '#'
	var head []string
	var all []trial
	for {
		cells, err := lines.Read()
		var torn *csv.ParseError
		switch {
		case err == io.EOF && len(all) > 0:
			return all, nil
		case err == io.EOF:
			return nil, fmt.Errorf("cannot read %s: it has no trials", path)
		case errors.As(err, &torn):
			return nil, fmt.Errorf("cannot read %s, line %d: %w", path, torn.Line, torn.Err)
		case err != nil:
			return nil, fmt.Errorf("cannot read %s: %w", path, err)
		case head == nil:
			head = cells
			continue
		}
		r := &row{head: head, cells: cells}
		all = append(all, take(r))
		if r.err != nil {
			line, _ := lines.FieldPos(0)
			return nil, fmt.Errorf("cannot read %s, line %d: %w", path, line, r.err)
		}
	}
}

// row is a line of a file by its columns' names. It keeps the first thing that is wrong with it, so that a trial is
// written down as one value.
type row struct {
	head, cells []string
	err         error
}

func (r *row) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *row) text(column string) string {
	i := slices.Index(r.head, column)
	if i < 0 {
		r.fail("there is no column %q", column)
		return ""
	}
	return r.cells[i]
}

func (r *row) number(column string) int {
	n, err := strconv.Atoi(r.text(column))
	if err != nil || n < 0 {
		r.fail("%q is %q and not a number", column, r.text(column))
	}
	return n
}

func (r *row) oneOf(column string, words ...string) string {
	word := r.text(column)
	if !slices.Contains(words, word) {
		r.fail("%q is %q and not one of %s", column, word, strings.Join(words, ", "))
	}
	return word
}

func (r *row) work(column string) (w work) {
	text := r.text(column)
	if _, err := fmt.Sscanf(text, "%d x %d ms", &w.kernels, &w.ms); err != nil || fmt.Sprintf("%d x %d ms", w.kernels, w.ms) != text {
		r.fail("%q is %q and not such as 1 x 20 ms", column, text)
	}
	return w
}

// sorted puts trials in the order of the tables: few ranks before many, then by what ended them, then short work before
// long.
func sorted(all []trial, place func(trial) int) []trial {
	return slices.SortedStableFunc(slices.Values(all), func(a, b trial) int {
		return cmp.Or(cmp.Compare(a.ranks, b.ranks), cmp.Compare(place(a), place(b)), cmp.Compare(a.work.kernels, b.work.kernels), cmp.Compare(a.work.ms, b.work.ms))
	})
}

// grouped are the trials of each row of a table, in the order in which the rows' first ones come.
func grouped[K comparable](all []trial, key func(trial) K) [][]trial {
	var groups [][]trial
	at := map[K]int{}
	for _, t := range all {
		i, ok := at[key(t)]
		if !ok {
			i = len(groups)
			at[key(t)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], t)
	}
	return groups
}

func only(all []trial, is func(trial) bool) []trial {
	return slices.DeleteFunc(slices.Clone(all), func(t trial) bool { return !is(t) })
}

func under(all []trial, signals string) []trial {
	return only(all, func(t trial) bool { return t.signals == signals })
}

// lived says in how many trials all neighbours did.
func lived(all []trial) string {
	if len(all) == 0 {
		return "not run"
	}
	return fmt.Sprintf("%d of %d", len(only(all, func(t trial) bool { return t.lived })), len(all))
}

// livedIn is lived, and how long the end took.
func livedIn(all []trial) string {
	if len(all) == 0 {
		return lived(all)
	}
	var took []float64
	for _, t := range all {
		took = append(took, t.seconds)
	}
	return fmt.Sprintf("%s, %.2f s", lived(all), record.Median(took))
}

func ranksText(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}

// sums are both columns of a table.
func sums(all []trial) string {
	return fmt.Sprintf("\nUnder `protect` %s, under `pass` %s.", lived(under(all, "protect")), lived(under(all, "pass")))
}

// cancelledBy are the cancelled ranks that were warned, or that were not, in the order of the tables.
func (e ends) cancelledBy(warned bool) []trial {
	all := only(e.cancelled, func(t trial) bool { return cancels[cancelOf(t.by)].warns == warned })
	return sorted(all, func(t trial) int { return cancelOf(t.by) })
}

// sameBelow has a column say once what several rows on end have in it.
func sameBelow(rows [][]string, column int) {
	for i := len(rows) - 1; i > 0; i-- {
		if rows[i][column] == rows[i-1][column] {
			rows[i][column] = "the same"
		}
	}
}

// warned are the cancelled ranks whose neighbours are promised to live.
func (e ends) warned() string {
	all := e.cancelledBy(true)
	type key struct {
		ranks int
		by    string
		work  work
	}
	var rows [][]string
	for _, g := range grouped(all, func(t trial) key { return key{t.ranks, t.by, t.work} }) {
		rows = append(rows, []string{ranksText(g[0].ranks), g[0].work.String(), cancels[cancelOf(g[0].by)].text, livedIn(under(g, "protect")), livedIn(under(g, "pass"))})
	}
	sameBelow(rows, 2)
	return table([]string{"cancelled", "work in flight", "by", "protect", "pass"}, rows) + sums(all)
}

// unwarned are those that Slurm kills at once, by the number of ranks, all under protect.
func (e ends) unwarned() string {
	all := under(e.cancelledBy(false), "protect")
	head := []string{"work in flight", "by"}
	var counts []int
	for _, g := range grouped(all, func(t trial) int { return t.ranks }) {
		counts = append(counts, g[0].ranks)
		head = append(head, "protect, "+ranksText(g[0].ranks))
	}
	type key struct {
		by   string
		work work
	}
	var rows [][]string
	for _, g := range grouped(all, func(t trial) key { return key{t.by, t.work} }) {
		row := []string{g[0].work.String(), cancels[cancelOf(g[0].by)].text}
		for _, n := range counts {
			row = append(row, lived(only(g, func(t trial) bool { return t.ranks == n })))
		}
		rows = append(rows, row)
	}
	sameBelow(rows, 1)
	return table(head, rows)
}

// crashTable has all signals in one row: what the driver does is the same.
func (e ends) crashTable() string {
	all := sorted(e.crashed, kindOfDeath)
	type key struct {
		ranks, kind int
		work        work
	}
	var rows [][]string
	for _, g := range grouped(all, func(t trial) key { return key{t.ranks, kindOfDeath(t), t.work} }) {
		rows = append(rows, []string{deathText(g), g[0].work.String(), lived(under(g, "protect")), lived(under(g, "pass"))})
	}
	return table([]string{"died by", "work in flight", "protect", "pass"}, rows) + sums(all)
}

// kindOfDeath is 0 for a signal and 1 for an exit.
func kindOfDeath(t trial) int {
	if strings.HasPrefix(t.by, "SIG") {
		return 0
	}
	return 1
}

// deathText names all that a row's ranks died by.
func deathText(g []trial) string {
	var names []string
	for _, same := range grouped(g, func(t trial) string { return t.by }) {
		names = append(names, same[0].by)
	}
	slices.Sort(names)
	text := strings.Join(names, ", ")
	if kindOfDeath(g[0]) == 1 {
		text = "`" + text + "`"
	}
	if g[0].ranks > 1 {
		text += fmt.Sprintf(" of %s at once", ranksText(g[0].ranks))
	}
	return text
}
