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
	"github.com/slurm-mps/slurm-mps/site/slurm/launch"
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

// printTimeline prints the job's life from the log: each step, its start and its duration.
func (d *demo) printTimeline(began time.Time, w watched) {
	fmt.Println("The job's life, in ms since it was submitted:")
	printed := false
	for line := range strings.Lines(d.log()) {
		var e entry
		if json.Unmarshal([]byte(line), &e) != nil {
			continue
		}
		if e.Program == "epilog" && !printed {
			printed = true
			fmt.Printf("%8d  ranks   %d of %d seen as clients of the job's daemon; modes: %s\n", w.seen.Sub(began).Milliseconds(), len(w.clients), d.ranks, w.modes)
		}
		at := e.Time.Sub(began).Milliseconds()
		switch {
		case e.Step == "summary": // a summary is no step
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

// printRanks prints each rank's placement as the rank saw it, and whether the daemon listed the rank as a client. It
// returns an error if a rank did not have the placement that the ticket gives it, or did not run under MPS.
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
		place, err := mpirunwrap.Place(w.ticket, mpirunwrap.Rank{Task: launch.Task{LocalRank: rank, LocalSize: d.ranks}})
		if err != nil {
			return err
		}
		pid, _ := strconv.Atoi(r["pid"])
		under := "NO"
		if w.clients[pid] {
			under = "yes"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", rank, r["uuid"], r["sms"], percent(place), r["pid"], under)
		if under == "NO" || r["sms"] != strconv.Itoa(place.Share.SMs) || r["uuid"] != string(place.Device.UUID) || r["err"] != "0" {
			wrong = errors.Join(wrong, fmt.Errorf("rank %d does not have its placement: %s", rank, strings.TrimSpace(line)))
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

func percent(place *mpirunwrap.Placement) string {
	if place.Share.Percent == 0 {
		return "no cap"
	}
	return place.Share.Percent.String() + " %"
}

// fields splits "a=1 b=2" into names and values.
func fields(line string) map[string]string {
	all := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		if name, value, ok := strings.Cut(word, "="); ok {
			all[name] = value
		}
	}
	return all
}
