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
// SPANK_MPS: name=value, separated by commas. The zero value sets nothing.
type Options struct {
	settings []Setting // in the order of the attributes, each name once
}

// optionNamed finds an attribute that users can set. "mem" is mpirun-wrap's name for the memory.
func optionNamed(name string) (attribute, bool) {
	if name == "mem" {
		name = "memory"
	}
	i := slices.IndexFunc(attributes, func(a attribute) bool { return a.name == name && a.isOption() })
	if i < 0 {
		return attribute{}, false
	}
	return attributes[i], true
}

// OptionNames returns the names of all options, which a rule's allow can list.
func OptionNames() []string {
	var names []string
	for _, a := range attributes {
		if a.isOption() {
			names = append(names, a.name)
		}
	}
	return names
}

// maxOptions bounds the text of options. A text with all options is shorter.
const maxOptions = 512

// ParseOptions reads options. A user can write anything into the text; the error is one sentence that can be printed.
func ParseOptions(text string) (Options, error) {
	if len(text) > maxOptions {
		return Options{}, fmt.Errorf("cannot read options %s: %d bytes, want at most %d", quote(text), len(text), maxOptions)
	}
	if strings.Trim(text, " ") == "" {
		return Options{}, nil
	}
	given := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		if err := readOption(strings.Trim(item, " "), given); err != nil {
			return Options{}, fmt.Errorf("cannot read options %s: %w", quote(text), err)
		}
	}
	return inOrder(given), nil
}

func readOption(item string, given map[string]string) error {
	name, value, assigned := strings.Cut(item, "=")
	row, known := optionNamed(name)
	switch {
	case item == "":
		return errors.New("an option is empty: want NAME=VALUE, separated by commas")
	case !known:
		return fmt.Errorf("there is no option %s: want %s", quote(name), strings.Join(OptionNames(), ", "))
	case !assigned || value == "":
		return fmt.Errorf("%s has no value: want %s=VALUE", row.name, row.name)
	}
	if _, twice := given[row.name]; twice {
		return fmt.Errorf("%s is given twice", row.name)
	}
	var scratch Grant
	if err := row.narrow(value, widestGrant, &scratch); err != nil {
		return fmt.Errorf("%s is %s: %w", row.name, quote(value), err)
	}
	given[row.name] = value
	return nil
}

func inOrder(given map[string]string) Options {
	var o Options
	for _, a := range attributes {
		if value, ok := given[a.name]; ok {
			o.settings = append(o.settings, Setting{a.name, value})
		}
	}
	return o
}

// and joins the options of two texts.
func (o Options) and(other Options) (Options, error) {
	given := map[string]string{}
	for _, s := range slices.Concat(o.settings, other.settings) {
		if value, twice := given[s.Name]; twice && value != s.Value {
			return Options{}, fmt.Errorf("cannot read options: %s is %s in --mps and %s in the comment", s.Name, quote(value), quote(s.Value))
		}
		given[s.Name] = s.Value
	}
	return inOrder(given), nil
}

// Settings returns the options one by one.
func (o Options) Settings() []Setting { return slices.Clone(o.settings) }

// String returns the options as ParseOptions reads them.
func (o Options) String() string {
	items := make([]string, len(o.settings))
	for i, s := range o.settings {
		items[i] = s.Name + "=" + s.Value
	}
	return strings.Join(items, ",")
}

// Narrow returns the grant with the options applied. The rule must allow each option, and none may ask for more than
// the rule gives. The error is a sentence for the job's ticket.
func (o Options) Narrow(given Grant, allow []string) (Grant, error) {
	g := given
	for _, s := range o.settings {
		if !slices.Contains(allow, s.Name) {
			return Grant{}, fmt.Errorf("cannot take %s=%s: this site's policy lets this job set %s", s.Name, s.Value, listOr(allow, "no option"))
		}
		row, _ := optionNamed(s.Name)
		if err := row.narrow(s.Value, given, &g); err != nil {
			return Grant{}, fmt.Errorf("cannot take %s=%s: %w", s.Name, s.Value, err)
		}
	}
	return g, nil
}

func listOr(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ") + " alone"
}

// quote returns a user's text for a sentence: bounded, in ASCII, and without bytes that would break a line.
func quote(text string) string {
	const maxShown = 64
	if len(text) > maxShown {
		return strconv.QuoteToASCII(text[:maxShown]) + "…"
	}
	return strconv.QuoteToASCII(text)
}
