// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/slurm-mps/slurm-mps/site/lab/bench/record"
)

// parts returns the parts of the pages, by the names of their markers.
func (d data) parts() map[string]string {
	bars, missed := d.bars()
	return map[string]string{
		"gains": d.gains(), "bars": bars, "missed": missed,
		"standings":   d.standings(standingSets[1]),
		"eight ranks": d.eightRanks(), "slurm": d.throughSlurm(),
		"hooks": d.realHooks(), "simulated hooks": d.simulatedHooks(),
		"beside bash": d.besideBash(), "growth": d.growth(), "wrapper": d.wrapper(),
	}
}

// long returns the tables that no page has.
func (d data) long() []string {
	return []string{d.throughput(), d.standingsBySet(), d.tuned(), d.moments(), d.swept()}
}

// eightRanks returns the rates of eight ranks, all together, by program and rule.
func (d data) eightRanks() string {
	head := []string{"all eight ranks"}
	var rows [][]string
	for _, p := range programs {
		rows = append(rows, []string{p.name + ", " + p.unit})
	}
	for _, rule := range rules {
		head = append(head, rule)
		for i, p := range programs {
			rate := ""
			if c, _, ok := d.at(p.name, 8, rule); ok {
				rate = count(record.Median(c.total))
			}
			rows[i] = append(rows[i], rate)
		}
	}
	return table(head, rows)
}

// table returns a Markdown table.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(head)))
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// count formats a rate.
func count(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

func ms(x float64) string { return fmt.Sprintf("%.1f", x) }

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// dates returns the days of the measurements.
func dates(all []hooks) string {
	var days []string
	for _, h := range all {
		if !slices.Contains(days, h.Date) {
			days = append(days, h.Date)
		}
	}
	return strings.Join(days, " and ")
}

// readData reads the matrix first, and then the moments and the sweep. Moments and sweep are of one machine.
func (d data) machineOfMatrix() record.Machine  { return d.machines[0] }
func (d data) machineOfMoments() record.Machine { return d.machines[len(d.machines)-1] }

// of returns the machine of a part's figures.
func of(m record.Machine) string {
	return fmt.Sprintf("%s, driver %s, %d CPUs, compute mode left alone, %s", m.GPU, m.Driver, m.CPUs, m.Date)
}

// gains compares the shipped rule and the best rule with time-slicing and with integer percentages, at 8 ranks.
func (d data) gains() string {
	const n = 8
	total := func(program, rule string) float64 {
		c, _, _ := d.at(program, n, rule)
		return record.Median(c.total)
	}
	var rows [][]string
	for _, p := range programs {
		ours, slicing, whole := total(p.name, "overlap 2"), total(p.name, "time-slicing"), total(p.name, "integer 100/n")
		best, most := d.best(p.name, n)
		rows = append(rows, []string{p.title, fmt.Sprintf("%.1f times", ours/slicing), signed(ours/whole - 1),
			fmt.Sprintf("%s, %.1f times", best, most/slicing)})
	}
	return fmt.Sprintf("%s. %d ranks share one GPU by overlap 2, the shipped rule. Compared is the total of all ranks, in medians of windows of %.0f ms.\n\n%s", of(d.machineOfMatrix()), n, d.windowMS,
		table([]string{"program", "compared with time-slicing", "compared with integer 100/n", "best rule, compared with time-slicing"}, rows))
}

// signed formats a gain in whole percent.
func signed(gain float64) string {
	if math.Abs(gain) < 0.005 {
		return "0 %"
	}
	return fmt.Sprintf("%+.0f %%", 100*gain)
}

func (d data) throughput() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %d rounds, a machine with one GPU and two with two, which share the plan, each GPU with as many CPUs. The total of all ranks is in the unit of the heading. In brackets is the slowest rank's part of an n-th of it. Medians of %d windows a round of %.0f ms in which every rank is at work; the rules in turns, with new ranks and daemons for each. `=` marks a rule that gives each rank the very same SMs as the other one, which was measured in its place.\n",
		of(d.machineOfMatrix()), d.rounds, d.windows, d.windowMS)
	for _, p := range programs {
		ns := d.ranksOf(p.name)
		head := []string{p.unit}
		for _, n := range ns {
			head = append(head, fmt.Sprintf("n = %d", n))
		}
		var rows [][]string
		for _, rule := range rules {
			row := []string{rule}
			for _, n := range ns {
				row = append(row, d.entry(p.name, n, rule))
			}
			rows = append(rows, row)
		}
		fmt.Fprintf(&b, "\n**%s**\n\n%s", p.title, table(head, rows))
		if len(ns) > 1 {
			fmt.Fprintf(&b, "\n![%s](../../plots/%s.svg)\n", p.title, p.name)
		}
	}
	return b.String()
}

func (d data) entry(program string, n int, rule string) string {
	c, as, ok := d.at(program, n, rule)
	if !ok {
		return ""
	}
	if as != rule {
		return "= " + as
	}
	total := record.Median(c.total)
	text := count(total)
	if n > 1 {
		text += fmt.Sprintf(" (%.0f %%)", 100*record.Median(c.slowest)*float64(n)/total)
	}
	if winner, _ := d.best(program, n); winner == rule && n > 1 {
		return "**" + text + "**"
	}
	return text
}

// standingSet is a set of programs and ranks over which the rules are compared.
type standingSet struct {
	title    string
	programs []string
	ranks    []int
}

var standingSets = []standingSet{
	{"FMA, small, n-body, halo; 2 to 48 ranks", []string{"fma", "small", "nbody", "halo"}, []int{2, 3, 4, 7, 8, 12, 16, 24, 32, 48}},
	{"all eight; 3, 8, 16, 48 ranks", []string{"fma", "small", "nbody", "halo", "triad", "fft", "transformer", "cg"}, []int{3, 8, 16, 48}},
	{"all eight; 8 ranks", []string{"fma", "small", "nbody", "halo", "triad", "fft", "transformer", "cg"}, []int{8}},
}

// standings compares the rules over one set.
func (d data) standings(set standingSet) string {
	var rows [][]string
	for _, rule := range rules {
		total, slowest, worst, _ := d.standing(rule, set.programs, set.ranks)
		rows = append(rows, []string{rule, percent(total), percent(slowest), fmt.Sprintf("%.0f %%", 100*worst)})
	}
	return fmt.Sprintf("Each rule compared with the best rule of each case, geometric mean; programs and ranks: %s.\n\n%s", set.title,
		table([]string{"rule", "total of all ranks", "slowest rank", "worst case of the total"}, rows))
}

func (d data) standingsBySet() string {
	var b strings.Builder
	fmt.Fprint(&b, "Each rule's total to the best rule's, geometric mean; in brackets the same of the slowest rank, and the worst total.\n\n")
	head, rows := []string{"rule"}, [][]string{}
	for _, set := range standingSets {
		head = append(head, set.title)
	}
	for _, rule := range rules {
		row := []string{rule}
		for _, set := range standingSets {
			total, slowest, worst, _ := d.standing(rule, set.programs, set.ranks)
			row = append(row, fmt.Sprintf("%.1f %% (%.1f, worst %.0f)", 100*total, 100*slowest, 100*worst))
		}
		rows = append(rows, row)
	}
	b.WriteString(table(head, rows))
	return b.String()
}

func (d data) throughSlurm() string {
	ours, slicing := d.slurmTotals("overlap 2"), d.slurmTotals("time-slicing")
	return fmt.Sprintf("Through a real Slurm, with prolog, wrapper and epilog, 16 ranks of small kernels by overlap 2 have %.1f times the rate of time-slicing (%s, %s kernels/s; %d jobs of each in turns).",
		record.Median(ours)/record.Median(slicing), count(record.Median(ours)), count(record.Median(slicing)), len(d.slurm["overlap 2"]))
}

func (d data) slurmTotals(rule string) []float64 {
	var all []float64
	for _, t := range d.slurm[rule] {
		all = append(all, t.Totals()...)
	}
	return all
}

// jobs are the ways in which a job gets to its first kernel.
var jobs = [][2]string{{"no MPS", "without MPS, no hooks"}, {"bash", "hooks in bash"}, {"ours", "prolog, mpirun-wrap, epilog"}}

func (d data) moments() string {
	var rows [][]string
	for _, m := range []struct {
		what, of string
		ways     [][2]string
	}{
		{"first call", "a rank's first call of CUDA",
			[][2]string{{"no MPS", "without MPS"}, {"warm server", "plain daemon, server ready"}, {"mpirun-wrap", "through mpirun-wrap, server ready"}}},
		{"whole process", "that rank's whole process",
			[][2]string{{"no MPS", "without MPS"}, {"warm server", "plain daemon, server ready"}, {"mpirun-wrap", "through mpirun-wrap, server ready"}}},
		{"sbatch to first kernel", "from sbatch to the end of the first kernel", jobs},
		{"job start to first kernel", "from the job's start to the end of the first kernel", jobs},
	} {
		for _, way := range m.ways {
			all := d.times[[2]string{m.what, way[0]}]
			rows = append(rows, []string{m.of, way[1], fmt.Sprintf("%.0f", record.Median(all)),
				fmt.Sprintf("%.0f to %.0f", slices.Min(all), slices.Max(all)), fmt.Sprint(len(all))})
		}
	}
	return of(d.machineOfMoments()) + ".\n\n" + table([]string{"", "", "median ms", "all", "trials"}, rows)
}

func (d data) swept() string {
	least, most := d.sweep[0], d.sweep[0]
	for _, p := range d.sweep {
		if p.SMs < least.SMs {
			least = p
		}
		if p.SMs > most.SMs {
			most = p
		}
	}
	return fmt.Sprintf("%s: %d shares, one client at a time. They are every whole percentage and every number of TPCs. CUDA reported from %d SMs (%d MiB for the context) to %d (%d MiB), and the plan says the same at every point (`TestPlanAgreesWithTheSweepOfAnH200`).\n\n![shares](../../plots/sweep.svg)",
		of(d.machineOfMoments()), len(d.sweep), least.SMs, least.ContextMiB, most.SMs, most.ContextMiB)
}

func (d data) realHooks() string {
	var rows [][]string
	for i, h := range d.real {
		for _, s := range h.Sets {
			bash := []string{"", ""}
			if len(s.BashProlog) > 0 {
				bash = []string{fmt.Sprintf("%s, %.1f", ms(record.Median(s.BashProlog)), record.Median(s.BashProlog)/record.Median(s.Prolog)),
					fmt.Sprintf("%s, %.1f", ms(record.Median(s.BashEpilog)), record.Median(s.BashEpilog)/record.Median(s.Epilog))}
			}
			floor, prolog, quit, epilog := record.Median(s.Floor), record.Median(s.Prolog), record.Median(s.Quit), record.Median(s.Epilog)
			rows = append(rows, []string{fmt.Sprint(i + 1), fmt.Sprint(len(s.Prolog)), fmt.Sprint(s.GPUs),
				fmt.Sprint(s.Leases), ms(floor), ms(prolog), fmt.Sprintf("%.2f", prolog/floor), bash[0],
				fmt.Sprintf("%s (%s to %s)", ms(quit), ms(slices.Min(s.Quit)), ms(slices.Max(s.Quit))), ms(epilog), fmt.Sprintf("%.2f", epilog/quit), bash[1]})
		}
	}
	return "H200s, driver 580.159.04, compute mode left alone, " + dates(d.real) + "; milliseconds, medians, in turns in one run.\n\n" +
		table([]string{"machine", "trials", "GPUs", "leases on the node", "floor", "prolog", "to the floor",
			"in bash, times ours", "quit", "epilog", "to quit", "in bash, times ours"}, rows)
}

func (d data) simulatedHooks() string {
	var rows [][]string
	for _, s := range d.simulated.Sets {
		floor, prolog, quit, epilog := record.Median(s.Floor), record.Median(s.Prolog), record.Median(s.Quit), record.Median(s.Epilog)
		rows = append(rows, []string{fmt.Sprint(s.GPUs), fmt.Sprint(s.Leases), s.Scope, ms(floor), ms(prolog),
			fmt.Sprintf("%.2f", prolog/floor), ms(record.Median(s.Outside)),
			ms(quit), ms(epilog), fmt.Sprintf("%.2f", epilog/quit)})
	}
	return fmt.Sprintf("Two cores, no GPU, %s, %d trials; milliseconds, medians.\n\n%s", d.simulated.Date, len(d.simulated.Sets[0].Prolog),
		table([]string{"GPUs", "leases", "scope", "floor", "prolog", "to the floor", "outside", "quit", "epilog", "to quit"}, rows))
}

// besideBash compares the prolog and the epilog with hooks in bash, by the number of GPUs.
func (d data) besideBash() string {
	var rows [][]string
	for _, s := range d.simulated.Sets {
		if len(s.BashProlog) == 0 {
			continue
		}
		prolog, epilog, start, end := record.Median(s.Prolog), record.Median(s.Epilog), record.Median(s.BashProlog), record.Median(s.BashEpilog)
		rows = append(rows, []string{fmt.Sprint(s.GPUs), ms(prolog), ms(start), fmt.Sprintf("%.1f", start/prolog),
			ms(epilog), ms(end), fmt.Sprintf("%.1f", end/epilog)})
	}
	return fmt.Sprintf("Two cores, no GPU, %s, %d trials of ours and %d of bash; milliseconds, medians.\n\n%s",
		d.simulated.Date, len(d.simulated.Sets[0].Prolog), len(d.simulated.Sets[0].BashProlog),
		table([]string{"GPUs", "prolog", "in bash", "times ours", "epilog", "in bash", "times ours"}, rows))
}

// ruleOf returns the rule of the tables for a name of mpsctl: "none" is uncapped, and "overlap:2" is overlap 2.
func ruleOf(share string) string {
	if share == "none" {
		return "uncapped"
	}
	return strings.ReplaceAll(share, ":", " ")
}

// toBest returns the ratio of a rule's total to that of the best rule, and the name of the best rule.
func (d data) toBest(program string, ranks int, rule string) (part float64, best string) {
	best, most := d.best(program, ranks)
	c, _, _ := d.at(program, ranks, rule)
	return record.Median(c.total) / most, best
}

// tuned compares mps-tune's choice for each program with the rules' totals in the tables.
func (d data) tuned() string {
	var rows [][]string
	for _, on := range d.tunes {
		for _, t := range on.programs {
			named := ruleOf(t.Report.Use)
			part, best := d.toBest(t.Program, t.Ranks, named)
			rows = append(rows, []string{fmt.Sprint(on.machine.GPUs), t.Program, named, percent(part), best, strings.Join(failures(t), ", ")})
		}
	}
	t := d.tunes[0].programs[0]
	return fmt.Sprintf("%s, in a job of a real Slurm: %d ranks by srun, each rule %d times. The shipped rule is %s.\n\n%s", of(d.tunes[0].machine),
		t.Ranks, len(t.Report.Rules[0].Rates), ruleOf(t.Report.Site),
		table([]string{"GPUs of the machine", "program", "named", "of the best, in the tables above", "which is", "rules a run of which failed"}, rows))
}

// failures returns the rules of which a run failed.
func failures(t record.Tune) (rules []string) {
	for _, r := range t.Report.Rules {
		if r.Failed != "" {
			rules = append(rules, ruleOf(r.Rule))
		}
	}
	return rules
}

// growth shows the growth with the ranks of a GPU.
func (d data) growth() string {
	g := d.grown.Growth
	var rows [][]string
	for i, n := range g.RankCounts {
		execs, wrapper := record.Median(g.Together["execs"][i]), record.Median(g.Together["wrapper"][i])
		rows = append(rows, []string{fmt.Sprint(n), ms(execs), ms(wrapper), fmt.Sprintf("%.2f", wrapper/execs), fmt.Sprintf("%.2f", wrapper/float64(n))})
	}
	return fmt.Sprintf("Two cores, no GPU, %s: n wrappers at once around a program that does nothing. The times are from the first start to the last end: medians of %d rounds, milliseconds.\n\n%s",
		d.grown.Date, len(g.Together["execs"][0]), table([]string{"ranks", "only execs", "mpirun-wrap", "times", "a rank"}, rows))
}

// wrapper compares the wrapper with one in bash, by whole processes.
func (d data) wrapper() string {
	w := d.wrapped.Wrapper
	var rows [][]string
	for _, way := range [][2]string{{"execs", "only execs"}, {"wrapper", "mpirun-wrap"}, {"bash", "in bash"}} {
		alone, all := record.Median(w.Alone[way[0]]), record.Median(w.Together[way[0]])
		rows = append(rows, []string{way[1], fmt.Sprintf("%.2f", alone),
			fmt.Sprintf("%.2f", alone/record.Median(w.Alone["execs"])), ms(all), fmt.Sprintf("%.2f", all/record.Median(w.Together["execs"]))})
	}
	return fmt.Sprintf("Two cores, no GPU, %s, in turns, medians of %d rounds of one rank and %d of %d at once, milliseconds.\n\n%s", d.wrapped.Date,
		len(w.Alone["execs"]), len(w.Together["execs"]), w.Ranks,
		table([]string{"", "one rank", "to the floor", fmt.Sprintf("%d at once", w.Ranks), "to the floor"}, rows))
}

// bars returns the aims with the measured values, and the number of aims that are missed.
func (d data) bars() (aims, missed string) {
	var rows [][]string
	failed := 0
	row := func(aim, measured string, holds bool) {
		word := "holds"
		if !holds {
			failed++
			word = "**missed**"
		}
		rows = append(rows, []string{aim, measured, word})
	}
	worst, at := math.Inf(1), 0
	for _, n := range d.ranksOf("fma") {
		even, _, ok := d.at("fma", n, "even")
		free, _, ok2 := d.at("fma", n, "uncapped")
		if ratio := record.Median(even.total) / record.Median(free.total); ok && ok2 && n > 1 && ratio < worst {
			worst, at = ratio, n
		}
	}
	row("even shares ≥ 99 % of uncapped on the saturating kernel, every n", fmt.Sprintf("at least %s (n = %d)", percent(worst), at), worst >= 0.99)
	var gains []string
	good := 0
	for _, p := range programs {
		even, _, ok := d.at(p.name, 8, "even")
		whole, _, ok2 := d.at(p.name, 8, "integer 100/n")
		if !ok || !ok2 {
			continue
		}
		gain := record.Median(even.total)/record.Median(whole.total) - 1
		if gain >= 0.10 {
			good++
		}
		gains = append(gains, fmt.Sprintf("%s %+.1f %%", p.name, 100*gain))
	}
	row("even shares ≥ +10 % over integer 100/n at n = 8 on three programs", strings.Join(gains, ", "), good >= 3)
	times := record.Median(d.slurmTotals("overlap 2")) / record.Median(d.slurmTotals("time-slicing"))
	row("small kernels through a real Slurm, 16 ranks, ≥ 12 times time-slicing", fmt.Sprintf("%.1f times", times), times >= 12)
	call := record.Median(d.times[[2]string{"first call", "mpirun-wrap"}]) / record.Median(d.times[[2]string{"first call", "warm server"}])
	for _, on := range d.tunes {
		near := 0
		for _, t := range on.programs {
			if part, _ := d.toBest(t.Program, t.Ranks, ruleOf(t.Report.Use)); part >= 0.97 {
				near++
			}
		}
		row(fmt.Sprintf("`mps-tune` names a rule within 3 %% of the best, n = 8, on a machine with %d H200", on.machine.GPUs),
			fmt.Sprintf("for %d of %d programs", near, len(on.programs)), near == len(on.programs))
	}
	row("a rank's first call of CUDA ≤ 1.1 times that with a warm server", fmt.Sprintf("%.2f times", call), call <= 1.1)
	for i, h := range d.real {
		for _, s := range h.Sets {
			if s.Leases > 1 {
				continue
			}
			where := fmt.Sprintf("H200s, machine %d, GPUs of the job: %d", i+1, s.GPUs)
			ratio := record.Median(s.Prolog) / record.Median(s.Floor)
			row("prolog ≤ 1.5 times the floor, "+where, fmt.Sprintf("%.2f times", ratio), ratio <= 1.5)
			if len(s.BashProlog) > 0 {
				ratio := record.Median(s.BashProlog) / record.Median(s.Prolog)
				row("prolog ≥ 4 times faster than in bash, "+where, fmt.Sprintf("%.1f times", ratio), ratio >= 4)
			}
		}
	}
	for _, s := range d.simulated.Sets {
		if len(s.BashProlog) == 0 || s.GPUs != 1 && s.GPUs != 8 {
			continue
		}
		aim := map[int]float64{1: 4, 8: 10}[s.GPUs]
		ratio := record.Median(s.BashProlog) / record.Median(s.Prolog)
		row(fmt.Sprintf("prolog ≥ %.0f times faster than in bash, simulated GPUs: %d, nvidia-smi at 104 ms a call", aim,
			s.GPUs), fmt.Sprintf("%.1f times", ratio), ratio >= aim)
	}
	return table([]string{"aim", "measured", ""}, rows),
		fmt.Sprintf("Of %d aims %d are missed: [the aims](measurements/README.md#the-aims).", len(rows), failed)
}
