// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const repository = "https://github.com/slurm-mps/slurm-mps"

// programs are the folders of the programs; gpu-usage and mps-tune are links.
var programs = []string{
	"./cmd/prolog", "./cmd/epilog", "./cmd/guard", "./cmd/mpirun-wrap", "./cmd/mpsctl", "./cmd/task-prolog",
}

type release struct{ version, commit, compilers string }

// file is a file or a source with its digests, by their kinds.
type file struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

type statement struct {
	Type          string    `json:"_type"`
	Subject       []file    `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]any    `json:"internalParameters"`
		ResolvedDependencies []file            `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder map[string]string `json:"builder"`
	} `json:"runDetails"`
}

// print prints from what the files in a folder were made: the commit, Go, the C compilers, and the Go modules in the
// programs with their sums. The form is a statement of in-toto with a predicate of SLSA, which other tools can read. No
// one has signed it but the releaser, by SHA256SUMS.
func (r release) print(out io.Writer, folders []string) error {
	if len(folders) != 1 || r.version == "" || r.commit == "" {
		return errors.New("cannot print: usage: provenance -version VERSION -commit HASH -compilers TEXT FOLDER")
	}
	made, err := digests(folders[0])
	if err != nil {
		return err
	}
	modules, err := linkedModules()
	if err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", Subject: made, PredicateType: "https://slsa.dev/provenance/v1"}
	build := &s.Predicate.BuildDefinition
	build.BuildType = repository + "/blob/main/site/pkg/release.sh"
	build.ExternalParameters = map[string]string{"version": r.version}
	compilers := strings.Split(strings.TrimSpace(r.compilers), "\n")
	build.InternalParameters = map[string]any{"go": runtime.Version(), "compilers": compilers}
	commit := file{URI: "git+" + repository, Digest: map[string]string{"gitCommit": r.commit}}
	build.ResolvedDependencies = append([]file{commit}, modules...)
	s.Predicate.RunDetails.Builder = map[string]string{"id": repository + "/blob/main/Makefile"}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(s)
}

// digests returns the files of a folder with their SHA-256, by name.
func digests(folder string) ([]file, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		files = append(files, file{Name: entry.Name(), Digest: map[string]string{"sha256": sum}})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("cannot print: there is no file in %s", folder)
	}
	return files, nil
}

// linkedModules returns the modules of other authors that the programs link, with the sums of go.sum.
func linkedModules() ([]file, error) {
	out, err := exec.Command("go", append([]string{"list", "-deps", "-json=Module"}, programs...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the modules: %w", err)
	}
	found := map[string]string{}
	for packages := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Module *struct {
				Path, Version, Sum string
				Main               bool
			}
		}
		switch err := packages.Decode(&p); {
		case errors.Is(err, io.EOF):
			return sorted(found)
		case err != nil:
			return nil, fmt.Errorf("cannot read the list of modules: %w", err)
		case p.Module == nil || p.Module.Main:
		case p.Module.Sum == "":
			return nil, fmt.Errorf("cannot print: there is no sum of %s %s", p.Module.Path, p.Module.Version)
		default:
			found["pkg:golang/"+p.Module.Path+"@"+p.Module.Version] = p.Module.Sum
		}
	}
}

// sorted returns the modules by name. in-toto wants a sum of Go in hexadecimal.
func sorted(sums map[string]string) (modules []file, err error) {
	for uri, sum := range sums {
		hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
		if err != nil {
			return nil, fmt.Errorf("cannot read the sum of %s: %w", uri, err)
		}
		modules = append(modules, file{URI: uri, Digest: map[string]string{"dirHash": fmt.Sprintf("%x", hash)}})
	}
	slices.SortFunc(modules, func(a, b file) int { return strings.Compare(a.URI, b.URI) })
	return modules, nil
}
