// SPDX-License-Identifier: Apache-2.0

// Package direct reads a ticket in less time than encoding/json, which would first make tables of all fields, for 0.1 ms
// of each rank's start. Root's programs do not link it.
package direct

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/lease"
)

// Read reads what WriteTicket writes, by the tags of the struct. It returns false for any other form, which
// encoding/json then reads or refuses; t is undefined then.
func Read(content []byte, t *lease.Ticket) bool {
	w := written{rest: string(content)}
	line, _ := w.take("")
	return w.value(reflect.ValueOf(t).Elem(), line) && w.rest == "" && !w.more
}

// written is what json.MarshalIndent has written: a value on each line, and the fields in the order of their struct.
type written struct {
	rest string
	more bool // the last line ended with a comma, or began a struct or a list
}

// take removes the next line if it begins with a text, and returns what follows the text.
func (w *written) take(begin string) (value string, found bool) {
	line, rest, _ := strings.Cut(w.rest, "\n")
	value, found = strings.CutPrefix(strings.TrimLeft(line, " "), begin)
	if found {
		w.rest = rest
		value, w.more = strings.CutSuffix(value, ",")
	}
	return value, found
}

// value sets v to a value of which the first line is given. It returns false for what it does not read, or not as
// encoding/json would.
func (w *written) value(v reflect.Value, line string) (ok bool) {
	switch {
	case line == "{" || line == "[":
		comma := w.more
		w.more = true
		return !comma && w.inside(v, line)
	case v.Kind() == reflect.String:
		line, ok = unquoted(line)
		v.SetString(line)
		return ok
	case v.Kind() == reflect.Bool:
		v.SetBool(line == "true")
		return strconv.FormatBool(v.Bool()) == line
	case v.CanInt():
		n, _ := strconv.ParseInt(line, 10, 64)
		v.SetInt(n)
		return strconv.FormatInt(v.Int(), 10) == line
	case v.CanUint():
		n, _ := strconv.ParseUint(line, 10, 64)
		v.SetUint(n)
		return strconv.FormatUint(v.Uint(), 10) == line
	}
	return false
}

// inside reads a struct or a list from its second line to its last.
func (w *written) inside(v reflect.Value, bracket string) (ok bool) {
	end := "}"
	switch {
	case bracket == "[":
		end, ok = "]", v.Kind() == reflect.Slice && w.list(v)
	case v.Type() == reflect.TypeFor[policy.Grant]():
		ok = w.grant(v)
	case v.Kind() == reflect.Struct:
		ok = w.fields(v)
	}
	if !ok || w.more {
		return false
	}
	after, found := w.take(end)
	return found && after == ""
}

// fields sets the fields that have a line.
func (w *written) fields(v reflect.Value) bool {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous {
			if !w.fields(v.Field(i)) {
				return false
			}
		} else if w.more {
			line, found := w.take(`"` + name + `": `)
			if found && !w.value(v.Field(i), line) {
				return false
			}
		}
	}
	return true
}

func (w *written) list(v reflect.Value) bool {
	for w.more {
		line, _ := w.take("")
		v.Grow(1)
		v.SetLen(v.Len() + 1)
		if !w.value(v.Index(v.Len()-1), line) {
			return false
		}
	}
	return true
}

// grant reads the settings of a grant, which are texts.
func (w *written) grant(v reflect.Value) bool {
	texts := map[string]string{}
	for w.more {
		line, _ := w.take("")
		name, value, _ := strings.Cut(line, ": ")
		name, plain1 := unquoted(name)
		value, plain2 := unquoted(value)
		if !plain1 || !plain2 {
			return false
		}
		texts[name] = value
	}
	grant, err := policy.ReadGrant(texts)
	*v.Addr().Interface().(*policy.Grant) = grant
	return err == nil
}

// unquoted returns a text that is written without an escape.
func unquoted(line string) (text string, plain bool) {
	text, begins := strings.CutPrefix(line, `"`)
	text, ends := strings.CutSuffix(text, `"`)
	escaped := func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }
	return text, begins && ends && !strings.ContainsFunc(text, escaped)
}
