// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestATicketThatIsTorn(t *testing.T) {
	for content, want := range map[string]string{
		``:                                    "unexpected end",
		`{"schema": 1`:                        "unexpected end",
		`[]`:                                  "cannot unmarshal array",
		`{"schema": "1"}`:                     "cannot unmarshal string",
		`{"job": {"id": -1}}`:                 "cannot unmarshal number",
		`{"grant": "even"}`:                   "cannot unmarshal string",
		`{"grant": {"memory_overlap": "49"}}`: `cannot read grant: memory_overlap is "49": want a number from 1 to 48`,
	} {
		var got Ticket
		err := json.Unmarshal([]byte(content), &got)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", content, got, err, want)
		}
	}
}
