// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// copyDocuments copies the documents into the packages and changes their links so that they work on a node. A link to
// a packaged file leads to the file's path there. Any other relative link leads to the project's page.
//
// The documents are the entries of site/pkg/nfpm.yaml with a source below ${BUILT}/doc. "README.md" is the source's
// README.md. Any other name is a file below docs.
func copyDocuments(top, out string) error {
	s, err := readPackaged(filepath.Join(top, "site/pkg/nfpm.yaml"))
	if err != nil {
		return err
	}
	for source, name := range s.built {
		content, err := os.ReadFile(filepath.Join(top, source))
		if err != nil {
			return fmt.Errorf("cannot copy document: %w", err)
		}
		path := filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(s.relink(source, string(content))), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// packaged lists the files of the source that the packages contain, and their paths there.
type packaged struct {
	home   string            // the project's page
	places map[string]string // by the path in the source
	built  map[string]string // the documents: their names below ${BUILT}/doc, by the path in the source
}

var homepage = regexp.MustCompile(`(?m)^homepage: (\S+)$`)

func readPackaged(list string) (packaged, error) {
	s := packaged{places: map[string]string{}, built: map[string]string{}}
	content, err := os.ReadFile(list)
	if err != nil {
		return s, fmt.Errorf("cannot read list of files: %w", err)
	}
	home := homepage.FindSubmatch(content)
	if home == nil {
		return s, fmt.Errorf("cannot read list of files: %s has no homepage", list)
	}
	s.home = string(home[1])
	entries, err := readList(list)
	if err != nil {
		return s, err
	}
	for _, e := range entries {
		source := e.Source
		if name, found := strings.CutPrefix(e.Built(), "doc/"); found {
			source = "docs/" + name
			if name == "README.md" {
				source = name
			}
			s.built[source] = name
		}
		s.places[source] = e.Target
	}
	return s, nil
}

// docLink matches a link of Markdown, and a picture of HTML: what comes before the file, the file, the anchor, and what
// comes after.
var docLink = regexp.MustCompile(`(\]\(|src(?:set)?=")([^)"\s#]+)(#[^)"\s]*)?([)"])`)

// relink returns a document in which the relative links work in the package.
func (s packaged) relink(source, text string) string {
	return docLink.ReplaceAllStringFunc(text, func(found string) string {
		m := docLink.FindStringSubmatch(found)
		if strings.Contains(m[2], "://") {
			return found
		}
		file := filepath.Join(filepath.Dir(source), m[2])
		place, held := s.places[file]
		if !held {
			return m[1] + s.home + "/blob/main/" + file + m[3] + m[4]
		}
		relative, err := filepath.Rel(filepath.Dir(s.places[source]), place)
		if err != nil {
			panic(err) // both are absolute
		}
		return m[1] + relative + m[3] + m[4]
	})
}
