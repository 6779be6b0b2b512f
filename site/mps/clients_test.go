// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"testing"
)

// A daemon that names more clients than any node has is not believed.
func TestTooManyClients(t *testing.T) {
	var table []string
	for pid := range maxRows + 1 {
		table = append(table, fmt.Sprintf("%d 2 624 GPU-5c872127 4026531836 x", pid+1))
	}
	if clients, err := parseRows(table[1:]); err != nil || len(clients) != maxRows {
		t.Errorf("%d clients, %v", len(clients), err)
	}
	if clients, err := parseRows(table); err == nil {
		t.Errorf("%d clients are believed", len(clients))
	}
}
