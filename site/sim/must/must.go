// SPDX-License-Identifier: Apache-2.0

// Package must has what most tests ask of their set-up and of a result, in one line each.
package must

import (
	"os"
	"reflect"
	"testing"
)

// OK ends a test if a step of it has failed.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Root skips a test that needs root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// Note reports an error, and the test goes on.
func Note(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Get returns the value of a step, as in must.Get(os.Open(path))(t). It ends a test if the step has failed.
func Get[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return value
	}
}

// Equal reports a value that is not as it should be, and the test goes on.
func Equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// Hold reports that a condition does not hold, and the test goes on. The arguments are always evaluated.
func Hold(t testing.TB, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Errorf(format, args...)
	}
}

// Have is Hold, and it ends the test.
func Have(t testing.TB, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Fatalf(format, args...)
	}
}
