// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
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
		content, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got Grant
		if err := json.Unmarshal(content, &got); err != nil || got != want {
			t.Errorf("%s: %v\n%+v\nwant\n%+v", content, err, got, want)
		}
	}
}

// someValues returns values of an attribute, from the narrowest to the widest if they have an order.
func someValues(a Attribute) []string {
	switch a.Kind {
	case Word:
		return a.Words
	case Number:
		return []string{fmt.Sprint(a.Lowest), "1.333333", fmt.Sprint(a.Highest)}
	case Count:
		return []string{fmt.Sprint(a.Lowest), fmt.Sprint(a.Highest)}
	case Duration:
		return []string{"0s", "1.5s", a.Longest.String()}
	}
	return map[string][]string{
		"share":  {"even", "overlap:1.5", "overlap:48", "none"},
		"memory": {"1536M", "1T", "none"},
	}[a.Name]
}

// An option replaces a value by a narrower one, and never by a wider one. Each attribute with an order is tried.
func TestOptionsNeverWiden(t *testing.T) {
	for _, a := range attributes {
		values := someValues(a)
		if len(values) < 2 {
			t.Errorf("no values for %s: add some", a.Name)
		}
		for i, given := range values {
			for j, wanted := range values {
				rule := DefaultGrant()
				if err := a.Read(given, &rule); err != nil {
					t.Fatal(err)
				}
				g := rule
				err := a.narrow(wanted, rule, &g)
				if wider := a.exceeds != nil && j > i; (err != nil) != wider {
					t.Errorf("%s: the rule gives %s, and the option is %s: %v", a.Name, given, wanted, err)
				}
			}
		}
	}
	for _, name := range []string{"compute_mode", "share", "overlap", "ceiling", "memory", "priority", "max_clients", "hold", "keep_logs"} {
		if a, ok := optionNamed(name); !ok || a.exceeds == nil {
			t.Errorf("%s has no order", name)
		}
	}
}

func TestReadGrant(t *testing.T) {
	for content, want := range map[string]string{
		`{"on_failure":"requeue"}`:                `cannot read grant: on_failure is "requeue": want drain or run_without`,
		`{"scope":""}`:                            `cannot read grant: scope is "": want job or gpu`,
		`{"overlap":"1e1"}`:                       `cannot read grant: overlap is "1e1": want a number from 1 to 48`,
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
