// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	mpirunwrap "github.com/slurm-mps/slurm-mps/mpirun-wrap"
	"github.com/slurm-mps/slurm-mps/site/slurm"
)

// entry is a line of the log.
type entry struct {
	Program string    `json:"program"`
	Step    string    `json:"step"`
	Outcome string    `json:"outcome"`
	Closed  *bool     `json:"closed"`
	MS      float64   `json:"ms"`
	Time    time.Time `json:"time"`
}

// printTimeline shows the job's life from the log: what each step took, and when.
func (d *demo) printTimeline(began time.Time, w watched) {
	fmt.Println("The job's life, in ms since it was submitted:")
	told := false
	for line := range strings.Lines(d.log()) {
		var e entry
		if json.Unmarshal([]byte(line), &e) != nil {
			continue
		}
		if e.Program == "epilog" && !told {
			told = true
			fmt.Printf("%8d  ranks   %d of %d seen as clients of the job's daemon; modes: %s\n", w.seen.Sub(began).Milliseconds(), len(w.clients), d.ranks, w.modes)
		}
		at := e.Time.Sub(began).Milliseconds()
		switch {
		case e.Step == "summary": // of figures, and no step of time
		case e.Step != "":
			fmt.Printf("%8d  %-7s %-14s %7.1f ms\n", at, e.Program, e.Step, e.MS)
		case e.Outcome != "":
			fmt.Printf("%8d  %-7s %-14s %7.1f ms in all\n", at, e.Program, e.Outcome, e.MS)
		case e.Closed != nil:
			fmt.Printf("%8d  %-7s %-14s %7.1f ms in all\n", at, e.Program, "done", e.MS)
		}
	}
	if w.ps != "" {
		fmt.Printf("\nThe control program's ps:\n%s", w.ps)
	}
	fmt.Println()
}

// printRanks shows where each rank was, from what the rank itself saw, and whether the daemon named it as a client. It
// is an error when a rank was not where the ticket seats it, or not under MPS.
func (d *demo) printRanks(w watched) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "rank\tGPU\tSMs it sees\tits share\tpid\tunder MPS")
	found := 0
	var wrong error
	for line := range strings.Lines(w.output) {
		r := fields(line)
		rank, err := strconv.Atoi(r["rank"])
		if err != nil {
			continue
		}
		found++
		seat, err := mpirunwrap.Place(w.ticket, mpirunwrap.Rank{Task: slurm.Task{LocalRank: rank, LocalSize: d.ranks}})
		if err != nil {
			return err
		}
		pid, _ := strconv.Atoi(r["pid"])
		under := "NO"
		if w.clients[pid] {
			under = "yes"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", rank, r["uuid"], r["sms"], percent(seat), r["pid"], under)
		if under == "NO" || r["sms"] != strconv.Itoa(seat.Share.SMs) || r["uuid"] != string(seat.Device.UUID) || r["err"] != "0" {
			wrong = errors.Join(wrong, fmt.Errorf("rank %d is not as it was seated: %s", rank, strings.TrimSpace(line)))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if found != d.ranks {
		return fmt.Errorf("%d ranks of %d reported", found, d.ranks)
	}
	return wrong
}

func percent(seat mpirunwrap.Placement) string {
	if seat.Share.Percent == 0 {
		return "no cap"
	}
	return seat.Share.Percent.String() + " %"
}

// fields takes "a=1 b=2" apart.
func fields(line string) map[string]string {
	all := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		if name, value, ok := strings.Cut(word, "="); ok {
			all[name] = value
		}
	}
	return all
}
