// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// fill sets every field of a value to a distinct value that is not zero.
func fill(v reflect.Value, text string, n *int) {
	*n++
	if grant, is := v.Addr().Interface().(*policy.Grant); is {
		*grant = policy.DefaultGrant()
		grant.Share, grant.Low, grant.MaxClients = policy.Overlap(1.333333), true, *n
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), text, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), text, n)
		fill(v.Index(1), text, n)
	case reflect.String:
		v.SetString(strings.Repeat(text, *n%3+1))
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

// No field of a ticket is lost in its file, and each has the value that was written, also if texts have escapes.
func TestATicketIsReadAsItWasWritten(t *testing.T) {
	var full, plain lease.Ticket
	fill(reflect.ValueOf(&full).Elem(), "é\"\n", new(int))
	fill(reflect.ValueOf(&plain).Elem(), "/a: b,", new(int))
	for i, want := range []lease.Ticket{plain, {}, full, {Devices: []lease.TicketDevice{{}}, Daemons: []lease.Daemon{{}}}} {
		content, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		var got lease.Ticket
		direct := Read(content, &got)
		if direct != (i < 2) || direct && !reflect.DeepEqual(got, want) {
			t.Errorf("read directly: %v\n%+v\nwant\n%+v", direct, got, want)
		}
		if err := json.Unmarshal(content, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v\n%+v\nwant\n%+v", err, got, want)
		}
	}
}

// What is read without encoding/json is what encoding/json reads.
func FuzzTicket(f *testing.F) {
	var full lease.Ticket
	fill(reflect.ValueOf(&full).Elem(), "x", new(int))
	for _, ticket := range []lease.Ticket{full, {}} {
		content, err := json.MarshalIndent(ticket, "", "  ")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(content))
		for i := range content { // torn, or with a line, a quote, a comma, a digit or a bracket too few, or a comma too many
			f.Add(string(content[:i]))
			f.Add(string(content[:i]) + string(content[i+1:]))
			f.Add(string(content[:i]) + "," + string(content[i:]))
		}
	}
	for _, line := range []string{`"schema": 007`, `"schema": +1`, `"schema": 99999999999999999999`, `"job": {` + "\n" + `"id": 4294967296` + "\n}",
		`"grant": {` + "\n" + `"hold": "1x"` + "\n}", `"grant": {` + "\n" + `"ho\u006cd": "1s"` + "\n}", "\"boot\": \"\xff\""} {
		f.Add("{\n" + line + "\n}")
	}
	f.Fuzz(func(t *testing.T, content string) {
		var fast, want lease.Ticket
		if !Read([]byte(content), &fast) {
			return
		}
		if err := json.Unmarshal([]byte(content), &want); err != nil || !reflect.DeepEqual(fast, want) {
			t.Errorf("%s\n%+v\nencoding/json: %v", content, fast, err)
		}
	})
}
