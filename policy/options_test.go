// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

func TestParseOptions(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"  ":                            "",
		"share=even":                    "share=even",
		"scope=gpu,share=even":          "scope=gpu,share=even",
		"ceiling=50 , share=overlap:2":  "share=overlap:2,ceiling=50",
		"mem=8G":                        "memory=8G",
		"mem=8GiB":                      "memory=8GiB",
		"memory=even,drain_grace=1m30s": "memory=even,drain_grace=1m30s",
		"keep_logs=always,hold=5s,max_clients=8,priority=low,ceiling=40.5,memory_overlap=2,compute_mode=unchanged": "compute_mode=unchanged,ceiling=40.5,memory_overlap=2,priority=low,max_clients=8,hold=5s,keep_logs=always",
	} {
		o, err := ParseOptions(text)
		must.Hold(t, err == nil && o.String() == want, "%q: %q, %v, want %q", text, o, err, want)
		if again, err := ParseOptions(o.String()); err != nil || again.String() != want {
			t.Errorf("%q again: %q, %v", want, again, err)
		}
	}
}

func TestBadOptions(t *testing.T) {
	names := "want " + strings.Join(OptionNames(), ", ")
	long := strings.Repeat("a", 600)
	for _, c := range []struct{ text, want string }{
		{"on", `cannot read options "on": there is no option "on": ` + names},
		{"share=even,", `cannot read options "share=even,": an option is empty: want NAME=VALUE, separated by commas`},
		{",", `cannot read options ",": an option is empty: want NAME=VALUE, separated by commas`},
		{"=", `cannot read options "=": there is no option "": ` + names},
		{"Share=even", `cannot read options "Share=even": there is no option "Share": ` + names},
		{"share", `cannot read options "share": share has no value: want share=VALUE`},
		{"share=", `cannot read options "share=": share has no value: want share=VALUE`},
		{"share=even,share=none", `cannot read options "share=even,share=none": share is given twice`},
		{"mem=8G,memory=8G", `cannot read options "mem=8G,memory=8G": memory is given twice`},
		{"share=half", `cannot read options "share=half": share is "half": want none, even, overlap:F, PCT% or a list like 3:1`},
		{"share=0%", `cannot read options "share=0%": share is "0%": want a percentage above 0 and up to 100, with at most six decimals, like 12.5%`},
		{"share=weight:2", `cannot read options "share=weight:2": share is "weight:2": want none, even, overlap:F, PCT% or a list like 3:1`},
		{"scope=node", `cannot read options "scope=node": scope is "node": want job or gpu`},
		{"overlap=2", `cannot read options "overlap=2": overlap is a form of share: write share=overlap:F`},
		{"ceiling=0", `cannot read options "ceiling=0": ceiling is "0": want a number from 1 to 100`},
		{"ceiling=NaN", `cannot read options "ceiling=NaN": ceiling is "NaN": want a number from 1 to 100`},
		{"ceiling=1e1", `cannot read options "ceiling=1e1": ceiling is "1e1": want a number from 1 to 100`},
		{"ceiling=101", `cannot read options "ceiling=101": ceiling is "101": want a number from 1 to 100`},
		{"mem=8", `cannot read options "mem=8": memory is "8": want none, even, or a size of whole MiB, like 8G or 16384M`},
		{"max_clients=1.5", `cannot read options "max_clients=1.5": max_clients is "1.5": want a whole number from 1 to 60`},
		{"max_clients=61", `cannot read options "max_clients=61": max_clients is "61": want a whole number from 1 to 60`},
		{"drain_grace=10", `cannot read options "drain_grace=10": drain_grace is "10": want a time like 10s, up to 10m0s`},
		{"drain_grace=99999999999h", `cannot read options "drain_grace=99999999999h": drain_grace is "99999999999h": want a time like 10s, up to 10m0s`},
		{"priority=high", `cannot read options "priority=high": priority is "high": want low or normal`},
		{"on_failure=run_without", `cannot read options "on_failure=run_without": there is no option "on_failure": ` + names},
		{"share=even\nscope=gpu", `cannot read options "share=even\nscope=gpu": share is "even\nscope=gpu": want none, even, overlap:F, PCT% or a list like 3:1`},
		{"\x00", `cannot read options "\x00": there is no option "\x00": ` + names},
		{"\xff\x1b[2J", `cannot read options "\xff\x1b[2J": there is no option "\xff\x1b[2J": ` + names},
		{long, `cannot read options "` + long[:64] + `"…: 600 bytes, want at most 512`},
	} {
		if _, err := ParseOptions(c.text); err == nil || err.Error() != c.want {
			t.Errorf("%q\n got  %v\n want %s", c.text, err, c.want)
		}
	}
}

func TestNarrow(t *testing.T) {
	given := DefaultGrant()
	given.Memory, given.MaxClients, given.Ceiling, given.KeepLogs = MemoryRule{mib: 8192}, 16, 80, keepOnFailure
	with := func(change func(*Grant)) Grant { g := given; change(&g); return g }
	for _, c := range []struct {
		text string
		want Grant
		err  string
	}{
		{"", given, ""},
		{"share=even", with(func(g *Grant) { g.Share = Overlap(1) }), ""},
		{"share=overlap:1.5", with(func(g *Grant) { g.Share = Overlap(1.5) }), ""},
		{"ceiling=80,max_clients=1,scope=gpu", with(func(g *Grant) { g.MaxClients, g.Scope = 1, ScopeGPU }), ""},
		{"mem=1.5G", with(func(g *Grant) { g.Memory.mib = 1536 }), ""},
		{"keep_logs=never,drain_grace=0s,hold=0s,priority=low", with(func(g *Grant) { g.KeepLogs, g.DrainGrace, g.Hold, g.Low = keepNever, 0, 0, true }), ""},
		{"hold=5s", with(func(g *Grant) { g.Hold = 5 * time.Second }), ""},
		{"hold=30.1s", Grant{}, "cannot take hold=30.1s: the rule gives 30s, and an option can only narrow that"},
		{"share=none", with(func(g *Grant) { g.Share = ShareRule{kind: shareNone} }), ""}, // as mpirun-wrap --share=none
		{"share=25%", Grant{}, "cannot take share=25%: the rule gives overlap:2, and an option can only narrow that"},
		{"share=overlap:2.5", Grant{}, "cannot take share=overlap:2.5: the rule gives overlap:2, and an option can only narrow that"},
		{"ceiling=80.000001", Grant{}, "cannot take ceiling=80.000001: the rule gives 80, and an option can only narrow that"},
		{"mem=none", Grant{}, "cannot take memory=none: the rule gives 8192M, and an option can only narrow that"},
		{"mem=8193M", Grant{}, "cannot take memory=8193M: the rule gives 8192M, and an option can only narrow that"},
		{"max_clients=17", Grant{}, "cannot take max_clients=17: the rule gives 16, and an option can only narrow that"},
		{"drain_grace=10.1s", Grant{}, "cannot take drain_grace=10.1s: the rule gives 10s, and an option can only narrow that"},
		{"keep_logs=always", Grant{}, "cannot take keep_logs=always: the rule gives on_failure, and an option can only narrow that"},
		{"compute_mode=unchanged", Grant{}, "cannot take compute_mode=unchanged: the rule gives exclusive_process, and an option can only narrow that"},
	} {
		o := must.Get(ParseOptions(c.text))(t)
		got, err := o.narrow(given, OptionNames())
		must.Hold(t, got == c.want && (err == nil) == (c.err == "") && (err == nil || err.Error() == c.err),
			"%q: %+v, %v; want %+v, %s", c.text, got, err, c.want, c.err)
	}
	o := must.Get(ParseOptions("share=even,scope=gpu"))(t)
	for want, allow := range map[string][]string{
		"cannot take share=even: this site's policy lets this job set scope alone": {"scope"},
		"cannot take scope=gpu: this site's policy lets this job set no option":    nil,
	} {
		if _, err := o.narrow(given, allow); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// For any text of a user, the result is one printable sentence, or a grant that is no wider than the given grant.
func FuzzOptions(f *testing.F) {
	for _, seed := range []string{"", "share=even,scope=gpu,mem=8G", "share=none", "mem=1G,share=70%,30%", "share=3:1.5", "share=overlap:48,memory_overlap=1.5,ceiling=1", "drain_grace=1h,,\x00", "max_clients=08,priority=low,hold=9s,keep_logs=never"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := ParseOptions(text)
		if err != nil {
			if s := err.Error(); len(s) > 1500 || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || r == unicode.ReplacementChar }) {
				t.Errorf("an error that cannot be printed: %q", s)
			}
			return
		}
		if again, err := ParseOptions(o.String()); err != nil || again.String() != o.String() {
			t.Errorf("%q is read as %q, and that as %q, %v", text, o, again, err)
		}
		for _, given := range []Grant{DefaultGrant(), {Share: ShareRule{kind: shareNone}, Ceiling: 1, MemoryOverlap: 1,
			MaxClients: 1, KeepLogs: keepNever, Compute: computeExclusive, Low: true}} {
			g, err := o.narrow(given, OptionNames())
			must.Hold(t, err != nil || !isWider(g, given), "%q makes %+v of %+v", text, g, given)
		}
	})
}

// isWider asks each attribute by its own order, which TestOptionsNeverWiden holds.
func isWider(g, given Grant) bool {
	for _, a := range attributes {
		if a.exceeds != nil && a.exceeds(g, given) || a.SiteOnly && a.text(g) != a.text(given) {
			return true
		}
	}
	return g.Share.amount > 100*one
}

func TestDecide(t *testing.T) {
	grant := func(name string, holds bool) Rule {
		return Rule{
			Name: name, Allow: []string{"share"}, When: func(Input) (bool, error) { return holds, nil },
			Result: func(Input) (Grant, string, error) { return DefaultGrant(), "", nil },
		}
	}
	gather := func(r Request) Input { return r }
	asks := &Trigger{Constraint: "mps", Comment: "mps", Option: true}
	narrowed := DefaultGrant()
	narrowed.Share = Overlap(1)
	for _, c := range []struct {
		name   string
		policy Policy
		r      Request
		want   Decision
	}{
		{"no trigger, no rule", Policy{Bind: gather, Rules: []Rule{grant("a", false)}}, Request{}, Decision{}},
		{"no trigger", Policy{Bind: gather, Rules: []Rule{grant("a", false), grant("b", true)}}, Request{}, Decision{Requested: true, Rule: "b", Grant: DefaultGrant()}},
		{"not asked", Policy{Trigger: asks, Bind: gather, Rules: []Rule{grant("a", true)}}, Request{Job: Job{Requested: []string{"nomps"}, Comment: "mpsx"}}, Decision{}},
		{"asked, no rule", Policy{Trigger: asks, Bind: gather}, Request{Job: Job{HasOption: true}}, Decision{Requested: true, Denied: "no rule of this site's policy is for this job"}},
		{"by constraint", Policy{Trigger: asks, Bind: gather, Rules: []Rule{grant("a", true)}}, Request{Job: Job{Requested: []string{"x", "mps"}}}, Decision{Requested: true, Rule: "a", Grant: DefaultGrant()}},
		{"by comment", Policy{Trigger: asks, Bind: gather, Rules: []Rule{grant("a", true)}}, Request{Job: Job{Comment: "mps:share=even"}}, Decision{Requested: true, Rule: "a", Grant: narrowed}},
		{"by option", Policy{Trigger: asks, Bind: gather, Rules: []Rule{grant("a", true)}}, Request{Job: Job{HasOption: true, Option: "share=overlap:3"}},
			Decision{Requested: true, Rule: "a", Denied: "cannot take share=overlap:3: the rule gives overlap:2, and an option can only narrow that"}},
		{"a comment that no trigger reads", Policy{Trigger: &Trigger{Option: true}, Bind: gather, Rules: []Rule{grant("a", true)}}, Request{Job: Job{HasOption: true, Comment: "mps:share=overlap:9"}}, Decision{Requested: true, Rule: "a", Grant: DefaultGrant()}},
	} {
		must.Equal(t, c.name, c.policy.Decide(c.r), c.want)
	}
}

func TestBounded(t *testing.T) {
	r := Request{Job: Job{Comment: strings.Repeat("x", 5000), Requested: slices.Repeat([]string{strings.Repeat("y", 5000)}, 300)}}
	b := r.Truncated()
	if len(b.Comment) != 4096 || len(b.Requested) != 256 || len(b.Requested[0]) != 4096 {
		t.Errorf("%d, %d, %d", len(b.Comment), len(b.Requested), len(b.Requested[0]))
	}
	must.Hold(t, len(r.Comment) == 5000 && len(r.Requested[0]) == 5000, "the request itself was changed")
}

// Each line of testdata/options.txt is a text and the result of reading it. OPTIONS stands for the names of all options.
func TestOptionsTable(t *testing.T) {
	file := must.Get(os.ReadFile("testdata/options.txt"))(t)
	rows := 0
	for _, line := range strings.Split(strings.TrimSpace(string(file)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		must.Have(t, err == nil, "%s: %v", line, err)
		text, _ := strconv.Unquote(quoted)
		got := "ok"
		if _, err := ParseOptions(text); err != nil {
			got = strconv.Quote(err.Error())
		}
		want := strings.ReplaceAll(strings.TrimPrefix(line[len(quoted):], " "), "OPTIONS", strings.Join(OptionNames(), ", "))
		must.Equal(t, quoted, got, want)
		rows++
	}
	must.Hold(t, rows >= 50, "only %d rows", rows)
}
