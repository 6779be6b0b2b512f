// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"io"
)

// WriteJSON writes a value in one line, for programs. It does not escape characters for HTML, because a finding holds
// commands, and a reader copies "&&" from them.
func WriteJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
