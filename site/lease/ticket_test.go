// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
)

// fill sets every field of a value to a distinct value that is not zero.
func fill(v reflect.Value, n *int) {
	*n++
	if grant, is := v.Addr().Interface().(*policy.Grant); is {
		*grant = policy.DefaultGrant()
		grant.Overlap, grant.Low, grant.MaxClients = 1.333333, true, *n
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.String:
		v.SetString(strings.Repeat("é\"\n", *n%3+1))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(int64(-*n))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n) << 20)
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.25)
	default:
		panic(v.Kind())
	}
}

// A ticket is read field by field. No field is missing, and each has the value that was written.
func TestATicketIsReadAsItWasWritten(t *testing.T) {
	var full Ticket
	fill(reflect.ValueOf(&full).Elem(), new(int))
	for _, want := range []Ticket{full, {}, {Devices: []TicketDevice{{}}, Daemons: []Daemon{{}}}} {
		content, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseTicket(content); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v\n%+v\nwant\n%+v", err, got, want)
		}
	}
}

func TestATicketThatIsTorn(t *testing.T) {
	for content, want := range map[string]string{
		``:                                   "unexpected end",
		`{"schema": 1`:                       "unexpected end",
		`[]`:                                 "cannot unmarshal array",
		`{"schema": "1"}`:                    "schema is of another type",
		`{"schema": 1.5}`:                    "schema is of another type",
		`{"job": {"id": -1}}`:                "id is of another type",
		`{"job": 7}`:                         "job is of another type",
		`{"grant": "even"}`:                  "grant is of another type",
		`{"grant": {"overlap": 2}}`:          "overlap is of another type",
		`{"grant": {"overlap": "49"}}`:       `cannot read grant: overlap is "49": want a number from 1 to 48`,
		`{"devices": [7]}`:                   "devices is of another type",
		`{"daemons": [{"proc": []}]}`:        "proc is of another type",
		`{"daemons": [{"devices": [true]}]}`: "devices is of another type",
	} {
		if got, err := parseTicket([]byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", content, got, err, want)
		}
	}
}

func FuzzParseTicket(f *testing.F) {
	var full Ticket
	fill(reflect.ValueOf(&full).Elem(), new(int))
	content, err := json.Marshal(full)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := parseTicket(content)
		if err != nil {
			return
		}
		again, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := parseTicket(again); err != nil || !reflect.DeepEqual(second, got) {
			t.Errorf("%+v, %v, want %+v", second, err, got)
		}
	})
}
