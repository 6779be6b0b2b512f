// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/policy/lint"
	"github.com/slurm-mps/slurm-mps/policy/plan"
	"github.com/slurm-mps/slurm-mps/prolog/frame"
	"github.com/slurm-mps/slurm-mps/site"
	"github.com/slurm-mps/slurm-mps/site/cli"
	"github.com/slurm-mps/slurm-mps/site/command"
	"github.com/slurm-mps/slurm-mps/site/lease"
	"github.com/slurm-mps/slurm-mps/site/proc"
	"github.com/slurm-mps/slurm-mps/site/slurm"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/spf13/cobra"
)

const explainHelp = `explain prints what a job would get: how it asks for MPS, which rule decides, and what is granted. For each earlier rule it
prints why the rule does not match, with the values of the parts of its condition. With --ranks it also prints the
placement of the ranks.

Flags describe the job. A value that is not given is empty, except for one GPU, one task and one node. The groups of --user
are looked up as for a job. No flag gives a MIG instance. With --job, explain takes a job that has MPS on this node now, as its prolog recorded it (only
root can read that).`

func explain(call *command.Invocation) *cobra.Command {
	var q query
	c := &cobra.Command{
		Use: "explain [flags]", Short: "print what a job would get, and why", Long: explainHelp,
		Example: "  mpsctl policy explain --user ana --partition edu --gpus 2 --constraint mps\n" +
			"  mpsctl policy explain --constraint 'a100&mps' --gpu H200 --ranks 7\n  mpsctl policy explain --job 4711",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && c.Flags().Changed("mps") { // as in srun, its value never stands apart
				return fmt.Errorf("cannot take %q: if it is the value of --mps, write --mps=%s", args[0], args[0])
			}
			return command.NoArgs(c, args)
		},
		RunE: func(c *cobra.Command, _ []string) error {
			q.given = c.Flags().Changed
			q.request.HasOption = q.given("mps")
			return q.run(call)
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	r := &q.request
	flags.StringVar(&q.policy, "policy", "", "explain the policy in this `FILE|DIR`")
	flags.Uint32Var(&q.job, "job", 0, "explain job `ID` of this node")
	flags.StringVar(&r.User, "user", "", "the user's `NAME`")
	flags.StringSliceVar(&r.Groups, "groups", nil, "the `NAMES` of all of the user's groups")
	flags.StringVar(&r.Account, "account", "", "the account's `NAME`")
	flags.StringVar(&r.Partition, "partition", "", "the partition's `NAME`")
	flags.StringVar(&r.QOS, "qos", "", "the `NAME` of the quality of service")
	flags.StringVar(&r.Reservation, "reservation", "", "the reservation's `NAME`")
	flags.StringVar(&q.constraint, "constraint", "", "an `EXPRESSION` as for sbatch, like 'a100&mps'")
	flags.StringVar(&r.Option, "mps", "", "`OPTIONS` as for sbatch, or none")
	flags.Lookup("mps").NoOptDefVal = " " // pflag needs a value here that is not empty, and blank options set nothing
	flags.StringVar(&r.Comment, "comment", "", "the `TEXT` of the job's comment")
	flags.IntVar(&q.gpus, "gpus", 1, "the job has `N` GPUs on the node")
	flags.IntVar(&r.NTasks, "ntasks", 1, "the job has `N` tasks")
	flags.IntVar(&r.Nodes, "nodes", 1, "the job has `N` nodes")
	flags.StringVar(&r.Node, "node", "", "the node's `NAME`")
	flags.StringSliceVar(&r.Features, "features", nil, "the `NAMES` of the node's features")
	flags.StringVar(&r.Driver, "driver", "", "the driver's `VERSION`")
	flags.StringVar(&q.gpu, "gpu", "", "the `NAME` of the GPU's model, such as H200, \"H100 PCIe\" or A100-80")
	flags.IntVar(&q.ranks, "ranks", 0, "print the placement of `N` ranks on the node")
	return c
}

type query struct {
	policy, constraint, gpu string
	job                     uint32
	gpus, ranks             int
	given                   func(flag string) bool
	request                 policy.Request
}

// answer is the result, with the placements if they were asked for.
type answer struct {
	lint.Explanation
	Decided string      `json:"decided,omitempty"` // with --job: the rule by which the prolog opened it
	Refused string      `json:"refused,omitempty"` // why the prolog refuses it, whatever the policy is
	Ranks   []plan.Rank `json:"ranks,omitempty"`
	// Recorded is true if the job runs without MPS and the policy has record = "all".
	Recorded bool `json:"recorded,omitempty"`

	placed string
	// Assumed has the values that the policy reads and no flag gives.
	Assumed []string `json:"assumed,omitempty"`
}

func (q query) run(call *command.Invocation) error {
	request, decided, err := q.ask(call)
	if err != nil {
		return err
	}
	var paths []string
	if q.policy != "" {
		paths = []string{q.policy}
	}
	compiled, err := load(call, paths)
	if err != nil {
		return refused(call, err)
	}
	assumed := q.lookUp(&request, compiled.Policy().Lookups)
	a := answer{Explanation: lint.Explain(compiled, request), Decided: decided}
	if a.Asked {
		a.Assumed = assumed
	}
	if a.Asked && len(request.GPUs) == 0 {
		a.Refused = "it asks for MPS and has no GPU on the node: submit it with --gres=gpu:N"
	}
	without := !a.Verdict.Granted() || a.Refused != ""
	a.Recorded = compiled.Policy().RecordAll && without && len(request.GPUs) > 0
	if err := q.place(&a, request); err != nil {
		return err
	}
	return call.Print("policy", a, a.text)
}

// ask returns the request: described by flags, or recorded in a job's lease.
func (q query) ask(call *command.Invocation) (r policy.Request, decided string, err error) {
	if q.job != 0 {
		return recorded(call.Paths, q.job)
	}
	const maxGPUs = 64
	if q.gpus < 0 || q.gpus > maxGPUs || q.ranks < 0 {
		return r, "", fmt.Errorf("cannot explain %d ranks on %d GPUs: give --gpus 0 to %d, and --ranks 1 or more", q.ranks, q.gpus, maxGPUs)
	}
	r = q.request
	r.Requested = slurm.Features(q.constraint)
	for i := range q.gpus {
		r.GPUs = append(r.GPUs, i)
	}
	r.NodeGPUs = q.gpus
	if q.gpu == "" {
		return r, "", nil
	}
	model, err := policy.FindModel(q.gpu)
	r.GPU = policy.GPUFacts{Product: model.Product, SMs: model.GPU.SMs, MemoryMiB: model.MemoryMiB}
	return r, "", err
}

// lookUp adds the user's numbers and groups, as the prolog does. It returns the values that the policy reads and that
// are assumed.
func (q query) lookUp(r *policy.Request, needs policy.Lookups) (assumed []string) {
	if q.job != 0 {
		return nil
	}
	if r.User != "" && !q.given("groups") {
		if err := identify(r); err != nil {
			assumed = append(assumed, err.Error()+": give --groups")
		}
	}
	for _, look := range []struct {
		missing bool
		what    string
	}{
		{needs.Groups && r.Groups == nil && !q.given("groups"), "job.groups is taken as []: give --user or --groups"},
		{needs.Features && !q.given("features"), "node.features is taken as []: give --features"},
		{needs.Driver && !q.given("driver"), `node.driver is taken as "": give --driver`},
		{needs.Devices, fmt.Sprintf("node.gpus is taken as %d, the job's GPUs: no flag gives a number", r.NodeGPUs)},
		{needs.GPU && q.gpu == "", `gpu.model and gpu.product are taken as "", gpu.sms and gpu.memory as 0: give --gpu`},
	} {
		if look.missing {
			assumed = append(assumed, look.what)
		}
	}
	return assumed
}

// identify looks up a user's numbers, and the names of the groups.
func identify(r *policy.Request) error {
	known, err := user.Lookup(r.User)
	if err != nil {
		return fmt.Errorf("cannot look up user %q: %w", r.User, err)
	}
	uid, err1 := strconv.ParseUint(known.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(known.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("cannot look up user %q: %w", r.User, err)
	}
	r.UID, r.GID = uint32(uid), uint32(gid)
	r.Groups, err = frame.UserGroupNames(context.Background(), r.UID, r.GID)
	return err
}

// recorded returns the request of a job's prolog to the policy, and the rule that decided.
func recorded(paths site.Paths, job uint32) (r policy.Request, rule string, err error) {
	boot, err := proc.BootID()
	if err != nil {
		return r, "", cli.RuntimeError{Err: err}
	}
	store := lease.OpenReadOnly(paths.Run(), boot)
	l, err := store.Read(job)
	if errors.Is(err, lease.ErrNotFound) {
		err = errors.New("it has no MPS on this node, or it has ended: describe it with flags")
		if ticket, ticketErr := store.ReadTicket(job); ticketErr == nil && ticket.RefusalReason != "" {
			err = fmt.Errorf("its prolog kept no request: it was refused: %s", ticket.RefusalReason)
		}
	} else if err == nil {
		if err = json.Unmarshal(l.Request, &r); err != nil {
			err = fmt.Errorf("its lease holds no request: %w", err)
		}
	}
	if err != nil {
		return r, "", cli.RuntimeError{Err: fmt.Errorf("cannot explain job %d: %w", job, err)}
	}
	return r, l.Rule, nil
}

func (q query) place(a *answer, r policy.Request) error {
	if q.ranks == 0 || !a.Verdict.Granted() || a.Refused != "" {
		return nil
	}
	model, err := policy.FindModel(q.gpu)
	if err != nil {
		return fmt.Errorf("cannot place ranks: %w", err)
	}
	g := a.Verdict.Grant
	model.Clients = min(g.MaxClients, policy.ClientsOf(r.Driver))
	planned := plan.Request{
		Model: model, GPUs: max(len(r.GPUs), 1), Ranks: q.ranks, Share: g.Share, Memory: g.Memory,
		Overcommit: g.MemoryOverlap, Ceiling: policy.PercentFrom(g.Ceiling),
	}
	a.Ranks, err = planned.Answer()
	a.placed = placedText(planned, a.Ranks)
	return err
}

// placedText returns the placements for people. Each rank has a line with a bar, and the whole bar is the GPU. Then
// each GPU has a line with its total.
func placedText(q plan.Request, ranks []plan.Rank) string {
	var b strings.Builder
	const barCells = 38 // that the numbers leave for a bar on a line of 80 columns
	b.WriteString("rank  GPU    SMs     percent     memory\n")
	count, sms, all := make([]int, q.GPUs), make([]int, q.GPUs), q.Model.GPU.SMs
	for _, r := range ranks {
		percent := "no cap"
		if r.Percent != 0 {
			percent = r.Percent.String()
		}
		bar := command.Bar(r.SMs, all, barCells)
		fmt.Fprintf(&b, "%4d %4d  %5d  %10s %10s  %s\n", r.Rank, r.GPU, r.SMs, percent, memoryText(r.MemoryMiB), bar)
		count[r.GPU]++
		sms[r.GPU] += r.SMs
	}
	b.WriteByte('\n')
	for gpu, n := range count {
		fmt.Fprintf(&b, "GPU %d: %s, %d of %d SMs assigned (%.2f ×)\n", gpu, words.Count(n, "rank"), sms[gpu], all, float64(sms[gpu])/float64(all))
	}
	return b.String()
}

func memoryText(mib *int) string {
	if mib == nil {
		return "no limit"
	}
	return strconv.Itoa(*mib) + " MiB"
}

func (a answer) text(s command.Screen) string {
	var b strings.Builder
	asks := s.Green("asks for MPS")
	if !a.Asked {
		asks = s.Yellow("does not ask for MPS")
	}
	fmt.Fprintf(&b, "The job %s: %s\n", asks, a.How)
	for _, rule := range a.Rules {
		a.rule(&b, s, rule)
	}
	a.verdict(&b, s)
	for i, what := range a.Assumed {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s %s\n", s.Yellow("!"), what)
	}
	if a.placed != "" {
		fmt.Fprintf(&b, "\n%s", a.placed)
	}
	return b.String()
}

func (a answer) rule(b *strings.Builder, s command.Screen, rule lint.RuleTrace) {
	holds := s.Faint("is not for the job")
	switch {
	case rule.Holds:
		holds = s.Green("decides")
	case rule.Rule == a.Verdict.Rule:
		holds = s.Red("fails for the job")
	}
	fmt.Fprintf(b, "\nRule %s %s  (%s:%d)\n", s.Bold(fmt.Sprintf("%q", rule.Rule)), holds, rule.File, rule.Line)
	for _, leaf := range rule.When.Leaves() {
		fmt.Fprintf(b, "  %-5s  %s\n", leaf.Value, leaf.Source)
		for _, named := range leaf.With {
			fmt.Fprintf(b, "         %s\n", s.Faint(named.Name+" = "+named.Value))
		}
	}
}

const withoutMPS = "the job runs without MPS, and mpirun-wrap prints the reason: "

func (a answer) verdict(b *strings.Builder, s command.Screen) {
	if a.Decided != "" && a.Decided != a.Verdict.Rule {
		fmt.Fprintf(b, "\n%s its prolog decided by rule %q: the policy has changed since.\n", s.Yellow("!"), a.Decided)
	}
	switch {
	case a.Refused != "":
		fmt.Fprintf(b, "\n%s: %s%s\n", s.Red("Refused"), withoutMPS, a.Refused)
	case a.Verdict.Granted():
		fmt.Fprintf(b, "\nGranted by rule %q", a.Verdict.Rule)
		if len(a.Options) > 0 {
			fmt.Fprintf(b, ", with the user's %s", a.Options)
		}
		b.WriteString(":\n")
		a.granted(b, s)
	case a.Verdict.Denied != "":
		fmt.Fprintf(b, "\n%s: %s%s\n", s.Red("Denied"), withoutMPS, a.Verdict.Denied)
	default:
		b.WriteString("\nThe job runs without MPS, as if nothing were installed.\n")
	}
	if a.Recorded {
		b.WriteString("Its use of its GPUs is recorded: record = \"all\".\n")
	}
}

// granted prints the attributes of the grant: first those that the policy or the user sets, and then the defaults.
func (a answer) granted(b *strings.Builder, s command.Screen) {
	for _, defaults := range []bool{false, true} {
		for _, attribute := range a.Grant {
			if attribute.Default != defaults {
				continue
			}
			line := fmt.Sprintf("  %-14s = %-17s", attribute.Name, attribute.Value)
			source := origin(attribute)
			if defaults {
				line = s.Faint(line + "  " + source)
			} else if source != "" {
				line += "  " + s.Faint(source)
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
}

// origin returns where an attribute's value comes from, "" for a constant of the policy.
func origin(a lint.AttributeTrace) string {
	var origins []string
	for _, variable := range a.With {
		origins = append(origins, variable.Name+" = "+variable.Value)
	}
	if a.Default {
		origins = append(origins, "default")
	}
	return strings.Join(origins, ", ")
}
