// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/recorded"
)

func TestHosts(t *testing.T) {
	tests := []struct {
		in   string
		want []string
	}{
		{"n1", []string{"n1"}}, {"n[1-3,5]", []string{"n1", "n2", "n3", "n5"}}, {"gpu[08-10]", []string{"gpu08", "gpu09", "gpu10"}},
		{"n[9-11]", []string{"n9", "n10", "n11"}}, {"r[1-2]n[1-2]", []string{"r1n1", "r1n2", "r2n1", "r2n2"}}, {"a,b[1,0]", []string{"a", "b1", "b0"}},
		{"a,,b,", []string{"a", "b"}}, {"/dev/nvidia[3,1]", []string{"/dev/nvidia3", "/dev/nvidia1"}}, {"n[007]", []string{"n007"}}, {"n[1]-ib", []string{"n1-ib"}},
	}
	for _, tt := range tests {
		got, err := ExpandHostlist(tt.in)
		must.Hold(t, err == nil && reflect.DeepEqual(got, tt.want), "Hosts(%q) = %q, %v, want %q", tt.in, got, err, tt.want)
	}
}

func TestHostsRefuses(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", `cannot expand "": it names nothing`},
		{",", `cannot expand ",": it names nothing`},
		{"n[1-3", `cannot expand "n[1-3": the brackets do not match`},
		{"n1]", `cannot expand "n1]": the brackets do not match`},
		{"n[1[2]]", `cannot expand "n[1[2]]": the brackets do not match`},
		{"n[]", `cannot expand "n[]": range "": "" is not a number`},
		{"n[2-0]", `cannot expand "n[2-0]": range "2-0" runs backwards`},
		{"n[0-8:2]", `cannot expand "n[0-8:2]": range "0-8:2": "8:2" is not a number`},
		{"n[a-b]", `cannot expand "n[a-b]": range "a-b": "a" is not a number`},
		{"n[0-99999999]", `cannot expand "n[0-99999999]": it names more than 65536`},
		{"n[0-999][0-999]", `cannot expand "n[0-999][0-999]": it names more than 65536`},
	}
	for _, tt := range tests {
		if _, err := ExpandHostlist(tt.in); recorded.Message(err) != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

func FuzzHosts(f *testing.F) {
	for _, seed := range []string{"n[1-3,5],gpu[01-10]", "r[1-2]n[1-4]", "n[", "[[]]", "n[0-65535][0-65535]", "n[000000000000000001]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		hosts, err := ExpandHostlist(list)
		if err != nil {
			return
		}
		must.Hold(t, len(hosts) != 0 && len(hosts) <= hostsMax, "%q names %d", list, len(hosts))
		must.Hold(t, strings.Contains(list, "[") || strings.Join(hosts, ",") == strings.Trim(collapse(list), ","),
			"%q became %q", list, hosts)
		for _, host := range hosts {
			must.Hold(t, !strings.ContainsAny(host, "[],"), "%q names %q", list, host)
		}
	})
}

func collapse(list string) string {
	for strings.Contains(list, ",,") {
		list = strings.ReplaceAll(list, ",,", ",")
	}
	return list
}
