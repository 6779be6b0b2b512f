// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A grant that is written and read again is the same in each of its fields.
func TestAGrantIsReadAsItWasWritten(t *testing.T) {
	full := Grant{
		Scope: ScopeGPU, Compute: ComputeUnchanged, Share: ShareNone, Overlap: 1.333333, Ceiling: 33.3, OnFailure: FailRunWithout,
		DrainGrace: 1500 * time.Millisecond, Hold: MaxHold, Pause: MaxPause, KeepLogs: KeepOnFailure, Memory: MemoryRule{mib: 1536}, MemoryOverlap: 48,
		Low: true, MaxClients: 1, Unplaced: UnplacedDeny,
	}
	for i, v := 0, reflect.ValueOf(full); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test has no value for %s", v.Type().Field(i).Name)
		}
	}
	for _, want := range []Grant{full, DefaultGrant(), widestGrant, {}} {
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
