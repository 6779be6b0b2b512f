// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Options are a user's settings for a job that asks for MPS. One grammar serves --mps=…, --comment=mps:… and
// SPANK_MPS: name=value, separated by commas, as in
//
//	share=even,scope=gpu,mem=8G
//
// Each name is there once, in the order of the attributes.
type Options []Setting

// optionNamed finds an attribute that users can set. "mem" is mpirun-wrap's name for the memory.
func optionNamed(name string) (Attribute, bool) {
	if name == "mem" {
		name = "memory"
	}
	for _, a := range attributes {
		if a.Name == name && !a.SiteOnly {
			return a, true
		}
	}
	return Attribute{}, false
}

// OptionNames returns the names of all options, which a rule's allow can list.
func OptionNames() (names []string) {
	for _, a := range attributes {
		if !a.SiteOnly {
			names = append(names, a.Name)
		}
	}
	return names
}

// maxOptions bounds the text of options. A text with all options is shorter.
const maxOptions = 512

// ParseOptions reads options. A user can write anything into the text; the error is one sentence that can be printed.
func ParseOptions(text string) (Options, error) {
	if len(text) > maxOptions {
		return nil, fmt.Errorf("cannot read options %s: %d bytes, want at most %d", quote(text), len(text), maxOptions)
	}
	if strings.Trim(text, " ") == "" {
		return nil, nil
	}
	given := map[string]string{}
	for _, item := range items(text) {
		if err := readOption(item, given); err != nil {
			return nil, fmt.Errorf("cannot read options %s: %w", quote(text), err)
		}
	}
	return inOrder(given), nil
}

// items divides a text at its commas. A percentage without a name belongs to the list before it: share=70%,30%.
func items(text string) (items []string) {
	for item := range strings.SplitSeq(text, ",") {
		item = strings.Trim(item, " ")
		number, percent := cutPercent(item)
		if _, err := millionths(number); percent && err == nil && len(items) > 0 {
			items[len(items)-1] += "," + item
			continue
		}
		items = append(items, item)
	}
	return items
}

func readOption(item string, given map[string]string) error {
	name, value, assigned := strings.Cut(item, "=")
	row, known := optionNamed(name)
	switch {
	case item == "":
		return errors.New("an option is empty: want NAME=VALUE, separated by commas")
	case name == "overlap": // an attribute of an older policy
		return errors.New("overlap is a form of share: write share=overlap:F")
	case !known:
		return fmt.Errorf("there is no option %s: want %s", quote(name), strings.Join(OptionNames(), ", "))
	case !assigned || value == "":
		return fmt.Errorf("%s has no value: want %s=VALUE", row.Name, row.Name)
	}
	if _, twice := given[row.Name]; twice {
		return fmt.Errorf("%s is given twice", row.Name)
	}
	if err := row.read(value, &Grant{}); err != nil {
		return fmt.Errorf("%s is %s: %w", row.Name, quote(value), err)
	}
	given[row.Name] = value
	return nil
}

func inOrder(given map[string]string) (o Options) {
	for _, a := range attributes {
		if value, ok := given[a.Name]; ok {
			o = append(o, Setting{a.Name, value})
		}
	}
	return o
}

// and joins the options of two texts.
func (o Options) and(other Options) (Options, error) {
	given := map[string]string{}
	for _, s := range slices.Concat(o, other) {
		if value, twice := given[s.Name]; twice && value != s.Value {
			return nil, fmt.Errorf("cannot read options: %s is %s in --mps and %s in the comment",
				s.Name, quote(value), quote(s.Value))
		}
		given[s.Name] = s.Value
	}
	return inOrder(given), nil
}

// String returns the options as ParseOptions reads them.
func (o Options) String() string {
	items := make([]string, len(o))
	for i, s := range o {
		items[i] = s.Name + "=" + s.Value
	}
	return strings.Join(items, ",")
}

// narrow returns the grant with the options applied. The rule must allow each option, and none may ask for more than
// the rule gives. The error is a sentence for the job's ticket.
func (o Options) narrow(given Grant, allow []string) (Grant, error) {
	g := given
	for _, s := range o {
		if !slices.Contains(allow, s.Name) {
			names := "no option"
			if len(allow) > 0 {
				names = strings.Join(allow, ", ") + " alone"
			}
			return Grant{}, fmt.Errorf("cannot take %s=%s: this site's policy lets this job set %s", s.Name, s.Value, names)
		}
		row, _ := optionNamed(s.Name)
		if err := row.narrow(s.Value, given, &g); err != nil {
			return Grant{}, fmt.Errorf("cannot take %s=%s: %w", s.Name, s.Value, err)
		}
	}
	return g, nil
}

// quote returns a user's text for a sentence: bounded, in ASCII, and without bytes that would break a line.
func quote(text string) string {
	const maxShown = 64
	if len(text) > maxShown {
		return strconv.QuoteToASCII(text[:maxShown]) + "…"
	}
	return strconv.QuoteToASCII(text)
}
