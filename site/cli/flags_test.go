// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseAlone(t *testing.T) {
	for _, c := range []struct {
		args string // with spaces between them
		want string // values of the flags, or what is printed
		err  string
	}{
		{"", `"" [] 0 0s false`, ""},
		{"--root /x -gpu=A,B --gpu C --job 7 --interval=5m --take", `"/x" ["A" "B" "C"] 7 5m0s false`, ""},
		{"--help --nonsense", "the help", ""},
		{"-h", "the help", ""},
		{"--version", Version() + "\n", ""},
		{"-v", Version() + "\n", ""},
		{"--root", "", "cannot read flags: flag needs an argument: --root: see prog --help"},
		{"--rooot /x", "", "cannot read flags: unknown flag: --rooot: did you mean --root?"},
		{"--job -1", "", `cannot read --job: it is "-1": want a whole number: see prog --help`},
		{"--job 4294967296", "", `cannot read --job: it is "4294967296": want a whole number: see prog --help`},
		{"--interval 5", "", `cannot read --interval: it is "5": want a time like 10s or 5m: see prog --help`},
		{"--take=perhaps", "", `cannot read --take: it is "perhaps": want true or false: see prog --help`},
		{"--root /x y", "", `cannot take "y": prog takes only flags: see prog --help`},
		{"-- --root", "", `cannot take "--root": prog takes only flags: see prog --help`},
	} {
		var root string
		var gpus []string
		var job uint32
		var interval time.Duration
		var take bool
		var out strings.Builder
		p := Process{Args: strings.Fields(c.args), Out: &out}
		done, err := p.ParseAlone("prog", "the help",
			Flag{Name: "root", To: &root}, Flag{Name: "gpu", To: &gpus}, Flag{Name: "job", To: &job},
			Flag{Name: "interval", To: &interval}, Flag{Name: "take", To: &take})
		got := out.String()
		if !done {
			got = fmt.Sprintf("%q %q %d %v %v", root, gpus, job, interval, take && c.err != "")
		}
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || err.Error() != c.err || done) {
			t.Errorf("%q: %s, %v; want %s, %s", c.args, got, err, c.want, c.err)
		}
	}
}
