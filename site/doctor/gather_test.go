// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"reflect"
	"testing"
)

func TestParseNamespace(t *testing.T) {
	const defaults = "# jobs\n---\ndefaults:\n  auto_base_path: true\n  base_path: \"/var/nvme\"  # a disk\n"
	for _, c := range []struct {
		name, text string
		want       namespace
	}{
		{"only a base", defaults, namespace{[]string{"/tmp", "/dev/shm"}, "/var/nvme", "x"}},
		{"folders", defaults + "  dirs: \"/dev/shm,/var/tmp\"\n  clone_ns_flags: \"CLONE_NEWPID\"\n",
			namespace{[]string{"/dev/shm", "/var/tmp"}, "/var/nvme", "x:6"}},
		{"a list", defaults + "  dirs: ['/run', /tmp]\n", namespace{[]string{"/run", "/tmp"}, "/var/nvme", "x:6"}},
		{"this node", defaults + "node_confs:\n  - nodes: [\"n[1-2]\", n4]\n    options:\n      dirs: /run\n", namespace{[]string{"/run"}, "/var/nvme", "x:9"}},
		{"another node", defaults + "node_confs:\n- nodes: \"n[2-3],n5\"\n  options:\n    dirs: /run\n    base_path: /b\n",
			namespace{[]string{"/tmp", "/dev/shm"}, "/var/nvme", "x"}},
		{"a size each", defaults + "  dir_confs:\n    - path: /tmp\n      tmpfs: true\n    - path: /dev/shm\n",
			namespace{[]string{"/tmp", "/dev/shm"}, "/var/nvme", "x:6"}},
		{"nothing", "", namespace{[]string{"/tmp", "/dev/shm"}, "", "x"}},
	} {
		if got, err := parseNamespace(c.text, "x", "n1"); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"defaults: {dirs: /tmp}\n":       `x:1: "defaults: {dirs: /tmp}" is not a key with a plain value`,
		"defaults:\n  dirs:\n  - /tmp\n": `x:3: "  - /tmp" is not a key with a plain value`,
		"defaults: &a\n":                 `x:1: "defaults: &a" is not a key with a plain value`,
	} {
		if _, err := parseNamespace(text, "x", "n1"); fmt.Sprint(err) != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
