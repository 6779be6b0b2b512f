// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/site"
)

// file is a file of a policy.
type file struct {
	name   string
	source []byte
	hcl    *hcl.File // nil where it cannot be parsed
}

// Version is the version of the policy language that this program reads.
const Version = 1

// The bounds of a file. hcl's parser takes stack for each level of nesting, in time that grows with its square: a file of
// 256 KiB of brackets ends the program. One of maxPlain bytes is parsed in less than a second whatever is in it.
const (
	maxFile    = 1 << 20
	maxPlain   = 32 << 10
	maxNesting = 100
	maxChoices = 1000 // operators ?: in a file
)

// parse reads a file's syntax.
func parse(f *file) hcl.Diagnostics {
	if diags := readable(f); diags.HasErrors() {
		return diags
	}
	parsed, diags := hclsyntax.ParseConfig(f.source, f.name, hcl.InitialPos)
	if !diags.HasErrors() {
		f.hcl = parsed
	}
	return diags
}

// readable refuses what the parser would not survive.
func readable(f *file) hcl.Diagnostics {
	start := hcl.Range{Filename: f.name, Start: hcl.InitialPos, End: hcl.InitialPos}
	if len(f.source) > maxFile {
		return hcl.Diagnostics{mistake(start, "Too large", "a policy file has at most %d bytes: put some of its rules into policy.d", maxFile)}
	}
	if len(f.source) <= maxPlain {
		return nil
	}
	tokens, _ := hclsyntax.LexConfig(f.source, f.name, hcl.InitialPos)
	depth, signs, choices := 0, 0, 0
	for _, token := range tokens {
		depth += nesting(token.Type)
		switch token.Type {
		case hclsyntax.TokenBang, hclsyntax.TokenMinus:
			signs++
		case hclsyntax.TokenQuestion:
			choices++
			fallthrough
		default:
			signs = 0
		}
		if depth > maxNesting || signs > maxNesting || choices > maxChoices {
			return hcl.Diagnostics{mistake(token.Range, "Nested too deeply", "a file of more than %d bytes has at most %d levels: take it apart with locals", maxPlain, maxNesting)}
		}
	}
	return nil
}

func nesting(t hclsyntax.TokenType) int {
	switch t {
	case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
		return 1
	case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd:
		return -1
	}
	return 0
}

// checkVersion comes before everything else, so that a newer file is refused for its version and not for a word of it
// that this program does not know.
func checkVersion(body hcl.Body) hcl.Diagnostics {
	content, _, diags := body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "version", Required: true}}})
	if diags.HasErrors() {
		return diags
	}
	attr := content.Attributes["version"]
	j := newTypeChecker(nil)
	s := constant(j, attr, number)
	if len(j.wrong) == 0 && s.min != Version {
		j.mistake(attr.Expr.Range(), "Unsupported version", "this program reads policies of version %d, not %s", Version, s.span())
	}
	return j.wrong
}

// CheckSyntax is nil for a text that is HCL, whatever it says, else an *Error.
func CheckSyntax(source []byte, name string) error {
	f := file{name: name, source: source}
	return complain(parse(&f), []file{f})
}

// folder is where the files are that a policy has beside policy.hcl.
const folder = "policy.d"

// Load reads the policy of a node: the file, and policy.d/*.hcl beside it in the order of their names. All of them must
// be root's own. Names that end in _test.hcl, or begin with a dot, are passed over.
func Load(path string) (*Compiled, error) {
	beside, err := site.ListRootOwned(filepath.Join(filepath.Dir(path), folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return read(append([]string{path}, ruleFiles(filepath.Dir(path), beside)...), site.ReadRootOwned)
}

// LoadFiles reads files and folders whoever owns them, as one policy in the order given: an admin's copy. A folder stands
// for its policy.hcl and its policy.d, a file for itself.
func LoadFiles(paths ...string) (*Compiled, error) {
	var all []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", path, errors.Unwrap(err))
		}
		if !info.IsDir() {
			all = append(all, path)
			continue
		}
		beside, err := namesIn(filepath.Join(path, folder))
		if err != nil {
			return nil, err
		}
		all = append(append(all, filepath.Join(path, "policy.hcl")), ruleFiles(path, beside)...)
	}
	return read(all, readAny)
}

func readAny(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, errors.Unwrap(err))
	}
	return content, nil
}

func namesIn(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read %s: %w", path, errors.Unwrap(err))
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// ruleFiles are those of a folder's names that are files of the policy.
func ruleFiles(dir string, names []string) []string {
	var paths []string
	for _, name := range names {
		if strings.HasSuffix(name, ".hcl") && !strings.HasSuffix(name, "_test.hcl") && !strings.HasPrefix(name, ".") {
			paths = append(paths, filepath.Join(dir, folder, name))
		}
	}
	return paths
}

// LoadWith reads the policy of a node as Load does, with another file in the place of policy.hcl, whoever owns that one.
func LoadWith(path, instead string) (*Compiled, error) {
	beside, err := site.ListRootOwned(filepath.Join(filepath.Dir(path), folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return read(append([]string{instead}, ruleFiles(filepath.Dir(path), beside)...), func(path string) ([]byte, error) {
		if path == instead {
			return readAny(path)
		}
		return site.ReadRootOwned(path)
	})
}

// Source is a file of a policy.
type Source struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Sources are the files that the law was read from.
func (l *Compiled) Sources() []Source {
	sources := make([]Source, len(l.files))
	for i, f := range l.files {
		sources[i] = Source{f.name, string(f.source)}
	}
	return sources
}

// ParseAll reads a policy of several files.
func ParseAll(sources []Source) (*Compiled, error) {
	files := make([]file, len(sources))
	for i, s := range sources {
		files[i] = file{name: s.Name, source: []byte(s.Text)}
	}
	return compile(files)
}

func read(paths []string, one func(string) ([]byte, error)) (*Compiled, error) {
	var files []file
	for _, path := range paths {
		source, err := one(path)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: path, source: source})
	}
	return compile(files)
}
