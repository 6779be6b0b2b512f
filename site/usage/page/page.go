// SPDX-License-Identifier: Apache-2.0

// Package page writes the report of a job as a page of HTML. The page is one file with the report's JSON in it, which
// a script of the page draws. It loads nothing from a network, so users can send it to each other.
package page

import (
	"crypto/sha256"
	_ "embed" // the template
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/slurm-mps/slurm-mps/site/usage"
	"github.com/slurm-mps/slurm-mps/site/usage/judge"
)

// template is any page: its style, and what all pages draw with. A script for each kind of page comes after that.
//
//go:embed page.html
var template string

//go:embed report.js
var reportScript string

//go:embed waste.js
var wasteScript string

// contents is the JSON in the page: the report, and the texts and means that mpsctl report prints.
type contents struct {
	judge.Judged
	Clients []client        `json:"clients"` // in place of the report's
	Figures []usage.Figure  `json:"figures"`
	Means   []usage.Sample  `json:"means"`  // by GPU
	Scales  [][]usage.Scale `json:"scales"` // by GPU and figure
	Shares  string          `json:"shares"`
	Remarks []string        `json:"remarks"`
}

type client struct {
	usage.Client
	EndText string `json:"end_text"`
	Lived   string `json:"lived,omitempty"` // which neighbours survived its end
}

// Write writes the page of a report.
func Write(w io.Writer, r judge.Job, now time.Time) error {
	c := contents{Judged: r.Judge(now), Figures: r.Figures(), Shares: r.Shares(), Remarks: []string{r.PartText(), judge.PauseText(r.Totals)}}
	for _, g := range r.GPUs {
		c.Means = append(c.Means, g.Mean(r.Begin))
		scales := []usage.Scale{}
		for _, f := range c.Figures {
			scales = append(scales, r.Scale(f, g))
		}
		c.Scales = append(c.Scales, scales)
	}
	for _, one := range r.Clients {
		c.Clients = append(c.Clients, client{one, judge.EndText(one), judge.Neighbours(one, r.GPUName(one.GPU))})
	}
	if err := write(w, c, reportScript); err != nil {
		return fmt.Errorf("cannot write the page of job %d: %w", r.Job, err)
	}
	return nil
}

// WriteWaste writes the page of mpsctl waste, from its answer.
func WriteWaste(w io.Writer, answer any) error { return write(w, answer, wasteScript) }

// write writes a page of JSON with the script that draws it. The encoder of JSON escapes what ends a script. The page's
// policy names the hash of its script, so a browser runs no other.
func write(w io.Writer, contents any, drawing string) error {
	text, err := json.Marshal(contents)
	if err != nil {
		return err
	}
	page := strings.Replace(template, "DRAWING", drawing, 1)
	_, script, _ := strings.Cut(page, "<script>")
	script, _, _ = strings.Cut(script, "</script>")
	hash := sha256.Sum256([]byte(script))
	page = strings.Replace(page, "HASH", base64.StdEncoding.EncodeToString(hash[:]), 1)
	_, err = io.WriteString(w, strings.Replace(page, "REPORT", string(text), 1))
	return err
}
