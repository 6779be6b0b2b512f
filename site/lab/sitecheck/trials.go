// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/lab/watch"
)

// trial is what one trial has shown: a line of RESULTS/trials.jsonl, written at once. A later run with the same file
// makes the trials that have no valid line yet.
type trial struct {
	Time       time.Time      `json:"time"`
	Part       string         `json:"part"`
	Cell       string         `json:"cell"`
	Method     string         `json:"method"`
	Valid      bool           `json:"valid"` // it could be made
	Good       bool           `json:"good"`  // no one was harmed
	Neighbours int            `json:"neighbours"`
	Alive      int            `json:"alive"`
	Seconds    float64        `json:"seconds"`
	Note       string         `json:"note,omitempty"`
	Values     map[string]any `json:"values,omitempty"`
}

func (t trial) name() string { return t.Part + "/" + t.Cell + "/" + t.Method }

// cell is one trial to make.
type cell struct {
	name   string
	try    func(context.Context, *lane) (trial, error)
	only   string // the one method that has it; "" for all
	unsafe string // the method that does not promise to do no harm, beside a plain daemon (docs/limits.md)
}

// trialPart is a kind of trials. A trial of a part that is apart opens its own jobs, and has no lane.
type trialPart struct {
	name    string
	methods []string
	limit   time.Duration // of one trial
	apart   bool
	cells   []cell
}

func (k *kit) trialParts(random *rand.Rand) []trialPart {
	ours := []string{byProlog, byOwn}
	if k.method != byProlog {
		ours = []string{byOwn}
	}
	all := append(slices.Clone(ours), bare)
	return []trialPart{
		{"ends", all, time.Minute, false, k.endCells(random)},
		{"waves", ours, 3 * time.Minute, false, k.waveCells(random)},
		{"room", ours, 2 * time.Minute, false, k.roomCells()},
		{"rate", all, 2 * time.Minute, false, repeated("slots", 3, slots)},
		{"own", []string{byOwn}, time.Minute, false, []cell{{name: "signals", try: stepSignals}, {name: "daemon", try: daemonKilled}}},
		{"shared", []string{byProlog}, 90 * time.Second, true, k.sharedCells()},
	}
}

// repeated is a trial that is made some times.
func repeated(name string, times int, try func(context.Context, *lane) (trial, error)) (all []cell) {
	for i := range times {
		all = append(all, cell{name: fmt.Sprintf("%s-%d", name, i), try: try})
	}
	return all
}

// tryAll makes the trials whose PART/CELL matches, until the time is over. It fails if one with slurm-mps harmed a
// neighbour, or could not be made.
func (k *kit) tryAll(ctx context.Context) error {
	if err := os.MkdirAll(k.results, 0o755); err != nil {
		return err
	}
	path := filepath.Join(k.results, "trials.jsonl")
	earlier, err := readTrials(path)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := k.findPrograms(ctx); err != nil {
		return err
	}
	r := &run{kit: k, file: file, all: earlier, left: k.ends}
	for _, p := range k.trialParts(rand.New(rand.NewPCG(k.seed, 0))) {
		for _, method := range p.methods {
			r.method(ctx, p, method)
		}
	}
	summary(os.Stdout, r.all)
	if made := len(r.all) - len(earlier); made == 0 && ctx.Err() == nil {
		r.errs = append(r.errs, fmt.Errorf("no trial is left, or none matches %q", k.trials))
	}
	return errors.Join(append(r.errs, k.close())...)
}

// run is a run of trials.
type run struct {
	*kit
	file io.Writer
	all  []trial
	left int // trials of each part and method
	errs []error
}

// method makes the trials of a part by one method, in one lane. It is opened again after a trial that harmed it.
func (r *run) method(ctx context.Context, p trialPart, method string) {
	var l *lane
	shut := func() {
		if l != nil {
			if err := l.shut(); err != nil {
				r.errs = append(r.errs, err)
			}
		}
		l = nil
	}
	defer shut()
	for made, c := range r.todo(p, method) {
		left, _ := ctx.Deadline()
		if made == r.left || ctx.Err() != nil || time.Until(left) < p.limit/3 {
			return
		}
		var err error
		if l == nil && !p.apart {
			if l, err = r.openMeasured(ctx, method); err != nil {
				r.errs = append(r.errs, err)
				return
			}
		}
		if t := r.one(ctx, p, c, method, l); !t.Good || !t.Valid {
			shut()
		}
	}
}

// todo are the trials that match and have no valid line yet.
func (r *run) todo(p trialPart, method string) (todo []cell) {
	for _, c := range p.cells {
		name := trial{Part: p.name, Cell: c.name, Method: method}.name()
		done := slices.ContainsFunc(r.all, func(t trial) bool { return t.Valid && t.name() == name })
		if !done && (c.only == "" || c.only == method) && r.trials.MatchString(name) {
			todo = append(todo, c)
		}
	}
	return todo
}

// one makes a trial and writes its line.
func (r *run) one(ctx context.Context, p trialPart, c cell, method string, l *lane) trial {
	bound, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	began := time.Now()
	t, err := c.try(bound, l)
	if bound.Err() != nil && ctx.Err() == nil { // what hangs is a fault of the product
		err = errors.Join(err, errors.New("the trial's time was over"))
	}
	if err != nil {
		t.Valid, t.Note = false, strings.Join(strings.Fields(err.Error()), " ")
	}
	t.Part, t.Cell, t.Method, t.Time, t.Seconds = p.name, c.name, method, began.UTC(), time.Since(began).Seconds()
	line, err := json.Marshal(t)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	r.all = append(r.all, t)
	fmt.Printf("%s: %s\n", t.name(), t.text())
	if err != nil {
		r.errs = append(r.errs, err)
	}
	switch {
	case ctx.Err() != nil: // the run's time is over
	case !t.Valid:
		r.errs = append(r.errs, fmt.Errorf("cannot make %s: %s", t.name(), t.Note))
	case !t.Good && method != bare && method != c.unsafe:
		r.errs = append(r.errs, fmt.Errorf("%s did harm", t.name()))
	}
	return t
}

// text is a trial in one line, for people.
func (t trial) text() string {
	words := []string{map[bool]string{true: "good", false: "HARM"}[t.Good]}
	if !t.Valid {
		words = []string{"not made: " + t.Note}
	}
	if t.Neighbours > 0 {
		words = append(words, fmt.Sprintf("%d of %d alive", t.Alive, t.Neighbours))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Values)) {
		words = append(words, fmt.Sprintf("%s=%v", name, t.Values[name]))
	}
	return strings.Join(append(words, fmt.Sprintf("(%.1f s)", t.Seconds)), " ")
}

// readTrials reads the lines of earlier runs. A line that is not whole is left out.
func readTrials(path string) (all []trial, err error) {
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
		var t trial
		if json.Unmarshal(lines.Bytes(), &t) == nil {
			all = append(all, t)
		}
	}
	return all, lines.Err()
}

// summary prints a line for each part and method.
func summary(out io.Writer, all []trial) {
	type sum struct{ made, good, neighbours, alive int }
	sums := map[string]sum{}
	for _, t := range all {
		if !t.Valid {
			continue
		}
		name := t.Part + ", " + t.Method
		s := sums[name]
		s.made, s.neighbours, s.alive = s.made+1, s.neighbours+t.Neighbours, s.alive+t.Alive
		if t.Good {
			s.good++
		}
		sums[name] = s
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		s := sums[name]
		fmt.Fprintf(out, "%s: %d of %d trials without harm, %d of %d neighbours alive\n", name, s.good, s.made, s.alive, s.neighbours)
	}
}

// openMeasured opens a lane, and asks CUDA once for the sizes of the GPU.
func (k *kit) openMeasured(ctx context.Context, method string) (*lane, error) {
	l, err := k.open(ctx, method)
	if err == nil && k.mib == 0 {
		err = k.measure(ctx, l)
	}
	if err != nil {
		return nil, errors.Join(err, l.shut())
	}
	return l, nil
}

func (k *kit) measure(ctx context.Context, l *lane) error {
	c, err := l.start(nil, "info")
	if err != nil {
		return err
	}
	watch.Until(ctx, 40*time.Second, c.over)
	shown, _ := c.heard(`err=0\S* sm=(\d+) .* total=(\d+)MiB`)
	if shown == nil {
		return fmt.Errorf("a first client fails: %s", strings.TrimSpace(c.Text()))
	}
	_, err = fmt.Sscan(shown[1]+" "+shown[2], &k.sms, &k.mib)
	return err
}
