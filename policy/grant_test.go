// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
)

// A grant that is written and read again is the same in each of its fields, and each field is that of an attribute.
func TestAGrantIsReadAsItWasWritten(t *testing.T) {
	grants := []Grant{DefaultGrant(), {}}
	set := map[string]bool{}
	for _, a := range attributes {
		for _, value := range someValues(a) {
			g := DefaultGrant()
			if err := a.Read(value, &g); err != nil {
				t.Fatalf("%s=%s: %v", a.Name, value, err)
			}
			fields := reflect.ValueOf(g)
			for i := range fields.NumField() {
				if fields.Field(i).Interface() != reflect.ValueOf(DefaultGrant()).Field(i).Interface() {
					set[fields.Type().Field(i).Name] = true
				}
			}
			grants = append(grants, g)
		}
	}
	for i := range reflect.TypeFor[Grant]().NumField() {
		if name := reflect.TypeFor[Grant]().Field(i).Name; !set[name] {
			t.Errorf("no attribute sets %s", name)
		}
	}
	for _, want := range grants {
		content := must.Get(json.Marshal(want))(t)
		var got Grant
		if err := json.Unmarshal(content, &got); err != nil || got != want {
			t.Errorf("%s: %v\n%+v\nwant\n%+v", content, err, got, want)
		}
	}
}

// inOrderOfWidth has values of each attribute, from the narrowest to the widest. The values of the others have no order.
var inOrderOfWidth = map[string][]string{
	"compute_mode":   {"exclusive_process", "unchanged"},
	"share":          {"even", "overlap:1.5", "overlap:48", "none"},
	"ceiling":        {"1", "1.333333", "100"},
	"memory":         {"1536M", "1T", "none"},
	"memory_overlap": {"1", "1.333333", "48"},
	"priority":       {"low", "normal"},
	"max_clients":    {"1", "60"},
	"hold":           {"0s", "1.5s", "10m0s"},
	"pause":          {"0s", "1.5s", "1m0s"},
	"drain_grace":    {"0s", "1.5s", "10m0s"},
	"keep_logs":      {"never", "on_failure", "always"},
}

var withoutOrder = map[string][]string{
	"scope": {"job", "gpu"}, "share_gpu": {"turns", "user"}, "on_failure": {"drain", "run_without"},
	"unplaced": {"share", "deny"},
}

func someValues(a Attribute) []string {
	return slices.Concat(inOrderOfWidth[a.Name], withoutOrder[a.Name])
}

// An option replaces a value by a narrower one, and never by a wider one. No share at all is for each rank to choose.
func TestOptionsNeverWiden(t *testing.T) {
	for _, a := range attributes {
		values := someValues(a)
		must.Hold(t, len(values) >= 2 && (a.exceeds != nil) == (inOrderOfWidth[a.Name] != nil),
			"%s: want its values above, with their order if they have one", a.Name)
		for i, given := range values {
			for j, wanted := range values {
				rule := DefaultGrant()
				must.OK(t, a.Read(given, &rule))
				g := rule
				err := a.narrow(wanted, rule, &g)
				if wider := a.exceeds != nil && j > i && !(a.Name == "share" && wanted == "none"); (err != nil) != wider {
					t.Errorf("%s: the rule gives %s, and the option is %s: %v", a.Name, given, wanted, err)
				}
			}
		}
	}
}

func TestReadGrant(t *testing.T) {
	for content, want := range map[string]string{
		`{"on_failure":"requeue"}`:                `cannot read grant: on_failure is "requeue": want drain or run_without`,
		`{"scope":""}`:                            `cannot read grant: scope is "": want job or gpu`,
		`{"ceiling":"1e1"}`:                       `cannot read grant: ceiling is "1e1": want a number from 1 to 100`,
		`{"ceiling":"100.1"}`:                     `cannot read grant: ceiling is "100.1": want a number from 1 to 100`,
		`{"max_clients":"61"}`:                    `cannot read grant: max_clients is "61": want a whole number from 1 to 60`,
		`{"hold":"11m"}`:                          `cannot read grant: hold is "11m": want a time like 10s, up to 10m0s`,
		`{"max_clients":4}`:                       "cannot unmarshal number",
		`{"share":"even","of_a_new_version":"1"}`: "",
	} {
		var g Grant
		if err := json.Unmarshal([]byte(content), &g); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", content, err, want)
		}
	}
}

// A list is in the order as even is, because all of its ranks together have the GPU once.
func TestAListNarrows(t *testing.T) {
	for given, options := range map[string]map[string]bool{
		"none": {"3:1": true}, "overlap:2": {"3:1": true, "70%,30%": true}, "even": {"3:1": true}, "25%": {"3:1": true},
		"3:1": {"1:3": true, "3:1:1": true, "even": true, "overlap:2": false, "none": true, "30%": false},
	} {
		for option, allowed := range options {
			rule := DefaultGrant()
			must.OK(t, readShare(given, &rule))
			o := must.Get(ParseOptions("share=" + option))(t)
			got, err := o.narrow(rule, []string{"share"})
			must.Hold(t, (err == nil) == allowed && (!allowed || got.Share.String() == option),
				"the rule gives %s, and the option is %s: %v, %v", given, option, got.Share, err)
		}
	}
}
