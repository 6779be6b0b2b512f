// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchivesOfMeasurements checks that each archive of raw files has reproducible bytes, and that the table "Raw
// data" of the README.md in it describes each of its files and no other.
func TestArchivesOfMeasurements(t *testing.T) {
	archives, err := filepath.Glob("../../../docs/measurements/*/raw.tar.gz")
	if err != nil || len(archives) < 5 {
		t.Fatalf("archives %q, %v", archives, err)
	}
	for _, archive := range archives {
		names, readme := members(t, archive)
		described := patterns(readme)
		used := map[string]bool{}
		for _, name := range names {
			found := path.Base(name) == "README.md"
			for _, pattern := range described {
				if match, err := path.Match(pattern, name); err != nil {
					t.Errorf("%s: %s: %v", archive, pattern, err)
				} else if match {
					found, used[pattern] = true, true
				}
			}
			if !found {
				t.Errorf("%s: the README.md in it does not describe %s", archive, name)
			}
		}
		for _, pattern := range described {
			if !used[pattern] {
				t.Errorf("%s: the README.md in it describes %s, which is not in it", archive, pattern)
			}
		}
	}
}

// TestFewMeasurements checks that raw files go into archives: beside these, a reader finds few files.
func TestFewMeasurements(t *testing.T) {
	const limit = 44 // a campaign adds two
	files := 0
	err := filepath.WalkDir("../../../docs/measurements", func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files++
		}
		return err
	})
	if err != nil || files > limit {
		t.Errorf("%d files, and %d may be: add raw files to a raw.tar.gz by site/lab/raw.sh; %v", files, limit, err)
	}
}

var rawFile = regexp.MustCompile("`([^`\n/]+/[^`\n/]+)`")

// patterns returns the names of files in the table "Raw data". A name may have a *.
func patterns(readme string) (all []string) {
	_, section, _ := strings.Cut(readme, "\n## Raw data\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range rawFile.FindAllStringSubmatch(cells[1], -1) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// members returns the files of an archive, and its README.md. An archive of site/lab/raw.sh is sorted, and has no times
// and no owners.
func members(t *testing.T, archive string) (names []string, readme string) {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatalf("%s: %v", archive, err)
	}
	if !unzipped.ModTime.IsZero() || unzipped.Name != "" {
		t.Errorf("%s has the time or the name of its file in it: make it by site/lab/raw.sh", archive)
	}
	last := ""
	for reader := tar.NewReader(unzipped); ; {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return names, readme
		}
		if err != nil {
			t.Fatalf("%s: %v", archive, err)
		}
		if entry.ModTime.Unix() != 0 || entry.Uid != 0 || entry.Gid != 0 {
			t.Errorf("%s: %s has a time or an owner: make the archive by site/lab/raw.sh", archive, entry.Name)
		}
		if entry.Typeflag == tar.TypeDir {
			last = "" // the folders are in the order of the command
			continue
		}
		if entry.Name <= last {
			t.Errorf("%s: %s is not in order: make the archive by site/lab/raw.sh", archive, entry.Name)
		}
		last = entry.Name
		names = append(names, entry.Name)
		if path.Base(entry.Name) == "README.md" {
			content, err := io.ReadAll(reader)
			if err != nil {
				t.Fatalf("%s: %v", archive, err)
			}
			readme = string(content)
		}
	}
}
