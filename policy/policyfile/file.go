// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/site/osfile"
	"github.com/zclconf/go-cty/cty"
)

type file struct {
	name   string
	source []byte
	hcl    *hcl.File // the part that can be parsed, nil if there is none
}

func (f *file) start() hcl.Range {
	return hcl.Range{Filename: f.name, Start: hcl.InitialPos, End: hcl.InitialPos}
}

// version is the version of the policy language that this program reads.
const version = 1

// These bound a file. hcl's parser uses stack for each level, and 64 KiB of brackets would end the program.
const (
	maxFile   = 256 << 10
	maxNested = 10000
)

// nesting lists the tokens that open a level.
var nesting = []hclsyntax.TokenType{
	hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp,
	hclsyntax.TokenTemplateControl, hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion,
}

// operatorHints are for the operators of other languages.
var operatorHints = map[string]string{
	"=":   " A comparison is written ==.",
	"in":  " Whether a list has a value is written contains(LIST, VALUE).",
	"and": " It is written &&.",
	"or":  " It is written ||.",
}

func parse(f *file) hcl.Diagnostics {
	if len(f.source) > maxFile {
		return tooLarge(f, maxFile, "bytes")
	}
	tokens, _ := hclsyntax.LexConfig(f.source, f.name, hcl.InitialPos)
	levels := 0
	for _, token := range tokens {
		if slices.Contains(nesting, token.Type) {
			levels++
		}
	}
	if levels > maxNested {
		return tooLarge(f, maxNested, "brackets, signs and choices")
	}
	parsed, diags := hclsyntax.ParseConfig(f.source, f.name, hcl.InitialPos)
	for _, d := range diags {
		if d.Summary == "Invalid multi-line string" { // hcl repeats this for every line that follows
			detail := "a string ends in the line in which it begins: write the closing quote"
			return hcl.Diagnostics{Mistake(*d.Subject, "Open string", "%s", detail)}
		}
		if d.Subject.CanSliceBytes(f.source) {
			d.Detail += operatorHints[string(d.Subject.SliceBytes(f.source))]
		}
	}
	f.hcl = intact(parsed, diags)
	return diags
}

func tooLarge(f *file, most int, what string) hcl.Diagnostics {
	return hcl.Diagnostics{Mistake(f.start(), "Too large",
		"a policy file has at most %d %s: put some of its rules into policy.d", most, what)}
}

// intact returns a parsed file without the rules that have a mistake in syntax. It is nil if the mistake is
// elsewhere, because the rules depend on the rest.
func intact(parsed *hcl.File, diags hcl.Diagnostics) *hcl.File {
	whole := parsed.Body.(*hclsyntax.Body)
	body, explained := *whole, 0
	body.Blocks = nil
	for _, block := range whole.Blocks {
		mistakes := 0
		for _, d := range diags {
			if block.Range().ContainsPos(d.Subject.Start) {
				mistakes++
			}
		}
		if mistakes == 0 {
			body.Blocks = append(body.Blocks, block)
		} else if block.Type == "rule" {
			explained += mistakes
		}
	}
	if explained < len(diags) {
		return nil
	}
	return &hcl.File{Body: &body, Bytes: parsed.Bytes, Nav: parsed.Nav}
}

// open parses a file and checks its version before everything else. So a newer file is refused for its version, and
// not for a word that this program does not know. It returns false if the rest is not to be read.
func (c *typeChecker) open(f *file) bool {
	if c.wrong = append(c.wrong, parse(f)...); f.hcl == nil {
		return false
	}
	before := len(c.wrong)
	content, _, diags := f.hcl.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "version"}}})
	if c.wrong = append(c.wrong, diags...); len(c.wrong) > before {
		return false
	}
	attr := content.Attributes["version"]
	if attr == nil {
		c.mistake(f.start(), "Missing version", "a file begins with version = %d, outside of every block", version)
		return true
	}
	if v, ok := c.constantOf(attr, cty.Number); ok && float(v) != version {
		c.mistake(attr.Expr.Range(), "Unsupported version",
			"this program reads policies of version %d, not %s", version, decimal(float(v)))
	}
	return len(c.wrong) == before
}

// folder is the folder of the files beside policy.hcl.
const folder = "policy.d"

// Load reads the policy of a node: the file, and policy.d/*.hcl beside it in the order of their names. Root must own
// all of them. Names that begin with a dot are ignored.
func Load(path string) (*Compiled, error) {
	dir := filepath.Join(filepath.Dir(path), folder)
	names, err := osfile.ListRootOwned(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return read(append([]string{path}, ruleFiles(dir, names)...), osfile.ReadRootOwned)
}

// LoadFiles reads files and folders of any owner as one policy, in the given order. A folder is its policy.hcl and
// its policy.d.
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
		dir := filepath.Join(path, folder)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read %s: %w", dir, errors.Unwrap(err))
		}
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		all = append(append(all, filepath.Join(path, "policy.hcl")), ruleFiles(dir, names)...)
	}
	return read(all, ReadAny)
}

// ReadAny reads a file of any owner.
func ReadAny(path string) ([]byte, error) {
	return osfile.ReadAny(path)
}

// formerCases end the names of files with cases of a policy, which earlier versions had.
const formerCases = "_test.hcl"

// ruleFiles returns the paths of the names in policy.d that are files of the policy.
func ruleFiles(dir string, names []string) (paths []string) {
	for _, name := range names {
		if strings.HasSuffix(name, ".hcl") && !strings.HasPrefix(name, ".") && !strings.HasSuffix(name, formerCases) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}

type source struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Sources returns the files that the policy was read from.
func (c *Compiled) Sources() []source {
	sources := make([]source, len(c.files))
	for i, f := range c.files {
		sources[i] = source{f.name, string(f.source)}
	}
	return sources
}

// Bodies returns the syntax of the policy's files.
func (c *Compiled) Bodies() []*hclsyntax.Body {
	bodies := make([]*hclsyntax.Body, len(c.files))
	for i, f := range c.files {
		bodies[i] = f.hcl.Body.(*hclsyntax.Body)
	}
	return bodies
}

// Constant returns the value of an expression of the policy that does not depend on the job.
func (c *Compiled) Constant(e hclsyntax.Expression) (v cty.Value, ok bool) {
	v, ok, _ = constant(e, c.fixed, functions())
	return v, ok
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
