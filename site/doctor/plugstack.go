// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// pluginFile is the name of our SPANK plugin.
const pluginFile = "slurm_mps.so"

// SpankPlugin is our plugin as a line of plugstack.conf names it.
type SpankPlugin struct {
	File
	From     string // file:line
	Required bool   // commands and steps fail without the plugin
	Release  string // of Slurm that it is built for: "22.05"; "" if it cannot be read
}

// readPlugstack finds our plugin, as plugstack.conf and its includes name it. It sets Plugstack to the file's path.
func (s *Slurm) readPlugstack() {
	s.Plugstack = s.value("PlugStackConfig")
	if s.Plugstack == "" {
		s.Plugstack = filepath.Join(filepath.Dir(s.Path), "plugstack.conf")
	}
	line, err := findPlugin(s.Plugstack, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Unread = append(s.Unread, err.Error())
	}
	if line == nil {
		return
	}
	s.Plugin = &SpankPlugin{File: look(pluginFile, s.inPluginDir(line.path)), From: line.from, Required: line.required}
	if s.Plugin.Err == nil {
		s.Plugin.Release = releaseOf(s.Plugin.Path)
	}
}

// inPluginDir is the path of a plugin: a relative one is in a folder of PluginDir=.
func (s *Slurm) inPluginDir(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	dirs := filepath.SplitList(s.value("PluginDir"))
	for _, dir := range append(dirs, pluginDirs...) {
		if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
			return filepath.Join(dir, path)
		}
	}
	return path
}

// pluginDirs are where Slurm has its plugins, if PluginDir= is not set.
var pluginDirs = []string{
	"/usr/lib/x86_64-linux-gnu/slurm-wlm", "/usr/lib/aarch64-linux-gnu/slurm-wlm",
	"/usr/lib64/slurm", "/usr/lib/slurm", "/opt/slurm/lib/slurm",
}

// pluginLine is a line of plugstack.conf.
type pluginLine struct {
	path, from string
	required   bool
}

const (
	maxPlugstack = 1 << 20 // bytes of a file that are read
	maxIncludes  = 8       // nested
)

// findPlugin returns the first line about our plugin, nil if there is none. plugstack.conf has lines like:
//
//	include /etc/slurm/plugstack.conf.d/*.conf
//	optional /usr/lib/slurm-mps/slurm_mps.so # a comment
func findPlugin(path string, depth int) (*pluginLine, error) {
	content, err := readBounded(path, maxPlugstack)
	if err != nil || depth > maxIncludes {
		return nil, errors.Join(err, tooDeep(path, depth))
	}
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		text, _, _ := strings.Cut(line, "#")
		words := strings.Fields(text)
		switch {
		case len(words) < 2:
		case strings.EqualFold(words[0], "include"):
			if found, err := findIncluded(words[1], filepath.Dir(path), depth+1); found != nil || err != nil {
				return found, err
			}
		case filepath.Base(words[1]) == pluginFile:
			return &pluginLine{words[1], fmt.Sprintf("%s:%d", path, number), strings.EqualFold(words[0], "required")}, nil
		}
	}
	return nil, nil
}

func tooDeep(path string, depth int) error {
	if depth <= maxIncludes {
		return nil
	}
	return fmt.Errorf("cannot read %s: more than %d files include one another", path, maxIncludes)
}

func findIncluded(pattern, dir string, depth int) (*pluginLine, error) {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(dir, pattern)
	}
	matched, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("cannot read include %s: %w", pattern, err)
	}
	for _, path := range matched {
		if found, err := findPlugin(path, depth); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// releaseOf reads from a plugin the release of Slurm for which it is built. Slurm compares plugin_version, which is
// 0xYYMMPP. It returns "" for another file.
func releaseOf(path string) string {
	file, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return ""
	}
	for _, s := range symbols {
		if s.Name == "plugin_version" {
			return releaseAt(file, s)
		}
	}
	return ""
}

func releaseAt(file *elf.File, s elf.Symbol) string {
	if int(s.Section) >= len(file.Sections) {
		return ""
	}
	section := file.Sections[s.Section]
	var raw [4]byte
	if _, err := section.ReadAt(raw[:], int64(s.Value-section.Addr)); err != nil {
		return ""
	}
	version := file.ByteOrder.Uint32(raw[:])
	return fmt.Sprintf("%02d.%02d", version>>16, version>>8&0xff)
}
