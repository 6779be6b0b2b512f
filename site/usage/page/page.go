// SPDX-License-Identifier: Apache-2.0

// Package page writes the answer of mpsctl waste as a page of HTML. The page is one file with the answer's JSON in it,
// which a script of the page draws. It loads nothing from a network, so users can send it to each other.
package page

import (
	"crypto/sha256"
	_ "embed" // the template
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
)

//go:embed page.html
var template string

// Write writes the page of an answer. The encoder of JSON escapes what ends a script. The page's policy names the hash of
// its script, so a browser runs no other.
func Write(w io.Writer, answer any) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_, script, _ := strings.Cut(template, "<script>")
	script, _, _ = strings.Cut(script, "</script>")
	hash := sha256.Sum256([]byte(script))
	page := strings.Replace(template, "HASH", base64.StdEncoding.EncodeToString(hash[:]), 1)
	_, err = io.WriteString(w, strings.Replace(page, "ANSWER", string(text), 1))
	return err
}
