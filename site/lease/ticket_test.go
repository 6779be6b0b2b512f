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

// No field of a ticket is lost in its file, and each has the value that was written.
func TestATicketIsReadAsItWasWritten(t *testing.T) {
	var full Ticket
	fill(reflect.ValueOf(&full).Elem(), new(int))
	for _, want := range []Ticket{full, {}, {Devices: []TicketDevice{{}}, Daemons: []Daemon{{}}}} {
		content, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		var got Ticket
		if err := json.Unmarshal(content, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v\n%+v\nwant\n%+v", err, got, want)
		}
	}
}

func TestATicketThatIsTorn(t *testing.T) {
	for content, want := range map[string]string{
		``:                             "unexpected end",
		`{"schema": 1`:                 "unexpected end",
		`[]`:                           "cannot unmarshal array",
		`{"schema": "1"}`:              "cannot unmarshal string",
		`{"job": {"id": -1}}`:          "cannot unmarshal number",
		`{"grant": "even"}`:            "cannot unmarshal string",
		`{"grant": {"overlap": "49"}}`: `cannot read grant: overlap is "49": want a number from 1 to 48`,
	} {
		var got Ticket
		if err := json.Unmarshal([]byte(content), &got); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", content, got, err, want)
		}
	}
}
