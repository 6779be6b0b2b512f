// SPDX-License-Identifier: Apache-2.0

package words

import "testing"

func TestNearest(t *testing.T) {
	flags := []string{"watch", "share", "slots", "slots-wait", "gpu", "v"}
	for word, want := range map[string]string{
		"wacth": "watch", "watchh": "watch", "wtach": "watch", "shares": "share", "shre": "share", "slot": "slots",
		"slotswait": "slots-wait", "sharepercent": "share",
		"gup": "gpu", "low": "", "sl": "", "wat": "watch", "x": "", "": "", "completely": "", "watch": "watch",
	} {
		if got := Nearest(word, flags); got != want {
			t.Errorf("%q is like %q, want %q", word, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"evne", "even", 1}, {"evne", "none", 2}, {"abcd", "badc", 2},
		{"ca", "abc", 3},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
